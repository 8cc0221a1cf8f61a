"""Running the paper's benchmarks: stopped and resumed, shared by two processes, honest about ties, written down."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from allocembed import AllocEmbed, Embedding, load_backbone, world
from allocembed.benchmarks import comparison, figures, longret, mmeb_v2, paper
from allocembed.benchmarks.campaign import Point, Sweep
from allocembed.benchmarks.runner import evaluate
from allocembed.benchmarks.store import Store, video_digest, video_store
from allocembed.benchmarks.tasks import Task
from allocembed.budget import BudgetError
from allocembed.cli import app
from allocembed.eval_big_cli import ALL_SUBSETS, ALL_TASKS
from tests.datasets_on_disk import NEW, write_frames, write_lines, write_questions, write_retrieval

QUICK = {"budget": "2f", "candidates": 4}
WORDS = ("--budget", "2f", "--candidates", "4", "--device", "cpu")


def run(*words: object):
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("mmeb")
    write_retrieval(root, "MSR-VTT", 6)
    write_questions(root, 5)
    return root


@pytest.fixture(scope="module")
def backbone(qwen2_folder):
    return load_backbone(qwen2_folder, device="cpu")


@pytest.fixture(scope="module")
def tasks(data) -> list[Task]:
    return [mmeb_v2.load_task(name, data) for name in ("MSR-VTT", "NExTQA")]


def embedders(backbone, *methods: str) -> dict[str, AllocEmbed]:
    return {method: AllocEmbed(backbone, method, **QUICK) for method in methods}


class Constant(AllocEmbed):
    """Gives everything one vector."""

    def encode_texts(self, texts, *, instruction=None):
        return [Embedding(np.eye(1, 8)[0].astype(np.float32), text) for text in texts]

    def stream(self, sources, text=None, **_):
        for source in sources:
            yield Embedding(np.eye(1, 8)[0].astype(np.float32), str(source), self.allocate(source))


class PowerCutError(Exception):
    """The power goes out."""


def test_a_constant_embedding_scores_one_in_n(backbone, tasks, tmp_path):
    found = evaluate({"base": Constant(backbone, "base", **QUICK)}, tasks, tmp_path)
    assert [outcome.row.hit1 for outcome in found.outcomes] == pytest.approx([100 / 6, 100 / 5])
    assert [outcome.row.mean_rank for outcome in found.outcomes] == pytest.approx([3.5, 3.0])


def test_a_stopped_evaluation_goes_on_and_equals_an_unbroken_one(backbone, tasks, tmp_path, monkeypatch):
    whole = evaluate(embedders(backbone, "base", "uniform"), tasks, tmp_path / "whole")
    monkeypatch.setattr("allocembed.benchmarks.store.ENTRIES", 2)

    def stop(done: int, total: int) -> None:
        if done == 45:  # in the middle of the second method's videos
            raise PowerCutError

    with pytest.raises(PowerCutError):
        evaluate(embedders(backbone, "base", "uniform"), tasks, tmp_path / "parts", progress=stop)
    counts = []
    resumed = evaluate(
        embedders(backbone, "base", "uniform"), tasks, tmp_path / "parts", progress=lambda *c: counts.append(c)
    )
    assert counts[-1][0] == counts[-1][1] < 6 + 25 + 2 * (6 + 5) - 40, "what was done is not done again"
    assert resumed.rows == whole.rows
    for one, other in zip(whole.outcomes, resumed.outcomes, strict=True):
        assert np.array_equal(one.best, other.best) and one.tokens == other.tokens
    counts.clear()
    evaluate(embedders(backbone, "base", "uniform"), tasks, tmp_path / "parts", progress=lambda *c: counts.append(c))
    assert not counts, "a third run has nothing left to do"


def test_what_was_stored_belongs_to_its_video_model_method_and_settings(backbone, qwen3_folder, data, tmp_path):
    def folder(embedder: AllocEmbed) -> Path:
        return video_store(tmp_path, embedder).folder

    base = folder(AllocEmbed(backbone, "base", **QUICK))
    others = [
        AllocEmbed(backbone, "uniform", **QUICK),
        AllocEmbed(backbone, "base", budget="4f", candidates=4),
        AllocEmbed(backbone, "base", budget="2f", candidates=4, scale_range=(0.5, 1.0)),
        AllocEmbed(load_backbone(qwen3_folder, device="cpu"), "base", **QUICK),
    ]
    assert len({base, *map(folder, others)}) == 5
    assert folder(AllocEmbed(backbone, "base", budget="2f", candidates=9)) == base, "Base looks at no candidates"
    frames = data / NEW.format(kind="video_ret", task="MSR-VTT")
    moved = write_frames(tmp_path / "elsewhere", first=0)
    assert video_digest(frames / "v0") == video_digest(moved) != video_digest(frames / "v1")
    (moved / "frame_0001.jpg").unlink()
    assert video_digest(frames / "v0") != video_digest(moved)


def test_a_damaged_store_is_named(tmp_path):
    Store(tmp_path, {})
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(ValueError, match="delete that file"):
        Store(tmp_path, {})


def test_an_unreadable_video_costs_its_own_queries_only(backbone, data, tmp_path):
    write_retrieval(tmp_path, "MSR-VTT", 4)
    for image in (tmp_path / NEW.format(kind="video_ret", task="MSR-VTT") / "v2").iterdir():
        image.write_bytes(b"no picture")
    write_questions(tmp_path, 4)
    for image in (tmp_path / NEW.format(kind="video_qa", task="NExTQA") / "101").iterdir():
        image.write_bytes(b"no picture")
    tasks = [mmeb_v2.load_task(name, tmp_path) for name in ("MSR-VTT", "NExTQA")]
    found = evaluate(embedders(backbone, "base"), tasks, tmp_path / "cache")
    assert [row.n for row in found.rows] == [3, 2]
    assert len(found.failures) == 2 and "v2" in found.failures[1]
    notes = [outcome.task.notes[-1] for outcome in found.outcomes]
    assert notes == ["1 unreadable videos and their 1 queries left out", "2 questions about unreadable videos left out"]
    assert found.outcomes[0].task.targets.tolist() == [0, 1, 2]
    retrieved = evaluate(embedders(backbone, "base"), [tasks[0].keep([0, 1, 3], ())], tmp_path / "other")
    assert retrieved.rows[0].hit1 == found.rows[0].hit1


def test_the_command_writes_results_beside_the_papers(qwen2_folder, data, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "same", lambda name, backbone: name == "vlm2vec-v2-2b")
    result = run(
        *("eval", "mmeb-v2", "--data", data, "--tasks", "msr-vtt,nextqa", "--methods", "base,full,uniform"),
        *("--backbone", qwen2_folder, "--cache", tmp_path / "cache", "--out", tmp_path / "out", *WORDS, "--json"),
    )
    assert result.exit_code == 0, result.output
    shown = json.loads(result.stdout)
    assert shown == json.loads((tmp_path / "out" / "results.json").read_text())
    (found,) = shown["results"]
    assert [(row["method"], row["subset"]) for row in found["rows"]][:2] == [("base", "MSR-VTT"), ("base", "NExTQA")]
    first = found["rows"][0]
    assert first["n"] == 6 and first["cost"] == 1 and first["paper"] == 28.30 and first["tokens"] == 12
    assert found["methods"]["full"]["cost"] == 2 and found["methods"]["full"]["over_budget"] == 11
    assert found["methods"]["base"]["paper"] == round((28.30 + 20.92) / 2, 2)
    assert "MSR-VTT: 6 queries, where 1,000 were published" in found["notes"]
    table = (tmp_path / "out" / "results.md").read_text()
    assert "| *paper* | *28.30* | *20.92* |" in table and "Full Resolution†" in table
    latex = (tmp_path / "out" / "results.tex").read_text()
    assert "1.000× = 2 frames at native size" in table and r"1.000$\times$ = 2 frames at native size" in latex
    rows = [line for line in latex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count(" & ") for line in rows} == {4} and r"\textit{28.30}" in latex
    assert latex.count(r"\begin") == latex.count(r"\end") and "×" not in latex
    assert Image.open(tmp_path / "out" / "gains.png").width > 600
    assert (tmp_path / "out" / "gains.pdf").read_bytes().startswith(b"%PDF")


def test_the_papers_tables_are_whole():
    for results, tasks in ((paper.RESULTS, paper.MMEB_V2), (paper.LONGRET_RESULTS, paper.LONGRET)):
        for lines in results.values():
            assert list(lines) == ["base", "full", "uniform", "content", "select", "learned"]
            for line in lines.values():
                assert tuple(line.hits) == tasks
                assert np.mean(list(line.hits.values())) == pytest.approx(line.average, abs=0.006)
    assert tuple(ALL_TASKS.split(",")) == paper.MMEB_V2 and tuple(ALL_SUBSETS.split(",")) == paper.LONGRET
    for corpus in paper.CORPORA.values():
        assert sum(corpus.bins.values()) == corpus.videos
        assert corpus.hours * 60 / corpus.videos == pytest.approx(corpus.minutes["mean"], abs=0.01)
    assert sum(paper.QUERIES.values()) == 11_355


@pytest.mark.parametrize(("over", "places"), [("frames", [8, 16, 24, 32, 48]), ("budgets", [8, 16, 20])])
def test_sweeps_write_curves_and_plots(over, places, qwen2_folder, data, tmp_path):
    methods = {"frames": "full,uniform", "budgets": "base,uniform"}[over]
    result = run(
        *("eval", "mmeb-v2", "--data", data, "--tasks", "MSR-VTT", "--limit", 2, "--methods", methods),
        *("--backbone", qwen2_folder, "--cache", tmp_path / "cache", "--out", tmp_path / "out"),
        *("--sweep", over, "--json", "--device", "cpu"),
    )
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.stdout)["results"]
    assert [point["x"] for point in found["curves"]["uniform"]] == places
    assert all(point["cost"] <= 1 and not point["over_budget"] for point in found["curves"]["uniform"])
    table = (tmp_path / "out" / f"sweep_{over}.md").read_text()
    unit = {"frames": "8 frames at native size", "budgets": "as many frames at native size as the budget says"}[over]
    assert "only the first 2 of 6 queries" in table and f"- 1.000× = {unit}" in table
    assert "<svg" in (tmp_path / "out" / f"sweep_{over}.svg").read_text()
    assert Image.open(tmp_path / "out" / f"sweep_{over}.png").width > 600


def test_a_plot_that_finds_no_room_is_said_and_leaves_the_old_one(tmp_path, full_disk):
    (tmp_path / "sweep.png").write_text("old")
    swept = Sweep("frames", "nano", {"uniform": [Point(8, 50.0, 1.0, 0)]}, [], [], "")
    with pytest.raises(OSError, match=re.escape(full_disk.format(tmp_path / "sweep.png"))):
        figures.plot_sweeps([swept], "MMEB-V2", tmp_path / "sweep")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("sweep.png", "old")]


def test_the_transfer_table_has_every_backbone_beside_the_paper(qwen2_folder, qwen3_folder, data, tmp_path):
    result = run(
        *("eval", "mmeb-v2", "--data", data, "--tasks", "MSR-VTT", "--limit", 2, "--methods", "base,uniform"),
        *("--backbone", qwen2_folder, "--backbone", qwen3_folder, "--transfer", "--json"),
        *("--cache", tmp_path / "cache", "--out", tmp_path / "out", *WORDS),
    )
    assert result.exit_code == 0, result.output
    lines = json.loads(result.stdout)["transfer"]
    assert [line["model"] for line in lines] == [qwen2_folder.name, qwen3_folder.name]
    assert all(re.fullmatch(r"[+-]\d+\.\d\d", line["gain"]) for line in lines)
    table = (tmp_path / "out" / "transfer.md").read_text()
    assert "paper's gain" in table and "1.000× = 2 frames at native size" in table


def test_the_page_shows_what_was_found_and_what_should_have_been(qwen2_folder, data, tmp_path):
    result = run(
        *("eval", "mmeb-v2", "--data", data, "--tasks", "MSR-VTT,NExTQA", "--limit", 3, "--methods", "base,uniform"),
        *("--backbone", qwen2_folder, "--html", "--cache", tmp_path / "cache", "--out", tmp_path / "out", *WORDS),
    )
    assert result.exit_code == 0, result.output
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<article") == 6 and page.count("the video that was asked about") == 3
    assert "<svg" in page and "<table>" in page and "caption number" in page and "$" not in page.split("</style>")[1]
    assert not re.search(r'(?:src|href)="https?:', page), "the page asks nothing of a network"
    assert page.count("ranked first, and wrong") == page.count("what should have been ranked first")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tasks", "UCF101"], "there is no task 'UCF101'"),
        (["--methods", "magic"], "there is no allocator 'magic'"),
        (["--sweep", "frames", "--transfer"], "two runs"),
        (["--transfer", "--methods", "uniform"], "compares with Base"),
        (["--tasks", "MSVD"], "hf download VLM2Vec/MSVD"),
    ],
)
def test_wrong_options_are_named_before_any_model_is_loaded(words, message, data, tmp_path, monkeypatch):
    def no_network(*_, **__):
        raise OSError("no network")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", no_network)
    result = run("eval", "mmeb-v2", "--data", data, "--cache", tmp_path / "c", "--out", tmp_path / "o", *words)
    assert result.exit_code in (1, 2) and message in f"{result.exception} {result.output}"


def test_a_budget_that_can_not_be_kept_is_said_as_such(qwen2_folder, data, tmp_path):
    result = run(
        *("eval", "mmeb-v2", "--data", data, "--methods", "base,uniform", "--tasks", "MSR-VTT", "--budget", 1),
        *("--backbone", qwen2_folder, "--cache", tmp_path / "c", "--out", tmp_path / "o", "--device", "cpu"),
    )
    assert isinstance(result.exception, BudgetError)
    assert re.search(r"base can't keep the budget: .* The smallest budget that would do is", str(result.exception))


def test_two_processes_equal_one_and_a_killed_run_goes_on(qwen2_folder, data, tmp_path):
    words = ["eval", "mmeb-v2", "--data", data, "--tasks", "MSR-VTT,NExTQA", "--methods", "base,uniform"]
    words += ["--backbone", qwen2_folder, *WORDS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def start(name: str, *launcher: str) -> subprocess.Popen:
        command = [sys.executable, "-m", *launcher, "allocembed", *words, "--cache", tmp_path / f"{name}-cache"]
        command += ["--out", tmp_path / name, "--json"]
        return subprocess.Popen(list(map(str, command)), env=environment, stdout=-1, stderr=-1, text=True)

    two = start("two", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m")
    # Killed as soon as something is stored, as hard as it gets, and started again.
    killed = start("killed")
    for _ in range(3000):
        if any((tmp_path / "killed-cache").rglob("*.npz")) or killed.poll() is not None:
            break
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = start("killed")
    said = {"two": two.communicate(timeout=600), "again": again.communicate(timeout=600)}
    assert two.returncode == again.returncode == 0, said
    one = run(*words, "--cache", tmp_path / "one-cache", "--out", tmp_path / "one", "--json")
    rows = [json.loads(text)["results"] for text in (one.stdout, said["two"][0], said["again"][0])]
    assert rows[0] == rows[1] == rows[2]


@pytest.fixture(scope="module")
def toy_world(tmp_path_factory) -> Path:
    """Videos that the nano models know, as MMEB-V2 would publish them."""
    root = tmp_path_factory.mktemp("toy")
    timelines = world.draw(8, 5, "short", split="test", orientation="landscape")
    frames = world.render(timelines, world.sample_fractions(24)).permute(0, 1, 3, 4, 2).numpy()
    lines = []

    for number, pictures in enumerate(frames):
        write_frames(root / NEW.format(kind="video_ret", task="MSR-VTT") / f"video{number}", pictures)
        caption = world.describe_video(timelines, number, random.Random(number))
        lines.append({"video_id": f"video{number}", "video": f"video{number}.mp4", "caption": caption})
    write_lines(root, "MSR-VTT", lines, "test_1k/test-00000-of-00001.parquet")
    return root


def test_the_bundled_model_and_its_allocator_really_retrieve(toy_world, tmp_path, caplog):
    result = run(
        *("eval", "mmeb-v2", "--data", toy_world, "--tasks", "MSR-VTT", "--methods", "base,learned", "--json"),
        *("--backbone", "nano-qwen3", "--cache", tmp_path / "c", "--out", tmp_path / "o", "--device", "cpu"),
    )
    assert result.exit_code == 0, result.output
    found = {row["method"]: row for row in json.loads(result.stdout)["results"][0]["rows"]}
    assert found["learned"]["hit@1"] >= 75 > 100 / 8 and found["learned"]["cost"] <= 1
    assert found["learned"]["over_budget"] == found["base"]["over_budget"] == 0
    told = result.stderr + caplog.text
    assert told.count("knows only its own toy world") == 1, "two methods, one notice"


def test_longret_names_its_subsets():
    assert longret.check_tasks(["VRIPT-video"]) == ["Vript-Video"]
