"""Rollouts: the vectors of the ordinary path, however the work is shared; costs, and the hard budget."""

import numpy as np
import pytest
import torch

from allocembed.allocators.base import AllocationRequest
from allocembed.backbones.base import Backbone, Item, Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.budget import Allocation, Budget, Grid, chunk_frames
from allocembed.rdpo.data.base import TRAINING, TrainingBatch, VideoBatch
from allocembed.rdpo.rollouts import Allocations, RolloutEncoder, allocate_rollouts, concentration
from allocembed.resize import chunk_seconds, to_patches
from allocembed_nano.training import WorldSource

pytestmark = pytest.mark.usefixtures("one_thread")
BUDGET = Budget.parse("8f")
RANGE = (0.2, 1.8)


@pytest.fixture(scope="module", params=["qwen3", "qwen2", "siglip"])
def backbone(request) -> Backbone:
    return load_backbone(request.getfixturevalue(f"{request.param}_folder"), device="cpu")


@pytest.fixture(scope="module")
def batch() -> TrainingBatch:
    source = WorldSource(seed=0, pool=8, mixture=(0.3, 0.2, 0.5))
    return source.finish(source.prepare(TRAINING, 0, 6, BUDGET, 9, range(6)), torch.device("cpu"))


def sampled(videos: VideoBatch, backbone: Backbone, k: int = 3) -> np.ndarray:
    chunks = videos.chunks(backbone.geometry.frames_per_chunk)
    return np.random.default_rng(0).uniform(*RANGE, (len(videos), k, len(chunks)))


def allocated(
    scales: np.ndarray, videos: VideoBatch, backbone: Backbone, budget: Budget = BUDGET, **how
) -> Allocations:
    return allocate_rollouts(scales, videos, AllocationRequest(backbone.geometry, budget, RANGE), **how)


def embed_one_by_one(backbone: Backbone, batch: TrainingBatch, videos: VideoBatch, grids: np.ndarray) -> torch.Tensor:
    """Every rollout by the path that AllocEmbed takes."""
    items = []
    for row, text in enumerate(batch.questions(videos)):
        frames = videos.frames[row].permute(0, 2, 3, 1).contiguous().numpy()
        native = backbone.geometry.native(*frames.shape[1:3])
        for chosen in grids[row]:
            sizes = tuple(Grid(int(rows), int(cols)) for rows, cols in chosen)
            chunks = chunk_frames(np.arange(len(frames)), backbone.geometry.frames_per_chunk)
            allocation = Allocation(chunks, (1.0,) * len(sizes), sizes, native, 0, 1)
            prompt = Prompt(text, seconds=chunk_seconds(videos.times[row], allocation.frames))
            items.append(Item(prompt, to_patches(frames, allocation, backbone.geometry)))
    return backbone.embed(items).view(*grids.shape[:2], -1)


def test_rollouts_have_the_vectors_of_the_ordinary_path(backbone, batch):
    assert any(example.question for example in batch.examples)  # with and without a question
    for videos in batch.videos:
        found = allocated(sampled(videos, backbone), videos, backbone)
        expected = embed_one_by_one(backbone, batch, videos, found.grids)
        vectors = RolloutEncoder(backbone).embed(videos, batch.questions(videos), found.grids)
        assert (vectors - expected).abs().max() < 1e-5
        assert (vectors[:, 0] - vectors[:, 1]).abs().max() > 1e-3  # sizes matter


def test_sharing_the_vision_towers_work_changes_nothing_but_its_amount(backbone, batch, monkeypatch):
    videos = batch.videos[0]
    grids = allocated(sampled(videos, backbone), videos, backbone).grids
    grids[:, 1] = grids[:, 0]
    seen = []
    see = type(backbone).see
    monkeypatch.setattr(backbone, "see", lambda pixels, sizes: seen.append(len(sizes)) or see(backbone, pixels, sizes))
    texts = batch.questions(videos)
    shared = RolloutEncoder(backbone).embed(videos, texts, grids)
    alone = RolloutEncoder(backbone, share=False).embed(videos, texts, grids)
    assert seen[0] <= 2 / 3 * seen[1] == 2 / 3 * grids[..., 0].size
    assert (shared - alone).abs().max() < 1e-5
    assert torch.equal(shared[:, 0], shared[:, 1]) or (shared[:, 0] - shared[:, 1]).abs().max() < 1e-6


@pytest.mark.parametrize("tokens", [1, 300, 2000])
def test_memory_limits_do_not_change_vectors(backbone, batch, tokens):
    videos = batch.videos[1]
    grids = allocated(sampled(videos, backbone), videos, backbone).grids
    texts = batch.questions(videos)
    whole = RolloutEncoder(backbone).embed(videos, texts, grids)
    assert (RolloutEncoder(backbone, tokens).embed(videos, texts, grids) - whole).abs().max() < 1e-5


def test_projected_allocations_fill_the_budget_and_never_exceed_it(backbone, batch):
    videos = batch.videos[0]
    found = allocated(sampled(videos, backbone, 16), videos, backbone, Budget.parse("4f"))
    assert found.relative.max() <= 1 and found.relative.min() > 0.9
    assert found.price.shape == (len(videos), 16) and found.price.max() <= 1


def test_soft_allocations_are_what_was_sampled(backbone, batch):
    videos = batch.videos[0]
    scales = sampled(videos, backbone, 16)
    found = allocated(scales, videos, backbone, Budget.parse("4f"), mode="soft", cost="scale")
    assert np.array_equal(found.scales, scales)
    assert found.relative.max() > 1
    assert found.price == pytest.approx((scales.mean(-1) - 0.2) / 1.6, abs=1e-6)


def test_capped_allocations_are_made_smaller_only_where_they_exceed_the_budget(backbone, batch):
    videos = batch.videos[0]
    chunks = len(videos.chunks(backbone.geometry.frames_per_chunk))
    ends = np.stack([np.full((len(videos), chunks), scale) for scale in RANGE], 1)
    soft, capped = (allocated(ends, videos, backbone, Budget.parse("4f"), mode=mode) for mode in ("soft", "capped"))
    assert np.array_equal(capped.grids[:, 0], soft.grids[:, 0]) and capped.relative[:, 0].max() < 0.5
    assert capped.relative[:, 1].min() > 0.9 and capped.relative[:, 1].max() <= 1 < soft.relative[:, 1].min()


def test_the_token_cost_spans_the_range_when_soft_and_the_budget_when_projected(backbone, batch):
    videos = batch.videos[0]
    chunks = len(videos.chunks(backbone.geometry.frames_per_chunk))
    ends = np.stack([np.full((len(videos), chunks), scale) for scale in RANGE], 1)
    soft = allocated(ends, videos, backbone, mode="soft")
    assert soft.price.tolist() == [[0, 1]] * len(videos)
    projected = allocated(ends, videos, backbone)
    assert projected.price.min() > 0.95


def test_concentration_tells_how_uneven_an_allocation_is():
    even, uneven = np.ones(12), np.array([9, 9, 9] + [1] * 9)
    assert concentration(even) == 0.25 and concentration(uneven) == 0.75


def test_rows_made_in_one_go_are_those_made_one_by_one(backbone, batch):
    videos = batch.videos[0]
    grids = allocated(sampled(videos, backbone, 1), videos, backbone).grids[:, 0]
    seconds = videos.seconds(backbone.geometry.frames_per_chunk)
    prompts = [Prompt(text, seconds=times) for text, times in zip(batch.questions(videos), seconds, strict=True)]
    tokenised = backbone.tokenise([*prompts, Prompt("a red car")])
    sizes = [*grids, np.empty((0, 2), int)]
    together = backbone.rows(tokenised, sizes)
    for row, ids, size in zip(together, tokenised, sizes, strict=True):
        alone = backbone.rows([ids], [size])[0]
        assert np.array_equal(row.ids, alone.ids) and np.array_equal(row.positions, alone.positions)
        assert len(row) == len(ids) - len(size) + size.prod(-1).sum()
