"""The bicubic filters that FFmpeg scales pictures with, as whole numbers: the same weights, so the same pictures.

The rules are those of libswscale 9.5 (`initFilter` in its `utils.c`): distances in 2**-30, weights in 2**-54, divisions
that cut toward zero, and a number of taps that suits the vector units of x86 and ARM.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

SHARPNESS = int(0.6 * 2**24)
NEGLIGIBLE = 0.002  # the sum of the weights that are left out on each side of a value
MIDDLE = 128  # place of a value, in 256ths of their distance: centred; 64 is on every second new value


class Filter(NamedTuple):
    """For each new value, the old ones that it is made of."""

    first: np.ndarray
    """(N,) int32 position of the first old value."""
    weights: np.ndarray
    """(N, taps) int32 weights of that value and those after it. They add up to `total`, but for rounding."""


@lru_cache(maxsize=64)
def bicubic(old: int, new: int, *, total: int, taps_by: int, place: int = MIDDLE) -> Filter:
    """The filter from `old` values to `new` ones. `place` says where an old value lies, in 256ths of their distance.

    >>> bicubic(4, 4, total=16, taps_by=4).weights.tolist()
    [[16], [16], [16], [16]]
    >>> bicubic(8, 16, total=4096, taps_by=2).weights[6:8].tolist()
    [[-115, 985, 3572, -346], [-346, 3572, 985, -115]]
    """
    step = ((old << 16) + new // 2) // new
    if old == new and place == MIDDLE:
        return Filter(np.arange(new, dtype=np.int32), np.full((new, 1), total, np.int32))
    first, weights, one = _sampled(old, new, step, place)
    taps = _leave_out_negligible(first, weights, NEGLIGIBLE * one)
    taps = -(-taps // taps_by) * taps_by
    weights = np.pad(weights, ((0, 0), (0, max(0, taps - weights.shape[1]))))[:, :taps]
    _keep_inside(first, weights, old)
    whole = _rounded(weights, total)[:, :old]
    return Filter(first.astype(np.int32), whole.astype(np.int32))


def _sampled(old: int, new: int, step: int, place: int) -> tuple[np.ndarray, np.ndarray, int]:
    """Where each new value's taps begin, their weights, and the weight that stands for 1."""
    one = 1 << (54 - min(max(1, old // new).bit_length() - 1, 8))
    taps = 5 if step <= 1 << 16 else 1 + -(-4 * old // new)
    taps = max(1, min(taps, old - 2))
    centres = step - (place << 9) + 2 * step * np.arange(new, dtype=np.int64)  # in halves of 2**-16
    first = _divide(centres - ((taps - 2) << 16), 1 << 17)
    distances = np.abs(((first[:, None] + np.arange(taps)) << 17) - centres[:, None]) << 13
    if step > 1 << 16:
        distances = distances * new // old
    return first, _divide(_cubic(distances), (1 << 54) // one), one


def _cubic(distances: np.ndarray) -> np.ndarray:
    """Weights in 2**-54 at distances in 2**-30."""
    near, far = distances < 1 << 30, distances < 1 << 31
    distances = np.where(far, distances, 0)
    squares = distances * distances >> 30
    cubes = squares * distances >> 30
    inner = (12 * 2**24 - 6 * SHARPNESS) * cubes + (6 * SHARPNESS - 18 * 2**24) * squares + 6 * 2**54
    outer = SHARPNESS * (30 * squares - 6 * cubes - 48 * distances + 24 * 2**30)
    return np.where(near, inner, np.where(far, outer, 0))


def _leave_out_negligible(first: np.ndarray, weights: np.ndarray, limit: float) -> int:
    """Move the taps of each value past small weights on their left; return how many taps are then needed."""
    count = weights.shape[1]
    spare = (np.abs(weights).cumsum(1) <= limit).sum(1)
    for row in range(len(first) - 2, -1, -1):  # the taps of a value never begin after those of the next one
        spare[row] = min(spare[row], max(0, first[row + 1] + spare[row + 1] - first[row]))
    first += spare
    places = spare[:, None] + np.arange(count)
    weights[:] = np.where(places < count, np.take_along_axis(weights, places % count, 1), 0)
    needed = np.abs(weights[:, ::-1]).cumsum(1) > limit
    return max(1, int((count - needed.argmax(1))[needed.any(1)].max(initial=1)))


def _keep_inside(first: np.ndarray, weights: np.ndarray, old: int) -> None:
    """Give the weights of taps beyond an end to the last value there."""
    taps = weights.shape[1]
    for row in np.flatnonzero((first < 0) | (first + taps > old)):
        places = np.clip(first[row] + np.arange(taps), 0, old - 1)
        first[row] = max(0, min(first[row], old - taps))
        inside = np.zeros_like(weights[row])
        np.add.at(inside, places - first[row], weights[row])
        weights[row] = inside


def _rounded(weights: np.ndarray, total: int) -> np.ndarray:
    """Weights that add up to `total`. What rounding leaves of one is added to the next."""
    unit = (weights.sum(1) + total // 2) // total
    whole, left = np.empty_like(weights), np.zeros_like(unit)
    for tap in range(weights.shape[1]):
        exact = weights[:, tap] + left
        whole[:, tap] = _divide(exact + np.where(exact >= 0, unit >> 1, -(unit >> 1)), unit)
        left = exact - whole[:, tap] * unit
    return whole


def _divide(values: np.ndarray, by: np.ndarray | int) -> np.ndarray:
    """Cut toward zero."""
    return np.sign(values) * (np.abs(values) // by)
