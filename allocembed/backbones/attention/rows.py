"""Attention within concatenated rows of different length, without a Python loop over rows.

transformers' SDPA path calls the kernel once per chunk and layer of the vision tower, and separates packed rows of the
language model by a dense mask. A function registered under a name that contains "flash" receives the boundaries
instead. On CUDA in half precision all rows go into one call: our own kernel if it fits, else FlashAttention 2. cuDNN is
used if all rows have one large length, where it is 1.5 times as fast as FlashAttention 2. It makes a new plan for every
shape, about 12 ms of host time, so it only gets shapes that recur. Heads too wide for FlashAttention 2, as in
EmbeddingGemma 2's layers of full attention, are computed on rows padded to one length. On a CPU and in float32, rows of
equal length share one SDPA call.
"""

from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from allocembed.backbones.attention.branches import BranchKeys, attend_branches
from allocembed.backbones.attention.by_length import attend_by_length, near
from allocembed.backbones.attention.flash import WIDEST_HEAD, attend_by_flash, is_half_on_cuda
from allocembed.kernels import find_kernel

NAME = "flash_rows"
CHUNKS_FOR_CUDNN = 1024  # patches per chunk from which cuDNN is worth its plan: 0.49 ms against 0.72 at 1600, on H200
TOKENS_FOR_CUDNN = 2048  # the same for tokens of a single causal row: 109 ms against 113 for all of 4,800 tokens
ROUND_TO = 512  # lengths are rounded up to a multiple of this for cuDNN, so that it needs few plans


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
    sliding_window: int | None = None,
    slots: torch.Tensor | None = None,
    branch_keys: BranchKeys | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """Queries, keys, values (B, heads, S, d), whose B · S positions are cut into rows at `cu_seq_lens_q`, to
    (B, S, heads, d). Causal if the module is. Keys and values may have fewer heads. `sliding_window` is one more than
    how far a token sees; None if it sees the whole row.

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
        radius = None if sliding_window is None or max_length_q <= sliding_window else sliding_window - 1
        attended = attend(*flat, cu_seq_lens_q, max_length_q, module.is_causal, radius, slots, scaling)
    return attended.unflatten(0, (len(query), -1)), None


def attend_rows(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    longest: int,
    causal: bool,
    radius: int | None,
    slots: torch.Tensor | None,
    scale: float | None,
) -> torch.Tensor:
    """Positions (N, heads, d) of all rows, cut at `bounds` (rows + 1,), to (N, heads, d), contiguous.

    A token sees others that are at most `radius` apart; None is the whole row. `slots` (rows, longest) are the places
    of the tokens of each row, −1 where a row is shorter. CUDA needs them for heads wider than 256, which must not be
    causal.
    """
    if not is_half_on_cuda(query):
        return attend_by_length(query, key, value, bounds.diff().tolist(), causal, radius, scale)
    if query.shape[-1] > WIDEST_HEAD and slots is not None and not causal:
        return attend_padded(query, key, value, slots, radius, scale)
    if radius is None and not torch.is_grad_enabled():
        ours = own_kernel()
        if ours is not None and not causal and ours.fits(query, key, value):
            return ours.attend(query, key, value, bounds, longest, scale)
        rows = len(bounds) - 1
        if causal:
            large = longest >= TOKENS_FOR_CUDNN and rows == 1
        else:  # measured for towers, whose heads are never grouped
            large = longest >= CHUNKS_FOR_CUDNN and query.shape[1] == key.shape[1]
        if large and rows * longest == len(query):
            return attend_by_cudnn(query, key, value, rows, causal, scale)
    # cuDNN's variable-length form took 70 ms on rows of different length where this takes 1.2.
    before = -1 if radius is None else radius
    window = (before, 0 if causal else before)
    return attend_by_flash(query, key, value, bounds, bounds, longest, longest, scale, window)


def own_kernel() -> ModuleType | None:
    """Our kernel; None where there is no Triton."""
    return find_kernel("allocembed.backbones.attention.kernel")


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


_attend_eagerly, _branches_eagerly = map(torch.compiler.disable, (attend_rows, attend_branches))
_attend_as_node = torch.library.custom_op("allocembed::attend_rows", attend_rows, mutates_args=())
_branches_as_node = torch.library.custom_op("allocembed::attend_branches", attend_branches, mutates_args=())


@_attend_as_node.register_fake
@_branches_as_node.register_fake
def _(query, *_):
    return query.new_empty(query.shape)


def register_row_attention() -> None:
    """Make `row_attention` known to transformers in this process."""
    AttentionInterface.register(NAME, row_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # for the library's own forward


def use_row_attention(model: PreTrainedModel) -> None:
    """Make a loaded vision tower or language model use `row_attention`; weights and code stay as they are."""
    register_row_attention()
    model.config._attn_implementation = NAME  # pyright: ignore[reportPrivateUsage] (no public way after loading)


def uses_row_attention(model: PreTrainedModel) -> bool:
    """Whether a model uses `row_attention`."""
    return model.config._attn_implementation == NAME  # pyright: ignore[reportPrivateUsage]
