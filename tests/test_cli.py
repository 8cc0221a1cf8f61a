"""The command line, run as a user runs it: exit codes, messages without tracebacks, files that are whole."""

import io
import json
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from allocembed.cli import app, main
from tests.clips import write_audio, write_video


@dataclass
class Result:
    returncode: int
    stdout: str
    stderr: str


def run(*words: object) -> Result:
    """What `allocembed WORDS` does, in this process; an exception that gets out is a traceback at the user."""
    stdout, stderr, code = io.StringIO(), io.StringIO(), 0
    argv = ["allocembed", *map(str, words)]
    with redirect_stdout(stdout), redirect_stderr(stderr), mock.patch.object(sys, "argv", argv):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    return Result(code, stdout.getvalue(), stderr.getvalue())


@pytest.fixture(scope="module")
def videos(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("videos")
    frames = [folder / "frames" / f"frame{index}.png" for index in range(1, 12)]
    frames[0].parent.mkdir()
    for index, path in enumerate(frames):
        Image.new("RGB", (64, 48), (index * 20, 0, 0)).save(path)
    return [write_video(folder / "one.mp4"), write_video(folder / "two.mkv", 7), folder / "frames"]


@pytest.mark.parametrize("family", ["qwen2_folder", "qwen3_folder"])
def test_embed_writes_vectors_with_their_costs(videos, tmp_path, request, family):
    out = tmp_path / "vectors.npz"
    folder = request.getfixturevalue(family)
    result = run("embed", *videos, "--backbone", folder, "--budget", "8f", "--allocator", "content", "--out", out)
    assert result.returncode == 0, result.stderr
    saved = np.load(out)
    assert saved["vectors"].shape == (3, 32) and saved["vectors"].dtype == np.float32
    assert np.allclose(np.linalg.norm(saved["vectors"], axis=1), 1, atol=1e-5)
    assert saved["sources"].tolist() == [str(video) for video in videos]
    assert np.all(saved["costs"] <= saved["budgets"]) and np.all(saved["budgets"] == saved["base_costs"])
    assert "3 of 3 videos" in result.stderr and result.stdout == ""


def test_embed_writes_json_lines(videos, tmp_path, qwen3_folder):
    out = tmp_path / "deep" / "vectors.jsonl"
    result = run("embed", *videos, "--backbone", qwen3_folder, "--out", out, "--dim", 8, "--seek", "keyframe")
    assert result.returncode == 0, result.stderr
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["source"] for line in lines] == [str(video) for video in videos]
    assert all(len(line["vector"]) == 8 and line["cost"] <= line["budget"] for line in lines)


def test_bad_files_are_named_and_the_rest_is_embedded(videos, tmp_path, qwen3_folder):
    empty, audio, text, cut = (tmp_path / name for name in ("empty.mp4", "tune.m4a", "notes.mp4", "cut.mp4"))
    empty.touch()
    write_audio(audio, "aac")
    text.write_text("not a video at all")
    cut.write_bytes(videos[0].read_bytes()[:-700])
    bare = tmp_path / "bare"
    bare.mkdir()
    bad = [empty, audio, text, cut, bare, tmp_path / "nowhere.mp4"]
    out = tmp_path / "vectors.npz"
    words = ["embed", *bad[:3], *videos, *bad[3:], "--backbone", qwen3_folder, "--out", out]
    command = [sys.executable, "-c", "from allocembed.cli import main; main()", *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert np.load(out)["sources"].tolist() == [str(video) for video in videos]
    for path in bad:
        assert f"left out {path}: " in result.stderr
    assert "3 of 9 videos" in result.stderr


def test_nothing_is_written_when_no_video_is_good(tmp_path, qwen3_folder):
    out = tmp_path / "vectors.npz"
    result = run("embed", tmp_path / "nowhere.mp4", "--backbone", qwen3_folder, "--out", out)
    assert result.returncode == 1 and list(tmp_path.iterdir()) == []


def test_allocate_prints_the_promised_json(videos, qwen3_folder):
    result = run("allocate", videos[0], "--backbone", qwen3_folder, "--json", "--candidates", 12, "--range", "0.3,1.5")
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    assert list(shown) == ["budget", "cost", "base_cost", "chunks"]
    assert len(shown["chunks"]) == 6
    assert all(list(chunk) == ["times", "scale", "rows", "cols", "tokens"] for chunk in shown["chunks"])
    assert sum(chunk["tokens"] for chunk in shown["chunks"]) == shown["cost"] <= shown["budget"]
    assert all(0.3 <= chunk["scale"] <= 1.5 for chunk in shown["chunks"])


def test_allocate_draws_the_filmstrip(videos, tmp_path, qwen2_folder):
    png, html = tmp_path / "film.png", tmp_path / "film.html"
    words = ("--backbone", qwen2_folder, "--allocator", "select", "--text", "Who runs?")
    result = run("allocate", videos[0], *words, "--png", png, "--html", html)
    assert result.returncode == 0, result.stderr
    assert Image.open(png).width == 1600 and "one.mp4 – Who runs?" in html.read_text()
    assert "tokens" in result.stdout and "1.000× = 8 frames at native size" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backbone", "no/such-model"], "--backbone nano-qwen3"),
        (["--budget", "many"], "write 8f for 8 native frames"),
        (["--budget", "0"], "from 1 to"),
        (["--range", "2,1"], "s_min"),
        (["--range", "wide"], "--range 0.2,1.8"),
        (["--out", "vectors.txt"], ".npz or .jsonl"),
        (["--device", "tpu"], "auto, cpu, cuda"),
        (["--dtype", "int3"], "bfloat16"),
        (["--dim", "4096"], "1 to 32"),
        (["--allocator", "magic"], "magic"),
        (["--candidates", "0"], "greater than or equal to 1"),
        (["--budget", "3"], "smallest budget that would do"),
    ],
)
def test_wrong_options_say_what_to_write(videos, tmp_path, qwen3_folder, words, message):
    backbone = [] if "--backbone" in words else ["--backbone", qwen3_folder]
    out = [] if "--out" in words else ["--out", tmp_path / "v.npz"]
    result = run("embed", videos[0], *backbone, *out, *words)
    assert result.returncode in (1, 2)
    assert message in " ".join(result.stderr.split())


def test_a_place_that_can_not_be_written_is_noticed_before_the_work(videos, tmp_path, qwen3_folder):
    (tmp_path / "file").touch()
    for command, option in (("embed", "--out"), ("allocate", "--png"), ("allocate", "--html")):
        target = tmp_path / "file" / ("v.npz" if option == "--out" else "film.png")
        result = run(command, videos[0], "--backbone", qwen3_folder, option, target)
        assert result.returncode == 1 and "cannot write" in result.stderr, result.stderr


def test_help_is_quick_and_complete():
    result = CliRunner().invoke(app, ["embed", "--help"])
    for option in ("--backbone", "--allocator", "--budget", "--candidates", "--range", "--seek", "--text", "--out"):
        assert option in result.output
    code = "import sys; from typer.testing import CliRunner; from allocembed.cli import app;"
    code += "CliRunner().invoke(app, ['--help']); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0, "help must not wait for torch"


def test_version_is_printed():
    assert CliRunner().invoke(app, ["--version"]).output.startswith("allocembed 0.")


def test_runs_that_write_the_same_file_leave_one_whole_result(videos, tmp_path, qwen3_folder):
    out = tmp_path / "vectors.jsonl"
    words = ["embed", *videos, *videos, "--backbone", qwen3_folder, "--out", out]
    command = [sys.executable, "-c", "from allocembed.cli import main; main()", *map(str, words)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.wait(timeout=120) for process in both] == [0, 0], [process.stderr.read() for process in both]
    assert len(out.read_text().splitlines()) == 6
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("name", ["v.npz", "v.jsonl"])
def test_a_folder_as_output_and_a_model_that_fails_leave_nothing_behind(videos, tmp_path, qwen3_folder, name):
    (tmp_path / name).mkdir()
    result = run("embed", videos[0], "--backbone", qwen3_folder, "--out", tmp_path / name)
    assert result.returncode == 1 and "it is a folder" in result.stderr
    result = run("embed", videos[0], "--backbone", tmp_path / "nowhere", "--out", tmp_path / f"other-{name}")
    assert result.returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes there")
@pytest.mark.parametrize("suffix", ["npz", "jsonl"])
def test_a_file_name_that_is_no_unicode_costs_nobody_anything(videos, tmp_path, qwen3_folder, suffix):
    odd = tmp_path / os.fsdecode(b"odd\xff.mp4")
    odd.write_bytes(videos[0].read_bytes())
    out = tmp_path / f"vectors.{suffix}"
    assert run("embed", odd, videos[1], "--backbone", qwen3_folder, "--out", out).returncode == 0
    assert out.stat().st_size > 0
    page = tmp_path / "film.html"
    assert run("allocate", odd, "--backbone", qwen3_folder, "--html", page).returncode == 0


def test_the_video_is_never_overwritten_by_its_picture(videos, tmp_path, qwen3_folder):
    victim = tmp_path / "victim.mp4"
    victim.write_bytes(videos[0].read_bytes())
    result = run("allocate", victim, "--backbone", qwen3_folder, "--png", victim)
    assert result.returncode == 1 and "different files" in result.stderr
    assert victim.read_bytes() == videos[0].read_bytes()


def test_an_empty_path_does_not_mean_this_folder(qwen3_folder, tmp_path):
    result = run("embed", "", "--backbone", qwen3_folder, "--out", tmp_path / "v.npz")
    assert result.returncode == 2 and "empty" in result.stderr


@pytest.mark.parametrize("words", [["demo"], ["train", "--preset", "nano"]])
def test_ctrl_c_is_one_word_and_the_usual_status(monkeypatch, words):
    for place in ("allocembed.demo.run_demo", "allocembed.rdpo.run.train"):
        monkeypatch.setattr(place, mock.Mock(side_effect=KeyboardInterrupt))
    result = run(*words)
    assert (result.returncode, result.stdout, result.stderr) == (130, "", "stopped\n")


def test_names_with_brackets_are_shown_as_they_are(videos, tmp_path, qwen3_folder):
    out = tmp_path / "[bold]v.npz"
    result = run("embed", videos[0], "--backbone", qwen3_folder, "--out", out)
    assert "[bold]v.npz" in result.stderr and out.is_file()


@pytest.mark.parametrize("target", ["v.jsonl", "v.npz", "film.png", "film.html"])
def test_a_full_disk_is_one_line_and_leaves_the_old_file(videos, tmp_path, qwen3_folder, full_disk, target):
    out = tmp_path / target
    out.write_text("old")
    words = ["embed", "--out"] if target.startswith("v.") else ["allocate", f"--{out.suffix[1:]}"]
    result = run(words[0], videos[0], "--backbone", qwen3_folder, words[1], out)
    assert result.returncode == 1 and full_disk.format(out) in result.stderr, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [target] and out.read_text() == "old"
