"""The language model's forward pass, layer by layer, on rows that the host knows.

It computes what transformers' own forward computes, without reading from the device where the video tokens are or how
long packed rows are. If the model uses `row_attention`, packed rows are separated by their bounds, else by the
library's own mask. Recurrent layers get packed rows one below the other, each from its own start.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from allocembed.backbones.attention.branches import BranchKeys
from allocembed.backbones.attention.rows import uses_row_attention
from allocembed.backbones.base import TowerOutput
from allocembed.resize import send

RECURRENT = "linear_attention"
MASKS = {"full_attention": create_causal_mask, "sliding_attention": create_sliding_window_causal_mask}


@dataclass(frozen=True, eq=False)
class UnpackedPlaces:
    """Places that unpack packed rows and pack them again. `places` (rows, longest) are those of each row's tokens in
    the line, any place for padding. `back` (S,) are those of the line's tokens among the unpacked rows."""

    places: torch.Tensor
    back: torch.Tensor


@dataclass(frozen=True, eq=False)
class LanguageInputs:
    """Rows of tokens on the device: made once, valid for any visual tokens of those grids.

    `ids` (N, S) and `positions` (3, N, S); `video` (V,) are the places of video tokens among the N · S, `bounds`
    (rows + 1,) int32 the ends of the rows, `longest` the tokens of the longest row. `within` (N, S) counts from each
    packed row's start; None if rows are not packed.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    video: torch.Tensor
    bounds: torch.Tensor
    longest: int
    within: torch.Tensor | None
    keys: BranchKeys | None = None
    """Set if rows begin with tokens of the first row that are left out of the others."""
    unpacked: UnpackedPlaces | None = None
    """Set if rows are packed and the model has recurrent layers."""


def run_layer(
    layer: torch.nn.Module,
    hidden: torch.Tensor,
    mask: Any,
    bounds: torch.Tensor,
    longest: int,
    rotary: tuple[torch.Tensor, torch.Tensor],
    keys: BranchKeys | None = None,
) -> torch.Tensor:
    """One layer on (N, S, width). A function, so that it can be compiled once for all layers."""
    branches = {} if keys is None else {"branch_keys": keys}
    return layer(
        hidden,
        attention_mask=mask,
        position_embeddings=rotary,
        position_ids=None,
        past_key_values=None,
        use_cache=False,
        cu_seq_lens_q=bounds,
        max_length_q=longest,
        **branches,
    )


def run_recurrent(
    layer: torch.nn.Module,
    hidden: torch.Tensor,
    rotary: tuple[torch.Tensor, torch.Tensor],
    unpacked: UnpackedPlaces | None,
) -> torch.Tensor:
    """One recurrent layer on (N, S, width). Padding on the right is not masked: no real token comes after it."""
    rows = hidden if unpacked is None else hidden[0][unpacked.places]
    rows = layer(rows, attention_mask=None, position_embeddings=rotary, past_key_values=None)
    return rows if unpacked is None else rows.flatten(0, 1)[unpacked.back][None]


def unpacked_places(lengths: Sequence[int], device: torch.device) -> UnpackedPlaces:
    """Places for packed rows of these lengths."""
    ends = torch.tensor(lengths).cumsum(0)
    starts, within = ends - torch.tensor(lengths), torch.arange(max(lengths))
    places = (starts[:, None] + within).clamp(max=int(ends[-1]) - 1)
    back = (within < torch.tensor(lengths)[:, None]).flatten().nonzero()[:, 0]
    return UnpackedPlaces(send(places, device), send(back, device))


def prepare_language(
    ids: torch.Tensor, positions: torch.Tensor, video_token: int, device: torch.device, lengths: Sequence[int] | None
) -> LanguageInputs:
    """Inputs from ids (N, S) and positions (3, N, S), given on the host. `lengths` are those of rows packed into one.

    Packed positions are (4, 1, S): the first axis counts from each row's start.
    """
    video = (ids == video_token).flatten().nonzero()[:, 0]
    lengths = [ids.shape[1]] * len(ids) if lengths is None else list(lengths)
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    ids, positions, video, bounds = (send(tensor, device) for tensor in (ids, positions, video, bounds))
    within = positions[0] if len(positions) == 4 else None
    return LanguageInputs(ids, positions[-3:], video, bounds, max(lengths), within)


def run_language(
    model: Any,
    inputs: LanguageInputs,
    features: TowerOutput | None = None,
    *,
    layer: Callable[..., torch.Tensor] = run_layer,
    at: torch.Tensor | None = None,
) -> torch.Tensor:
    """Last hidden states (N, S, width), or (K, width) of only the places `at` (K,) among the N · S.

    Video tokens are replaced by `features` in order. `layer` is `run_layer`, compiled or not.
    """
    hidden = model.embed_tokens(inputs.ids)
    deepstack = ()
    if features is not None:
        hidden = _put(hidden, inputs.video, features.tokens.to(hidden.dtype))
        deepstack = features.deepstack
    masks = _masks(model, hidden, inputs.within)
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * len(model.layers)
    rotary = model.rotary_emb(hidden, inputs.positions)
    for number, each in enumerate(model.layers):
        if kinds[number] == RECURRENT:
            hidden = run_recurrent(each, hidden, rotary, inputs.unpacked)
            continue
        hidden = layer(each, hidden, masks[kinds[number]], inputs.bounds, inputs.longest, rotary, inputs.keys)
        if number < len(deepstack):
            there = hidden.flatten(0, 1)[inputs.video]
            hidden = _put(hidden, inputs.video, there + deepstack[number].to(hidden.dtype))
    return model.norm(hidden if at is None else hidden.flatten(0, 1)[at])


def _put(hidden: torch.Tensor, where: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Hidden states (N, S, width) with the places `where` among the N · S replaced by values (V, width)."""
    return hidden.flatten(0, 1).index_copy(0, where, values).view(hidden.shape)


def _masks(model: Any, hidden: torch.Tensor, within: torch.Tensor | None) -> dict[str, Any]:
    """The library's masks for its own attention. Ours receives the bounds and needs none."""
    if uses_row_attention(model):
        return dict.fromkeys(MASKS)
    about = {"config": model.config, "inputs_embeds": hidden, "attention_mask": None, "past_key_values": None}
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"]) - {RECURRENT}
    return {kind: MASKS[kind](**about, position_ids=within) for kind in kinds}
