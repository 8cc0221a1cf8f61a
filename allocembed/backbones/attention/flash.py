"""FlashAttention 2 on rows of different length, as torch includes it: CUDA in half precision only."""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.varlen import varlen_attn

WIDEST_HEAD = 256  # numbers of a head
# From torch 2.12 on, grouped heads must be requested; before, the kernel accepts them silently.
GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in inspect.signature(varlen_attn).parameters else {}


def attend_by_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    key_bounds: torch.Tensor,
    longest: int,
    key_longest: int,
    scale: float | None,
    window: tuple[int, int],
) -> torch.Tensor:
    """Queries (N, heads, d), cut at `bounds`, and the keys and values of each row, cut at `key_bounds`.

    `window` is how many tokens a token sees before and after itself, −1 for all.
    """
    grouped = GROUPED if query.shape[1] != key.shape[1] else {}
    attend: Callable[..., Any] = varlen_attn
    limits = (bounds, key_bounds, longest, key_longest)
    return attend(query, key, value, *limits, scale=scale, window_size=window, **grouped)


def is_half_on_cuda(query: torch.Tensor) -> bool:
    """Whether a tensor is on CUDA in half precision."""
    return query.is_cuda and query.dtype in (torch.bfloat16, torch.float16)
