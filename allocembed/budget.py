"""The hard token budget: grids, their exact cost, and the projection that never exceeds it.

A chunk with a grid of `rows × cols` tokens costs exactly `rows * cols` of the tokens that the language model reads.
`project` turns requested scales into such grids (equation 3 of the paper): it finds the largest common multiplier that
fits, then spends the remaining tokens chunk by chunk. It is vectorised over videos, because training projects every
rollout.
"""

import re
from dataclasses import dataclass
from typing import Self

import numpy as np

from allocembed.errors import BudgetError
from allocembed.words import counted

BASE_FRAMES = 8  # "Base embeds 8 uniformly sampled frames at the original resolution" (paper, appendix A.2)
CANDIDATES = 24  # "the other methods begin with 24 candidate frames" (ibid.)
SCALE_RANGE = (0.2, 1.8)  # table 4
LARGEST_BUDGET = 10**9  # tokens or frames: far above any model, far below integer overflow
EXTREME = 1e9  # scales beyond it, or below its inverse, are limited
LARGEST_SCALE = 1000.0  # of a range: no model reads such frames, and their tokens can still be counted
_NUDGE = 1e-9  # lifts a scale over the rounding edge it was computed from
_BISECTIONS = 40


@dataclass(frozen=True, order=True)
class Grid:
    """Visual tokens of one chunk, as rows × cols.

    >>> Grid(22, 40).tokens
    880
    """

    rows: int
    cols: int

    @property
    def tokens(self) -> int:
        return self.rows * self.cols


@dataclass(frozen=True)
class Budget:
    """Most visual tokens that a video may cost: the cost of N native frames of that video, or a number of tokens.

    >>> Budget.parse("8f")
    Budget(frames=8, limit=None)
    >>> Budget.parse("8f").tokens(Grid(22, 40), available=500)
    3520
    >>> Budget.parse("8f").tokens(Grid(22, 40), available=3)
    1760
    >>> Budget.parse("8f").tokens(Grid(7, 10), available=500, frames_per_chunk=1)
    560
    >>> Budget.parse("2048").tokens(Grid(22, 40), available=500)
    2048
    """

    frames: int | None = BASE_FRAMES
    limit: int | None = None

    def __post_init__(self) -> None:
        if (self.frames is None) == (self.limit is None):
            raise BudgetError('a budget is either frames or tokens: Budget(frames=8) or Budget.parse("2048")')
        amount = self.frames if self.limit is None else self.limit
        if isinstance(amount, bool) or not isinstance(amount, int | np.integer) or not 1 <= amount <= LARGEST_BUDGET:
            raise BudgetError(f"a budget must be a whole number from 1 to {LARGEST_BUDGET:,}, not {amount!r}")

    @classmethod
    def parse(cls, text: str | int | Self) -> Self:
        """Parse "8f" (native frames) or "2048" (tokens). An int means tokens; a Budget is returned as it is."""
        if isinstance(text, Budget):
            return text
        match = re.fullmatch(r"\s*(\d{1,1000})\s*(f|frames?)?\s*", str(text), re.IGNORECASE)
        if not match:
            raise BudgetError(f"cannot read the budget {text!r}: write 8f for 8 native frames, or 2048 for tokens")
        amount = int(match[1])
        return cls(frames=amount) if match[2] else cls(frames=None, limit=amount)

    @property
    def base_frames(self) -> int:
        """Frames that the method `base` embeds under this budget."""
        return BASE_FRAMES if self.frames is None else self.frames

    @property
    def unit(self) -> str:
        """Words that say what a relative cost of 1.000× is under this budget.

        >>> Budget.parse("16f").unit, Budget.parse("2048").unit
        ('1.000× = 16 frames at native size', '1.000× = 8 frames at native size')
        """
        return f"1.000× = {counted(self.base_frames, 'frame')} at native size"

    def tokens(self, native: Grid, available: int, frames_per_chunk: int = 2) -> int:
        """Tokens that this budget allows a video of `available` frames with the native grid `native`."""
        if self.limit is not None:
            return self.limit
        return base_cost(native, self.base_frames, available, frames_per_chunk)

    def __str__(self) -> str:
        return f"{self.frames}f" if self.limit is None else str(self.limit)


@dataclass(frozen=True)
class Allocation:
    """Frames (positions in the clip), scale and grid of each chunk, and the exact cost."""

    frames: tuple[tuple[int, ...], ...]
    scales: tuple[float, ...]
    grids: tuple[Grid, ...]
    native: Grid
    budget: int
    base_cost: int
    """Tokens of Base for this video."""
    base_frames: int = BASE_FRAMES
    """Frames that Base embeds of this video, at native size."""
    look_tokens: int = 0
    """Tokens read to find this allocation, besides its cost: those of the language model or, in a family without one,
    of the vision tower. Only some methods read any."""
    look_tower_tokens: int = 0
    """Visual tokens that the vision tower made to find this allocation."""

    @property
    def cost(self) -> int:
        """Visual tokens the language model reads."""
        return sum(grid.tokens for grid in self.grids)

    @property
    def relative_cost(self) -> float:
        """Cost in units of Base's cost for this same video."""
        return self.cost / self.base_cost

    def __len__(self) -> int:
        return len(self.grids)


def base_cost(native: Grid, frames: int, available: int, frames_per_chunk: int = 2) -> int:
    """Tokens of the method `base`: `frames` native frames, or all `available` ones if there are fewer.

    >>> base_cost(Grid(6, 8), 8, 1000), base_cost(Grid(6, 8), 8, 5), base_cost(Grid(6, 8), 8, 1)
    (192, 144, 48)
    """
    return native.tokens * chunk_count(min(frames, available), frames_per_chunk)


def chunk_count(frames: int, frames_per_chunk: int = 2) -> int:
    """Number of chunks that `frames` frames make; the last chunk may be incomplete.

    >>> [chunk_count(n) for n in (1, 2, 3, 24)], chunk_count(24, frames_per_chunk=1)
    ([1, 1, 2, 12], 24)
    """
    return -(-frames // frames_per_chunk)


def chunk_frames(kept: np.ndarray, frames_per_chunk: int = 2) -> tuple[tuple[int, ...], ...]:
    """Group kept frames into chunks. The last frame is repeated to fill the last chunk, as the backbones do.

    >>> chunk_frames(np.array([0, 3, 5])), chunk_frames(np.array([0, 3]), frames_per_chunk=1)
    (((0, 3), (5, 5)), ((0,), (3,)))
    """
    padded = np.pad(kept, (0, -len(kept) % frames_per_chunk), mode="edge").reshape(-1, frames_per_chunk)
    return tuple(tuple(chunk) for chunk in padded.tolist())


def grids_at(scales: np.ndarray, native: np.ndarray) -> np.ndarray:
    """Rows and cols at each scale: scales (..., C) and native grids (..., 2) give grids (..., C, 2).

    >>> grids_at(np.array([0.2, 0.5, 1.0]), np.array([6, 8])).tolist()
    [[1, 2], [3, 4], [6, 8]]
    """
    exact = scales[..., None] * native[..., None, :]
    return np.maximum(np.floor(exact + 0.5), 1).astype(np.int64)


def check_range(scale_range: tuple[float, float]) -> tuple[float, float]:
    """Return the range as floats; raise BudgetError if it is empty, reversed, not positive or too large to count."""
    low, high = (float(bound) for bound in scale_range)
    if not (0 < low <= high <= LARGEST_SCALE):
        raise BudgetError(
            f"the scale range must be 0 < s_min ≤ s_max ≤ {LARGEST_SCALE:g}, such as 0.2 1.8; got {low:g} {high:g}"
        )
    return low, high


def project(
    scales: np.ndarray,
    native: np.ndarray | Grid,
    budget: np.ndarray | int,
    scale_range: tuple[float, float] = SCALE_RANGE,
    *,
    grow: bool = True,
    rungs: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Project scales onto a token budget. The returned grids never cost more than the budget.

    `scales` is (C,) or (V, C), positive; NaN marks padding in videos with fewer chunks. `native` is a Grid or (V, 2),
    `budget` a number or (V,). With `grow=False` no chunk gets a larger scale than requested. Returns the realised
    scales (V, C) and grids (V, C, 2), zero where padded, without the V axis if `scales` had none. A chunk with a larger
    requested scale never gets a smaller grid. With `rungs`, all scales are on a ladder of that many steps, which
    spends a little less of the budget: training then meets fewer different sizes.

    >>> realised, grids = project(np.array([0.4, 1.2, 0.8]), Grid(6, 8), 96)
    >>> grids.tolist(), int(grids.prod(-1).sum())
    ([[3, 3], [7, 9], [4, 6]], 96)
    """
    low, high = check_range(scale_range)
    requested = np.atleast_2d(np.asarray(scales, dtype=np.float64))
    if not np.all(np.isfinite(budget)) or np.any(np.asarray(budget) > LARGEST_BUDGET):
        raise BudgetError(f"a budget must be a whole number from 1 to {LARGEST_BUDGET:,}, not {budget}")
    native = np.asarray([native.rows, native.cols] if isinstance(native, Grid) else native, dtype=np.int64)
    native = np.broadcast_to(native, (len(requested), 2))
    budget = np.broadcast_to(np.asarray(budget, dtype=np.int64), (len(requested),))
    valid = ~np.isnan(requested)
    if not (valid.any(-1).all() and np.all(requested[valid] > 0) and np.all(np.isfinite(requested[valid]))):
        raise BudgetError("scales must be positive and finite, at least one for every video")
    falling = -np.where(valid, requested, 0)  # as requested: limits make scales equal that were not
    requested = _limited(requested, ratios_only=grow)

    # Sorted by falling scale, the promised order holds exactly if grids never grow from left to right.
    order = np.lexsort((np.broadcast_to(_spread(requested.shape[1]), requested.shape), falling))
    sorted_requests = np.take_along_axis(np.where(valid, requested, np.nan), order, 1)
    ladder = np.geomspace(low, high, rungs) if rungs > 1 else None
    realised = _fit(sorted_requests, native, budget, low, high, grow, ladder)
    unsorted = np.empty_like(realised)
    np.put_along_axis(unsorted, order, realised, 1)
    grids = np.where(valid[..., None], grids_at(np.where(valid, unsorted, low), native), 0)
    centred = np.where(valid, np.clip(scales_of(grids, native), low, high) if ladder is None else unsorted, 0.0)
    return (centred, grids) if np.ndim(scales) == 2 else (centred[0], grids[0])


def _limited(requested: np.ndarray, *, ratios_only: bool) -> np.ndarray:
    """Requested scales (V, C) in a range that cannot overflow the multiplier.

    If only their ratios matter, extreme ones are first divided by the largest. Otherwise none may rise above its
    request.
    """
    if not ratios_only:
        return np.clip(requested, 1 / EXTREME, EXTREME)
    largest = np.nanmax(requested, 1, keepdims=True)
    extreme = (largest > EXTREME) | (np.nanmin(requested, 1, keepdims=True) < 1 / EXTREME)
    return np.where(extreme, np.maximum(requested / largest, 1 / EXTREME), requested)


def scales_of(grids: np.ndarray, native: np.ndarray) -> np.ndarray:
    """The middle of the range of scales that gives each grid: grids (V, C, 2) to scales (V, C).

    >>> scales_of(np.array([[[6, 8], [3, 4]]]), np.array([[6, 8]])).tolist()
    [[1.0, 0.5]]
    """
    # A side has at least one token, so every smaller scale gives one token too.
    lowest = (np.where(grids > 1, grids - 0.5, 0) / native[:, None, :]).max(-1)
    highest = ((grids + 0.5) / native[:, None, :]).min(-1)
    return (lowest + highest) / 2


def _spread(count: int) -> np.ndarray:
    """Ranks that scatter equal chunks over time (bit-reversed order), so that spare tokens are not all spent early.

    >>> _spread(5).tolist()
    [0, 3, 2, 4, 1]
    """
    width = max(count - 1, 1).bit_length()
    reversed_bits = [int(format(i, f"0{width}b")[::-1], 2) for i in range(count)]
    return np.argsort(np.argsort(reversed_bits))


def _fit(
    requested: np.ndarray,
    native: np.ndarray,
    budget: np.ndarray,
    low: float,
    high: float,
    grow: bool,
    ladder: np.ndarray | None,
) -> np.ndarray:
    """Realised scales for requested scales in falling order; NaN stays NaN. On a ladder, each goes to a lower rung."""

    def tokens(at: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(at), 0, grids_at(np.nan_to_num(at, nan=low), native).prod(-1))

    def scaled(multiplier: np.ndarray) -> np.ndarray:
        at = np.clip(requested * multiplier[:, None], low, high)
        if ladder is None:
            return at
        rung = np.searchsorted(ladder, np.nan_to_num(at, nan=low) * (1 + _NUDGE), side="right") - 1
        return np.where(np.isnan(at), np.nan, ladder[np.maximum(rung, 0)])

    smallest = tokens(np.where(np.isnan(requested), requested, low)).sum(-1)
    if np.any(smallest > budget):
        worst = int(np.argmax(smallest - budget))
        raise BudgetError(
            f"the budget of {budget[worst]} tokens is too small: even at scale {low:g} the "
            f"{int((~np.isnan(requested[worst])).sum())} chunks cost {smallest[worst]}. Raise the budget to at least "
            f"{smallest[worst]}, use fewer candidates, or lower the minimum of the scale range."
        )
    most = np.ones(len(requested)) if not grow else high / np.nanmin(requested, 1)
    least = np.minimum(low / np.nanmax(requested, 1), most)
    fits = tokens(scaled(most)).sum(-1) <= budget
    least = np.where(fits, most, least)
    for _ in range(_BISECTIONS):
        middle = (least + most) / 2
        fits = tokens(scaled(middle)).sum(-1) <= budget
        least, most = np.where(fits, middle, least), np.where(fits, most, middle)

    at = scaled(least)
    if ladder is not None:
        return at
    ceiling = np.full_like(at, high) if grow else np.clip(requested, low, high)
    return _spend_rest(at, requested, native, budget - tokens(at).sum(-1), ceiling)


def _spend_rest(
    at: np.ndarray, requested: np.ndarray, native: np.ndarray, rest: np.ndarray, ceiling: np.ndarray
) -> np.ndarray:
    """Raise single chunks to their next grid while tokens remain, in the order the common multiplier reaches them."""
    at, rest = at.copy(), rest.copy()
    active = np.arange(len(at))
    while len(active):
        here, size = at[active], native[active]
        grids = grids_at(np.nan_to_num(here, nan=1.0), size)
        following = ((grids + 0.5) / size[:, None, :]).min(-1) * (1 + _NUDGE)
        price = grids_at(following, size).prod(-1) - grids.prod(-1)
        left = np.concatenate([np.full((len(here), 1), np.inf), here[:, :-1]], 1)
        in_order = (grids_at(np.nan_to_num(left, posinf=1e6), size) >= grids_at(following, size)).all(-1)
        allowed = ~np.isnan(here) & (following <= ceiling[active]) & in_order & (price <= rest[active, None])
        urgency = np.where(allowed, following / requested[active], np.inf)
        pick = np.argmin(urgency, 1)
        found = np.isfinite(urgency[np.arange(len(active)), pick])
        active, pick = active[found], pick[found]
        at[active, pick] = following[found, pick]
        rest[active] -= price[found, pick]
    return at
