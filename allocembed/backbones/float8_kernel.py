"""Rounding rows to float8 as one Triton kernel, which reads a row once. Torch's own operations read it four times.

Compiled models do not need it: the compiler fuses the rounding with what comes before it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

WIDEST_ROW = 32768  # values of a row that a program holds in its registers


def fits(rows: torch.Tensor) -> bool:
    """Whether the kernel supports rows (N, width)."""
    return 0 < rows.shape[1] <= WIDEST_ROW and rows.stride(1) == 1


def round_rows(
    rows: torch.Tensor, dtype: torch.dtype, largest: float, least: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows (N, width) in `dtype`, contiguous, and the scale (N, 1), float32, of each.

    The largest value of a row becomes `largest`. It counts as `least` if it is smaller.
    """
    count, width = rows.shape
    rounded = torch.empty((count, width), dtype=dtype, device=rows.device)
    scale = torch.empty((count, 1), dtype=torch.float32, device=rows.device)
    if count == 0:
        return rounded, scale
    block = triton.next_power_of_2(width)
    warps = min(max(block // 512, 1), 16)
    with torch.cuda.device_of(rows):
        _round[(count,)](rows, rounded, scale, rows.stride(0), width, largest, least, block, num_warps=warps)
    return rounded, scale


@triton.jit
def _round(
    rows, rounded, scale, step, width: tl.constexpr, largest: tl.constexpr, least: tl.constexpr, block: tl.constexpr
):
    """A program rounds one row."""
    row = tl.program_id(0).to(tl.int64)  # offsets of many long videos exceed 32 bits
    places = tl.arange(0, block)
    values = tl.load(rows + row * step + places, mask=places < width, other=0.0).to(tl.float32)
    top = tl.maximum(tl.max(tl.abs(values), 0), least)
    # Exact divisions, one each for a row, so that eager models round as torch's own operations do.
    tl.store(scale + row, tl.div_rn(top, largest))
    levels = values * tl.div_rn(largest, top)
    tl.store(rounded + row * width + places, levels.to(rounded.dtype.element_ty), mask=places < width)
