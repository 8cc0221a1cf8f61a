"""A learned allocator times sensitivity."""

import numpy as np
import pytest

from allocembed import AllocEmbed, EmbedConfig
from allocembed.allocators.both import POWERS
from allocembed.allocators.registry import load_allocator
from allocembed.allocators.sensitivity import scales_from
from allocembed.backbones.loading import load_backbone
from allocembed.errors import ConfigError, PolicyError
from allocembed.video import Clip

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def embedder():
    return AllocEmbed(load_backbone("nano-qwen3", device="cpu"), "learned+sensitivity:6-12", EmbedConfig(budget="2f"))


@pytest.fixture(scope="module")
def clip():
    frames = np.full((8, 96, 128, 3), 90, np.uint8)
    frames[4:6] = np.random.default_rng(0).integers(0, 255, (2, 96, 128, 3), np.uint8)
    return Clip(frames, np.arange(8) * 2.0, np.arange(8), 8, 16.0, "test")


def test_scales_are_a_product_and_the_looks_are_counted(embedder, clip):
    both, request = embedder.allocator, embedder.request()
    plan, looks = both.plan(clip, request), both.sensitivity.look(clip, request)
    learned = both.learned.plan(clip, request).scales
    assert np.allclose(plan.scales, learned ** POWERS[0] * scales_from(looks.moves, 1.5) ** POWERS[1])
    assert not np.allclose(plan.scales, learned)
    found = embedder.encode_video(clip)
    assert found.cost <= found.allocation.budget
    assert found.allocation.look_tokens == looks.tokens > 0


def test_a_question_is_for_the_learned_allocator_alone(embedder, clip):
    request = embedder.request("What is written near the gear?")
    plan = embedder.allocator.plan(clip, request)
    alone = embedder.allocator.learned.plan(clip, request)
    assert np.array_equal(plan.scales, alone.scales)
    assert plan.look_tokens == alone.look_tokens > 0, "the language model reads each preview for a question"
    assert embedder.allocator.learned.plan(clip, embedder.request()).look_tokens == 0


def test_the_folder_of_an_allocator_can_be_multiplied_too(tmp_path, monkeypatch):
    backbone = load_backbone("nano-qwen3", device="cpu")
    (tmp_path / "mine").symlink_to(backbone.allocator)
    monkeypatch.chdir(tmp_path)
    config = EmbedConfig(backbone="nano-qwen3", allocator="mine+sensitivity")
    config.check()
    assert config.allocator.startswith("/") and config.allocator.endswith("+sensitivity")
    assert "12" in load_allocator("mine+sensitivity", backbone).identity()


def test_only_a_learned_allocator_can_be_multiplied(embedder):
    with pytest.raises(PolicyError, match="cannot multiply uniform by sensitivity: write learned"):
        load_allocator("uniform+sensitivity", embedder.backbone)
    with pytest.raises(ConfigError, match="unknown allocator"):
        EmbedConfig(allocator="learned+sensitive").check()
