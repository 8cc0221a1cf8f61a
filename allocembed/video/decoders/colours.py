"""From the card's pictures, luma and half-size chroma, to RGB. The result is FFmpeg's, bit for bit.

FFmpeg's converters work in whole numbers. In 8 bits with square pixels, each term is a product with a 13-bit factor,
cut off, and a chroma value serves four pixels. All others are scaled: filters give luma and chroma of each pixel in 15
bits, which are then converted. Doing the same here makes a frame equal wherever it is decoded.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from types import ModuleType

import torch

from allocembed.kernels import find_kernel
from allocembed.video.decoders.filters import MIDDLE, Filter, bicubic

# Shares of red and blue in luma, by AVColorSpace, for the matrices that swscale knows.
SHARES = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 5: (0.299, 0.114), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
HIGHEST = 2**15 - 1  # of a value between two filters
logger = logging.getLogger("allocembed")


@dataclass(frozen=True, eq=False)
class Scaling:
    """How pictures of one size become pictures with square pixels and whole chroma. Tensors are on the card."""

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
    """What the numbers of a stream mean."""

    matrix: int
    """AVColorSpace, a key of `SHARES`."""
    full_range: bool
    """Whether luma uses all levels, not only 16 to 235."""
    bits: int = 8

    def to_rgb(self, surface: torch.Tensor, scaling: Scaling | None = None) -> torch.Tensor:
        """A surface (3/2 H, W), luma above interleaved chroma, to (H, W', 3) uint8.

        Of more than 8 bits, the upper ones of 16-bit words are used, as the card delivers them. Such pictures need a
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
    kernel = find_kernel("allocembed.video.decoders.colours_kernel")
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
    """How a decoded picture is turned to stand upright."""

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
