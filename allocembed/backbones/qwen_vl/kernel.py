"""Attention within rows of different length as one Triton kernel, for heads of 64 to 96 on NVIDIA's Hopper.

FlashAttention 2, which torch includes, does not use the new instructions of these cards, and cuDNN, which does, makes a
new plan for every shape. `python bench/kernel.py` compares the three. A program takes a block of queries of one head of
one row and iterates over blocks of the row's keys and values, keeping the running maximum and sum of the softmax.

Sides of a block are powers of two. A head of 72 or 80 is therefore two blocks, of 64 numbers and of the rest, padded to
32. A rest of 16 would do for both, but Triton 3.6 compiles it to code that reads wrong memory.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

HEADS = (64, 72, 80)
WHOLE, REST = 64, 32
TILE = {"block": 64, "along": 64, "num_warps": 4, "num_stages": 3}  # the fastest of a dozen on an H200


def fits(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether the kernel supports tensors (N, heads, d): their card, their heads, and their memory layout."""
    width = query.shape[-1]
    if width not in HEADS or query.shape != key.shape or torch.cuda.get_device_capability(query.device)[0] != 9:
        return False
    # It loads 16 bytes at a time.
    return all(
        one.stride()[1:] == (width, 1) and one.stride(0) % 8 == 0 and one.data_ptr() % 16 == 0
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
    """Positions (N, heads, d) of all rows, cut at `bounds` (rows + 1,) int32, to (N, heads, d), contiguous."""
    heads, width = query.shape[1:]
    output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grid = (triton.cdiv(longest, tile["block"]), heads, len(bounds) - 1)
    steps = (tensor.stride(0) // 8 for tensor in (query, key, value))
    steepness = (scale or width**-0.5) / math.log(2)  # base 2 instead of e
    with torch.cuda.device_of(query):
        sizes = {"heads": heads, "width": width, "whole": WHOLE, "rest": REST if width > WHOLE else 0}
        _attend[grid](query, key, value, output, bounds, steepness, *steps, **sizes, **tile)
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
    whole: tl.constexpr,
    rest: tl.constexpr,
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

    mine, dims = number * block + tl.arange(0, block), tl.arange(0, whole)[None, :]
    places = tl.minimum(mine, length - 1)[:, None] * (query_step * 8)
    queries = tl.load(query + places + dims)
    made = tl.zeros((block, whole), tl.float32)
    top = tl.full((block,), float("-inf"), tl.float32)
    total = tl.zeros((block,), tl.float32)
    if rest:
        more = tl.load(query + places + _rest(whole, rest), mask=_rest(whole, rest) < width, other=0.0)
        added = tl.zeros((block, rest), tl.float32)
    else:  # something to hand on
        more, added = top, top
    end = length // along * along
    for at in tl.range(0, end, along):
        made, added, top, total = _accumulate(
            made, added, top, total, queries, more, key, value, at, length, steepness, key_step, value_step,
            width, whole, rest, along, False,
        )  # fmt: skip
    if end < length:
        made, added, top, total = _accumulate(
            made, added, top, total, queries, more, key, value, end, length, steepness, key_step, value_step,
            width, whole, rest, along, True,
        )  # fmt: skip
    kind = output.dtype.element_ty
    output += mine[:, None] * (heads * width)
    inside = (mine < length)[:, None]
    tl.store(output + dims, (made / total[:, None]).to(kind), mask=inside)
    if rest:
        rests = _rest(whole, rest)
        tl.store(output + rests, (added / total[:, None]).to(kind), mask=inside & (rests < width))


@triton.jit
def _rest(whole: tl.constexpr, rest: tl.constexpr):
    """The columns (1, rest) after the whole block; those from the head's width on are padding."""
    return (whole + tl.arange(0, rest))[None, :]


@triton.jit
def _accumulate(
    made,
    added,
    top,
    total,
    queries,
    more,
    key,
    value,
    at,
    length,
    steepness,
    key_step,
    value_step,
    width: tl.constexpr,
    whole: tl.constexpr,
    rest: tl.constexpr,
    along: tl.constexpr,
    last: tl.constexpr,
):
    """Add `along` more keys and values; the last block of a row may be shorter."""
    places = at + tl.arange(0, along)
    if last:
        inside = places < length
        places = tl.minimum(places, length - 1)
    dims = tl.arange(0, whole)[None, :]
    key += places[:, None] * (key_step * 8)
    value += places[:, None] * (value_step * 8)
    scores = tl.dot(queries, tl.trans(tl.load(key + dims)))
    if rest:
        rests = _rest(whole, rest)
        scores = tl.dot(more, tl.trans(tl.load(key + rests, mask=rests < width, other=0.0)), scores)
    if last:
        scores = tl.where(inside[None, :], scores, float("-inf"))
    higher = tl.maximum(top, tl.max(scores, 1) * steepness)
    weights = tl.math.exp2(scores * steepness - higher[:, None])
    fade = tl.math.exp2(top - higher)
    total = total * fade + tl.sum(weights, 1)
    values = tl.load(value + dims)
    weights = weights.to(values.dtype)
    made = tl.dot(weights, values, made * fade[:, None])
    if rest:
        added = tl.dot(weights, tl.load(value + rests, mask=rests < width, other=0.0), added * fade[:, None])
    return made, added, higher, total
