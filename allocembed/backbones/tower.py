"""The vision tower's forward pass, block by block, from grids that the host knows.

What transformers' own forward does, with two differences. Everything that follows from the grids is computed without
asking the device for a number, so that the host never waits and stays ahead of a GPU. And the patch embedding may be
the matrix product that it is: cuDNN's 3-D convolution in half precision is many times slower. On a CPU the convolution
stays, and the result is the library's, bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from allocembed.resize import send


@dataclass(frozen=True, eq=False)
class Places:
    """Where N patches of C chunks lie, on the device: made once, good for any pixels of those grids.

    `bounds` (C + 1,) int32 are the chunks' ends, `longest` the patches of the largest, `rotary` the cosines and sines
    (N, d) of the positions; `taps` and `weights` (N, 4) interpolate learned positions, in towers that have them.
    """

    bounds: torch.Tensor
    longest: int
    rotary: tuple[torch.Tensor, torch.Tensor]
    taps: torch.Tensor | None = None
    weights: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Seen:
    """Merged tokens (N / merge², width), and those that Qwen3-VL adds after its first language layers, one tensor each.

    Named as transformers names them.
    """

    pooler_output: torch.Tensor
    deepstack_features: tuple[torch.Tensor, ...] = ()


def run_block(block: torch.nn.Module, hidden: torch.Tensor, bounds, longest: int, rotary) -> torch.Tensor:
    """One block of the tower on patches (N, width); a function of its own so that it can be compiled once for all."""
    return block(hidden, cu_seqlens=bounds, max_seqlen=longest, position_embeddings=rotary)


def find_places(tower: PreTrainedModel, grids: torch.Tensor, device: torch.device) -> Places:
    """Places of the patches of chunks with grids (C, 3), given on the host."""
    counts = grids.prod(-1)
    total, longest = int(counts.sum()), int(counts.max())
    bounds = send(F.pad(counts.cumsum(0), (1, 0)).to(torch.int32), device)
    grids = send(grids, device)
    positions, chunk = patch_positions(grids, tower.spatial_merge_size, total)
    # The first argument only tells where and in what to compute.
    rotary = tower.rotary_pos_emb(positions, positions)
    if not hasattr(tower, "pos_embed"):
        return Places(bounds, longest, rotary)
    return Places(bounds, longest, rotary, *_between(positions, grids[:, 1:][chunk], tower.num_grid_per_side))


def run_tower(
    tower: PreTrainedModel,
    pixels: torch.Tensor,
    places: Places,
    *,
    by_product: bool = False,
    block: Callable[..., torch.Tensor] = run_block,
) -> Seen:
    """The tower on normalised patches (N, 3 · 2 · patch²); `block` is `run_block`, or that compiled."""
    if by_product:
        kernel = tower.patch_embed.proj
        hidden = F.linear(pixels, kernel.weight.flatten(1), kernel.bias)
    else:
        hidden = tower.patch_embed(pixels)
    if places.taps is not None:
        learned = (tower.pos_embed(places.taps) * places.weights[:, :, None]).sum(1)
        hidden = hidden + learned.to(hidden.dtype)
    deep = getattr(tower, "deepstack_visual_indexes", ())
    features = []
    for number, each in enumerate(tower.blocks):
        hidden = block(each, hidden, places.bounds, places.longest, places.rotary)
        if number in deep:
            features.append(tower.deepstack_merger_list[deep.index(number)](hidden))
    return Seen(tower.merger(hidden), tuple(features))


def patch_positions(grids: torch.Tensor, merge: int, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and col (total, 2) of every patch of chunks with grids (C, 3), merge blocks kept together, and its chunk.

    The total is given so that a GPU need not be asked for it.

    >>> patch_positions(torch.tensor([[1, 2, 4]]), 2, 8)[0].tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3]]
    """
    counts = grids.prod(-1)
    chunk = torch.repeat_interleave(torch.arange(len(grids), device=grids.device), counts, output_size=total)
    within = torch.arange(total, device=grids.device) - (counts.cumsum(0) - counts)[chunk]
    block, inside = within // merge**2, within % merge**2
    blocks_across = (grids[:, 2] // merge)[chunk]
    rows = block // blocks_across * merge + inside // merge
    cols = block % blocks_across * merge + inside % merge
    return torch.stack([rows, cols], -1), chunk


def _between(positions: torch.Tensor, sides: torch.Tensor, learned: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bilinear taps into a table of `learned`² positions, corners on corners, and their weights: (N, 4) each.

    `positions` (N, 2) are rows and cols, `sides` (N, 2) the rows and cols of the patch's chunk.
    """
    at = positions.float() * (learned - 1) / (sides - 1).clamp(min=1)
    low = at.floor()
    steps = torch.arange(2, device=at.device)
    taps = (low.long()[..., None] + steps).clamp(0, learned - 1)
    weights = (1 - (at[..., None] - low[..., None] - steps).abs()).clamp(min=0)
    both = (taps[:, 0, :, None] * learned + taps[:, 1, None, :]).flatten(1)
    return both, (weights[:, 0, :, None] * weights[:, 1, None, :]).flatten(1)
