"""Attention within rows as one SDPA call for all rows of one length: what a CPU computes, without transformers."""

from collections import defaultdict
from itertools import groupby

import torch
import torch.nn.functional as F


def attend_by_length(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: list[int],
    causal: bool,
    radius: int | None,
    scale: float | None,
) -> torch.Tensor:
    """Positions (N, heads, d) of rows of these lengths, none of them 0, to (N, heads, d), contiguous.

    Neighbouring rows of one length are a view. Only those that stand apart are copied together.
    """
    runs, end = defaultdict[int, list[slice]](list), 0
    for length, neighbours in groupby(lengths):
        start, end = end, end + length * len(list(neighbours))
        runs[length].append(slice(start, end))
    grouped = query.shape[1] != key.shape[1]
    attended: dict[int, torch.Tensor] = {}
    for length, places in runs.items():
        q, k, v = _rows(query, places, length), _rows(key, places, length), _rows(value, places, length)
        mask = None
        if radius is not None and length > radius + 1:
            mask = near(length, radius, query.device)
            mask = mask.tril() if causal else mask
        whole = causal and mask is None
        made = F.scaled_dot_product_attention(q, k, v, mask, is_causal=whole, scale=scale, enable_gqa=grouped)
        parts = made.transpose(1, 2).flatten(0, 1).split([place.stop - place.start for place in places])
        attended.update(zip((place.start for place in places), parts, strict=True))
    if len(attended) == 1:
        return attended[0].contiguous()
    return torch.cat([attended[start] for start in sorted(attended)])


def _rows(tensor: torch.Tensor, places: list[slice], length: int) -> torch.Tensor:
    """The rows of one length (rows, heads, length, d), which stand at these places."""
    parts = list(map(tensor.__getitem__, places))
    together = parts[0] if len(parts) == 1 else torch.cat(parts)
    return together.unflatten(0, (-1, length)).transpose(1, 2)


def near(length: int, radius: int, device: torch.device) -> torch.Tensor:
    """Mask (length, length): which tokens are at most `radius` apart.

    >>> near(3, 1, torch.device("cpu")).int().tolist()
    [[1, 1, 0], [1, 1, 1], [0, 1, 1]]
    """
    places = torch.arange(length, device=device)
    return (places[:, None] - places).abs() <= radius
