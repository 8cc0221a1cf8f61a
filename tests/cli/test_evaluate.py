"""`allocembed eval` and `longret`: options become requests; results are printed."""

import json
from pathlib import Path
from unittest import mock

import pytest

from allocembed.benchmarks import campaign
from tests.command import run

RESULTS = campaign.CampaignResults(True, {"results": [1]}, "# A table", [Path("out/results.json")], ["a.mp4: bad"])


def test_options_become_a_request(monkeypatch, tmp_path):
    ran = mock.Mock(return_value=RESULTS)
    monkeypatch.setattr(campaign, "run", ran)
    monkeypatch.setattr("allocembed.benchmarks.request.BenchmarkRequest.load_tasks", lambda self: ["tasks"])
    words = ["--data", tmp_path, "--tasks", "MSVD, MSR-VTT,MSVD", "--methods", "base,uniform", "--limit", 3, "--html"]
    words += ["-b", "nano-qwen2", "-b", "nano-qwen3", "--budget", "2f", "--candidates", 4, "--device", "cpu"]
    result = run("eval", "mmeb-v2", *words)
    assert result.returncode == 1, "a video was left out"
    request, tasks = ran.call_args.args
    assert tasks == ["tasks"] and request.benchmark == "mmeb-v2" and request.out == Path("mmeb-v2-results")
    assert list(request.tasks) == ["MSVD", "MSR-VTT"]
    assert tuple(request.backbones) == ("nano-qwen2", "nano-qwen3") and tuple(request.methods) == ("base", "uniform")
    assert (request.config.budget, request.config.candidates, request.config.device) == ("2f", 4, "cpu")
    assert request.html and not request.transfer and request.limit == 3
    assert "A table" in result.stdout and result.stderr == "→ out/results.json\nleft out a.mp4: bad\n"
    assert json.loads(run("eval", "mmeb-v2", *words, "--json").stdout) == RESULTS.json
    ran.return_value = campaign.CampaignResults(first=False)
    result = run("eval", "mmeb-v2", *words)
    assert (result.returncode, result.stdout) == (0, ""), "only the first process prints"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["mmeb-v2"], 2, "--data"),
        (["mmeb-v2", "--data", "d", "--tasks", "UCF101"], 1, "UCF101"),
        (["mmeb-v2", "--data", "d", "--batch", "0"], 2, "--batch must be at least 1"),
        (["mmeb-v2", "--data", "d", "--sweep", "colours"], 2, "'budgets'"),
        (["mmeb-v2", "--data", "d", "--sweep", "frames", "--transfer"], 1, "separate runs"),
        (["mmeb-v2", "--data", "d", "--transfer", "--methods", "uniform"], 1, "compares with Base"),
        (["longret", "--data", "d"], 1, "allocembed longret build"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(monkeypatch, tmp_path, words, code, said):
    monkeypatch.chdir(tmp_path)
    result = run("eval", *words)
    assert result.returncode == code and said in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not list(tmp_path.iterdir())


def test_longret_build_prints_the_composition_and_its_files(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    built = mock.Mock(return_value=("# Composition", [tmp_path / "queries.parquet"]))
    monkeypatch.setattr("allocembed.benchmarks.composition.build_benchmark", built)
    result = run("longret", "build", "--lovr", "LoVR", "--seed", 3)
    assert (result.returncode, result.stdout) == (0, "# Composition\n")
    assert result.stderr == f"→ {tmp_path / 'queries.parquet'}\n"
    assert built.call_args.args == (Path("LoVR"), None, Path("longret")) and built.call_args.kwargs["seed"] == 3
    for words in ([], ["--lovr", "LoVR", "--workers", 0]):
        assert run("longret", "build", *words).returncode == 2
