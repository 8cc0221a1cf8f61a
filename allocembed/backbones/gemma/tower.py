"""The vision tower of EmbeddingGemma 2, which is Gemma 4's, on frames of different size without padding.

transformers' own forward pads all frames to one number of patches. Here the patches of all frames are one sequence, and
attention is separated by the bounds of the frames. The patches of a token are neighbours in it, so that pooling them is
a mean over groups.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.base import TowerOutput
from allocembed.backbones.qwen_vl.tower import patch_positions
from allocembed.resize import send


@dataclass(frozen=True, eq=False)
class GemmaTowerInputs:
    """Places of the N patches of C frames, on the device: made once, valid for any pixels of those grids.

    `bounds` (C + 1,) int32 are the ends of the frames, and `longest` is the patch count of the largest. `positions`
    (1, N, 2) are the col and row of each patch. `cos` and `sin` (1, N, d) belong to the rotary embedding.
    """

    bounds: torch.Tensor
    longest: int
    positions: torch.Tensor
    cos: torch.Tensor
    sin: torch.Tensor


def run_block(
    block: torch.nn.Module,
    hidden: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    positions: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """One block on patches (1, N, width). A function, so that it can be compiled once for all blocks."""
    return block(
        hidden,
        position_embeddings=(cos, sin),
        attention_mask=None,
        position_ids=positions,
        cu_seq_lens_q=bounds,
        max_length_q=longest,
    )


def prepare_tower(tower: Any, grids: np.ndarray, device: torch.device) -> GemmaTowerInputs:
    """Inputs for frames with grids (C, 2) in tokens."""
    merge = tower.config.pooling_kernel_size
    patches = torch.from_numpy(np.concatenate([np.ones((len(grids), 1), np.int64), grids * merge], 1))
    counts = patches.prod(-1)
    total, longest = int(counts.sum()), int(counts.max())
    bounds = send(F.pad(counts.cumsum(0), (1, 0)).to(torch.int32), device)
    rows_and_cols, _ = patch_positions(send(patches, device), merge, total)
    positions = rows_and_cols.flip(-1)[None]
    kind = tower.patch_embedder.position_embedding_table[:0]  # only states device and dtype
    cos, sin = tower.encoder.rotary_emb(kind, positions)
    # A table of learned positions that is too short for a strip gives its last one.
    positions = positions.clamp(max=tower.config.position_embedding_size - 1)
    return GemmaTowerInputs(bounds, longest, positions, cos, sin)


def run_tower(
    tower: Any,
    project: Any,
    pixels: torch.Tensor,
    inputs: GemmaTowerInputs,
    *,
    block: Callable[..., torch.Tensor] = run_block,
) -> TowerOutput:
    """The tower on patches (N, 3 · patch²) in [−1, 1], and the model's projection of its tokens."""
    embedder, where = tower.patch_embedder, inputs.positions[0]
    table = embedder.position_embedding_table
    learned = F.embedding(where[:, 0], table[0]) + F.embedding(where[:, 1], table[1])
    hidden = (embedder.input_proj(pixels) + learned)[None]
    for each in tower.encoder.layers:
        hidden = block(each, hidden, inputs.bounds, inputs.longest, inputs.positions, inputs.cos, inputs.sin)
    # Rounded and scaled where the model does it.
    pooled = hidden[0].unflatten(0, (-1, tower.config.pooling_kernel_size**2)).float().mean(1).to(hidden.dtype)
    pooled = pooled.float() * tower.pooler.root_hidden_size
    if tower.config.standardize:
        pooled = (pooled - tower.std_bias.float()) * tower.std_scale.float()
    return TowerOutput(project(inputs_embeds=pooled.to(hidden.dtype)))
