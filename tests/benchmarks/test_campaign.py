"""Whole runs: files beside the paper's numbers, sweeps, transfers, the page, several processes."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from allocembed import EmbedConfig
from allocembed.benchmarks import comparison, figures, paper
from allocembed.benchmarks.campaign import CampaignResults, run, run_nano, save_sweeps
from allocembed.benchmarks.metrics import Score
from allocembed.benchmarks.nano import RETRIEVAL
from allocembed.benchmarks.page import save_page
from allocembed.benchmarks.request import BenchmarkRequest, NanoRequest
from allocembed.benchmarks.runner import TaskOutcome
from allocembed.benchmarks.sweep import FRAMES, Sweep
from allocembed.benchmarks.tasks import BenchmarkTask
from allocembed.errors import ConfigError, OutputError, PolicyError
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from tests.chromium import Chromium
from tests.datasets_on_disk import NEW, write_retrieval

pytestmark = pytest.mark.slow  # whole runs, servers and command lines

QUICK = EmbedConfig(budget="2f", candidates=4, device="cpu")


def campaign(data: Path, out: Path, *backbones: object, config: EmbedConfig = QUICK, **settings) -> CampaignResults:
    request = BenchmarkRequest(
        benchmark="mmeb-v2",
        data=data,
        backbones=[str(backbone) for backbone in backbones],
        config=config,
        cache=out / "cache",
        out=out / "out",
        **settings,
    )
    return run(request, request.load_tasks())


def test_results_are_written_beside_the_papers(qwen2_folder, data, tmp_path, monkeypatch):
    monkeypatch.setattr(comparison, "same_model", lambda name, backbone: name == "vlm2vec-v2-2b")
    out = tmp_path / "out"
    results = campaign(data, tmp_path, qwen2_folder, tasks=["nextqa", "msr-vtt"], methods=["base", "full", "uniform"])
    assert results.first and set(results.files) == set(out.iterdir())
    assert results.json == json.loads((out / "results.json").read_text())
    (found,) = results.json["results"]
    assert [(row["method"], row["subset"]) for row in found["rows"]][:2] == [("base", "NExTQA"), ("base", "MSR-VTT")]
    first = found["rows"][1]
    assert first["n"] == 6 and first["cost"] == 1 and first["paper"] == 28.30 and first["tokens"] == 12
    assert found["methods"]["base"]["tokens"] == 12 and found["methods"]["full"]["tokens"] == 24
    assert found["methods"]["full"]["cost"] == 2 and found["methods"]["full"]["over_budget"] == 11
    assert found["methods"]["base"]["paper"] == round((28.30 + 20.92) / 2, 2)
    assert "MSR-VTT: 6 queries, where 1,000 were published" in found["notes"]
    table = (out / "results.md").read_text()
    assert table == results.markdown and "| method | MSR-VTT | NExTQA |" in table
    hits = {row["subset"]: row["hit@1"] for row in found["rows"] if row["method"] == "full"}
    assert f"| Full Resolution† | {hits['MSR-VTT']:.2f} | {hits['NExTQA']:.2f} |" in table, "in the order of the heads"
    assert "| *paper* | *28.30* | *20.92* |" in table
    latex = (out / "results.tex").read_text()
    assert "1.000× = 2 frames at native size" in table and r"1.000$\times$ = 2 frames at native size" in latex
    rows = [line for line in latex.splitlines() if line.endswith(r"\\") and "multicolumn" not in line]
    assert {line.count(" & ") for line in rows} == {4} and r"\textit{28.30}" in latex
    assert latex.count(r"\begin") == latex.count(r"\end") and "×" not in latex
    assert Image.open(out / "gains.png").width > 600
    assert (out / "gains.pdf").read_bytes().startswith(b"%PDF")
    gains = (out / "gains.svg").read_text()
    assert ">the paper<" in gains and ">-0.94<" in gains, "the paper's gain of Uniform on these two tasks"
    assert "paper: Full Resolution +" in gains


def test_the_papers_tables_are_whole():
    for benchmark in paper.BENCHMARKS.values():
        for lines in benchmark.published.values():
            assert list(lines) == ["base", "full", "uniform", "content", "select", "learned"]
            for line in lines.values():
                assert list(line.hits) == benchmark.tasks
                assert np.mean(list(line.hits.values())) == pytest.approx(line.average, abs=0.006)
    for corpus in paper.CORPORA.values():
        assert sum(corpus.bins.values()) == corpus.videos
        assert corpus.hours * 60 / corpus.videos == pytest.approx(corpus.minutes["mean"], abs=0.01)
    assert sum(paper.QUERIES.values()) == 11_355


@pytest.mark.parametrize(("over", "places"), [("frames", [8, 16, 24, 32, 48]), ("budgets", [8, 16, 20])])
def test_sweeps_write_curves_and_plots(over, places, qwen2_folder, data, tmp_path):
    methods, out = {"frames": ["full", "uniform"], "budgets": ["base", "uniform"]}[over], tmp_path / "out"
    few = {"tasks": ["MSR-VTT"], "limit": 2, "methods": methods, "config": EmbedConfig(device="cpu")}
    results = campaign(data, tmp_path, qwen2_folder, sweep=over, **few)
    (found,) = results.json["results"]
    assert [point["x"] for point in found["curves"]["uniform"]] == places
    assert all(point["cost"] <= 1 and not point["over_budget"] for point in found["curves"]["uniform"])
    table = (out / f"sweep_{over}.md").read_text()
    unit = {"frames": "8 frames at native size", "budgets": "the native frames of the budget"}[over]
    assert "only the first 2 of 6 queries" in table and f"- 1.000× = {unit}" in table
    assert "<svg" in (out / f"sweep_{over}.svg").read_text() and set(results.files) == set(out.iterdir())
    assert Image.open(out / f"sweep_{over}.png").width > 600


def test_a_plot_without_room_on_the_disk_is_named_and_leaves_the_old_one(tmp_path, full_disk):
    (tmp_path / "sweep.png").write_text("old")
    swept = Sweep("frames", "nano", [Score("uniform@8", "qa", 50.0, 1.0, 1.0, 0, 4)])
    with pytest.raises(OutputError, match=re.escape(full_disk.format(tmp_path / "sweep.png"))):
        figures.plot_sweeps([swept], "MMEB-V2", tmp_path / "sweep")
    with pytest.raises(OutputError, match=re.escape(full_disk.format(tmp_path / "sweep_frames.json"))):
        save_sweeps([swept], "MMEB-V2", tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("sweep.png", "old")]


def test_the_transfer_table_has_every_backbone_beside_the_paper(qwen2_folder, qwen3_folder, data, tmp_path):
    few = {"tasks": ["MSR-VTT"], "limit": 2, "methods": ["base", "uniform"]}
    results = campaign(data, tmp_path, qwen2_folder, qwen3_folder, transfer=True, **few)
    lines = results.json["transfer"]
    assert [line["model"] for line in lines] == [qwen2_folder.name, qwen3_folder.name]
    assert all(re.fullmatch(r"[+-]\d+\.\d\d", line["gain"]) for line in lines)
    table = (tmp_path / "out" / "transfer.md").read_text()
    assert "paper's gain" in table and "1.000× = 2 frames at native size" in table


def test_one_of_several_backbones_may_have_other_inputs(qwen2_folder, qwen3_folder, data, tmp_path):
    names = [qwen2_folder, f"{qwen2_folder}:vlm2vec-v1", qwen3_folder]
    results = campaign(data, tmp_path, *names, tasks=["MSR-VTT"], limit=2, methods=["base"])
    assert [each["backbone"] for each in results.json["results"]] == [str(name) for name in names]
    tokens = [each["rows"][0]["tokens"] for each in results.json["results"]]
    assert tokens[0] != tokens[1] == 35 * 35  # the one chunk of two frames, as a square


def test_a_transfer_without_an_allocator_is_refused(qwen2_folder, data, tmp_path):
    with pytest.raises(PolicyError, match="no allocator to compare with Base"):
        campaign(data, tmp_path, qwen2_folder, tasks=["MSR-VTT"], transfer=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_page_shows_what_was_found_and_what_should_have_been(qwen2_folder, data, tmp_path):
    few = {"tasks": ["MSR-VTT", "NExTQA"], "limit": 3, "methods": ["base", "uniform"]}
    results = campaign(data, tmp_path, qwen2_folder, html=True, **few)
    assert tmp_path / "out" / "report.html" in results.files
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<article") == 6 and page.count("the video of the question") == 3
    assert "<svg" in page and "<table>" in page and "caption number" in page and "{{" not in page
    assert not re.search(r'(?:src|href)="https?:', page), "the page needs no network"
    assert page.count("ranked first, and wrong") == page.count("should have been ranked first")


def test_names_of_files_do_not_become_markup_in_the_page(data, tmp_path):
    title = "<b>x</b>"
    outcome = comparison.Comparison(paper.BENCHMARKS["mmeb-v2"], "x", title, [], ["<i>a</i>.mp4"])
    page = save_page([outcome], "", [], [], tmp_path / "report.html").read_text()
    assert title not in page and "<i>" not in page and "&lt;i&gt;a" in page


def test_cost_and_videos_over_budget_are_seen_without_scrolling(tmp_path):
    benchmark = paper.BENCHMARKS["mmeb-v2"]
    outcomes = [
        TaskOutcome(
            Score(method, name, 55.5, 5.0, 2.952, 1234, 4478),
            1.0,
            BenchmarkTask(name, "", [], [], np.array([])),
            np.array([]),
            np.array([]),
        )
        for method in ("base", "content", "a-folder-with-a-long-name/my-allocator/best")
        for name in benchmark.tasks
    ]
    found = comparison.Comparison(benchmark, "vlm2vec-v2-2b", "vlm2vec-v2-2b", outcomes)
    page = save_page([found], "", [], [], tmp_path / "report.html")
    with Chromium(tmp_path / "profile", 1400, 900) as browser:
        browser.go(page.as_uri())
        assert browser.run("document.querySelectorAll('th').length") == 15
        width = "(e => e.scrollWidth - e.clientWidth)(document.querySelector('#tables'))"
        assert browser.run(width) == 0 == browser.run("Math.max(0, document.documentElement.scrollWidth - innerWidth)")


def test_progress_is_written_beside_the_results(qwen2_folder, tmp_path):
    write_retrieval(tmp_path, "MSR-VTT", 3)
    for image in (tmp_path / NEW.format(kind="video_ret", task="MSR-VTT") / "v2").iterdir():
        image.write_bytes(b"no picture")
    campaign(tmp_path, tmp_path, qwen2_folder, tasks=["MSR-VTT"], methods=["base"])
    lines = (tmp_path / "out" / "progress.log").read_text().splitlines()
    said = [line.partition(" ")[2].partition(" ")[2] for line in lines]
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", line) for line in lines)
    assert said[0] == "identifying 3 videos" and said[-1] == "finished"
    assert sum("cannot read" in line and "v2" in line for line in said) == 1
    assert re.fullmatch(rf"{qwen2_folder.name}: 6/6, .*/(s|min|h), 1 unreadable", said[-2])


def test_the_last_shard_writes_the_results(qwen2_folder, data, tmp_path):
    few = {"tasks": ["MSR-VTT"], "methods": ["base", "uniform"]}
    first = campaign(data, tmp_path, qwen2_folder, shard="1/2", **few)
    assert re.match(r"shard 1/2 is finished; \d+ embeddings of other shards are still to come: ", first.unfinished)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["progress-1-of-2.log"]
    last = campaign(data, tmp_path, qwen2_folder, shard="2/2", **few)
    whole = campaign(data, tmp_path / "whole", qwen2_folder, **few)
    assert last.json == whole.json and not last.unfinished and tmp_path / "out" / "results.md" in last.files


def test_shards_of_a_torchrun_job_are_refused(qwen2_folder, data, tmp_path, monkeypatch):
    monkeypatch.setattr("allocembed.benchmarks.campaign.Processes.world", 2, raising=False)
    monkeypatch.setattr("allocembed.benchmarks.campaign.Processes.__init__", lambda self, device: None)
    monkeypatch.setattr("allocembed.benchmarks.campaign.Processes.rank", 0, raising=False)
    monkeypatch.setattr("allocembed.benchmarks.campaign.Processes.close", lambda self: None)
    with pytest.raises(ConfigError, match="without torchrun"):
        campaign(data, tmp_path, qwen2_folder, tasks=["MSR-VTT"], shard="1/2")


@pytest.mark.slow
def test_two_processes_equal_one_and_a_killed_run_resumes(qwen2_folder, data, tmp_path):
    code = (
        "import sys; from pathlib import Path; from allocembed import EmbedConfig\n"
        "from allocembed.benchmarks.campaign import run\n"
        "from allocembed.benchmarks.request import BenchmarkRequest\n"
        "data, backbone, out = sys.argv[1:]\n"
        "config = EmbedConfig(budget='2f', candidates=4, device='cpu')\n"
        "request = BenchmarkRequest(benchmark='mmeb-v2', data=Path(data), tasks=['MSR-VTT', 'NExTQA'],\n"
        "    methods=['base', 'uniform'], backbones=[backbone], config=config, cache=Path(out, 'cache'),\n"
        "    out=Path(out, 'out'))\n"
        "run(request, request.load_tasks())\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def start(name: str, *launcher: str) -> subprocess.Popen:
        command = [sys.executable, *launcher, str(script), str(data), str(qwen2_folder), str(tmp_path / name)]
        return subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True)

    two = start("two", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    # Killed as soon as something is stored, and started again.
    killed = start("killed")
    for _ in range(3000):
        if any((tmp_path / "killed" / "cache").rglob("*.npz")) or killed.poll() is not None:
            break
        time.sleep(0.1)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = start("killed")
    said = {"two": two.communicate(timeout=600), "again": again.communicate(timeout=600)}
    assert two.returncode == again.returncode == 0, said
    campaign(data, tmp_path / "one", qwen2_folder, tasks=["MSR-VTT", "NExTQA"], methods=["base", "uniform"])
    found = [json.loads((tmp_path / name / "out" / "results.json").read_text()) for name in ("one", "two", "killed")]
    assert found[0] == found[1] == found[2]


@pytest.mark.slow
def test_the_bundled_model_and_its_allocator_really_retrieve(toy_world, tmp_path, caplog):
    config = EmbedConfig(device="cpu")
    results = campaign(toy_world, tmp_path, "nano-qwen3", config=config, tasks=["MSR-VTT"], methods=["base", "learned"])
    found = {row["method"]: row for row in results.json["results"][0]["rows"]}
    assert found["learned"]["hit@1"] >= 75 > 100 / 8 and found["learned"]["cost"] <= 1
    assert found["learned"]["over_budget"] == found["base"]["over_budget"] == 0
    assert caplog.text.count("knows only its own toy world") == 1, "two methods, one notice"


def save_policy(folder: Path, backbone: Path) -> str:
    module = FrameModuleConfig(visual_width=64, text_width=64, width=16, heads=2, layers=1)
    ScalePolicy(PolicyConfig(module, "backbone", str(backbone))).save_pretrained(folder)
    return str(folder)


def test_a_single_learned_allocator_is_called_learned(nano_tiny, data, tmp_path):
    policy = save_policy(tmp_path / "mine", nano_tiny)
    results = campaign(data, tmp_path, nano_tiny, tasks=["MSR-VTT"], limit=2, methods=["base", policy])
    assert list(results.json["results"][0]["methods"]) == ["base", "learned"]


def test_nano_results_have_three_forms(nano_tiny, caplog):
    request = NanoRequest(
        methods=["base", "full", "learned"],
        backbones=[str(nano_tiny)],
        subsets=["short-video", "qa"],
        config=QUICK,
        limit=2,
        seed=3,
    )
    seen = []

    @contextmanager
    def progress(title: str):
        class Line:
            def update(self, done: int, total: int | None = None, note: str = "") -> None:
                seen.append((title, done, total))

        yield Line()

    results = run_nano(request, progress=progress)
    assert list(results.json) == ["rows"] and len(results.json["rows"]) == 4 and not results.files
    keys = ["method", "subset", "hit@1", "mean_rank", "cost", "over_budget", "n"]
    assert all(list(row) == keys for row in results.json["rows"])
    assert "skipping learned: no learned allocator is bundled for" in caplog.text
    assert "only the first 2 of every 500" in results.markdown and "seed 3" in results.markdown
    assert "NanoRet, nano-tiny" in results.markdown and "2.000×" in results.markdown
    assert "1.000× = 2 frames at native size" in results.markdown and len(results.tables) == 1
    assert seen[-1] == ("nano-tiny", 8, 8)


def test_learned_allocators_are_measured_by_their_folders(nano_tiny, tmp_path):
    methods = ["base", *(save_policy(tmp_path / name, nano_tiny) for name in ("one", "two"))]
    request = NanoRequest(methods=methods, backbones=[str(nano_tiny)], subsets=["qa"], config=QUICK, limit=2)
    rows = {row["method"]: row for row in run_nano(request).json["rows"]}
    assert list(rows) == ["base", "one", "two"]
    assert rows["one"]["over_budget"] == 0 and rows["one"]["cost"] <= 1


@pytest.mark.parametrize(
    ("method", "message"), [("learned", "no learned allocator is bundled"), ("no/allocator", "no/allocator")]
)
def test_an_allocator_that_cannot_be_loaded_is_named(method, message, nano_tiny):
    with pytest.raises(PolicyError, match=message):
        run_nano(NanoRequest(methods=[method], backbones=[str(nano_tiny)], config=QUICK, limit=1))


@pytest.mark.slow
def test_the_nano_sweep_writes_its_plot_and_table(nano_tiny, tmp_path):
    config = EmbedConfig(device="cpu")
    results = run_nano(NanoRequest(backbones=[str(nano_tiny)], sweep="frames", limit=2, config=config, out=tmp_path))
    curves = results.json["results"][0]["curves"]
    assert [point["x"] for point in curves["full"]] == list(FRAMES)
    assert [point["cost"] for point in curves["full"]] == [1, 2, 3, 4, 6]
    assert all(0.9 < point["cost"] <= 1 for point in curves["uniform"])
    assert curves["full"][0]["hit1"] == curves["uniform"][0]["hit1"], "both are Base at 8 frames"
    assert curves["full"][-1]["over_budget"] == 4, "two short and two long videos"
    rows = results.json["results"][0]["rows"]
    assert [row["subset"] for row in rows if row["method"] == "full@16"] == list(RETRIEVAL)
    assert sorted(path.name for path in results.files) == [
        f"sweep_frames.{end}" for end in ("json", "md", "pdf", "png", "svg")
    ]
    assert Image.open(tmp_path / "sweep_frames.png").width > 600
    assert "Uniform alloc." in (tmp_path / "sweep_frames.svg").read_text()
    table = (tmp_path / "sweep_frames.md").read_text()
    assert table == results.markdown and table.count("|") == 6 * 7 and "only the first 2 of every 500" in table
