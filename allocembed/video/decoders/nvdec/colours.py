"""From the GPU's pictures, luma and half-size chroma, to RGB. The result is FFmpeg's, bit for bit.

FFmpeg's converters work in whole numbers. In 8 bits with square pixels, each term is a product with a 13-bit factor,
cut off, and a chroma value serves four pixels. All others are scaled: filters give luma and chroma of each pixel in 15
bits, which are then converted. Doing the same here makes a frame equal wherever it is decoded.

The filters are bicubic, as whole numbers. Their rules are those of libswscale 9.5 (`initFilter` in its `utils.c`):
distances in 2**-30, weights in 2**-54, divisions that cut toward zero, and a number of taps that suits the vector units
of x86 and ARM.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache, lru_cache
from types import ModuleType
from typing import NamedTuple

import numpy as np
import torch

from allocembed.kernels import find_kernel

# Shares of red and blue in luma, by AVColorSpace, for the matrices that swscale knows.
SHARES = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 5: (0.299, 0.114), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
HIGHEST = 2**15 - 1  # of a value between two filters
SHARPNESS = int(0.6 * 2**24)
NEGLIGIBLE = 0.002  # the sum of the weights that are left out on each side of a value
MIDDLE = 128  # place of a value, in 256ths of their distance: centred; 64 is on every second new value
logger = logging.getLogger("allocembed")


@dataclass(frozen=True, eq=False)
class Scaling:
    """Filters that give pictures of one size square pixels and whole chroma. Tensors are on the GPU."""

    luma: tuple[torch.Tensor, torch.Tensor]
    """Across: the first values (W',) and the weights (W', taps), int32."""
    chroma: tuple[torch.Tensor, torch.Tensor]
    """Across, likewise."""
    rows: tuple[torch.Tensor, torch.Tensor]
    """Down, of chroma: (H,) and (H, taps)."""

    @classmethod
    def of(
        cls,
        size: tuple[int, int],
        width: int,
        *,
        place: tuple[int, int],
        device: torch.device = torch.device("cpu"),  # noqa: B008 (immutable)
    ) -> Scaling:
        """For pictures of this height and width, which are shown with another `width`. `place` says where chroma lies
        across and down, as a filter's `place`."""
        height, coded = size
        luma = bicubic(coded, width, total=2**14, taps_by=4)
        chroma = bicubic(coded // 2, width, total=2**14, taps_by=4, place=place[0])
        rows = bicubic(height // 2, height, total=2**12, taps_by=2, place=place[1])
        return cls(*(_on(device, each) for each in (luma, chroma, rows)))

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the pictures that are made."""
        return len(self.rows[0]), len(self.luma[0])


@dataclass(frozen=True)
class Colours:
    """The meaning of a stream's numbers: matrix, range and bits."""

    matrix: int
    """AVColorSpace, a key of `SHARES`."""
    full_range: bool
    """Whether luma uses all levels, not only 16 to 235."""
    bits: int = 8

    def to_rgb(self, surface: torch.Tensor, scaling: Scaling | None = None) -> torch.Tensor:
        """A surface (3/2 H, W), luma above interleaved chroma, to (H, W', 3) uint8.

        Of more than 8 bits, the upper ones of 16-bit words are used, as the GPU delivers them. Such pictures need a
        scaling, if only of their chroma.
        """
        if self.bits > 8:
            surface = surface.view(torch.int16)
        kernel = own_kernel(surface.device) if surface.is_cuda and surface.stride(1) == 1 else None
        if scaling is not None:
            return kernel.scale(surface, self, scaling) if kernel else self._scaled(surface, scaling)
        return kernel.to_rgb(surface, self) if kernel else self._whole(surface)

    @property
    def black(self) -> int:
        """The level of black, in 8 bits."""
        return 0 if self.full_range else 16

    @property
    def factors(self) -> tuple[int, int, int, int, int]:
        """13-bit factors: the gain of luma; of red, and of blue differences in red and blue; of both in green."""
        red, blue = SHARES[self.matrix]
        green = 1 - red - blue
        exact = 2 * (1 - red), 2 * (1 - blue), 2 * blue * (1 - blue) / green, 2 * red * (1 - red) / green
        wide = [round(factor * 255 / 224 * 2**16) for factor in exact]
        gain = 2**16
        if self.full_range:
            wide = [factor * 224 // 255 for factor in wide]
        else:
            gain = gain * 255 // 219
        signed = gain, wide[0], wide[1], -wide[2], -wide[3]
        of_luma, of_red, of_blue, from_blue, from_red = ((factor + 4) >> 3 for factor in signed)
        return of_luma, of_red, of_blue, from_blue, from_red

    def _whole(self, surface: torch.Tensor) -> torch.Tensor:
        luma, chroma = planes(surface)
        gain, red, blue, from_blue, from_red = self.factors
        level = _times(luma.int() - self.black, gain)
        difference = chroma.int() - 128
        # Each pair of chroma values serves two rows and two columns.
        u, v = (difference[..., part].repeat_interleave(2, 0).repeat_interleave(2, 1) for part in (0, 1))
        parts = (level + _times(v, red), level + _times(u, from_blue) + _times(v, from_red), level + _times(u, blue))
        return torch.stack([part.clamp_(0, 255).to(torch.uint8) for part in parts], -1)

    def _scaled(self, surface: torch.Tensor, scaling: Scaling) -> torch.Tensor:
        luma, chroma = planes(surface)
        gain, red, blue, from_blue, from_red = self.factors
        y = (self._across(luma, *scaling.luma) * 2**12 + 2**9) >> 10
        u, v = (_down(self._across(chroma[..., part], *scaling.chroma), *scaling.rows) for part in (0, 1))
        level = (y - (self.black << 9)) * gain + 2**21
        parts = (level + v * red, level + u * from_blue + v * from_red, level + u * blue)  # FFmpeg's overflow, too
        return torch.stack([(part.clamp_(0, 2**30 - 1) >> 22).to(torch.uint8) for part in parts], -1)

    def _across(self, plane: torch.Tensor, first: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        """(H, W) filtered along rows, to (H, W') in 15 bits."""
        values = plane.int() if self.bits == 8 else (plane.int() & 0xFFFF) >> (16 - self.bits)
        totals = (values[:, _taps(first, weights)] * weights).sum(-1, dtype=torch.int32)
        return (totals >> (self.bits - 1)).clamp_(max=HIGHEST)


def planes(surface: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Luma (H, W) and chroma (H/2, W/2, 2) of a surface."""
    height = surface.shape[0] * 2 // 3
    return surface[:height], surface[height:].unflatten(1, (-1, 2))


@cache
def own_kernel(device: torch.device) -> ModuleType | None:
    """Our kernels; None where there is no Triton, or where it cannot build them."""
    kernel = find_kernel("allocembed.video.decoders.nvdec.colours_kernel")
    if kernel is None:
        return None
    colours, grey = Colours(5, False), torch.zeros(24, 16, dtype=torch.uint8, device=device)
    try:
        kernel.to_rgb(grey, colours)
        kernel.scale(grey, colours, Scaling.of((16, 16), 20, place=(MIDDLE, MIDDLE), device=device))
    except Exception as error:  # of Triton, the compiler and the linker
        logger.warning("cannot build our conversion to RGB (%s): torch's own operations do it, more slowly", error)
        return None
    return kernel


def _down(values: torch.Tensor, first: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Chroma (H/2, W') in 15 bits, filtered along columns, to differences (H, W') in 17 bits."""
    totals = (values[_taps(first, weights)] * weights[..., None]).sum(1, dtype=torch.int32)
    return (totals + (2**9 - (128 << 19))) >> 10


def _taps(first: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """(N, taps) positions of the values that weights belong to."""
    return first[:, None] + torch.arange(weights.shape[1], device=first.device)


def _times(values: torch.Tensor, factor: int) -> torch.Tensor:
    """Products with a 13-bit factor, cut off."""
    return (values * (8 * factor)) >> 16


def _on(device: torch.device, filter: Filter) -> tuple[torch.Tensor, torch.Tensor]:
    """The arrays of a filter, complete on a device."""
    return torch.from_numpy(filter.first).to(device), torch.from_numpy(filter.weights).to(device)


@dataclass(frozen=True)
class Orientation:
    """The turn that makes a decoded picture stand upright."""

    swap: bool = False
    """Rows become columns, first."""
    down: bool = False
    """Upside down."""
    across: bool = False
    """Mirrored."""

    def apply(self, image: torch.Tensor) -> torch.Tensor:
        """Turn (H, W, 3)."""
        image = image.transpose(0, 1) if self.swap else image
        axes = [axis for axis, wanted in ((0, self.down), (1, self.across)) if wanted]
        return image.flip(axes) if axes else image


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
    """Starts of each new value's taps, their weights, and the weight that stands for 1."""
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
