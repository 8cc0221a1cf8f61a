"""The vision tower's forward pass, block by block, from grids that the host knows.

It computes what transformers' own forward computes, with two differences. Everything that follows from the grids is
computed without reading a number from the device, so that the host stays ahead of a GPU. And the patch embedding may be
computed as a matrix product: cuDNN's 3-D convolution in half precision is many times slower. On a CPU the convolution
is kept, and the result equals the library's bit for bit.

Some towers attend within windows in most of their blocks. The patches of a chunk are then sorted by windows, so that
both windows and chunks are runs of patches, and the tokens are put back into their places in the end.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.base import TowerOutput
from allocembed.resize import send


@dataclass(frozen=True, eq=False)
class Windows:
    """Windows of patches, on the device.

    `order` (N,) are the patches sorted by windows, `bounds` (windows + 1,) int32 the ends of the windows, `longest` the
    patches of the largest one, and `places` (tokens,) says where each token is after sorting.
    """

    order: torch.Tensor
    bounds: torch.Tensor
    longest: int
    places: torch.Tensor


@dataclass(frozen=True, eq=False)
class QwenTowerInputs:
    """Places of N patches of C chunks, on the device: made once, valid for any pixels of those grids.

    `bounds` (C + 1,) int32 are the ends of the chunks, `longest` the patches of the largest chunk, `rotary` the cosines
    and sines (N, d) of the positions. `taps` and `weights` (N, 4) interpolate learned positions, in towers that have
    them.
    """

    bounds: torch.Tensor
    longest: int
    rotary: tuple[torch.Tensor, torch.Tensor]
    taps: torch.Tensor | None = None
    weights: torch.Tensor | None = None
    windows: Windows | None = None


def run_block(
    block: torch.nn.Module,
    hidden: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    rotary: tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """One block of the tower on patches (N, width). A function, so that it can be compiled once for all blocks."""
    return block(hidden, cu_seqlens=bounds, max_seqlen=longest, position_embeddings=rotary)


def prepare_tower(tower: Any, grids: torch.Tensor, device: torch.device) -> QwenTowerInputs:
    """Inputs for chunks with patch grids (C, 3), given on the host."""
    counts = grids.prod(-1)
    total, longest = int(counts.sum()), int(counts.max())
    bounds = send(F.pad(counts.cumsum(0), (1, 0)).to(torch.int32), device)
    windows = None
    if hasattr(tower, "fullatt_block_indexes"):
        merge = tower.spatial_merge_size
        found = find_windows(grids[:, 1:].numpy() // merge, merge, tower.window_size // merge // tower.patch_size)
        order, ends, places = (send(each, device) for each in (found.order, found.bounds, found.places))
        windows = Windows(order, ends, found.longest, places)
    grids = send(grids, device)
    positions, chunk = patch_positions(grids, tower.spatial_merge_size, total)
    # The first argument only states device and dtype.
    rotary = tower.rotary_pos_emb(positions, positions)
    if windows is not None:
        rotary = (rotary[0][windows.order], rotary[1][windows.order])
    if not hasattr(tower, "pos_embed"):
        return QwenTowerInputs(bounds, longest, rotary, windows=windows)
    return QwenTowerInputs(
        bounds, longest, rotary, *_interpolation(positions, grids[:, 1:][chunk], tower.num_grid_per_side)
    )


def run_tower(
    tower: Any,
    pixels: torch.Tensor,
    inputs: QwenTowerInputs,
    *,
    patch_product: bool = False,
    block: Callable[..., torch.Tensor] = run_block,
) -> TowerOutput:
    """The tower on normalised patches (N, 3 · 2 · patch²). `block` is `run_block`, compiled or not."""
    if patch_product:
        kernel = tower.patch_embed.proj
        hidden = F.linear(pixels, kernel.weight.flatten(1), kernel.bias)
    else:
        hidden = tower.patch_embed(pixels)
    if inputs.taps is not None and inputs.weights is not None:
        learned = (tower.pos_embed(inputs.taps) * inputs.weights[:, :, None]).sum(1)
        hidden = hidden + learned.to(hidden.dtype)
    windows, whole = inputs.windows, getattr(tower, "fullatt_block_indexes", ())
    if windows is not None:
        hidden = hidden[windows.order]
    deep = getattr(tower, "deepstack_visual_indexes", ())
    features = []
    for number, each in enumerate(tower.blocks):
        parts = inputs if windows is None or number in whole else windows
        hidden = block(each, hidden, parts.bounds, parts.longest, inputs.rotary)
        if number in deep:
            features.append(tower.deepstack_merger_list[deep.index(number)](hidden))
    tokens = tower.merger(hidden)
    return TowerOutput(tokens if windows is None else tokens[windows.places], tuple(features))


def find_windows(grids: np.ndarray, merge: int, side: int) -> Windows:
    """Windows of `side` × `side` tokens in chunks with token grids (C, 2), on the host. Those at the edges are smaller.

    >>> windows = find_windows(np.array([[1, 3]]), 1, 2)
    >>> windows.order.tolist(), windows.bounds.tolist(), windows.longest
    ([0, 1, 2], [0, 2, 3], 2)
    """
    tokens = grids.prod(-1)
    chunk = np.repeat(np.arange(len(grids)), tokens)
    inside = np.arange(len(chunk)) - (np.cumsum(tokens) - tokens)[chunk]
    across = grids[chunk, 1]
    rows, cols = inside // across // side, inside % across // side
    order = np.lexsort((cols, rows, chunk))  # stable: within a window tokens stay in their order
    keys = np.stack([chunk, rows, cols], 1)[order]
    edges = np.flatnonzero((keys[1:] != keys[:-1]).any(1)) + 1
    bounds = np.concatenate([[0], edges, [len(order)]]) * merge**2
    patches = (order[:, None] * merge**2 + np.arange(merge**2)).ravel()
    return Windows(
        torch.from_numpy(patches),
        torch.from_numpy(bounds.astype(np.int32)),
        int(np.diff(bounds).max()),
        torch.from_numpy(np.argsort(order)),
    )


def patch_positions(grids: torch.Tensor, merge: int, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and col (total, 2) of every patch of chunks with grids (C, 3), merge blocks kept together, and its chunk.

    The total is an argument so that it need not be read from a GPU.

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


def _interpolation(positions: torch.Tensor, sides: torch.Tensor, learned: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Bilinear taps into a table of `learned`² positions with aligned corners, and their weights: (N, 4) each.

    `positions` (N, 2) are rows and cols, `sides` (N, 2) the rows and cols of the patch's chunk.
    """
    at = positions.float() * (learned - 1) / (sides - 1).clamp(min=1)
    low = at.floor()
    steps = torch.arange(2, device=at.device)
    taps = (low.long()[..., None] + steps).clamp(0, learned - 1)
    weights = (1 - (at[..., None] - low[..., None] - steps).abs()).clamp(min=0)
    both = (taps[:, 0, :, None] * learned + taps[:, 1, None, :]).flatten(1)
    return both, (weights[:, 0, :, None] * weights[:, 1, None, :]).flatten(1)
