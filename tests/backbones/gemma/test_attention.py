"""Attention within rows, in both directions: the same whichever way it is computed, and on a GPU."""

import pytest
import torch
import torch.nn.functional as F

from allocembed.backbones.gemma.attention import attend_padded, attend_rows
from allocembed.backbones.gemma.by_length import attend_by_length, near

LENGTHS = (40, 7, 40, 1)


def heads(count: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(sum(LENGTHS), count, width, generator=torch.Generator().manual_seed(seed))


def places() -> torch.Tensor:
    """(rows, longest) places of each row's tokens, −1 where it is shorter."""
    slots, start = torch.full((len(LENGTHS), max(LENGTHS)), -1), 0
    for row, length in enumerate(LENGTHS):
        slots[row, :length] = torch.arange(start, start + length)
        start += length
    return slots


def dense(query, key, value, radius) -> torch.Tensor:
    """The same with one mask over all tokens."""
    row = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    mask = row[:, None] == row
    if radius is not None:
        mask &= near(len(row), radius, row.device)
    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
    return attended[0].transpose(0, 1)


@pytest.mark.parametrize("radius", [None, 5, 100])
def test_rows_see_themselves_only_and_no_further_than_the_window(radius):
    query, key, value = heads(4, 16), heads(2, 16, 1), heads(2, 16, 2)
    expected = dense(query, key, value, radius)
    assert torch.allclose(attend_by_length(query, key, value, list(LENGTHS), radius, 0.3), expected, atol=1e-6)
    assert torch.allclose(attend_padded(query, key, value, places(), radius, 0.3), expected, atol=1e-6)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("radius", [None, 5])
@pytest.mark.parametrize("width", [64, 256, 512])
def test_a_gpu_computes_the_same_with_derivatives(radius, width):
    bounds = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32, device="cuda")
    given = [heads(4, width), heads(2, width, 1), heads(2, width, 2)]
    outcomes = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        leaves = [each.to(device, dtype, copy=True).requires_grad_() for each in given]
        if device == "cpu":
            attended = attend_by_length(*leaves, list(LENGTHS), radius, 0.3)
        else:
            attended = attend_rows(*leaves, bounds, max(LENGTHS), radius, places().cuda(), 0.3)
        attended.square().sum().backward()
        outcomes.append([attended.detach(), *(leaf.grad for leaf in leaves)])
    for exact, fast in zip(*outcomes, strict=True):
        assert F.cosine_similarity(exact.flatten(), fast.float().cpu().flatten(), dim=0) > 0.999
