"""Attention within concatenated rows of different length, without a Python loop over rows.

transformers' SDPA path calls the kernel once per chunk and layer of the vision tower, and separates packed rows of the
language model by a dense mask. A function registered under a name that contains "flash" receives the boundaries
instead. On CUDA in half precision all rows go into one call: our own kernel if it fits, else FlashAttention 2. cuDNN is
used if all rows have one large length, where it is 1.5 times as fast as FlashAttention 2. It makes a new plan for every
shape, about 12 ms of host time, so it only gets shapes that recur. On a CPU and in float32, rows of equal length share
one SDPA call.
"""

import inspect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "flash_rows"
CHUNKS_FOR_CUDNN = 1024  # patches per chunk from which cuDNN is worth its plan: 0.49 ms against 0.72 at 1600, on H200
TOKENS_FOR_CUDNN = 2048  # the same for tokens of a single causal row: 109 ms against 113 for all of 4,800 tokens
ROUND_TO = 512  # lengths are rounded up to a multiple of this for cuDNN, so that it needs few plans
# From torch 2.12 on, grouped heads must be requested; before, the kernel accepts them silently.
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


def row_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    cu_seq_lens_q: torch.Tensor | None = None,
    max_length_q: int = 0,
    scaling: float | None = None,
    branch_keys: "BranchKeys | None" = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Queries, keys, values (B, heads, S, d), whose B · S positions are cut into rows at `cu_seq_lens_q`, to
    (B, S, heads, d). Causal if the module is. Keys and values may have fewer heads.

    Without the bounds of rows, it is the library's own forward that calls, with its own mask.
    """
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    flat = [tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value)]
    # Compiled for inference, attention is one opaque node of the graph; training needs derivatives.
    inference = torch.compiler.is_compiling() and not torch.is_grad_enabled()
    if branch_keys is not None:
        branch: Any = _branches_as_node if inference else _branches_eagerly
        keys = (branch_keys.index, branch_keys.bounds, branch_keys.longest)
        attended = branch(*flat, *keys, cu_seq_lens_q, max_length_q, scaling)
    else:
        attend: Any = _attend_as_node if inference else _attend_eagerly
        attended = attend(*flat, cu_seq_lens_q, max_length_q, module.is_causal, scaling)
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
    """Positions (N, heads, d) of all rows, cut at `bounds` (rows + 1,), to (N, heads, d), contiguous."""
    if not query.is_cuda or query.dtype not in (torch.bfloat16, torch.float16):
        return attend_by_length(query, key, value, bounds.diff().tolist(), causal, scale)
    ours = own_kernel()
    if ours is not None and not causal and not torch.is_grad_enabled() and ours.fits(query, key, value):
        return ours.attend(query, key, value, bounds, longest, scale)
    rows = len(bounds) - 1
    large = longest >= CHUNKS_FOR_CUDNN if not causal else longest >= TOKENS_FOR_CUDNN and rows == 1
    if large and rows * longest == len(query) and not torch.is_grad_enabled():
        return attend_by_cudnn(query, key, value, rows, causal, scale)
    # cuDNN's variable-length form took 70 ms on rows of different length where this takes 1.2.
    window = (-1, 0) if causal else (-1, -1)
    grouped = GROUPED if query.shape[1] != key.shape[1] else {}
    attend: Callable[..., Any] = varlen_attn
    return attend(query, key, value, bounds, bounds, longest, longest, scale=scale, window_size=window, **grouped)


@dataclass(frozen=True, eq=False)
class BranchKeys:
    """Which keys each row sees, where rows begin with tokens of the first row that are computed once.

    `index` (K,) are the places of the keys of all rows, cut at `bounds` (rows + 1,), int32; `longest` is at least the
    most keys of a row. The last keys of a row are its own tokens.
    """

    index: torch.Tensor
    bounds: torch.Tensor
    longest: int


def attend_branches(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    index: torch.Tensor,
    key_bounds: torch.Tensor,
    key_longest: int,
    bounds: torch.Tensor,
    longest: int,
    scale: float | None,
) -> torch.Tensor:
    """Causal attention of positions (N, heads, d), cut into rows at `bounds`, to the `BranchKeys` of each row."""
    key, value = key[index], value[index]
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        grouped = GROUPED if query.shape[1] != key.shape[1] else {}
        attend: Callable[..., Any] = varlen_attn
        limits = (bounds, key_bounds, longest, key_longest)
        return attend(query, key, value, *limits, scale=scale, window_size=(-1, 0), **grouped)
    output = torch.empty_like(query)
    ends, key_ends = (list(pairwise(each.tolist())) for each in (bounds, key_bounds))
    for (start, end), (first, last) in zip(ends, key_ends, strict=True):
        mask = torch.ones(end - start, last - first, dtype=torch.bool, device=query.device)
        mask = mask.tril(last - first - (end - start))
        q, k, v = (tensor.transpose(0, 1)[None] for tensor in (query[start:end], key[first:last], value[first:last]))
        grouped = q.shape[1] != k.shape[1]
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
        output[start:end] = attended[0].transpose(0, 1)
    return output


@cache
def own_kernel() -> ModuleType | None:
    """Our kernel; None without Triton, which torch brings along on machines with a GPU."""
    try:
        from allocembed.backbones.qwen_vl import kernel
    except ImportError:
        return None
    return kernel


def attend_by_cudnn(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, rows: int, causal: bool, scale: float | None
) -> torch.Tensor:
    """cuDNN's kernel on rows of one length, called by name, because a global setting would affect all threads."""
    length = len(query) // rows
    more = -length % ROUND_TO if causal else 0
    if more:  # a single causal row, in which later positions change nothing
        query, key, value = (F.pad(tensor, (0, 0, 0, 0, 0, more)) for tensor in (query, key, value))
    dense = (tensor.unflatten(0, (rows, -1)).transpose(1, 2) for tensor in (query, key, value))
    attended = torch.ops.aten._scaled_dot_product_cudnn_attention(*dense, None, False, 0.0, causal, False, scale=scale)
    return attended[0][:, :, :length].transpose(1, 2).flatten(0, 1).contiguous()


def attend_by_length(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lengths: list[int], causal: bool, scale: float | None
) -> torch.Tensor:
    """One SDPA call for all rows of one length."""
    alike: dict[int, list[int]] = defaultdict(list)
    for start, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
        alike[length].append(start)
    query, key, value = (tensor.transpose(0, 1) for tensor in (query, key, value))
    grouped = len(query) != len(key)
    output = torch.empty_like(query.transpose(0, 1))
    for length, starts in alike.items():
        where = torch.tensor(starts, device=query.device)[:, None] + torch.arange(length, device=query.device)
        q, k, v = (tensor[:, where].transpose(0, 1) for tensor in (query, key, value))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=grouped)
        output = output.index_put((where,), attended.transpose(1, 2))
    return output.contiguous()


_attend_eagerly, _branches_eagerly = map(torch.compiler.disable, (attend_rows, attend_branches))
_attend_as_node = torch.library.custom_op("allocembed::attend_rows", attend_rows, mutates_args=())
_branches_as_node = torch.library.custom_op("allocembed::attend_branches", attend_branches, mutates_args=())


@_attend_as_node.register_fake
@_branches_as_node.register_fake
def _(query, *_):
    return query.new_empty(query.shape)


def use_row_attention(model: PreTrainedModel) -> None:
    """Make a loaded vision tower or language model use `row_attention`; weights and code stay as they are."""
    AttentionInterface.register(NAME, row_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # for the library's own forward
    model.config._attn_implementation = NAME  # pyright: ignore[reportPrivateUsage] (no public way after loading)
