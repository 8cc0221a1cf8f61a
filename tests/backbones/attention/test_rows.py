"""Attention within rows: the same whichever way it is computed, and on a GPU."""

import pytest
import torch
import torch.nn.functional as F

from allocembed.backbones.attention import rows as rows_attention
from allocembed.backbones.attention.by_length import attend_by_length, near
from allocembed.backbones.attention.rows import attend_by_cudnn, attend_padded, attend_rows

LENGTHS = (40, 7, 7, 40, 1)


def heads(count: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(sum(LENGTHS), count, width, generator=torch.Generator().manual_seed(seed))


def places() -> torch.Tensor:
    """(rows, longest) places of each row's tokens, −1 where it is shorter."""
    slots, start = torch.full((len(LENGTHS), max(LENGTHS)), -1), 0
    for row, length in enumerate(LENGTHS):
        slots[row, :length] = torch.arange(start, start + length)
        start += length
    return slots


def dense(query, key, value, causal, radius) -> torch.Tensor:
    """Attention within rows, computed with one mask over all tokens."""
    row = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))
    mask = row[:, None] == row
    if radius is not None:
        mask &= near(len(row), radius, row.device)
    if causal:
        mask = mask.tril()
    q, k, v = (each.transpose(0, 1)[None] for each in (query, key, value))
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=0.3, enable_gqa=True)
    return attended[0].transpose(0, 1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("radius", [None, 5, 100])
def test_rows_see_themselves_only_and_no_further_than_the_window(radius, causal):
    query, key, value = heads(4, 16), heads(2, 16, 1), heads(2, 16, 2)
    expected = dense(query, key, value, causal, radius)
    found = attend_by_length(query, key, value, list(LENGTHS), causal, radius, 0.3)
    assert found.is_contiguous() and torch.allclose(found, expected, atol=1e-6)
    if not causal:
        assert torch.allclose(attend_padded(query, key, value, places(), radius, 0.3), expected, atol=1e-6)


@pytest.mark.parametrize("lengths", [[12], [4, 4, 4], [3, 3, 6], [3, 6, 3]])
def test_rows_of_one_length_share_a_call_and_neighbours_are_not_copied(lengths, monkeypatch):
    attend, calls = F.scaled_dot_product_attention, []

    def watch(query, key, value, *others, **options):
        calls.append((query.shape[0] * query.shape[2], {each.untyped_storage().data_ptr() for each in (query, key)}))
        return attend(query, key, value, *others, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", watch)
    query, key, value = torch.randn(12, 3, 2, 8, generator=torch.Generator().manual_seed(0)).unbind(1)
    found = attend_by_length(query, key, value, lengths, True, None, None)
    counts = {length: length * lengths.count(length) for length in lengths}
    assert [tokens for tokens, _ in calls] == list(counts.values())
    given = {query.untyped_storage().data_ptr()}
    assert [storages == given for _, storages in calls] == [length != 3 or lengths[1] == 3 for length in counts]
    start = 0
    for length in lengths:
        row = (each[start : start + length].transpose(0, 1)[None] for each in (query, key, value))
        assert torch.equal(found[start : start + length], attend(*row, is_causal=True)[0].transpose(0, 1))
        start += length


@pytest.mark.parametrize(("rows", "length", "causal"), [(3, 64, False), (1, 70, True), (1, 64, True)])
def test_cudnn_is_given_rows_in_its_own_order_and_padding_changes_nothing(monkeypatch, rows, length, causal):
    """The kernel stands in for itself: SDPA, called as cuDNN's would be."""
    monkeypatch.setattr(rows_attention, "ROUND_TO", 32)
    seen = []

    def stand_in(query, key, value, bias, lse, dropout, causal, debug, *, scale):
        seen.append(tuple(query.shape))
        return (F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale, enable_gqa=True),)

    monkeypatch.setattr(torch.ops.aten, "_scaled_dot_product_cudnn_attention", stand_in)
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(rows * length, heads, 8, generator=generator) for heads in (6, 2, 2))
    bounds = torch.arange(rows + 1, dtype=torch.int32) * length
    found = attend_by_cudnn(query, key, value, rows, causal, None)
    expected = attend_rows(query, key, value, bounds, length, causal, None, None, None)
    assert torch.allclose(found, expected, atol=1e-6)
    assert seen == [(rows, 6, length + (-length % 32 if causal else 0), 8)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("radius", [None, 5])
@pytest.mark.parametrize("width", [64, 256, 512])
def test_a_gpu_computes_the_same_with_derivatives(radius, width, causal):
    if causal and width == 512:
        pytest.skip("wide heads are not causal")
    bounds = torch.tensor([0, *torch.tensor(LENGTHS).cumsum(0)], dtype=torch.int32, device="cuda")
    given = [heads(4, width), heads(2, width, 1), heads(2, width, 2)]
    outcomes = []
    for device, dtype in (("cpu", torch.float32), ("cuda", torch.bfloat16)):
        leaves = [each.to(device, dtype, copy=True).requires_grad_() for each in given]
        if device == "cpu":
            attended = attend_by_length(*leaves, list(LENGTHS), causal, radius, 0.3)
        else:
            attended = attend_rows(*leaves, bounds, max(LENGTHS), causal, radius, places().cuda(), 0.3)
        attended.square().sum().backward()
        outcomes.append([attended.detach(), *(leaf.grad for leaf in leaves)])
    for exact, fast in zip(*outcomes, strict=True):
        assert F.cosine_similarity(exact.flatten(), fast.float().cpu().flatten(), dim=0) > 0.999
