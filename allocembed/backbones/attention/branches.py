"""Causal attention of rows that begin with tokens of the first row, which are computed once."""

from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F

from allocembed.backbones.attention.flash import attend_by_flash, is_half_on_cuda


@dataclass(frozen=True, eq=False)
class BranchKeys:
    """Keys that each row sees. Rows may begin with tokens of the first row, which are computed once.

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
    if is_half_on_cuda(query):
        return attend_by_flash(query, key, value, bounds, key_bounds, longest, key_longest, scale, (-1, 0))
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
