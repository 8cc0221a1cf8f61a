"""Luma and half-size chroma of 8 bits to RGB as one Triton kernel. Torch's own operations are forty for a frame, and
while many threads decode, starting them takes longer than the conversion.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 512  # pixels of a row that a program converts


def to_rgb(surface: torch.Tensor, black: int, gain: int, factors: tuple[int, int, int, int]) -> torch.Tensor:
    """(H, W, 3) uint8 of a surface (3/2 H, W) whose rows may be padded, from products with 13-bit factors, cut off: of
    red, blue, and both in green."""
    height, width = surface.shape[0] * 2 // 3, surface.shape[1]
    made = torch.empty((height, width, 3), dtype=torch.uint8, device=surface.device)
    grid = (triton.cdiv(width, BLOCK), height)
    with torch.cuda.device_of(surface):
        _convert[grid](surface, made, surface.stride(0), height, width, black, gain, *factors, BLOCK)
    return made


@triton.jit
def _convert(surface, made, step, height, width, black, gain, red, blue, from_blue, from_red,
             block: tl.constexpr):  # fmt: skip
    """A program converts a part of one row."""
    row = tl.program_id(1)
    places = tl.program_id(0) * block + tl.arange(0, block)
    inside = places < width
    level = _times(tl.load(surface + row * step + places, mask=inside).to(tl.int32) - black, gain)
    # Each pair of chroma values serves two rows and two columns.
    pair = surface + (height + row // 2) * step + places // 2 * 2
    u = tl.load(pair, mask=inside).to(tl.int32) - 128
    v = tl.load(pair + 1, mask=inside).to(tl.int32) - 128
    pixel = made + (row * width + places) * 3
    tl.store(pixel, _byte(level + _times(v, red)), mask=inside)
    tl.store(pixel + 1, _byte(level + _times(u, -from_blue) + _times(v, -from_red)), mask=inside)
    tl.store(pixel + 2, _byte(level + _times(u, blue)), mask=inside)


@triton.jit
def _times(values, factor):
    return (values * (8 * factor)) >> 16


@triton.jit
def _byte(values):
    return tl.minimum(tl.maximum(values, 0), 255).to(tl.uint8)
