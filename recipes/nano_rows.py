"""Token rows of training batches, and what a nano backbone reads from them: a vector a row, and one a chunk.

Causal models pool the last token, and their state at the end of a chunk tells what the chunk shows. Bidirectional ones
average all tokens, and a chunk is the average of its own visual tokens. Rows are made in worker processes, on the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.base import Backbone, TokenRow, TowerOutput
from allocembed.backbones.gemma.backbone import GemmaBackbone
from allocembed.backbones.gemma.language import GemmaRowInputs, mean_rows
from allocembed.backbones.qwen_vl.backbone import QwenVLBackbone, pad_rows
from allocembed.backbones.qwen_vl.language import prepare_language, run_language


@dataclass(frozen=True, eq=False)
class CausalRows:
    """Right-padded rows: ids (N, S), positions (3, N, S), and the index of each row's last token (N,)."""

    ids: torch.Tensor
    positions: torch.Tensor
    last: torch.Tensor
    chunk_ends: torch.Tensor
    """(N, C) the index in its row of each chunk's last token."""

    @classmethod
    def of(cls, rows: Sequence[TokenRow], grids: np.ndarray) -> CausalRows:
        ids, positions, _ = pad_rows(rows)
        ends = grids.prod(-1).cumsum(1) - 1
        where = [np.flatnonzero(row.visual)[own] for row, own in zip(rows, ends, strict=True)]
        return cls(ids, positions, torch.tensor([len(row) - 1 for row in rows]), torch.from_numpy(np.stack(where)))

    def read(self, backbone: QwenVLBackbone, seen: TowerOutput | None) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = prepare_language(self.ids, self.positions, backbone.video_token, backbone.device, None)
        hidden = run_language(backbone.language_model, inputs, seen, layer=backbone.layer)
        number = torch.arange(len(hidden), device=hidden.device)[:, None]
        at = torch.cat([self.chunk_ends, self.last[:, None]], 1).to(hidden.device, non_blocking=True)
        states = F.normalize(hidden[number, at].float(), dim=-1)
        return states[:, -1], states[:, :-1].flatten(0, 1)


@dataclass(frozen=True, eq=False)
class MeanRows:
    """Rows one after the other, and the chunk (V,) of each visual token, of `chunks` in all."""

    inputs: GemmaRowInputs
    chunk: torch.Tensor
    tokens: torch.Tensor
    """(chunks,) visual tokens of each chunk."""

    @classmethod
    def of(cls, backbone: GemmaBackbone, rows: Sequence[TokenRow], grids: np.ndarray) -> MeanRows:
        tokens = torch.from_numpy(grids.reshape(-1, 2).prod(-1))
        chunk = torch.repeat_interleave(torch.arange(len(tokens)), tokens)
        return cls(backbone.rows_on(rows, torch.device("cpu")), chunk, tokens.float())

    def read(self, backbone: GemmaBackbone, seen: TowerOutput | None) -> tuple[torch.Tensor, torch.Tensor]:
        names = ("ids", "positions", "visual", "bounds", "owner", "weights")
        device = backbone.device
        moved = {name: getattr(self.inputs, name).to(device, non_blocking=True) for name in names}
        inputs = replace(self.inputs, **moved)
        chunk, tokens = (each.to(device, non_blocking=True) for each in (self.chunk, self.tokens))
        states = backbone.states(inputs, seen)
        rows = mean_rows(states, inputs)
        # As the mean of rows: in fp32, and projected afterwards.
        shown = states[inputs.visual].float()
        chunks = shown.new_zeros((len(tokens), shown.shape[-1])).index_add(0, chunk, shown) / tokens[:, None]
        vectors = F.normalize(backbone.project(torch.cat([rows, chunks])), dim=-1)
        return vectors[: len(rows)], vectors[len(rows) :]


Rows = CausalRows | MeanRows


def make_rows(backbone: Backbone, rows: Sequence[TokenRow], grids: np.ndarray | None = None) -> Rows:
    """Rows of prompts without videos, or with videos whose chunks have the grids (N, C, 2)."""
    grids = np.empty((len(rows), 0, 2), np.int64) if grids is None else grids
    if isinstance(backbone, GemmaBackbone):
        return MeanRows.of(backbone, rows, grids)
    return CausalRows.of(rows, grids)


def read_rows(backbone: Backbone, rows: Rows, seen: TowerOutput | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors in fp32 of the rows (N, width), and of their chunks in order (N · C, width)."""
    return rows.read(backbone, seen)  # pyright: ignore[reportArgumentType] (made by the same backbone)
