"""Attention within rows of different length as one Triton kernel, for heads of 64 on NVIDIA's Hopper.

FlashAttention 2, which torch includes, does not use the new instructions of these GPUs, and cuDNN, which does, makes a
new plan for every shape. `python bench/kernel.py` compares the three. A program takes a block of queries of one head of
one row and iterates over blocks of the row's keys and values, keeping the running maximum and sum of the softmax.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

HEAD = 64  # Heads of 72 and 80 would need 64 and a rest, for which Triton 3.6 compiles code that reads wrong memory.
TILE = {"block": 64, "along": 64, "num_warps": 4, "num_stages": 3}  # the fastest of a dozen on an H200


def fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the kernel supports tensors (N, heads, d): their GPU, their heads, and their memory layout."""
    if query.shape[-1] != HEAD or query.shape != key.shape or torch.cuda.get_device_capability(query.device)[0] != 9:
        return False
    # It loads 16 bytes at a time.
    return all(
        one.stride()[1:] == (HEAD, 1) and one.stride(0) % 8 == 0 and one.data_ptr() % 16 == 0
        for one in (query, key, value)
    )


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    scale: float | None,
    tile: dict[str, int] = TILE,
) -> torch.Tensor:
    """Positions (N, heads, 64) of all rows, cut at `bounds` (rows + 1,) int32, to (N, heads, 64), contiguous."""
    heads, width = query.shape[1:]
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grid = (triton.cdiv(longest, tile["block"]), heads, len(bounds) - 1)
    steps = (tensor.stride(0) // 8 for tensor in (query, key, value))
    steepness = (scale or width**-0.5) / math.log(2)  # base 2 instead of e
    with torch.cuda.device_of(query):
        _attend[grid](query, key, value, output, bounds, steepness, *steps, heads=heads, width=width, **tile)
    return output


@triton.jit
def _attend(
    query,
    key,
    value,
    output,
    bounds,
    steepness,
    query_step,
    key_step,
    value_step,
    heads: tl.constexpr,
    width: tl.constexpr,
    block: tl.constexpr,
    along: tl.constexpr,
):
    """Strides are divided by 8, so that the compiler knows them to be multiples of 8."""
    number, head, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    start = tl.load(bounds + row)
    length = tl.load(bounds + row + 1) - start
    if number * block >= length:
        return
    start = start.to(tl.int64)  # offsets of many long videos exceed 32 bits
    query += start * (query_step * 8) + head * width
    key += start * (key_step * 8) + head * width
    value += start * (value_step * 8) + head * width
    output += start * (heads * width) + head * width

    mine, dims = number * block + tl.arange(0, block), tl.arange(0, width)[None, :]
    queries = tl.load(query + tl.minimum(mine, length - 1)[:, None] * (query_step * 8) + dims)
    made = tl.zeros((block, width), tl.float32)
    top = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    end = length // along * along
    for at in tl.range(0, end, along):
        made, top, total = _accumulate(
            made, top, total, queries, key, value, at, length, steepness, key_step, value_step, dims, along, False
        )
    if end < length:
        made, top, total = _accumulate(
            made, top, total, queries, key, value, end, length, steepness, key_step, value_step, dims, along, True
        )
    made = (made / total[:, None]).to(output.dtype.element_ty)
    tl.store(output + mine[:, None] * (heads * width) + dims, made, mask=(mine < length)[:, None])


@triton.jit
def _accumulate(
    made,
    top,
    total,
    queries,
    key,
    value,
    at,
    length,
    steepness,
    key_step,
    value_step,
    dims,
    along: tl.constexpr,
    last: tl.constexpr,
):
    """Add `along` more keys and values; the last block of a row may be shorter."""
    places = at + tl.arange(0, along)
    if last:
        inside = places < length
        places = tl.minimum(places, length - 1)
    scores = tl.dot(queries, tl.trans(tl.load(key + places[:, None] * (key_step * 8) + dims)))
    if last:
        scores = tl.where(inside[None, :], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1) * steepness)
    weights = tl.math.exp2(scores * steepness - higher[:, None])
    fade = tl.math.exp2(top - higher)
    values = tl.load(value + places[:, None] * (value_step * 8) + dims)
    made = tl.dot(weights.to(values.dtype), values, made * fade[:, None])
    return made, higher, total * fade + tl.sum(weights, 1)
