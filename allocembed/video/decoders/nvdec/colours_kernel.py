"""Luma and half-size chroma to RGB: one Triton kernel without scaling, one with. Torch needs forty operations or more
for a frame, and while many threads decode, starting them takes longer than the conversion.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from allocembed.video.decoders.nvdec.colours import Colours, Scaling

BLOCK_PIXELS = 512  # pixels of a row that a program makes
# Otherwise a kernel would be built again for values that are divisible by 16, or 1.
VALUES = ["step", "height", "width", "black", "gain", "red", "blue", "from_blue", "from_red"]


def to_rgb(surface: torch.Tensor, colours: Colours) -> torch.Tensor:
    """(H, W, 3) uint8 of a surface (3/2 H, W) uint8 whose rows may be padded."""
    height, width = surface.shape[0] * 2 // 3, surface.shape[1]
    made, grid = _picture(surface, height, width)
    with torch.cuda.device_of(surface):
        _convert[grid](surface, made, surface.stride(0), height, width, colours.black, *colours.factors, BLOCK_PIXELS)
    return made


def scale(surface: torch.Tensor, colours: Colours, scaling: Scaling) -> torch.Tensor:
    """(H, W', 3) uint8 of a surface (3/2 H, W), uint8, or int16 with the value in the upper bits."""
    height, width = scaling.size
    made, grid = _picture(surface, height, width)
    filters = [tensor for pair in (scaling.luma, scaling.chroma, scaling.rows) for tensor in pair]
    taps = [pair[1].shape[1] for pair in (scaling.luma, scaling.chroma, scaling.rows)]
    with torch.cuda.device_of(surface):
        _scale[grid](surface, made, *filters, surface.stride(0), height, width, colours.black, *colours.factors,
                     *taps, colours.bits, BLOCK_PIXELS)  # fmt: skip
    return made


def _picture(surface: torch.Tensor, height: int, width: int) -> tuple[torch.Tensor, tuple[int, int]]:
    made = torch.empty((height, width, 3), dtype=torch.uint8, device=surface.device)
    return made, (triton.cdiv(width, BLOCK_PIXELS), height)


@triton.jit(do_not_specialize=VALUES)
def _convert(surface, made, step, height, width, black, gain, red, blue, from_blue, from_red,
             block: tl.constexpr):  # fmt: skip
    """A program converts a part of one row."""
    row = tl.program_id(1).to(tl.int64)  # a picture may have more bytes than 32 bits count
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < width
    level = _times(tl.load(surface + row * step + places, mask=inside).to(tl.int32) - black, gain)
    # Each pair of chroma values serves two rows and two columns.
    pair = surface + (height + row // 2) * step + places // 2 * 2
    u = tl.load(pair, mask=inside).to(tl.int32) - 128
    v = tl.load(pair + 1, mask=inside).to(tl.int32) - 128
    pixel = made + (row * width + places) * 3
    tl.store(pixel, _byte(level + _times(v, red)), mask=inside)
    tl.store(pixel + 1, _byte(level + _times(u, from_blue) + _times(v, from_red)), mask=inside)
    tl.store(pixel + 2, _byte(level + _times(u, blue)), mask=inside)


@triton.jit(do_not_specialize=VALUES)
def _scale(surface, made, luma_first, luma_weights, chroma_first, chroma_weights, row_first, row_weights,
           step, height, width, black, gain, red, blue, from_blue, from_red,
           luma_taps: tl.constexpr, chroma_taps: tl.constexpr, row_taps: tl.constexpr, bits: tl.constexpr,
           block: tl.constexpr):  # fmt: skip
    """A program makes a part of one row."""
    row = tl.program_id(1).to(tl.int64)  # a picture may have more bytes than 32 bits count
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < width
    first = tl.load(luma_first + places, mask=inside, other=0)
    y = _across(surface + row * step, first, luma_weights + places * luma_taps, inside, 1, luma_taps, bits)
    y = (y * 4096 + 512) >> 10
    u = tl.full((block,), 512 - (128 << 19), tl.int32)
    v = tl.full((block,), 512 - (128 << 19), tl.int32)
    first = tl.load(chroma_first + places, mask=inside, other=0)
    top = tl.load(row_first + row)
    for tap in range(row_taps):
        weight = tl.load(row_weights + row * row_taps + tap)
        line = surface + (height + top + tap) * step
        weights = chroma_weights + places * chroma_taps
        u += _across(line, first, weights, inside, 2, chroma_taps, bits) * weight
        v += _across(line + 1, first, weights, inside, 2, chroma_taps, bits) * weight
    u, v = u >> 10, v >> 10
    level = (y - black * 512) * gain + (1 << 21)
    pixel = made + (row * width + places) * 3
    tl.store(pixel, _upper_byte(level + v * red), mask=inside)
    tl.store(pixel + 1, _upper_byte(level + u * from_blue + v * from_red), mask=inside)
    tl.store(pixel + 2, _upper_byte(level + u * blue), mask=inside)


@triton.jit
def _across(line, first, weights, inside, stride: tl.constexpr, taps: tl.constexpr, bits: tl.constexpr):
    """Values filtered along a row, in 15 bits."""
    total = first * 0
    for tap in range(taps):
        value = tl.load(line + (first + tap) * stride, mask=inside, other=0).to(tl.int32)
        if bits > 8:
            value = (value & 0xFFFF) >> (16 - bits)
        total += value * tl.load(weights + tap, mask=inside, other=0)
    return tl.minimum(total >> (bits - 1), 32767)


@triton.jit
def _times(values, factor):
    """Products with a 13-bit factor, cut off."""
    return (values * (8 * factor)) >> 16


@triton.jit
def _byte(values):
    return tl.minimum(tl.maximum(values, 0), 255).to(tl.uint8)


@triton.jit
def _upper_byte(values):
    """The upper byte of numbers of 30 bits."""
    return _byte(values >> 22)
