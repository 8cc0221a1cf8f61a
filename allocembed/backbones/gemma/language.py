"""The language model of EmbeddingGemma 2, layer by layer, on rows that the host knows, and the mean of each row.

All rows are one sequence, separated by their bounds, so there is nothing to mask. What a layer receives of the tokens
besides the states, its per-layer input, is computed for one layer at a time: for all it would be the largest tensor.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.attention.flash import WIDEST_HEAD
from allocembed.backbones.base import TokenRow, TowerOutput
from allocembed.backbones.gemma.inputs import Pooling
from allocembed.resize import send


@dataclass(frozen=True, eq=False)
class GemmaRowInputs:
    """Rows of tokens on the device, one after the other: made once, valid for any visual tokens of those grids.

    `ids` and `positions` are (1, S); `visual` (V,) are the places of visual tokens, `bounds` (rows + 1,) int32 the ends
    of the rows, `longest` the tokens of the longest. `owner` (S,) is the row of each token, `weights` (S,) its weight
    in the row's mean. `slots` (rows, longest) are the places of each row's tokens, −1 where it is shorter; None where
    attention does not need them.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    visual: torch.Tensor
    bounds: torch.Tensor
    longest: int
    owner: torch.Tensor
    weights: torch.Tensor
    count: int
    slots: torch.Tensor | None = None


def run_layer(
    layer: torch.nn.Module,
    hidden: torch.Tensor,
    extra: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    slots: torch.Tensor | None,
    cos: torch.Tensor,
    sin: torch.Tensor,
) -> torch.Tensor:
    """One layer on (1, S, width). A function, so that it can be compiled once for all layers."""
    return layer(
        hidden,
        extra,
        attention_mask=None,
        position_embeddings=(cos, sin),
        cu_seq_lens_q=bounds,
        max_length_q=longest,
        slots=slots,
    )


def prepare_rows(
    rows: Sequence[TokenRow], filler: int, pooling: Pooling, widest: int, device: torch.device
) -> GemmaRowInputs:
    """Rows on the device. `filler` is the token in the place of visual ones, `widest` the size of the widest head."""
    lengths = [len(row) for row in rows]
    visual = np.concatenate([row.visual for row in rows])
    ids = np.where(visual, filler, np.concatenate([row.ids for row in rows]))[None]
    positions = np.concatenate([row.positions for row in rows], 1)
    bounds = np.array([0, *accumulate(lengths)], np.int32)
    owner = np.repeat(np.arange(len(rows)), lengths)
    weights = token_weights(visual, owner, pooling) / np.repeat(lengths, lengths)
    arrays = [ids, positions, np.flatnonzero(visual), bounds, owner, weights.astype(np.float32)]
    if device.type == "cuda" and widest > WIDEST_HEAD:
        within = np.arange(max(lengths))
        arrays.append(np.where(within < np.array(lengths)[:, None], bounds[:-1, None] + within, -1))
    ids, positions, places, bounds, owner, weights, *more = (send(torch.from_numpy(one), device) for one in arrays)
    slots = more[0] if more else None
    return GemmaRowInputs(ids, positions, places, bounds, max(lengths), owner, weights, len(rows), slots)


def token_weights(visual: np.ndarray, owner: np.ndarray, pooling: Pooling) -> np.ndarray:
    """Weights (S,) of tokens in the sum over their row, which are 1 on average.

    Pooled by `frames`, the visual tokens of each frame weigh as much together as those of any other frame of the row. A
    frame is a run of visual tokens: others stand between two.

    >>> token_weights(np.array([0, 1, 0, 1, 1, 1, 0], bool), np.zeros(7, int), "frames").round(3).tolist()
    [1.0, 2.0, 1.0, 0.667, 0.667, 0.667, 1.0]
    """
    weights = np.ones(len(visual))
    if pooling == "tokens" or not visual.any():
        return weights
    edges = np.diff(visual.astype(np.int8), prepend=0, append=0)
    starts, ends = np.flatnonzero(edges == 1), np.flatnonzero(edges == -1)
    sizes, rows = ends - starts, owner[starts]
    tokens, frames = (np.bincount(rows, weights=each, minlength=owner[-1] + 1) for each in (sizes, None))
    weights[visual] = np.repeat(tokens[rows] / (frames[rows] * sizes), sizes)
    return weights


def run_language(
    model: Any,
    inputs: GemmaRowInputs,
    features: TowerOutput | None = None,
    *,
    layer: Callable[..., torch.Tensor] = run_layer,
) -> torch.Tensor:
    """Last hidden states (S, width), before the projection. Visual tokens are replaced by `features` in order."""
    hidden = model.embed_tokens(inputs.ids)
    if features is not None:
        hidden = hidden[0].index_copy(0, inputs.visual, features.tokens.to(hidden.dtype))[None]
    kinds, extra = model.config.layer_types, layer_inputs(model.ple, hidden)
    rotary = {kind: model.rotary_emb(hidden, inputs.positions, kind) for kind in sorted(set(kinds))}
    for each, kind, own in zip(model.layers, kinds, extra, strict=True):
        hidden = layer(each, hidden, own, inputs.bounds, inputs.longest, inputs.slots, *rotary[kind])
    return model.norm(hidden)[0]


def layer_inputs(extra: Any, first: torch.Tensor) -> Iterator[torch.Tensor]:
    """The per-layer input (1, S, P) of one layer after the other, from the first states (1, S, width)."""
    weight = extra.per_layer_model_projection.weight
    if not weight.is_floating_point():  # rounded to eight bits
        yield from extra(first).unbind(2)
        return
    for part in weight.split(extra.hidden_size_per_layer_input):
        yield extra.per_layer_projection_norm(F.linear(first, part) * extra.per_layer_model_projection_scale)


def mean_rows(states: torch.Tensor, inputs: GemmaRowInputs) -> torch.Tensor:
    """The weighted mean (rows, width), fp32, of the states (S, width) of each row."""
    weighted = states.float() * inputs.weights[:, None]
    return weighted.new_zeros((inputs.count, states.shape[-1])).index_add(0, inputs.owner, weighted)
