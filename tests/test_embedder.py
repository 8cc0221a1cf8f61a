"""The whole path: files in, vectors out, the cost beside them, and a bad file costs itself only."""

import logging
import shutil

import numpy as np
import pytest
import torch

from allocembed import AllocEmbed, EmbedConfig, Failure, VideoError
from allocembed.allocators.registry import ALL_METHODS
from allocembed.backbones.checkpoint import Checkpoint
from allocembed.backbones.loading import load_backbone
from allocembed.errors import BackboneError, BudgetError, ConfigError, MissingDependency, PolicyError
from tests.clips import picture, write_video
from tests.stages import allocated


@pytest.fixture(scope="module", params=["qwen2_folder", "qwen3_folder"], ids=["qwen2", "qwen3"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return np.stack([picture(index, width=200, height=120) for index in range(60)])


@pytest.mark.parametrize("method", sorted(ALL_METHODS[:5]))
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
        allocation = allocated(AllocEmbed.from_pretrained(folder, method, device="cpu"), frames)
        assert allocation.grids == (allocation.native,) * chunks
        assert allocation.scales == (1.0,) * chunks
    assert allocation.relative_cost == 3.0


@pytest.mark.parametrize("budget", ["8f", "4f", 30, "400"])
@pytest.mark.parametrize("method", ["base", "uniform", "content", "select"])
def test_frame_and_token_budgets_both_hold(folder, frames, method, budget):
    embedder = AllocEmbed.from_pretrained(folder, method, budget=budget, device="cpu")
    allocation = allocated(embedder, frames)
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
    with pytest.raises(VideoError, match="at least 12"):
        embedder.encode_video(frames)


def test_the_range_can_be_changed_without_anything_else(folder, frames):
    narrow = allocated(AllocEmbed.from_pretrained(folder, "content", scale_range=(0.5, 0.6), device="cpu"), frames)
    assert min(narrow.scales) >= 0.5 and max(narrow.scales) <= 0.6


def test_base_stays_base_on_a_clip_sampled_for_others(folder, frames):
    dense = AllocEmbed.from_pretrained(folder, "uniform", device="cpu").read(frames)
    allocation = allocated(AllocEmbed.from_pretrained(folder, "base", device="cpu"), dense)
    assert len(dense) == 24 and allocation.grids == (allocation.native,) * 4


def test_a_missing_package_ends_the_run_and_any_other_error_costs_its_video(folder, frames, monkeypatch):
    embedder = AllocEmbed.from_pretrained(folder, "uniform", device="cpu")
    plan = embedder.allocator.plan
    for error in (PolicyError("cannot look at it"), MissingDependency("s3://", "obstore", "cloud")):

        def fail(clip, request, error=error):
            if clip.total == 9:
                raise error
            return plan(clip, request)

        monkeypatch.setattr(embedder.allocator, "plan", fail)
        if isinstance(error, MissingDependency):
            with pytest.raises(MissingDependency):
                list(embedder.stream([frames, frames[:9]]))
        else:
            good, bad = embedder.stream([frames, frames[:9]])
            assert not isinstance(good, Failure) and bad.error is error


def test_a_config_may_name_what_the_loaded_backbone_has_anyway(folder):
    backbone = load_backbone(folder, device="cpu")
    inputs = Checkpoint.find(str(folder)).pipeline
    AllocEmbed(backbone, config=EmbedConfig(inputs=inputs, dim=backbone.dim))
    assert AllocEmbed(backbone, config=EmbedConfig(dim=10 * backbone.dim)).config.dim == backbone.dim
    short = load_backbone(folder, device="cpu", dim=8)
    AllocEmbed(short, config=EmbedConfig(dim=8))
    with pytest.raises(ConfigError, match="8 dimensions, not 32: load it with dim=32"):
        AllocEmbed(short, config=EmbedConfig(dim=32))


def test_a_config_that_contradicts_the_loaded_backbone_is_refused(folder):
    backbone = load_backbone(folder, device="cpu")
    with pytest.raises(ConfigError, match=r"32 dimensions, not 8: load it with dim=8"):
        AllocEmbed(backbone, config=EmbedConfig(dim=8))
    with pytest.raises(ConfigError, match=r"transformers-4\.57, not other|vlm2vec-v2, not other"):
        AllocEmbed(backbone, config=EmbedConfig(inputs="other"))


def test_texts_may_come_from_a_generator(folder):
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    texts = ["a car", "a dog"]
    found = [each.vector for each in embedder.encode_texts(text for text in texts)]
    assert np.array_equal(found, [each.vector for each in embedder.encode_texts(texts)])


def test_limits_of_reading_are_settings(folder, frames, tmp_path):
    path = write_video(tmp_path / "a.mp4", 5)
    for settings in ({"max_pixels": 100}, {"max_seconds": 1e-9}):
        embedder = AllocEmbed.from_pretrained(folder, device="cpu", **settings)
        with pytest.raises(VideoError, match=next(iter(settings))):
            embedder.encode_video(path)
    for name in ("max_pixels", "max_seconds"):
        with pytest.raises(ConfigError, match=name):
            EmbedConfig(**{name: 0})


def test_one_bad_text_is_noticed_before_any_video_is_read(folder, tmp_path):
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    with pytest.raises(BackboneError, match="remove it"):
        list(embedder.stream([tmp_path / "nowhere.mp4"], "<|video_pad|>"))


def test_a_single_path_or_text_is_not_taken_for_a_list(folder):
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    with pytest.raises(TypeError, match="encode_video"):
        embedder.encode_videos("talk.mp4")
    with pytest.raises(TypeError, match="encode_text"):
        embedder.encode_texts("a car")
    with pytest.raises(VideoError, match="empty"):
        embedder.encode_video("")
    with pytest.raises(ConfigError, match="exact or keyframe"):
        EmbedConfig(seek="fast")


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"candidates": 2.5}, "candidates must be of type int"),
        ({"candidates": "24"}, "candidates must be of type int"),
        ({"dim": 64.0}, "dim must be of type int"),
        ({"scale_range": (1,)}, "scale_range must be of type tuple"),
        ({"compile": 1}, "compile must be of type bool"),
        ({"end": float("nan")}, "end must be a finite number"),
    ],
)
def test_settings_have_their_types(stated, words):
    with pytest.raises(ConfigError, match=words):
        EmbedConfig(**stated)


def test_settings_may_be_numbers_of_numpy_and_paths(tmp_path):
    config = EmbedConfig(candidates=np.int64(8), rate=2, backbone=tmp_path, budget=2048)
    assert (config.candidates, config.rate, config.backbone, config.budget) == (8, 2.0, str(tmp_path), "2048")
    with pytest.raises(ConfigError, match="a JSON object"):
        EmbedConfig.from_json("[]")


def test_a_budget_that_cannot_be_met_is_an_error_of_the_video_and_of_the_budget(folder, frames):
    embedder = AllocEmbed.from_pretrained(folder, "uniform", budget=1, device="cpu")
    with pytest.raises(BudgetError, match="too small"):
        allocated(embedder, frames)
    for kind in (BudgetError, VideoError):
        with pytest.raises(kind, match="<frames>: the budget of 1 tokens is too small"):
            embedder.encode_video(frames)


def test_texts_embed_in_order(folder):
    embedder = AllocEmbed.from_pretrained(folder, device="cpu")
    texts = ["a red car", "x", "drives by the user"]
    together = embedder.encode_texts(texts)
    assert [embedding.text for embedding in together] == texts
    for text, embedding in zip(texts, together, strict=True):
        assert np.abs(embedder.encode_text(text).vector - embedding.vector).max() < 1e-5


def test_a_toy_model_says_so_when_a_user_loads_it(caplog):
    with caplog.at_level(logging.WARNING, logger="allocembed"):
        embedder = AllocEmbed.from_pretrained("nano-qwen3", "uniform", device="cpu")
        AllocEmbed(embedder.backbone, "base")
    assert len(caplog.messages) == 1 and "toy world" in caplog.messages[0]


def test_a_part_of_a_video_is_embedded_as_a_video_of_its_own(folder, tmp_path):
    frames = [picture(index, 96, 64) for index in range(50)]
    whole = write_video(tmp_path / "whole.mkv", frames, codec="ffv1", pixels="bgr0")
    part = write_video(tmp_path / "part.mkv", frames[25:], codec="ffv1", pixels="bgr0")
    settings = {"allocator": "content", "candidates": 8, "device": "cpu"}
    late = AllocEmbed.from_pretrained(folder, start=1.0, **settings).encode_video(whole)
    assert np.array_equal(late.vector, AllocEmbed.from_pretrained(folder, **settings).encode_video(part).vector)
    early = AllocEmbed.from_pretrained(folder, end=1.0, **settings)
    clip = early.read(whole)
    assert clip.total == 25 and clip.times.max() < 1.0
    with pytest.raises(VideoError, match=r"2\.0"):
        AllocEmbed.from_pretrained(folder, start=5.0, **settings).encode_video(whole)


def test_the_rate_of_frames_in_memory_is_an_option(folder, frames):
    clip = AllocEmbed.from_pretrained(folder, "uniform", rate=2.0, device="cpu").read(frames)
    assert clip.duration == len(frames) / 2 and clip.times[-1] == (len(frames) - 1) / 2
    with pytest.raises(ConfigError, match="more than 0"):
        EmbedConfig(rate=0.0)


def test_the_stages_one_by_one_give_the_vector(folder, frames):
    embedder = AllocEmbed.from_pretrained(folder, "content", device="cpu")
    clip = embedder.read(frames)
    plan = embedder.plan(clip)
    allocation = embedder.allocate(clip, plan)
    assert allocation == allocated(embedder, clip)
    prepared, item = embedder.prepare(clip)
    assert prepared == allocation
    assert np.array_equal(item.patches.pixels, embedder.patch(clip, allocation).pixels)
    assert np.array_equal(embedder.embed([item])[0], embedder.encode_video(frames).vector)


@pytest.mark.slow
def test_identity_tells_settings_and_weights_apart_but_not_devices_or_names(folder, tmp_path):
    embedder = AllocEmbed.from_pretrained(folder, "uniform", device="cpu")
    same = AllocEmbed.from_pretrained(shutil.copytree(folder, tmp_path / "copy"), "uniform", device="cpu")
    assert embedder.identity() == same.identity()
    for other in ({"budget": "4f"}, {"allocator": "content"}, {"dtype": "bfloat16"}, {"start": 1.0}, {"dim": 8}):
        settings = {"allocator": "uniform", **other}
        assert AllocEmbed.from_pretrained(folder, device="cpu", **settings).identity() != embedder.identity()
    with torch.no_grad():
        next(iter(same.backbone.model.parameters())).view(-1)[-1] += 1
    del same.backbone.weights_digest
    assert embedder.identity() != same.identity()
