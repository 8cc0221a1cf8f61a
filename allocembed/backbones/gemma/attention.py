"""Attention within concatenated rows of different length, in both directions, over all of a row or near tokens only.

Rows are separated by their bounds instead of a dense mask. On CUDA in half precision all rows go into one call of
FlashAttention 2. Its heads have at most 256 numbers; wider ones, as in EmbeddingGemma 2's layers of full attention, are
computed on rows padded to one length. On a CPU and in float32, rows of equal length share one SDPA call.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from allocembed.backbones.gemma.by_length import attend_by_length, near
from allocembed.backbones.qwen_vl.attention import GROUPED

NAME = "flash_rows_both_ways"
WIDEST = 256  # numbers of a head in FlashAttention 2


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    slots: torch.Tensor | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Queries, keys, values (1, heads, S, d), whose S positions are cut into rows at `cu_seq_lens_q`, to
    (1, S, heads, d). `sliding_window` is one more than how far a token sees; None if it sees the whole row.

    Without the bounds of rows, it is the library's own forward that calls, with its own mask.
    """
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    radius = None if sliding_window is None or max_length_q <= sliding_window else sliding_window - 1
    flat = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    # Compiled for inference, attention is one opaque node of the graph; training needs derivatives.
    inference = torch.compiler.is_compiling() and not torch.is_grad_enabled()
    attend: Any = _attend_as_node if inference else _attend_eagerly
    return attend(*flat, cu_seq_lens_q, max_length_q, radius, slots, scaling)[None], None


def attend_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    radius: int | None,
    slots: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    """Positions (S, heads, d) of all rows, cut at `bounds` (rows + 1,), to (S, heads, d), contiguous.

    `slots` (rows, longest) are the places of the tokens of each row, −1 where a row is shorter: for wide heads on CUDA.
    """
    if not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return attend_by_length(query, key, value, bounds.diff().tolist(), radius, scale)
    if query.shape[-1] > WIDEST and slots is not None:
        return attend_padded(query, key, value, slots, radius, scale)
    window = (-1, -1) if radius is None else (radius, radius)
    grouped = GROUPED if query.shape[1] != key.shape[1] else {}
    attend: Callable[..., Any] = varlen_attn
    return attend(query, key, value, bounds, bounds, longest, longest, scale=scale, window_size=window, **grouped)


def attend_padded(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    slots: torch.Tensor,
    radius: int | None,
    scale: float | None,
) -> torch.Tensor:
    """Rows padded to one length: one SDPA call for all, without asking the host how long they are."""
    inside, groups = slots >= 0, query.shape[1] // key.shape[1]
    places = slots.clamp(min=0)
    q, k, v = (tensor[places].transpose(1, 2) for tensor in (query, key, value))
    k, v = (tensor.repeat_interleave(groups, dim=1) for tensor in (k, v))  # no kernel for wide grouped heads
    mask = inside[:, None, None]
    if radius is not None:
        mask = mask & near(slots.shape[1], radius, slots.device)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale).transpose(1, 2)
    # What is computed for the padding goes to a place after the last one.
    output = attended.new_zeros((len(query) + 1, *attended.shape[2:]))
    where = torch.where(inside, slots, len(query)).flatten()
    return output.index_copy(0, where, attended.flatten(0, 1))[:-1]


_attend_eagerly = torch.compiler.disable(attend_rows)
_attend_as_node = torch.library.custom_op("allocembed::attend_rows_both_ways", attend_rows, mutates_args=())


@_attend_as_node.register_fake
def _(query, *_):
    return query.new_empty(query.shape)


def use_row_attention(model: PreTrainedModel) -> None:
    """Make a loaded language model use `row_attention`; weights and code stay as they are."""
    AttentionInterface.register(NAME, row_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # for the library's own forward
    model.config._attn_implementation = NAME  # pyright: ignore[reportPrivateUsage] (no public way after loading)
