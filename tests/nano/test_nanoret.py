"""NanoRet: what is asked about which videos, and that the numbers mean what they say."""

import logging
from collections.abc import Iterator

import numpy as np
import pytest

from allocembed import AllocEmbed, EmbedConfig, TextEmbedding, VideoEmbedding
from allocembed.allocators.registry import ALL_METHODS
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks.metrics import Score
from allocembed.errors import ConfigError
from allocembed.video import sample
from allocembed_nano import nanoret, world
from allocembed_nano.world import vocabulary as vocab
from allocembed_nano.world.timeline import EVENT_SLOTS

TWO = EmbedConfig(budget="2f")


def equal(one: world.Timelines, other: world.Timelines) -> bool:
    return np.array_equal(one.end, other.end) and np.array_equal(one.object, other.object)


class Oracle(AllocEmbed):
    """Knows which text belongs to which video: an axis for each video, and one for each option of a question."""

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.axes: dict[str, int] = {}
        for subset, name in nanoret.SUBSETS.items():
            task = nanoret.make_task(subset, nanoret.draw_videos(name))
            if task.options:
                self.answers = [own[right] for own, right in zip(task.options, task.targets, strict=True)]
                self.axes |= {text: 500 + number for number, text in enumerate(sorted(set(task.candidate_texts)))}
            else:
                self.axes |= dict(zip(task.texts, task.targets.tolist(), strict=True))

    def vector(self, axis: int) -> np.ndarray:
        return np.eye(1, 500 + len(self.axes), axis)[0]

    def encode_texts(self, texts, *, instruction=None):
        return [TextEmbedding(self.vector(self.axes[text]), text) for text in texts]

    def stream(self, sources, question=None, **_) -> Iterator[VideoEmbedding]:
        for clip in sources:
            _, name, number = clip.source.split("/")
            axis = self.axes[self.answers[int(number)]] if name == "qa" else int(number)
            yield VideoEmbedding(self.vector(axis), clip.source, self.allocate(clip, self.plan(clip)))


@pytest.mark.parametrize("subset", nanoret.SUBSETS)
def test_every_subset_asks_as_much_as_it_says(subset):
    videos = nanoret.draw_videos(nanoret.SUBSETS[subset])
    task = nanoret.make_task(subset, videos)
    assert len(videos) == 500
    assert 0.4 < videos.timelines.portrait.mean() < 0.6
    if subset == "qa":
        assert task.options and {len(own) for own in task.options} == {4}
        assert len(task.texts) == 500 and len(task.candidate_texts) == 2000 and task.targets.shape == (500,)
        assert (np.bincount(task.targets, minlength=4) > 90).all(), "the right option stands anywhere"
        assert (videos.timelines.duration >= 600).mean() == 0.5
    else:
        expected = np.repeat(np.arange(500), 3 if subset.endswith("clip") else 1)
        assert not task.options and np.array_equal(task.targets, expected)
        assert len(set(task.texts)) == len(task.texts), "no text describes two videos"
        assert (videos.timelines.duration >= 600).all() == subset.startswith("long")


def test_the_three_sets_hold_different_videos():
    short, long, qa = (nanoret.draw_videos(name).timelines for name in ("short", "long", "qa"))
    assert not {tuple(row) for row in short.end} & {tuple(row) for row in qa.end}
    assert not {tuple(row) for row in long.end} & {tuple(row) for row in qa.end}


def test_equal_seeds_give_equal_worlds_and_others_differ():
    for name in nanoret.TEST_SEEDS:
        shipped, again, zero, one = (nanoret.draw_videos(name, seed=seed) for seed in (None, None, 0, 1))
        assert equal(shipped.timelines, again.timelines)
        assert not equal(shipped.timelines, zero.timelines) and not equal(zero.timelines, one.timelines)
        subset = next(subset for subset, videos in nanoret.SUBSETS.items() if videos == name)
        assert nanoret.make_task(subset, shipped).texts == nanoret.make_task(subset, again).texts
        assert nanoret.make_task(subset, shipped).texts != nanoret.make_task(subset, zero).texts


def test_a_limit_keeps_the_first_videos_and_their_very_texts():
    for subset, name in nanoret.SUBSETS.items():
        every, few = nanoret.draw_videos(name), nanoret.draw_videos(name, limit=6)
        assert len(few) == 6 and equal(few.timelines, every.timelines.select(range(6)))
        texts = nanoret.make_task(subset, few).texts
        assert texts == nanoret.make_task(subset, every).texts[: len(texts)]
    assert (nanoret.draw_videos("qa", limit=6).timelines.duration >= 600).sum() == 3


def test_the_test_worlds_show_combinations_that_training_never_does():
    for name in nanoret.TEST_SEEDS:
        timelines = nanoret.draw_videos(name).timelines
        used = np.arange(len(EVENT_SLOTS)) < timelines.events[:, None]
        objects, colours, words = (
            getattr(timelines, kind)[:, EVENT_SLOTS][used] for kind in ("object", "colour", "word")
        )
        assert 0.08 < (~vocab.SEEN_OBJECT_COLOUR[objects, colours]).mean() < 0.16
        assert 0.08 < (~vocab.SEEN_OBJECT_WORD[objects, words]).mean() < 0.16


@pytest.mark.slow
def test_a_clip_is_what_decoding_its_file_gives(tmp_path):
    videos = nanoret.draw_videos("short", limit=2)
    size = world.PORTRAIT if videos.timelines.portrait[1] else world.LANDSCAPE
    path = world.write_mp4(videos.timelines, 1, tmp_path / "one.mp4", size)
    decoded, made = sample(path, 8), nanoret.clips_of(videos, [1], [8])[8][0]
    assert np.array_equal(decoded.indices, made.indices) and decoded.total == made.total
    assert decoded.frames.shape == made.frames.shape
    assert np.abs(decoded.frames.astype(int) - made.frames).mean() < 6, "the same pictures, but for compression"
    assert np.allclose(decoded.times, made.times, rtol=0.003)
    assert decoded.duration == pytest.approx(made.duration, rel=0.01)


def test_frame_counts_share_one_rendering_and_keep_the_order(monkeypatch):
    videos = nanoret.draw_videos("short", limit=5)
    rendered = []
    render = world.render
    monkeypatch.setattr(world, "render", lambda *a, **k: rendered.append(render(*a, **k)) or rendered[-1])
    clips = nanoret.clips_of(videos, range(5), [8, 24])
    assert sum(frames.shape[0] * frames.shape[1] for frames in rendered) == 5 * 30, "first and last frame are shared"
    assert [clip.source for clip in clips[24]] == [f"nano/short/{video:03}" for video in range(5)]
    alone = nanoret.clips_of(videos, [3], [8])[8][0]
    assert np.array_equal(alone.frames, clips[8][3].frames)
    for clip in clips[24]:
        assert clip.frames.shape[1:] in ((144, 192, 3), (192, 144, 3)) and len(clip) == len(clip.times) == 24
        assert clip.times[0] == 0 and clip.times[-1] == clip.duration


@pytest.fixture(scope="module")
def scores(nano_backbone) -> list[Score]:
    return nanoret.evaluate(nano_backbone, list(ALL_METHODS[:5]), limit=3)


@pytest.mark.slow
def test_every_method_is_scored_on_every_subset(scores):
    assert [(score.method, score.subset) for score in scores] == [
        (m, s) for m in ALL_METHODS[:5] for s in nanoret.SUBSETS
    ]
    assert {score.subset: score.n for score in scores} == {
        "short-clip": 9,
        "short-video": 3,
        "long-clip": 9,
        "long-video": 3,
        "qa": 3,
    }
    assert all(
        0 <= score.hit1 <= 100 and 1 <= score.mean_rank <= (4 if score.subset == "qa" else 3) for score in scores
    )


@pytest.mark.slow
def test_only_full_resolution_is_over_the_budget(scores):
    for score in scores:
        assert score.over_budget == (3 if score.method == "full" else 0)
        expected = {"full": 3.0, "base": 1.0, "select": 1.0}.get(score.method)
        assert score.cost == expected if expected else 0.9 < score.cost <= 1


@pytest.mark.slow
def test_the_benchmark_repeats_itself(nano_backbone, scores):
    again = nanoret.evaluate(nano_backbone, ["uniform"], subsets=["qa", "short-clip"], limit=3)
    before = {score.subset: score for score in scores if score.method == "uniform"}
    assert [score.subset for score in again] == ["qa", "short-clip"]
    for score in again:
        assert score.mean_rank == pytest.approx(before[score.subset].mean_rank, abs=1e-3)


@pytest.mark.slow
def test_an_embedding_that_knows_everything_scores_100(nano_backbone, monkeypatch):
    monkeypatch.setattr(nanoret, "VIDEOS_IN_MEMORY", 5)
    oracle = {"base": Oracle(nano_backbone, "base", EmbedConfig(candidates=2, budget="2f"))}
    scores = nanoret.evaluate_embedders(oracle, limit=12)
    assert [score.hit1 for score in scores] == [100.0] * 5 and {score.mean_rank for score in scores} == {1.0}


def test_the_question_reaches_model_and_allocator(nano_backbone):
    seen = []

    class Listening(AllocEmbed):
        def plan(self, clip, question=None):
            seen.append(question)
            return super().plan(clip, question)

    embedders = {"base": Listening(nano_backbone, "base", TWO)}
    nanoret.evaluate_embedders(embedders, subsets=["qa", "short-video"], limit=2)
    asked = [question.text for question in nanoret.questions(nanoret.draw_videos("qa", limit=2))]
    assert sorted(seen[:2]) == sorted(asked) and seen[2:] == [None, None]


def test_methods_of_one_name_are_not_mixed_up(nano_backbone):
    for methods in ([], ["base", "base"]):
        with pytest.raises(ConfigError, match="each once"):
            nanoret.evaluate(nano_backbone, methods)


def test_progress_counts_every_video_of_every_method(nano_backbone):
    seen = []
    methods = ["base", "select"]
    nanoret.evaluate(nano_backbone, methods, config=TWO, subsets=["qa"], limit=2, progress=lambda *x: seen.append(x))
    assert seen == [(done, 4) for done in range(1, 5)]


def test_a_model_in_its_own_world_needs_no_warning(nano_backbone, caplog, monkeypatch):
    monkeypatch.setattr(nano_backbone, "notice", "knows its own world only")
    with caplog.at_level(logging.WARNING, logger="allocembed"):
        nanoret.evaluate(nano_backbone, ["base"], config=TWO, subsets=["qa"], limit=1)
    assert not caplog.records and nano_backbone.notice


@pytest.mark.slow
def test_a_family_with_single_frame_chunks_is_evaluated_too(siglip_folder):
    scores = nanoret.evaluate(load_backbone(siglip_folder, device="cpu"), ["base", "full", "uniform"], limit=2)
    for score in scores:
        assert score.cost == {"base": 1.0, "full": 3.0}[score.method] if score.method != "uniform" else score.cost <= 1
