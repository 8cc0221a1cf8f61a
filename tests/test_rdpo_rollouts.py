"""Rollouts: vectors equal to the ordinary path's, however the work was shared; costs and the budget's promise."""

from pathlib import Path

import numpy as np
import pytest
import torch

from allocembed.backbones import Backbone, Item
from allocembed.budget import Allocation, Budget, Grid, chunk_frames
from allocembed.rdpo.data import TRAINING, Batch, Videos, WorldSource
from allocembed.rdpo.rollouts import Reader, allocate, concentration
from allocembed.rdpo.trainer import texts_of
from allocembed.resize import to_patches

RECIPES = Path(__file__).parent.parent / "recipes"
BUDGET = Budget.parse("8f")
RANGE = (0.2, 1.8)


@pytest.fixture(scope="module", params=["qwen3", "qwen2"])
def backbone(request) -> Backbone:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(RECIPES))
        from nano_model import build_backbone

        torch.manual_seed(0)
        return build_backbone(request.param, tiny=True)


@pytest.fixture(scope="module")
def batch() -> Batch:
    source = WorldSource(seed=0, pool=8, mixture=(0.3, 0.2, 0.5))
    return source.finish(source.prepare(TRAINING, 0, 6, BUDGET, 9, range(6)), torch.device("cpu"))


def sampled(videos: Videos, k: int = 3) -> np.ndarray:
    return np.random.default_rng(0).uniform(*RANGE, (len(videos), k, len(videos.pairs)))


def embed_one_by_one(backbone: Backbone, batch: Batch, videos: Videos, grids: np.ndarray) -> torch.Tensor:
    """Every rollout by the path that AllocEmbed takes."""
    items = []
    for row, text in enumerate(texts_of(batch, videos)):
        frames = videos.frames[row].permute(0, 2, 3, 1).contiguous().numpy()
        native = backbone.geometry.native(*frames.shape[1:3])
        for chosen in grids[row]:
            sizes = tuple(Grid(int(rows), int(cols)) for rows, cols in chosen)
            pairs = chunk_frames(np.arange(len(frames)))
            allocation = Allocation(pairs, (1.0,) * len(sizes), sizes, native, 0, 1)
            items.append(Item(text, to_patches(frames, videos.times[row], allocation, backbone.geometry)))
    return backbone.embed(items).view(*grids.shape[:2], -1)


def test_rollouts_have_the_vectors_of_the_ordinary_path(backbone, batch):
    assert any(example.text for example in batch.examples)  # with and without a question
    for videos in batch.videos:
        found = allocate(sampled(videos), videos, backbone, BUDGET, RANGE)
        expected = embed_one_by_one(backbone, batch, videos, found.grids)
        vectors = Reader(backbone).embed(videos, texts_of(batch, videos), found.grids)
        assert (vectors - expected).abs().max() < 1e-5
        assert (vectors[:, 0] - vectors[:, 1]).abs().max() > 1e-3  # sizes matter


def test_sharing_the_vision_towers_work_changes_nothing_but_its_amount(backbone, batch, monkeypatch):
    videos = batch.videos[0]
    grids = allocate(sampled(videos), videos, backbone, BUDGET, RANGE).grids
    grids[:, 1] = grids[:, 0]
    seen = []
    see = type(backbone).see
    monkeypatch.setattr(backbone, "see", lambda pixels, sizes: seen.append(len(sizes)) or see(backbone, pixels, sizes))
    texts = texts_of(batch, videos)
    shared = Reader(backbone).embed(videos, texts, grids)
    alone = Reader(backbone, share=False).embed(videos, texts, grids)
    assert seen[0] <= 2 / 3 * seen[1] == 2 / 3 * grids[..., 0].size
    assert (shared - alone).abs().max() < 1e-5
    assert torch.equal(shared[:, 0], shared[:, 1]) or (shared[:, 0] - shared[:, 1]).abs().max() < 1e-6


@pytest.mark.parametrize("tokens", [1, 300, 2000])
def test_memory_limits_do_not_change_vectors(backbone, batch, tokens):
    videos = batch.videos[1]
    grids = allocate(sampled(videos), videos, backbone, BUDGET, RANGE).grids
    texts = texts_of(batch, videos)
    whole = Reader(backbone).embed(videos, texts, grids)
    assert (Reader(backbone, tokens).embed(videos, texts, grids) - whole).abs().max() < 1e-5


def test_projected_allocations_fill_the_budget_and_never_exceed_it(backbone, batch):
    videos = batch.videos[0]
    found = allocate(sampled(videos, 16), videos, backbone, Budget.parse("4f"), RANGE)
    assert found.relative.max() <= 1 and found.relative.min() > 0.9
    assert found.price.shape == (len(videos), 16) and found.price.max() <= 1


def test_soft_allocations_are_what_was_sampled(backbone, batch):
    videos = batch.videos[0]
    scales = sampled(videos, 16)
    found = allocate(scales, videos, backbone, Budget.parse("4f"), RANGE, mode="soft", cost="scale")
    assert np.array_equal(found.scales, scales)
    assert found.relative.max() > 1
    assert found.price == pytest.approx((scales.mean(-1) - 0.2) / 1.6, abs=1e-6)


def test_the_token_cost_spans_the_range_when_soft_and_the_budget_when_projected(backbone, batch):
    videos = batch.videos[0]
    ends = np.stack([np.full((len(videos), len(videos.pairs)), scale) for scale in RANGE], 1)
    soft = allocate(ends, videos, backbone, BUDGET, RANGE, mode="soft")
    assert soft.price.tolist() == [[0, 1]] * len(videos)
    projected = allocate(ends, videos, backbone, BUDGET, RANGE)
    assert projected.price.min() > 0.95


def test_concentration_tells_how_uneven_an_allocation_is():
    even, uneven = np.ones(12), np.array([9, 9, 9] + [1] * 9)
    assert concentration(even) == 0.25 and concentration(uneven) == 0.75


def test_rows_made_in_one_go_are_those_made_one_by_one(backbone, batch):
    videos = batch.videos[0]
    grids = allocate(sampled(videos, 1), videos, backbone, BUDGET, RANGE).grids[:, 0]
    hollow = map(Reader(backbone)._hollow, videos.seconds)
    items = [Item(text, patches) for text, patches in zip(texts_of(batch, videos), hollow, strict=True)]
    layouts = [*backbone.tokenise(items), *backbone.tokenise([Item("a red car")])]
    sizes = [*grids, np.empty((0, 2), int)]
    together = backbone.expand(layouts, sizes)
    for row, layout, size in zip(together, layouts, sizes, strict=True):
        alone = backbone.expand([layout], [size])[0]
        assert np.array_equal(row.ids, alone.ids) and np.array_equal(row.positions, alone.positions)
        assert len(row) == len(layout) - len(size) + size.prod(-1).sum()
