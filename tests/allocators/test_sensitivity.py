"""Sensitivity: which chunks move the vector, computed with shared beginnings or without."""

import pickle

import numpy as np
import pytest

from allocembed import AllocEmbed, EmbedConfig
from allocembed.allocators.base import AllocationRequest
from allocembed.allocators.registry import load_allocator
from allocembed.allocators.sensitivity import Sensitivity, layouts, scales_from
from allocembed.backbones.base import Item, Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.qwen_vl.attention import use_row_attention
from allocembed.budget import Allocation, Budget, Grid
from allocembed.errors import ConfigError, PolicyError
from allocembed.policy.preview import preview_grid
from allocembed.resize import chunk_seconds, to_patches
from allocembed.video import Clip

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["qwen2_folder", "qwen3_folder", "mean_pool_folder"])
def backbone(request):
    return load_backbone(request.getfixturevalue(request.param), device="cpu")


@pytest.fixture(scope="module")
def clip():
    """Two thirds of the video are blank; some frames have detail."""
    frames = np.full((11, 160, 192, 3), 90, np.uint8)
    frames[4:6] = np.random.default_rng(0).integers(0, 255, (2, 160, 192, 3), np.uint8)
    times = np.arange(11) * 7.3
    return Clip(frames, times, np.arange(11), 11, 80.3, "test")


def embed_plainly(backbone, clip, look, question=None):
    """Moves from whole rows, each embedded alone."""
    per_chunk = backbone.geometry.frames_per_chunk
    chunks = [tuple(min(f, 10) for f in range(n, n + per_chunk)) for n in range(0, 11, per_chunk)]
    native = backbone.geometry.native(clip.height, clip.width, frames=11)
    sizes = tuple(preview_grid(native, tokens) for tokens in look)
    vectors = []
    for row in layouts(sizes, len(chunks)):
        grids = tuple(Grid(*map(int, grid)) for grid in row)
        allocation = Allocation(tuple(chunks), (1.0,) * len(chunks), grids, native, 0, 1)
        prompt = Prompt(question, seconds=chunk_seconds(clip.times, chunks))
        vectors.append(
            backbone.embed([Item(prompt, to_patches(clip.frames, allocation, backbone.geometry))])[0].numpy()
        )
    return 1 - np.array(vectors[1:]) @ vectors[0]


@pytest.mark.parametrize("question", [None, "what is it?"])
def test_moves_are_those_of_rows_embedded_one_by_one(backbone, clip, question):
    request = AllocationRequest(backbone.geometry, Budget(), question=question)
    looks = Sensitivity(backbone, [(6, 12), (12, 2)]).look(clip, request)
    for moves, look in zip(looks.moves, [(6, 12), (12, 2)], strict=True):
        assert np.abs(moves - embed_plainly(backbone, clip, look, question)).max() < 2e-6


@pytest.mark.parametrize("folder", ["qwen2_folder", "qwen3_folder"])
def test_a_shared_beginning_is_computed_once_and_changes_nothing(folder, clip, request):
    """As on CUDA, where the language model uses our own attention."""
    whole, shared = (load_backbone(request.getfixturevalue(folder), device="cpu") for _ in range(2))
    use_row_attention(shared.language_model)
    found = [Sensitivity(each).look(clip, AllocationRequest(each.geometry, Budget())) for each in (whole, shared)]
    assert np.abs(found[0].moves - found[1].moves).max() < 2e-6
    assert found[1].tokens < 0.9 * found[0].tokens


def test_chunks_that_move_the_vector_more_get_more_and_the_budget_holds(backbone, clip):
    embedder = AllocEmbed(backbone, "sensitivity", EmbedConfig(budget="4f"))
    allocation = embedder.allocate(clip)
    assert allocation.cost <= allocation.budget and allocation.look_tokens > 0
    moves = embedder.allocator.look(clip, embedder.request()).moves
    by_move = [allocation.grids[chunk].tokens for chunk in np.argsort(scales_from(moves))]
    assert by_move == sorted(by_move) and by_move[0] < by_move[-1]
    assert embedder.encode_video(clip).allocation == allocation


def test_equal_chunks_get_equal_scales():
    assert np.allclose(scales_from(np.full((1, 5), 0.02)), 1)
    assert np.allclose(scales_from(np.zeros((2, 5))), 1)


def test_it_can_be_pickled(clip, qwen3_folder):
    embedder = AllocEmbed.from_pretrained(qwen3_folder, "sensitivity", device="cpu")
    again = pickle.loads(pickle.dumps(embedder))
    assert again.allocate(clip) == embedder.allocate(clip)
    assert again.identity() == embedder.identity()


def test_the_name_may_state_looks_and_exponent(qwen3_folder):
    embedder = AllocEmbed.from_pretrained(qwen3_folder, "sensitivity:3-6+6-2@2", device="cpu")
    assert embedder.allocator.looks == ((3, 6), (6, 2)) and embedder.allocator.exponent == 2
    assert EmbedConfig.from_json(embedder.config.as_json()).allocator == "sensitivity:3-6+6-2@2"
    with pytest.raises(ConfigError, match="did you mean sensitivity"):
        EmbedConfig(allocator="sensitivity:big").check()


def test_it_needs_a_backbone():
    with pytest.raises(PolicyError, match="looks with the backbone"):
        load_allocator("sensitivity")
