"""`allocembed embed` and `allocate` as a user runs them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from allocembed import AllocEmbed
from tests.clips import write_audio, write_video
from tests.command import run
from tests.stages import allocated


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


def test_embed_writes_json_lines_and_parquet_into_new_folders(videos, tmp_path, qwen3_folder):
    parquet = pytest.importorskip("pyarrow.parquet")
    words = ("--backbone", qwen3_folder, "--dim", 8, "--seek", "keyframe", "--quiet")
    for out in (tmp_path / "deep" / "vectors.jsonl", tmp_path / "deep" / "vectors.parquet"):
        result = run("embed", *videos, *words, "--out", out)
        assert (result.returncode, result.stderr) == (0, "")
    lines = [json.loads(line) for line in (tmp_path / "deep" / "vectors.jsonl").read_text().splitlines()]
    assert [line["source"] for line in lines] == [str(video) for video in videos]
    assert all(len(line["vector"]) == 8 and line["cost"] <= line["budget"] for line in lines)
    assert parquet.read_table(tmp_path / "deep" / "vectors.parquet").to_pylist() == lines


def test_start_and_end_embed_a_part(videos, tmp_path, qwen3_folder):
    shown = run("allocate", videos[0], "-b", qwen3_folder, "--start", 0.5, "--end", 1.5, "--json")
    times = [time for chunk in json.loads(shown.stdout)["chunks"] for time in chunk["times"]]
    assert min(times) >= 0.5 and max(times) < 1.5
    result = run("embed", videos[0], "-b", qwen3_folder, "--start", 2, "--end", 1, "-o", tmp_path / "v.npz")
    assert result.returncode == 1 and "end must be later than start" in result.stderr


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
    result = run("embed", *bad[:3], *videos, *bad[3:], "--backbone", qwen3_folder, "--out", out)
    assert result.returncode == 1 and "Traceback" not in result.stderr
    assert np.load(out)["sources"].tolist() == [str(video) for video in videos]
    for path in bad:
        assert f"left out {path}: " in result.stderr
    assert "3 of 9 videos" in result.stderr


def test_nothing_is_written_when_no_video_can_be_read(tmp_path, qwen3_folder):
    (tmp_path / "bad.mp4").write_text("no video")
    result = run("embed", tmp_path / "bad.mp4", "--backbone", qwen3_folder, "--out", tmp_path / "new" / "v.npz")
    assert result.returncode == 1 and [path.name for path in tmp_path.iterdir()] == ["bad.mp4"]


@pytest.mark.slow
def test_paths_come_from_stdin_with_a_dash(videos, tmp_path, qwen3_folder):
    out = tmp_path / "v.jsonl"
    command = [sys.executable, "-m", "allocembed", "embed", "-", "-b", str(qwen3_folder), "-o", str(out)]
    listed = "".join(f"{video}\n" for video in videos).encode()
    result = subprocess.run(command, input=listed, capture_output=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert len(out.read_text().splitlines()) == 3
    result = subprocess.run(command, input=b"\n", capture_output=True, timeout=120)
    assert result.returncode == 2 and b"give at least one video" in result.stderr


def test_recursive_embeds_all_videos_of_a_folder_and_a_folder_of_frames_stays_one(videos, tmp_path, qwen3_folder):
    (tmp_path / "all" / "inner").mkdir(parents=True)
    (tmp_path / "all" / "b.mp4").write_bytes(videos[0].read_bytes())
    (tmp_path / "all" / "inner" / "a.mkv").write_bytes(videos[1].read_bytes())
    (tmp_path / "all" / "notes.txt").touch()
    out = tmp_path / "v.npz"
    result = run("embed", tmp_path / "all", videos[2], "--recursive", "-b", qwen3_folder, "-o", out)
    assert result.returncode == 0, result.stderr
    found = [str(tmp_path / "all" / name) for name in ("b.mp4", "inner/a.mkv")]
    assert np.load(out)["sources"].tolist() == [*found, str(videos[2])]
    (tmp_path / "none").mkdir()
    result = run("embed", tmp_path / "none", "--recursive", "-b", qwen3_folder, "-o", out)
    assert result.returncode == 1 and "there is no video in this folder" in result.stderr


@pytest.mark.parametrize("name", ["poster.jpg", ".thumb.jpg"])
def test_a_picture_beside_videos_does_not_make_a_folder_of_frames(videos, tmp_path, qwen3_folder, name):
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "a.mp4").write_bytes(videos[0].read_bytes())
    Image.new("RGB", (64, 48)).save(tmp_path / "all" / name)
    result = run("embed", tmp_path / "all", "--recursive", "-b", qwen3_folder, "-o", tmp_path / "v.npz")
    assert result.returncode == 0, result.stderr
    assert np.load(tmp_path / "v.npz")["sources"].tolist() == [str(tmp_path / "all" / "a.mp4")]


def test_a_path_that_cannot_exist_is_left_out_alone(videos, tmp_path, qwen3_folder):
    result = run("embed", videos[0], tmp_path / ("x" * 300), "-b", qwen3_folder, "-o", tmp_path / "v.npz")
    assert result.returncode == 1 and "File name too long" in result.stderr and "check the path" in result.stderr
    assert np.load(tmp_path / "v.npz")["sources"].tolist() == [str(videos[0])]
    for words in (("embed", videos[0], "-b", "x" * 300), ("embed", videos[0], "-b", qwen3_folder, "-a", "x" * 300)):
        result = run(*words)
        assert result.returncode == 1 and result.stderr.splitlines()[-1] and "bug" not in result.stderr


def test_a_name_that_looks_like_an_option_gets_a_remedy(tmp_path, monkeypatch):
    (tmp_path / "-dash.mp4").touch()
    monkeypatch.chdir(tmp_path)
    result = run("embed", "a.mp4", "-dash.mp4", "b.mp4")
    assert result.returncode == 2 and "-dash.mp4 looks like an option: write ./-dash.mp4" in result.stderr
    (tmp_path / "--help.mp4").touch()
    for name in ("-dash.mp4", "--help.mp4"):
        result = run("allocate", name)
        assert result.returncode == 2 and f"{name} looks like an option: write ./{name}" in result.stderr
    result = run("search", "x.index", "-gear")
    assert result.returncode == 2 and "write -- before it" in result.stderr
    result = run("search", "x.index", "a dog", "--min-score", "abc")
    assert result.returncode == 2 and "--min-score: 'abc' is not a FLOAT" in result.stderr


def test_allocate_prints_the_promised_json(videos, qwen3_folder):
    words = ("--candidates", 12, "--scale-range", 0.3, 1.5)
    result = run("allocate", videos[0], "--backbone", qwen3_folder, "--json", *words)
    assert result.returncode == 0, result.stderr
    shown = json.loads(result.stdout)
    assert list(shown) == ["budget", "cost", "base_cost", "look_tokens", "chunks"]
    assert len(shown["chunks"]) == 6
    assert all(list(chunk) == ["times", "scale", "rows", "cols", "tokens"] for chunk in shown["chunks"])
    assert sum(chunk["tokens"] for chunk in shown["chunks"]) == shown["cost"] <= shown["budget"]
    assert all(0.3 <= chunk["scale"] <= 1.5 for chunk in shown["chunks"])


@pytest.mark.parametrize("method", ["base", "full", "uniform", "content", "select"])
def test_allocate_without_weights_is_what_the_model_gives(videos, qwen3_folder, method, monkeypatch):
    from allocembed import film
    from allocembed.embedder import AllocEmbed

    embedder = AllocEmbed.from_pretrained(qwen3_folder, method, device="cpu")
    clip = embedder.read(videos[0])
    expected = film.as_json(clip, allocated(embedder, clip))
    monkeypatch.setattr("allocembed.backbones.loading.load_backbone", mock.Mock(side_effect=AssertionError))
    result = run("allocate", videos[0], "-b", qwen3_folder, "-a", method, "--json")
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout) == expected
    assert run("allocate", videos[0], "-a", method, "--json").returncode == 0, "nor the default model's"


@pytest.mark.slow
def test_allocate_with_a_learned_allocator_loads_the_model(videos):
    result = run("allocate", videos[0], "-b", "nano-qwen3", "--json", "--candidates", 4, "--device", "cpu")
    assert result.returncode == 0 and "toy world" in result.stderr, result.stderr
    assert json.loads(result.stdout)["cost"] <= json.loads(result.stdout)["budget"]


def test_allocate_draws_the_filmstrip(videos, tmp_path, qwen2_folder):
    png, html = tmp_path / "film.png", tmp_path / "film.html"
    words = ("--backbone", qwen2_folder, "--allocator", "select", "--question", "Who runs?")
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
        (["--scale-range", "2", "1"], "s_min"),
        (["--scale-range", "wide"], "--scale-range"),
        (["--out", "vectors.txt"], ".npz, .jsonl or .parquet"),
        (["--device", "tpu"], "auto, cpu, cuda"),
        (["--dtype", "int3"], "bfloat16"),
        (["--dim", "4096"], "1 to 32"),
        (["--allocator", "magic"], "magic"),
        (["--candidates", "0"], "candidates must be at least 1"),
        (["--budget", "3"], "Raise the budget to at least 12"),
    ],
)
def test_wrong_options_say_what_to_write(videos, tmp_path, qwen3_folder, words, message):
    backbone = [] if "--backbone" in words else ["--backbone", qwen3_folder]
    out = [] if "--out" in words else ["--out", tmp_path / "new" / "v.npz"]
    result = run("embed", videos[0], *backbone, *out, *words)
    assert result.returncode in (1, 2)
    assert message in " ".join(result.stderr.split()) and not (tmp_path / "new").exists()


def test_a_place_that_cannot_be_written_is_noticed_before_the_work(videos, tmp_path, qwen3_folder):
    (tmp_path / "file").touch()
    for command, option in (("embed", "--out"), ("allocate", "--png"), ("allocate", "--html")):
        target = tmp_path / "file" / ("v.npz" if option == "--out" else "film.png")
        result = run(command, videos[0], "--backbone", qwen3_folder, option, target)
        assert result.returncode == 1 and "cannot write" in result.stderr, result.stderr


@pytest.mark.slow
def test_runs_that_write_the_same_file_leave_one_whole_result(videos, tmp_path, qwen3_folder):
    out = tmp_path / "vectors.jsonl"
    words = ["embed", *videos, *videos, "--backbone", qwen3_folder, "--out", out]
    command = [sys.executable, "-m", "allocembed", *map(str, words)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=120)[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert len(out.read_text().splitlines()) == 6
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize("name", ["v.npz", "v.jsonl", "v.parquet"])
def test_what_was_embedded_before_a_stop_is_kept_beside_the_output(videos, tmp_path, qwen3_folder, monkeypatch, name):
    (tmp_path / name).write_text("of an earlier run")
    stream = AllocEmbed.stream

    def stopped(*given, **more):
        for number, result in enumerate(stream(*given, **more)):
            if number == 2:
                raise KeyboardInterrupt
            yield result

    monkeypatch.setattr(AllocEmbed, "stream", stopped)
    result = run("embed", *videos, "--backbone", qwen3_folder, "--out", tmp_path / name)
    kept = tmp_path / name.replace("v.", "v.stopped.")
    assert result.returncode == 130 and f"2 of 3 videos → {kept}; allocembed index can be continued" in result.stderr
    assert (tmp_path / name).read_text() == "of an earlier run" and set(tmp_path.iterdir()) == {kept, tmp_path / name}
    if name == "v.npz":
        assert np.load(kept)["sources"].tolist() == [str(video) for video in videos[:2]]


@pytest.mark.parametrize("name", ["v.npz", "v.jsonl", "v.parquet"])
def test_a_folder_as_output_and_a_model_that_fails_leave_nothing_behind(videos, tmp_path, qwen3_folder, name):
    (tmp_path / name).mkdir()
    result = run("embed", videos[0], "--backbone", qwen3_folder, "--out", tmp_path / name)
    assert result.returncode == 1 and "it is a folder" in result.stderr
    result = run("embed", videos[0], "--backbone", tmp_path / "nowhere", "--out", tmp_path / "new" / name)
    assert result.returncode == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes there")
def test_a_file_name_that_is_not_unicode_is_embedded_like_any_other(videos, tmp_path, qwen3_folder):
    odd = tmp_path / os.fsdecode(b"odd\xff.mp4")
    odd.write_bytes(videos[0].read_bytes())
    for suffix in ("npz", "jsonl", "parquet"):
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


def test_names_with_brackets_are_shown_as_they_are(videos, tmp_path, qwen3_folder):
    out = tmp_path / "[bold]v.npz"
    result = run("embed", videos[0], "--backbone", qwen3_folder, "--out", out)
    assert "[bold]v.npz" in result.stderr and out.is_file()


@pytest.mark.parametrize("target", ["v.jsonl", "v.npz", "v.parquet", "film.png", "film.html"])
def test_a_full_disk_is_one_line_and_leaves_the_old_file(videos, tmp_path, qwen3_folder, full_disk, target):
    out = tmp_path / target
    out.write_text("old")
    words = ["embed", "--out"] if target.startswith("v.") else ["allocate", f"--{out.suffix[1:]}"]
    result = run(words[0], videos[0], "--backbone", qwen3_folder, words[1], out)
    assert result.returncode == 1 and full_disk.format(out) in result.stderr, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == [target] and out.read_text() == "old"
