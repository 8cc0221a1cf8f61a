"""Attention within rows of different length that lie one after the other, without a Python loop over rows.

transformers' SDPA path calls the kernel once for every chunk of every layer of the vision tower, and keeps packed rows
of the language model apart by a dense mask. A function registered under a name that contains "flash" is told the
boundaries instead. On CUDA in half precision all rows go in one call: of our own kernel where it fits, else of
FlashAttention 2. cuDNN attends where all rows have one large length, because it is half as fast again there as
FlashAttention 2; it plans anew for every shape it meets, some 12 ms of the host's time, so it is only given shapes that
come again. On a CPU and in float32, rows of one length share one SDPA call.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from functools import cache
from itertools import accumulate
from types import ModuleType

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, PreTrainedModel

NAME = "flash_rows"
CHUNKS_FOR_CUDNN = 1024  # patches of a chunk from which cuDNN is worth its plan: 0.49 ms against 0.72 at 1600, on H200
TOKENS_FOR_CUDNN = 2048  # tokens of a single causal row from which it is: 109 ms against 113 for all of 4,800 tokens
ROUND_TO = 512  # lengths are rounded up to a multiple of this for cuDNN, so that its plans are few
# Grouped heads must be asked for from torch 2.12 on; before, the kernel takes them without a word.
GROUPED = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: None,
    *,
    cu_seq_lens_q: torch.Tensor,
    max_length_q: int,
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """(B, heads, S, d) queries, keys, values, whose B · S positions are cut into rows at `cu_seq_lens_q`, to
    (B, S, heads, d); causal where the module is. Keys and values may have fewer heads."""
    lines = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
    # Compiled for inference, attention is one opaque node of the graph; training has its own derivatives.
    attend = _attend_as_a_node if torch.compiler.is_compiling() and not torch.is_grad_enabled() else _attend_apart
    attended = attend(*lines, cu_seq_lens_q, max_length_q, module.is_causal, scaling)
    return attended.unflatten(0, (len(query), -1)), None


def attend_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """(N, heads, d) positions of all rows, cut at `bounds` (rows + 1,), to (N, heads, d), contiguous."""
    if not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return _by_length(query, key, value, bounds.diff().tolist(), causal, scale)
    ours = own_kernel()
    if ours is not None and not causal and not torch.is_grad_enabled() and ours.fits(query, key, value):
        return ours.attend(query, key, value, bounds, longest, scale)
    rows = len(bounds) - 1
    large = longest >= CHUNKS_FOR_CUDNN if not causal else longest >= TOKENS_FOR_CUDNN and rows == 1
    if large and rows * longest == len(query) and not torch.is_grad_enabled():
        return _by_cudnn(query, key, value, rows, causal, scale)
    # cuDNN has a variable-length form too; on rows of different length it took 70 ms where this takes 1.2.
    window = (-1, 0) if causal else (-1, -1)
    grouped = GROUPED if query.shape[1] != key.shape[1] else {}
    return varlen_attn(query, key, value, bounds, bounds, longest, longest, scale=scale, window_size=window, **grouped)


@cache
def own_kernel() -> ModuleType | None:
    """Our kernel; None without Triton, which comes with torch where there is a GPU for it."""
    try:
        from allocembed.backbones import kernel
    except ImportError:
        return None
    return kernel


def _by_cudnn(query, key, value, rows: int, causal: bool, scale: float | None) -> torch.Tensor:
    """cuDNN's kernel on rows of one length, called by name: choosing it by a setting would choose for all threads."""
    length = len(query) // rows
    more = -length % ROUND_TO if causal else 0
    if more:  # of a single row, in which what comes after changes nothing
        query, key, value = (F.pad(tensor, (0, 0, 0, 0, 0, more)) for tensor in (query, key, value))
    dense = (tensor.unflatten(0, (rows, -1)).transpose(1, 2) for tensor in (query, key, value))
    attended = torch.ops.aten._scaled_dot_product_cudnn_attention(*dense, None, False, 0.0, causal, False, scale=scale)
    return attended[0][:, :, :length].transpose(1, 2).flatten(0, 1).contiguous()


def _by_length(query, key, value, lengths: list[int], causal: bool, scale: float | None) -> torch.Tensor:
    """One SDPA call for all rows of one length."""
    alike: dict[int, list[int]] = defaultdict(list)
    for start, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
        alike[length].append(start)
    query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
    grouped = len(query) != len(key)
    output = torch.empty_like(query.transpose(0, 1))
    for length, starts in alike.items():
        where = torch.tensor(starts, device=query.device)[:, None] + torch.arange(length, device=query.device)
        rows = (tensor[:, where].transpose(0, 1) for tensor in (query, key, value))
        attended = F.scaled_dot_product_attention(*rows, is_causal=causal, scale=scale, enable_gqa=grouped)
        output = output.index_put((where,), attended.transpose(1, 2))
    return output.contiguous()


_attend_apart = torch.compiler.disable(attend_rows)
_attend_as_a_node = torch.library.custom_op("allocembed::attend_rows", attend_rows, mutates_args=())


@_attend_as_a_node.register_fake
def _(query, key, value, bounds, longest, causal, scale):
    return query.new_empty(query.shape)


def use_row_attention(model: PreTrainedModel) -> None:
    """Points a loaded vision tower or language model at `row_attention`; weights and code stay as they are."""
    AttentionInterface.register(NAME, row_attention)
    model.config._attn_implementation = NAME
