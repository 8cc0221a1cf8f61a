"""`allocembed compare`: a table and a recommendation from a folder of videos; mistakes are one line."""

import json

import pytest

from tests.clips import picture, write_video
from tests.command import run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("videos")
    (folder / "deep").mkdir()
    for number in range(4):
        pictures = [picture(50 * number + index, 96, 64) for index in range(10)]
        write_video(folder / ("deep" if number == 3 else "") / f"{number}.mp4", pictures)
    return folder


@pytest.mark.slow
def test_a_folder_is_compared(nano_tiny, folder, tmp_path):
    words = ["-b", nano_tiny, "--device", "cpu", "--candidates", 4, "--methods", "base,uniform"]
    result = run("compare", folder, *words, "--budgets", "1f,2f", "--plot", tmp_path / "out" / "plot.png")
    assert result.returncode == 0, result.stderr
    assert "Recommended: " in result.stdout and "only 4 videos" in result.stdout and "full" in result.stdout
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"plot.png", "plot.svg"}
    assert f"→ {tmp_path / 'out' / 'plot.svg'}\n" in result.stderr and "4 of 4 videos" in result.stderr
    (tmp_path / "bad.mp4").write_bytes(b"nothing")
    result = run("compare", folder, tmp_path / "bad.mp4", *words, "--budgets", "2f", "--json")
    shown = json.loads(result.stdout)
    assert result.returncode == 1 and shown["videos"] == 4 and result.stderr.count("left out") == 1
    assert [row["method"] for row in shown["rows"]] == ["base", "uniform"] and "bad.mp4" in shown["left_out"][0]
    assert shown["rows"][0]["ms"]["total"] > 0 and shown["recommendation"]["budget"] == "2f"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "give a folder of videos"),
        (["nowhere"], 1, "nowhere: no such file or folder"),
        (["."], 1, "cannot compare with 0 videos in .: give at least two"),
        ([".", "--methods", "base,magic"], 1, "unknown allocator 'magic'"),
        ([".", "--budgets", "lots"], 1, "cannot read the budget 'lots'"),
        ([".", "--videos", "1"], 2, "--videos must be at least 2"),
        ([".", "--within", "2"], 2, "--within must be from 0 up to 1"),
        ([".", "--by", "money"], 2, "'tokens'"),
        ([".", "-b", "nano-qwen33"], 1, "did you mean nano-qwen3?"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(monkeypatch, tmp_path, words, code, said):
    monkeypatch.chdir(tmp_path)
    result = run("compare", *words)
    assert result.returncode == code and said in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not list(tmp_path.iterdir())
