"""Evaluation: honest about ties, stopped and resumed, on any family; a bad video costs its own queries only."""

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier

import numpy as np
import pytest
import torch

from allocembed import AllocEmbed, EmbedConfig
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import mmeb_v2, runner
from allocembed.benchmarks.cache import EmbeddingCache, make_key, video_digest
from allocembed.benchmarks.runner import Evaluation, evaluate
from allocembed.benchmarks.shards import Shard
from allocembed.benchmarks.tasks import BenchmarkTask
from allocembed.errors import BudgetError, DataError
from allocembed.execution.distributed import Processes
from allocembed.video.decoders.pyav import PyAVDecoder
from allocembed.video.packets import Demuxer
from tests.clips import LONG_GROUPS, write_video
from tests.datasets_on_disk import NEW, write_frames, write_questions, write_retrieval

QUICK = EmbedConfig(budget="2f", candidates=4)


def embedders(backbone, *methods: str) -> dict[str, AllocEmbed]:
    return {method: AllocEmbed(backbone, method, QUICK) for method in methods}


class PowerCutError(Exception):
    """The power goes out."""


def test_a_constant_embedding_scores_one_in_n(backbone, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(backbone, "embed", lambda items, **_: torch.eye(1, 8).repeat(len(items), 1))
    found = evaluate(embedders(backbone, "base"), tasks, tmp_path)
    assert [score.hit1 for score in found.scores] == pytest.approx([100 / 6, 100 / 5])
    assert [score.mean_rank for score in found.scores] == pytest.approx([3.5, 3.0])


def test_a_stopped_evaluation_resumes_and_equals_an_unbroken_one(backbone, tasks, tmp_path, monkeypatch):
    whole = evaluate(embedders(backbone, "base", "uniform"), tasks, tmp_path / "whole")
    monkeypatch.setattr("allocembed.benchmarks.cache.MOST_PENDING", 2)

    def stop(done: int, total: int) -> None:
        if done == 45:  # in the middle of the videos
            raise PowerCutError

    with pytest.raises(PowerCutError):
        evaluate(embedders(backbone, "base", "uniform"), tasks, tmp_path / "parts", progress=stop)
    counts = []
    resumed = evaluate(
        embedders(backbone, "base", "uniform"), tasks, tmp_path / "parts", progress=lambda *c: counts.append(c)
    )
    assert counts[-1][0] == counts[-1][1] < 6 + 25 + 2 * (6 + 5) - 40, "finished work is not repeated"
    assert resumed.scores == whole.scores
    for one, other in zip(whole.outcomes, resumed.outcomes, strict=True):
        assert np.array_equal(one.best, other.best) and one.tokens == other.tokens
    counts.clear()
    evaluate(embedders(backbone, "base", "uniform"), tasks, tmp_path / "parts", progress=lambda *c: counts.append(c))
    assert not counts, "a third run has nothing left to do"


def test_methods_share_the_texts(backbone, tasks, tmp_path):
    counts = []
    for method in ("base", "uniform"):
        evaluate(embedders(backbone, method), tasks, tmp_path, progress=lambda *count: counts.append(count))
    assert counts[-1] == (6 + 5, 6 + 5), "the second method embeds videos only"


def test_every_video_is_identified_once(backbone, tasks, tmp_path, monkeypatch):
    read = []
    digest = runner.video_digest
    monkeypatch.setattr(runner, "video_digest", lambda video: read.append(video) or digest(video))
    evaluate(embedders(backbone, "base", "uniform"), tasks, tmp_path)
    assert len(read) == len(set(read)) == 6 + 2


def test_a_family_that_is_not_qwen_is_evaluated_too(siglip_folder, tasks, tmp_path):
    backbone = load_backbone(siglip_folder, device="cpu")
    found = evaluate(embedders(backbone, "base", "full", "uniform"), tasks, tmp_path)
    costs = {score.method: score.cost for score in found.scores}
    assert costs["base"] == 1 and costs["full"] == 2 and costs["uniform"] <= 1
    assert [score.over_budget for score in found.scores if score.method != "full"] == [0] * 4


def test_an_unreadable_video_costs_its_own_queries_only(backbone, tmp_path):
    write_retrieval(tmp_path, "MSR-VTT", 4)
    for image in (tmp_path / NEW.format(kind="video_ret", task="MSR-VTT") / "v2").iterdir():
        image.write_bytes(b"no picture")
    write_questions(tmp_path, 4)
    for image in (tmp_path / NEW.format(kind="video_qa", task="NExTQA") / "101").iterdir():
        image.write_bytes(b"no picture")
    tasks = [mmeb_v2.load_task(name, tmp_path) for name in ("MSR-VTT", "NExTQA")]
    found = evaluate(embedders(backbone, "base"), tasks, tmp_path / "cache")
    assert [score.n for score in found.scores] == [3, 2]
    assert len(found.failures) == 2 and "v2" in found.failures[1]
    notes = [outcome.task.notes[-1] for outcome in found.outcomes]
    assert notes == ["1 unreadable videos and their 1 queries left out", "2 questions about unreadable videos left out"]
    assert found.outcomes[0].task.targets.tolist() == [0, 1, 2]
    without = tasks[0].keep_videos(np.array([True, True, False, True]), "")
    retrieved = evaluate(embedders(backbone, "base"), [without], tmp_path / "other")
    assert retrieved.scores[0].hit1 == found.scores[0].hit1


def test_a_task_without_any_readable_video_is_named(backbone, tmp_path):
    write_retrieval(tmp_path, "MSR-VTT", 1)
    for image in (tmp_path / NEW.format(kind="video_ret", task="MSR-VTT") / "v0").iterdir():
        image.write_bytes(b"no picture")
    task = mmeb_v2.load_task("MSR-VTT", tmp_path)
    with pytest.raises(DataError, match="cannot read any of the 1 videos of MSR-VTT"):
        evaluate(embedders(backbone, "base"), [task], tmp_path / "cache")


def test_a_budget_that_cannot_be_met_stops_the_run(backbone, tasks, tmp_path):
    tiny = {"base": AllocEmbed(backbone, "base", EmbedConfig(budget="1"))}
    with pytest.raises(BudgetError) as error:
        evaluate(tiny, tasks, tmp_path)
    assert re.search(r"base cannot meet the budget: .* Raise the budget to at least \d+", str(error.value))


def test_a_text_longer_than_backbones_accept_is_cut_and_noted(backbone, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "LONGEST_TEXT", 15)
    found = evaluate(embedders(backbone, "base"), tasks[:1], tmp_path)
    assert found.outcomes[0].task.notes[-1] == "6 texts cut to 15 characters"


class Member(Processes):
    """One process of a job, as a thread. All jobs come to their end at the same moment."""

    def __init__(self, rank: int, world: int, shared: dict, barrier: Barrier) -> None:
        super().__init__("cpu")
        self.rank, self.world, self.shared, self.barrier = rank, world, shared, barrier

    def share(self, value):
        self.barrier.wait(60)  # all have taken what was shared before
        self.shared[self.rank] = value
        self.barrier.wait(60)
        return [self.shared[rank] for rank in range(self.world)]


def test_runs_of_different_sizes_share_a_cache_at_the_same_time(backbone, tmp_path, monkeypatch):
    frames = tmp_path / NEW.format(kind="video_ret", task="MSR-VTT")
    write_retrieval(tmp_path, "MSR-VTT", 4)
    for image in (frames / "v2").iterdir():
        image.write_bytes(b"no image")
    tasks = [mmeb_v2.load_task("MSR-VTT", tmp_path)]
    alone = evaluate(embedders(backbone, "uniform"), tasks, tmp_path / "alone")
    monkeypatch.setattr("allocembed.benchmarks.cache.MOST_PENDING", 1)
    pair: dict = {}
    end = Barrier(4, timeout=60)
    jobs = [Member(0, 1, {}, end), Member(0, 2, pair, end), Member(1, 2, pair, end), Member(0, 1, {}, end)]
    with ThreadPoolExecutor(len(jobs)) as threads:

        def run(job):
            return evaluate(embedders(backbone, "uniform"), tasks, tmp_path / "one", processes=job)

        for found in threads.map(run, jobs):
            assert [score.hit1 for score in found.scores] == [score.hit1 for score in alone.scores]
            assert found.failures == alone.failures and len(found.failures) == 1
    assert not list((tmp_path / "one").rglob("*.partial"))


METHODS = ("base", "full", "uniform", "content", "select")


@pytest.fixture
def decodes(monkeypatch) -> list[str]:
    """Files opened, and passes of a decoder over one, in order."""
    counted: list[str] = []
    for decoder, name in ((PyAVDecoder, "pictures"), (PyAVDecoder, "in_order"), (Demuxer, "open")):
        original = getattr(decoder, name)

        def count(self, *arguments, original=original, name=name):
            counted.append("open" if name == "open" else "decode")
            return original(self, *arguments)

        monkeypatch.setattr(decoder, name, count)
    return counted


def ask(videos: list[Path], questions: int) -> list[BenchmarkTask]:
    """A caption for each video, and some questions about each."""
    captions = [f"caption {n}" for n in range(len(videos))]
    found = BenchmarkTask("MSR-VTT", "Find:", captions, videos, np.arange(len(videos)))
    texts = [f"question {n}?" for n in range(questions * len(videos))]
    options, answers = [["yes", "no"]] * len(texts), np.zeros(len(texts), int)
    return [found, BenchmarkTask("NExTQA", "Answer:", texts, videos * questions, answers, options)]


@pytest.mark.slow
def test_five_methods_and_a_question_on_20_videos_decode_20_times(backbone, tmp_path, decodes):
    videos = [write_video(tmp_path / f"{n}.mp4", 20 + n) for n in range(20)]
    found = evaluate(embedders(backbone, *METHODS), ask(videos, 1), tmp_path / "cache")
    assert decodes.count("open") == decodes.count("decode") == 20
    assert [score.n for score in found.scores] == [20, 20] * 5
    decodes.clear()
    assert evaluate(embedders(backbone, *METHODS), ask(videos, 1), tmp_path / "cache").scores == found.scores
    assert not decodes, "a second run reads nothing"


@pytest.mark.parametrize("seek", ["exact", "keyframe"])
def test_methods_that_share_a_decode_get_the_vectors_of_each_alone(backbone, one_thread, tmp_path, seek):
    video = write_video(tmp_path / "a.mp4", 90, options=LONG_GROUPS)
    config = replace(QUICK, seek=seek, candidates=7)
    methods = {method: AllocEmbed(backbone, method, config) for method in METHODS}
    tasks = ask([video], 1)
    evaluate(methods, tasks, tmp_path / "cache")
    for embedder in methods.values():
        cache, digest = EmbeddingCache.for_videos(tmp_path / "cache", embedder), video_digest(video)
        shown = embedder.encode_video(video)
        asked = embedder.encode_video(video, tasks[1].texts[0], instruction="Answer:")
        for key, alone in (((None, None), shown), ((tasks[1].texts[0], "Answer:"), asked)):
            stored = cache[make_key(digest, *key)]
            assert np.array_equal(stored.vector, alone.vector) and stored.cost == alone.cost


def test_a_damaged_frame_costs_only_the_methods_that_need_it(backbone, tmp_path):
    folder = write_frames(tmp_path / "v", first=0)
    images = sorted(folder.iterdir())
    images[3].write_bytes(b"no picture")  # one of four evenly spread frames of ten, but not of two
    task = ask([folder], 1)[0]
    evaluation = Evaluation(embedders(backbone, "base", "uniform"), [task], tmp_path / "cache")
    evaluation.embed()
    base, uniform = evaluation.measurements
    assert base.keys[0] in base.cache and uniform.keys[0] not in uniform.cache
    assert list(evaluation.failures) == [uniform.cache.name(uniform.keys[0])]


def test_shards_embed_each_their_part_and_the_last_one_finds_nothing_missing(backbone, tasks, tmp_path):
    whole = evaluate(embedders(backbone, "base"), tasks, tmp_path / "whole").scores
    made = []
    for number in (1, 2, 3):
        shard = Evaluation(embedders(backbone, "base"), tasks, tmp_path / "parts", shard=Shard(number, 3))
        before = shard.inventory.missing()
        shard.embed()
        made.append(before - shard.inventory.missing())
    assert min(made) > 0 and sum(made) == before + sum(made[:2]) == 6 + 25 + 6 + 5
    assert shard.results().scores == whole


def test_a_shard_knows_a_video_that_another_one_could_not_read(backbone, tmp_path):
    write_retrieval(tmp_path, "MSR-VTT", 4)
    for image in (tmp_path / NEW.format(kind="video_ret", task="MSR-VTT") / "v2").iterdir():
        image.write_bytes(b"no picture")
    tasks = [mmeb_v2.load_task("MSR-VTT", tmp_path)]
    shards = [
        Evaluation(embedders(backbone, "base"), tasks, tmp_path / "cache", shard=Shard(number, 2)) for number in (1, 2)
    ]
    for shard in shards:
        assert shard.inventory.missing() > 0
        shard.embed()
    assert [shard.inventory.missing() for shard in shards] == [0, 0]
    failed = next(shard for shard in shards if shard.failures)
    failed.inventory.records.begin(failed.shard)
    assert shards[0].inventory.missing() == 1, "it is tried again"
