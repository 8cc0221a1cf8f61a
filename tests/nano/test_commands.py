"""`allocembed eval nano`: results are printed and written, mistakes are named."""

import json

import pytest

from tests.command import run


@pytest.mark.slow
def test_a_benchmark_prints_json_and_writes_markdown(nano_tiny, tmp_path):
    words = ["--limit", 2, "--budget", "2f", "--candidates", 4, "--subsets", "qa", "-b", nano_tiny, "--device", "cpu"]
    table = tmp_path / "deep" / "table.md"
    result = run("eval", "nano", *words, "--methods", "base,uniform,learned", "--json", "--markdown", table)
    assert result.returncode == 0, result.stderr
    assert [row["method"] for row in json.loads(result.stdout)["rows"]] == ["base", "uniform"]
    assert "skipping learned" in result.stderr and "NanoRet" in table.read_text()


@pytest.mark.slow
def test_a_sweep_writes_its_table_and_plot(nano_tiny, tmp_path):
    words = ["--limit", 2, "--methods", "full,uniform", "-b", nano_tiny, "--device", "cpu", "--out", tmp_path]
    result = run("eval", "nano", "--sweep", "frames", *words, "--json")
    assert result.returncode == 0 and json.loads(result.stdout), result.stderr
    names = {path.name for path in tmp_path.iterdir()}
    assert {"sweep_frames.md", "sweep_frames.json", "sweep_frames.png", "sweep_frames.svg"} <= names
    assert all(f"→ {tmp_path / name}\n" in result.stderr for name in names)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "base,magic"], "unknown allocator 'magic'"),
        (["--subsets", "tall-video"], "tall-video"),
        (["--limit", "0"], "limit must be at least 1"),
        (["--budget", "lots"], "budget"),
        (["-b", "nano-qwen33"], "did you mean nano-qwen3?"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    result = run("eval", "nano", *words)
    assert result.returncode == 1 and said in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not list(tmp_path.iterdir())
