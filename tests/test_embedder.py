"""The whole path: files in, vectors out, the cost beside them, and a bad file costs itself only."""

import logging

import numpy as np
import pytest

from allocembed import AllocEmbed, Failure, VideoError
from allocembed.allocators import METHODS
from allocembed.backbones import BackboneError
from tests.clips import picture


@pytest.fixture(scope="module", params=["qwen2_folder", "qwen3_folder"], ids=["qwen2", "qwen3"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return np.stack([picture(index, width=200, height=120) for index in range(60)])


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_but_full_keeps_the_budget(folder, frames, method):
    embedder = AllocEmbed.from_pretrained(folder, method, device="cpu")
    embedding = embedder.encode_video(frames)
    allocation = embedding.allocation
    assert embedding.vector.shape == (32,) and abs(np.linalg.norm(embedding.vector) - 1) < 1e-5
    assert embedding.cost == allocation.cost == sum(grid.rows * grid.cols for grid in allocation.grids)
    assert (allocation.cost > allocation.budget) == (method == "full")
    frames_used = {"base": 8, "select": 8}.get(method, 24)
    assert len({frame for pair in allocation.frames for frame in pair}) == frames_used


def test_base_and_full_are_native(folder, frames):
    for method, chunks in (("base", 4), ("full", 12)):
        allocation = AllocEmbed.from_pretrained(folder, method, device="cpu").allocate(frames)
        assert allocation.grids == (allocation.native,) * chunks
        assert allocation.scales == (1.0,) * chunks
    assert allocation.relative_cost == 3.0


@pytest.mark.parametrize("budget", ["8f", "4f", 30, "400"])
@pytest.mark.parametrize("method", ["base", "uniform", "content", "select"])
def test_frame_and_token_budgets_both_hold(folder, frames, method, budget):
    embedder = AllocEmbed.from_pretrained(folder, method, budget=budget, device="cpu")
    allocation = embedder.allocate(frames)
    assert 0 < allocation.cost <= allocation.budget


@pytest.mark.parametrize("count", [1, 2, 3, 7, 23])
def test_short_videos_use_all_their_frames_and_no_more_tokens_than_base(folder, frames, count):
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    embedding = embedder.encode_video(frames[:count])
    used = [frame for pair in embedding.allocation.frames for frame in dict.fromkeys(pair)]
    assert used == list(range(count))
    assert embedding.cost <= embedding.allocation.base_cost


def test_alone_and_in_a_batch_give_the_same_vector(folder, frames):
    embedder = AllocEmbed.from_pretrained(folder, "content", device="cpu")
    videos = [frames, frames[:30], frames[::-1], frames[:5], frames[10:]]
    alone = np.stack([embedder.encode_video(video, "what?").vector for video in videos])
    together = np.stack([embedding.vector for embedding in embedder.encode_videos(videos, "what?")])
    assert np.abs(alone - together).max() < 1e-5


def test_each_video_can_have_its_own_text(folder, frames):
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    first, second, again = embedder.encode_videos([frames] * 3, ["a", "b", "a"])
    assert np.abs(first.vector - again.vector).max() < 1e-6
    assert np.abs(first.vector - second.vector).max() > 1e-4
    with pytest.raises(ValueError, match="one for each video"):
        embedder.encode_videos([frames] * 3, ["a", "b"])


def test_a_bad_file_costs_itself_only(folder, frames, tmp_path):
    bad = tmp_path / "bad.mp4"
    bad.write_bytes(b"")
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    results = list(embedder.stream([frames, bad, frames[:9], tmp_path / "nowhere.mp4", frames[:3]], batch=2))
    assert [isinstance(result, Failure) for result in results] == [False, True, False, True, False]
    assert "bad.mp4" in str(results[1].error)
    with pytest.raises(VideoError, match=r"bad\.mp4"):
        embedder.encode_videos([frames, bad])


def test_a_budget_too_small_for_a_video_names_the_smallest_that_would_do(folder, frames):
    embedder = AllocEmbed.from_pretrained(folder, budget=5, device="cpu")
    with pytest.raises(VideoError, match="smallest budget that would do is 12"):
        embedder.encode_video(frames)


def test_the_range_can_be_changed_without_anything_else(folder, frames):
    narrow = AllocEmbed.from_pretrained(folder, "content", scale_range=(0.5, 0.6), device="cpu").allocate(frames)
    assert min(narrow.scales) >= 0.5 and max(narrow.scales) <= 0.6


def test_base_stays_base_on_a_clip_sampled_for_others(folder, frames):
    dense = AllocEmbed.from_pretrained(folder, "uniform", device="cpu").read(frames)
    allocation = AllocEmbed.from_pretrained(folder, "base", device="cpu").allocate(dense)
    assert len(dense) == 24 and allocation.grids == (allocation.native,) * 4


def test_one_bad_text_is_noticed_before_any_video_is_read(folder, tmp_path):
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    with pytest.raises(BackboneError, match="take it out"):
        list(embedder.stream([tmp_path / "nowhere.mp4"], "<|video_pad|>"))


def test_a_single_path_or_text_is_not_taken_for_a_list(folder):
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    with pytest.raises(TypeError, match="encode_video"):
        embedder.encode_videos("talk.mp4")
    with pytest.raises(TypeError, match="encode_text"):
        embedder.encode_texts("a car")
    with pytest.raises(VideoError, match="empty"):
        embedder.encode_video("")
    with pytest.raises(ValueError, match="exact or keyframe"):
        AllocEmbed(embedder.backbone, seek="fast")


def test_texts_embed_in_order(folder):
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    texts = ["a red car", "x", "drives by the user"]
    together = embedder.encode_texts(texts)
    assert [embedding.source for embedding in together] == texts
    assert all(embedding.cost == 0 for embedding in together)
    for text, embedding in zip(texts, together, strict=True):
        assert np.abs(embedder.encode_text(text).vector - embedding.vector).max() < 1e-5


def test_a_backbone_with_a_notice_says_it_when_it_meets_a_video(folder, frames, caplog):
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    embedder.backbone.notice = "knows its own world only"
    with caplog.at_level(logging.WARNING, logger="allocembed"):
        embedder.encode_text("a")
        assert not caplog.records
        embedder.encode_video(frames)
    assert caplog.messages == ["knows its own world only"]
