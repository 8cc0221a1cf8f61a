"""Attention within rows as one SDPA call for all rows of one length: what a CPU computes, without transformers."""

from collections import defaultdict
from itertools import accumulate

import torch
import torch.nn.functional as F


def attend_by_length(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    radius: int | None,
    scale: float | None,
) -> torch.Tensor:
    """One SDPA call for all rows of one length."""
    alike: dict[int, list[int]] = defaultdict(list)
    for start, length in zip(accumulate(lengths, initial=0), lengths, strict=False):
        alike[length].append(start)
    grouped = query.shape[1] != key.shape[1]
    output = torch.empty_like(query, memory_format=torch.contiguous_format)
    for length, starts in alike.items():
        where = torch.tensor(starts, device=query.device)[:, None] + torch.arange(length, device=query.device)
        q, k, v = (tensor[where].transpose(1, 2) for tensor in (query, key, value))
        mask = None if radius is None or length <= radius + 1 else near(length, radius, query.device)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=scale, enable_gqa=grouped)
        output = output.index_put((where,), attended.transpose(1, 2))
    return output


def near(length: int, radius: int, device: torch.device) -> torch.Tensor:
    """Mask (length, length): which tokens are at most `radius` apart.

    >>> near(3, 1, torch.device("cpu")).int().tolist()
    [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    places = torch.arange(length, device=device)
    return (places[:, None] - places).abs() <= radius
