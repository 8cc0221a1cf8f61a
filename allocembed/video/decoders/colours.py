"""From the card's pictures, luma and half-size chroma, to RGB. In 8 bits the result is FFmpeg's, bit for bit.

FFmpeg's converter works in whole numbers: each term is a product with a 13-bit factor, cut off. Doing the same here
makes a frame equal wherever it is decoded. With more bits FFmpeg interpolates chroma, in steps that this comes close
to.
"""

import math
from dataclasses import dataclass
from types import ModuleType

import torch
import torch.nn.functional as F

from allocembed.kernels import find_kernel

# Shares of red and blue in luma, by AVColorSpace, for the matrices that swscale knows.
SHARES = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 5: (0.299, 0.114), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}


@dataclass(frozen=True)
class Colours:
    """What the numbers of a stream mean."""

    matrix: int
    """AVColorSpace, a key of `SHARES`."""
    full_range: bool
    """Whether luma uses all levels, not only 16 to 235."""
    bits: int = 8

    def to_rgb(self, surface: torch.Tensor, width: int | None = None) -> torch.Tensor:
        """A surface (3/2 H, W), luma above interleaved chroma, to (H, W, 3) uint8, or to another `width`.

        Of more than 8 bits, the upper ones of 16-bit words are used, as the card delivers them.
        """
        width = width or surface.shape[1]
        if self.bits == 8 and width == surface.shape[1]:
            return self._whole(surface)
        luma, chroma = planes(surface)
        if self.bits > 8:
            luma, chroma = (_words(plane) >> (16 - self.bits) for plane in (luma, chroma))
        return self._interpolated(luma.float(), chroma.float(), width)

    def _factors(self) -> tuple[float, float, float, float]:
        """Of blue and red differences in red, blue and green, for chroma of limited range."""
        red, blue = SHARES[self.matrix]
        green = 1 - red - blue
        return 2 * (1 - red), 2 * (1 - blue), 2 * blue * (1 - blue) / green, 2 * red * (1 - red) / green

    def whole_factors(self) -> tuple[int, int, tuple[int, int, int, int]]:
        """What 8-bit pictures are converted with: the level of black, the gain of luma, and those of chroma."""
        wide = [round(factor * 255 / 224 * 2**16) for factor in self._factors()]
        if self.full_range:
            wide = [factor * 224 // 255 for factor in wide]
        red, blue, from_blue, from_red = ((factor + 4) >> 3 for factor in wide)
        gain = 2**13 if self.full_range else (2**16 * 255 // 219 + 4) >> 3
        return 0 if self.full_range else 16, gain, (red, blue, from_blue, from_red)

    def _whole(self, surface: torch.Tensor) -> torch.Tensor:
        black, gain, factors = self.whole_factors()
        kernel = own_kernel() if surface.is_cuda else None
        if kernel is not None and surface.stride(1) == 1:
            return kernel.to_rgb(surface, black, gain, factors)
        luma, chroma = planes(surface)
        red, blue, from_blue, from_red = factors
        level = _times(luma.int() - black, gain)
        difference = chroma.int() - 128
        # Each pair of chroma values serves two rows and two columns.
        u, v = (difference[..., part].repeat_interleave(2, 0).repeat_interleave(2, 1) for part in (0, 1))
        parts = (level + _times(v, red), level + _times(u, -from_blue) + _times(v, -from_red), level + _times(u, blue))
        return torch.stack([part.clamp_(0, 255).to(torch.uint8) for part in parts], -1)

    def _interpolated(self, luma: torch.Tensor, chroma: torch.Tensor, width: int) -> torch.Tensor:
        top, step = 2**self.bits - 1, 2 ** (self.bits - 8)
        low, span, reach = (0, top, top) if self.full_range else (16 * step, 219 * step, 224 * step)
        # Chroma lies on every second column, and in the middle of two rows.
        tall = _double(chroma.permute(2, 0, 1).mT, (-0.25, 0.25)).mT
        if width == luma.shape[1]:
            spread = _double(tall, (0.0, 0.5))
        else:
            step_across = luma.shape[1] / width
            places = (torch.arange(width, device=luma.device) + 0.5) * step_across - 0.5
            luma, spread = _stretch(luma[None], places, step_across)[0], _stretch(tall, places / 2, step_across / 2)
        level = (luma - low) * (255 / span)
        u, v = (spread - 128 * step) * (255 / reach)
        red, blue, from_blue, from_red = self._factors()
        parts = (level + red * v, level - from_blue * u - from_red * v, level + blue * u)
        return torch.stack([part.round_().clamp_(0, 255).to(torch.uint8) for part in parts], -1)


def planes(surface: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Luma (H, W) and chroma (H/2, W/2, 2) of a surface."""
    height = surface.shape[0] * 2 // 3
    return surface[:height], surface[height:].unflatten(1, (-1, 2))


def own_kernel() -> ModuleType | None:
    """Our kernel; None where there is no Triton."""
    return find_kernel("allocembed.video.decoders.colours_kernel")


def _times(values: torch.Tensor, factor: int) -> torch.Tensor:
    """Products with a 13-bit factor, cut off."""
    return (values * (8 * factor)) >> 16


def _words(plane: torch.Tensor) -> torch.Tensor:
    """16-bit words as numbers from 0 to 65535."""
    return plane.view(torch.int16).int() & 0xFFFF


def _cubic(distance: torch.Tensor) -> torch.Tensor:
    """The weight of a value at a distance, in swscale's bicubic filter."""
    sharpness = -0.6
    near = (sharpness + 2) * distance**3 - (sharpness + 3) * distance**2 + 1
    far = sharpness * (distance**3 - 5 * distance**2 + 8 * distance - 4)
    return torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))


def _double(planes: torch.Tensor, offsets: tuple[float, float]) -> torch.Tensor:
    """Two values for each one along the last axis, at these distances from it."""
    count = planes.shape[-1]
    weights = _cubic((torch.arange(-2, 3)[:, None] - torch.tensor(offsets)).abs()).tolist()
    around = F.pad(planes, (2, 2), mode="replicate")
    taps = [around[..., place : place + count] for place in range(5)]
    made = [sum(row[side] * tap for row, tap in zip(weights, taps, strict=True)) for side in (0, 1)]
    return torch.stack(made, -1).flatten(-2)  # pyright: ignore[reportArgumentType] (sums of tensors)


def _stretch(planes: torch.Tensor, places: torch.Tensor, step: float) -> torch.Tensor:
    """The values at `places` along the last axis, `step` apart; over wide steps, more values are averaged."""
    wide = max(1.0, step)
    edge = math.ceil(2 * wide) + 1
    known = torch.arange(-edge, planes.shape[-1] + edge, device=planes.device)
    weights = _cubic((known[:, None] - places).abs() / wide)
    return F.pad(planes, (edge, edge), mode="replicate") @ (weights / weights.sum(0))


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
