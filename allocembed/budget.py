"""The budget as a promise: grids, their exact cost in tokens, and the projection that never exceeds it.

A chunk (two frames) that is given `rows × cols` merged tokens costs exactly `rows * cols` of the tokens the
language model reads. `project` turns wished-for scales into such grids (equation 3 of the paper): it finds
the largest common multiplier that fits, then spends what is left chunk by chunk. Everything is vectorised
over videos, because training projects every rollout.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

BASE_FRAMES = 8  # "Base embeds 8 uniformly sampled frames at the original resolution" (paper, appendix A.2)
CANDIDATES = 24  # "the other methods begin with 24 candidate frames" (ibid.)
SCALE_RANGE = (0.2, 1.8)  # table 4
FRAMES_PER_CHUNK = 2  # the temporal patch of the Qwen vision towers
LARGEST = 10**9  # tokens or frames: far above any model, far below what overflows
_NUDGE = 1e-9  # lifts a scale over the rounding edge it was computed from
_BISECTIONS = 40


class BudgetError(ValueError):
    """No allocation can meet the budget; the message names the smallest one that could be met."""


@dataclass(frozen=True, order=True)
class Grid:
    """Merged visual tokens of one chunk, as rows × cols.

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
    """The most visual tokens a video may cost: so many native frames of that video, or so many tokens.

    >>> Budget.parse("8f")
    Budget(frames=8, limit=None)
    >>> Budget.parse("8f").tokens(Grid(22, 40), available=500)
    3520
    >>> Budget.parse("8f").tokens(Grid(22, 40), available=3)
    1760
    >>> Budget.parse("2048").tokens(Grid(22, 40), available=500)
    2048
    """

    frames: int | None = BASE_FRAMES
    limit: int | None = None

    def __post_init__(self) -> None:
        if (self.frames is None) == (self.limit is None):
            raise BudgetError('a budget is either frames or tokens: Budget(frames=8), or Budget.parse("2048")')
        amount = self.frames if self.limit is None else self.limit
        if isinstance(amount, bool) or not isinstance(amount, int | np.integer) or not 1 <= amount <= LARGEST:
            raise BudgetError(f"a budget must be a whole number from 1 to {LARGEST:,}, not {amount!r}")

    @classmethod
    def parse(cls, text: str | int | Budget) -> Budget:
        """Reads "8f" (native frames) or "2048" (tokens); an int means tokens; a Budget passes through."""
        if isinstance(text, Budget):
            return text
        match = re.fullmatch(r"\s*(\d+)\s*(f|frames?)?\s*", str(text), re.IGNORECASE)
        if not match:
            raise BudgetError(f"cannot read the budget {text!r}: write 8f for 8 native frames, or 2048 for tokens")
        amount = int(match[1])
        return cls(frames=amount) if match[2] else cls(frames=None, limit=amount)

    @property
    def base_frames(self) -> int:
        """Frames that Base embeds under this budget."""
        return BASE_FRAMES if self.frames is None else self.frames

    @property
    def unit(self) -> str:
        """What costs are relative to under this budget, for whoever prints them.

        >>> Budget.parse("16f").unit, Budget.parse("2048").unit
        ('1.000× = 16 frames at native size', '1.000× = 8 frames at native size')
        """
        return f"1.000× = {self.base_frames} frames at native size"

    def tokens(self, native: Grid, available: int) -> int:
        """Tokens this budget allows a video of `available` frames whose native grid is `native`."""
        return base_cost(native, self.base_frames, available) if self.limit is None else self.limit

    def __str__(self) -> str:
        return f"{self.frames}f" if self.limit is None else str(self.limit)


@dataclass(frozen=True)
class Allocation:
    """What every chunk gets: its frames (positions in the clip), its scale, its grid; and the exact cost."""

    frames: tuple[tuple[int, int], ...]
    scales: tuple[float, ...]
    grids: tuple[Grid, ...]
    native: Grid
    budget: int
    base_cost: int

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


def base_cost(native: Grid, frames: int, available: int) -> int:
    """Tokens of Base: `frames` native frames, or all `available` ones where there are fewer.

    >>> base_cost(Grid(6, 8), 8, 1000), base_cost(Grid(6, 8), 8, 5), base_cost(Grid(6, 8), 8, 1)
    (192, 144, 48)
    """
    return native.tokens * chunk_count(min(frames, available))


def chunk_count(frames: int) -> int:
    """Chunks that `frames` frames make; an odd last frame is a chunk of its own.

    >>> [chunk_count(n) for n in (1, 2, 3, 24)]
    [1, 1, 2, 12]
    """
    return -(-frames // FRAMES_PER_CHUNK)


def chunk_frames(kept: np.ndarray) -> tuple[tuple[int, int], ...]:
    """Pairs kept frames into chunks; an odd last frame is paired with itself, as the backbones repeat it.

    >>> chunk_frames(np.array([0, 3, 5]))
    ((0, 3), (5, 5))
    """
    kept = [int(position) for position in kept]
    return tuple((first, kept[min(i + 1, len(kept) - 1)]) for i, first in enumerate(kept) if i % 2 == 0)


def grids_at(scales: np.ndarray, native: np.ndarray) -> np.ndarray:
    """Rows and cols at each scale: (..., C) scales and (..., 2) native grids give (..., C, 2) grids.

    >>> grids_at(np.array([0.2, 0.5, 1.0]), np.array([6, 8])).tolist()
    [[1, 2], [3, 4], [6, 8]]
    """
    exact = scales[..., None] * native[..., None, :]
    return np.maximum(np.floor(exact + 0.5), 1).astype(np.int64)


def check_range(scale_range: tuple[float, float]) -> tuple[float, float]:
    """Returns the range as floats; refuses one that is empty, reversed or not positive."""
    low, high = (float(bound) for bound in scale_range)
    if not (0 < low <= high < np.inf):
        raise BudgetError(f"the scale range must be 0 < s_min ≤ s_max, as in 0.2,1.8; got {low:g},{high:g}")
    return low, high


def project(
    scales: np.ndarray,
    native: np.ndarray | Grid,
    budget: np.ndarray | int,
    scale_range: tuple[float, float] = SCALE_RANGE,
    *,
    grow: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Projects scales onto a token budget: the returned grids never cost more than it.

    `scales` is (C,) or (V, C), positive; NaN marks padding in videos with fewer chunks. `native` is a Grid or
    (V, 2), `budget` a number or (V,). With `grow=False` no chunk is given more than its own scale asks for.
    Returns the realised scales (V, C) and grids (V, C, 2), zero where padded; without the V axis if `scales`
    had none. A chunk with a larger scale never gets a smaller grid.

    >>> realised, grids = project(np.array([0.4, 1.2, 0.8]), Grid(6, 8), 96)
    >>> grids.tolist(), int(grids.prod(-1).sum())
    ([[3, 3], [7, 9], [4, 6]], 96)
    """
    low, high = check_range(scale_range)
    wished = np.atleast_2d(np.asarray(scales, dtype=np.float64))
    native = np.asarray([native.rows, native.cols] if isinstance(native, Grid) else native, dtype=np.int64)
    native = np.broadcast_to(native, (len(wished), 2))
    budget = np.broadcast_to(np.asarray(budget, dtype=np.int64), (len(wished),))
    valid = ~np.isnan(wished)
    if not (valid.any(-1).all() and np.all(wished[valid] > 0) and np.all(np.isfinite(wished[valid]))):
        raise BudgetError("scales must be positive and finite, at least one for every video")

    # Sorted by falling scale, levels that never rise from left to right are exactly the orders we promise.
    order = np.lexsort((np.broadcast_to(_spread(wished.shape[1]), wished.shape), -np.where(valid, wished, 0)))
    sorted_wish = np.take_along_axis(np.where(valid, wished, np.nan), order, 1)
    realised = _fit(sorted_wish, native, budget, low, high, grow)
    unsorted = np.empty_like(realised)
    np.put_along_axis(unsorted, order, realised, 1)
    grids = np.where(valid[..., None], grids_at(np.where(valid, unsorted, low), native), 0)
    centred = np.where(valid, np.clip(scales_of(grids, native), low, high), 0.0)
    return (centred, grids) if np.ndim(scales) == 2 else (centred[0], grids[0])


def scales_of(grids: np.ndarray, native: np.ndarray) -> np.ndarray:
    """The scale in the middle of all those that give each grid: (V, C, 2) grids to (V, C) scales.

    >>> scales_of(np.array([[[6, 8], [3, 4]]]), np.array([[6, 8]])).tolist()
    [[1.0, 0.5]]
    """
    # One token is the least a side can have, so every smaller scale gives it too.
    lowest = (np.where(grids > 1, grids - 0.5, 0) / native[:, None, :]).max(-1)
    highest = ((grids + 0.5) / native[:, None, :]).min(-1)
    return (lowest + highest) / 2


def _spread(count: int) -> np.ndarray:
    """Ranks that scatter equal chunks over time (bit-reversed order), so leftovers are not all spent early.

    >>> _spread(5).tolist()
    [0, 3, 2, 4, 1]
    """
    width = max(count - 1, 1).bit_length()
    reversed_bits = [int(format(i, f"0{width}b")[::-1], 2) for i in range(count)]
    return np.argsort(np.argsort(reversed_bits))


def _fit(wish, native, budget, low, high, grow) -> np.ndarray:
    """Realised scales for wishes sorted in falling order; NaN stays NaN."""

    def tokens(at: np.ndarray) -> np.ndarray:
        return np.where(np.isnan(at), 0, grids_at(np.nan_to_num(at, nan=low), native).prod(-1))

    def scaled(multiplier: np.ndarray) -> np.ndarray:
        return np.clip(wish * multiplier[:, None], low, high)

    smallest = tokens(np.where(np.isnan(wish), wish, low)).sum(-1)
    if np.any(smallest > budget):
        worst = int(np.argmax(smallest - budget))
        raise BudgetError(
            f"the budget of {budget[worst]} tokens is too small: even at scale {low:g} the "
            f"{int((~np.isnan(wish[worst])).sum())} chunks cost {smallest[worst]}. The smallest budget that "
            f"would do is {smallest[worst]}; or take fewer candidates, or lower the range's minimum."
        )
    most = np.ones(len(wish)) if not grow else high / np.nanmin(wish, 1)
    least = np.minimum(low / np.nanmax(wish, 1), most)
    fits = tokens(scaled(most)).sum(-1) <= budget
    least = np.where(fits, most, least)
    for _ in range(_BISECTIONS):
        middle = (least + most) / 2
        fits = tokens(scaled(middle)).sum(-1) <= budget
        least, most = np.where(fits, middle, least), np.where(fits, most, middle)

    at = scaled(least)
    ceiling = np.full_like(at, high) if grow else np.clip(wish, low, high)
    return _spend_rest(at, wish, native, budget - tokens(at).sum(-1), ceiling)


def _spend_rest(at, wish, native, rest, ceiling) -> np.ndarray:
    """Lifts single chunks to their next grid while tokens are left: first whoever the multiplier reaches next."""
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
        urgency = np.where(allowed, following / wish[active], np.inf)
        pick = np.argmin(urgency, 1)
        found = np.isfinite(urgency[np.arange(len(active)), pick])
        active, pick = active[found], pick[found]
        at[active, pick] = following[found, pick]
        rest[active] -= price[found, pick]
    return at
