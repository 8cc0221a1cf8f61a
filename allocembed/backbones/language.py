"""The language model's forward pass, layer by layer, on rows that the host knows.

What transformers' own forward does, without asking the device where the video tokens are, how long packed rows are or
whether they are packed. Where the model attends by `row_attention`, packed rows are kept apart by their bounds; else by
the library's own mask.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from transformers import PreTrainedModel
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from allocembed.backbones.attention import NAME
from allocembed.backbones.tower import Seen
from allocembed.resize import send

MASKS = {"full_attention": create_causal_mask, "sliding_attention": create_sliding_window_causal_mask}


@dataclass(frozen=True, eq=False)
class Lines:
    """Rows of tokens on the device: made once, good for any features of those grids.

    `ids` (N, S) and `positions` (3, N, S); `video` (V,) are the places of video tokens among the N · S, `bounds`
    (rows + 1,) int32 where the rows end, `longest` the tokens of the longest. `apart` (N, S) counts from each packed
    row's start; None where rows are not packed.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    video: torch.Tensor
    bounds: torch.Tensor
    longest: int
    apart: torch.Tensor | None


def run_layer(layer: torch.nn.Module, hidden: torch.Tensor, mask, bounds, longest: int, rotary) -> torch.Tensor:
    """One layer on (N, S, width); a function of its own so that it can be compiled once for all."""
    return layer(
        hidden,
        attention_mask=mask,
        position_embeddings=rotary,
        position_ids=None,
        past_key_values=None,
        use_cache=False,
        cu_seq_lens_q=bounds,
        max_length_q=longest,
    )


def find_lines(
    ids: torch.Tensor, positions: torch.Tensor, video_token: int, device: torch.device, lengths: Sequence[int] | None
) -> Lines:
    """Lines of ids (N, S) and positions (3, N, S), given on the host; `lengths` are those of rows packed into one.

    Packed positions are (4, 1, S): the first counts from each row's start.
    """
    video = (ids == video_token).flatten().nonzero()[:, 0]
    lengths = [ids.shape[1]] * len(ids) if lengths is None else list(lengths)
    bounds = torch.tensor([0, *accumulate(lengths)], dtype=torch.int32)
    ids, positions, video, bounds = (send(tensor, device) for tensor in (ids, positions, video, bounds))
    apart = positions[0] if len(positions) == 4 else None
    return Lines(ids, positions[-3:], video, bounds, max(lengths), apart)


def run_language(
    model: PreTrainedModel,
    lines: Lines,
    features: Seen | None = None,
    *,
    layer: Callable[..., torch.Tensor] = run_layer,
    at: torch.Tensor | None = None,
) -> torch.Tensor:
    """Last hidden states (N, S, width), or (K, width) of the places `at` (K,) among the N · S alone.

    Video tokens are replaced by `features` in order; `layer` is `run_layer`, or that compiled.
    """
    hidden = model.embed_tokens(lines.ids)
    deepstack = ()
    if features is not None:
        hidden = _put(hidden, lines.video, features.pooler_output.to(hidden.dtype))
        deepstack = features.deepstack_features or ()
    masks = _masks(model, hidden, lines.apart)
    kinds = getattr(model.config, "layer_types", None) or ["full_attention"] * len(model.layers)
    rotary = model.rotary_emb(hidden, lines.positions)
    for number, each in enumerate(model.layers):
        hidden = layer(each, hidden, masks[kinds[number]], lines.bounds, lines.longest, rotary)
        if number < len(deepstack):
            there = hidden.flatten(0, 1)[lines.video]
            hidden = _put(hidden, lines.video, there + deepstack[number].to(hidden.dtype))
    return model.norm(hidden if at is None else hidden.flatten(0, 1)[at])


def _put(hidden: torch.Tensor, where: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """(N, S, width) with the places `where` among the N · S replaced by values (V, width)."""
    return hidden.flatten(0, 1).index_copy(0, where, values).view(hidden.shape)


def _masks(model: PreTrainedModel, hidden: torch.Tensor, apart: torch.Tensor | None) -> dict[str, torch.Tensor | None]:
    """The library's masks for its own attention; ours is told the bounds and needs none."""
    if model.config._attn_implementation == NAME:
        return dict.fromkeys(MASKS)
    about = {"config": model.config, "inputs_embeds": hidden, "attention_mask": None, "past_key_values": None}
    kinds = set(getattr(model.config, "layer_types", None) or ["full_attention"])
    return {kind: MASKS[kind](**about, position_ids=apart) for kind in kinds}
