"""Evaluation: honest about ties, stopped and resumed, on any family; a bad video costs its own queries only."""

import re
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from allocembed import AllocEmbed, EmbedConfig, TextEmbedding, VideoEmbedding
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import mmeb_v2, runner
from allocembed.benchmarks.runner import evaluate
from allocembed.errors import BudgetError, DataError
from allocembed.execution.distributed import Processes
from tests.datasets_on_disk import NEW, write_questions, write_retrieval

QUICK = EmbedConfig(budget="2f", candidates=4)


def embedders(backbone, *methods: str) -> dict[str, AllocEmbed]:
    return {method: AllocEmbed(backbone, method, QUICK) for method in methods}


class Constant(AllocEmbed):
    """Gives everything the same vector."""

    def encode_texts(self, texts, *, instruction=None):
        return [TextEmbedding(np.eye(1, 8)[0].astype(np.float32), text) for text in texts]

    def stream(self, sources, question=None, **_):
        for source in sources:
            yield VideoEmbedding(np.eye(1, 8)[0].astype(np.float32), str(source), self.allocate(source))


class PowerCutError(Exception):
    """The power goes out."""


def test_a_constant_embedding_scores_one_in_n(backbone, tasks, tmp_path):
    found = evaluate({"base": Constant(backbone, "base", QUICK)}, tasks, tmp_path)
    assert [score.hit1 for score in found.scores] == pytest.approx([100 / 6, 100 / 5])
    assert [score.mean_rank for score in found.scores] == pytest.approx([3.5, 3.0])


def test_a_stopped_evaluation_resumes_and_equals_an_unbroken_one(backbone, tasks, tmp_path, monkeypatch):
    whole = evaluate(embedders(backbone, "base", "uniform"), tasks, tmp_path / "whole")
    monkeypatch.setattr("allocembed.benchmarks.cache.MOST_PENDING", 2)

    def stop(done: int, total: int) -> None:
        if done == 45:  # in the middle of the second method's videos
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


def test_a_family_that_is_not_qwen_is_evaluated_too(mean_pool_folder, tasks, tmp_path):
    backbone = load_backbone(mean_pool_folder, device="cpu")
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


class Pair(Processes):
    """One of two processes of a job, as a thread."""

    def __init__(self, rank: int, shared: dict, barrier: Barrier) -> None:
        super().__init__("cpu")
        self.rank, self.world, self.shared, self.barrier = rank, 2, shared, barrier

    def share(self, value):
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
    shared: dict = {}
    barrier = Barrier(2, timeout=60)
    jobs = [Processes("cpu"), Pair(0, shared, barrier), Pair(1, shared, barrier), Processes("cpu")]
    with ThreadPoolExecutor(len(jobs)) as threads:

        def run(job):
            return evaluate(embedders(backbone, "uniform"), tasks, tmp_path / "one", processes=job)

        for found in threads.map(run, jobs):
            assert [score.hit1 for score in found.scores] == [score.hit1 for score in alone.scores]
            assert found.failures == alone.failures and len(found.failures) == 1
    assert not list((tmp_path / "one").rglob("*.partial"))
