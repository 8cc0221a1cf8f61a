"""Attention of the vision tower over chunks of different length, without a Python loop over chunks.

transformers' SDPA path calls the kernel once for every chunk of every layer. Registered under a name that
contains "flash", a function receives the chunk boundaries instead. In half precision on CUDA one
variable-length kernel does the work; elsewhere chunks of equal length share one SDPA call.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, PreTrainedModel

NAME = "flash_chunks"


@torch.compiler.disable
def chunk_attention(
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
    """(1, heads, N, d) queries, keys, values of N packed patches to (1, N, heads, d), chunk by chunk."""
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        from torch.nn.attention.varlen import varlen_attn

        packed = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
        lengths = (cu_seq_lens_q, cu_seq_lens_q, int(max_length_q), int(max_length_q))
        return varlen_attn(*packed, *lengths, scale=scaling)[None], None
    return _by_length(query[0], key[0], value[0], cu_seq_lens_q.diff().tolist(), scaling)[None], None


def _by_length(query, key, value, lengths: list[int], scaling: float | None) -> torch.Tensor:
    """One SDPA call for all chunks of one length: (heads, N, d) to (N, heads, d)."""
    alike: dict[int, list[int]] = defaultdict(list)
    for start, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
        alike[length].append(start)
    output = torch.empty_like(query.transpose(0, 1))
    for length, starts in alike.items():
        where = torch.tensor(starts, device=query.device)[:, None] + torch.arange(length, device=query.device)
        rows = (tensor[:, where].transpose(0, 1) for tensor in (query, key, value))
        attended = F.scaled_dot_product_attention(*rows, scale=scaling)
        output = output.index_put((where,), attended.transpose(1, 2))
    return output


def use_chunk_attention(vision_tower: PreTrainedModel) -> None:
    """Points a loaded vision tower at `chunk_attention`; weights and code stay as they are."""
    AttentionInterface.register(NAME, chunk_attention)
    vision_tower.config._attn_implementation = NAME
