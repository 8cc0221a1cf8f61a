"""`allocembed index`, `search` and `serve` as a user runs them: messages, exit codes, and no tracebacks."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from allocembed.config import EmbedConfig
from allocembed.search import VideoIndex, worker
from allocembed.search.match import ChanceLevel
from tests.clips import picture, write_video
from tests.command import run

pytestmark = pytest.mark.slow  # whole runs, servers and command lines

pytest.importorskip("lancedb", reason="LanceDB is not installed: pip install -e '.[search]'")


@pytest.fixture
def config(qwen3_folder) -> EmbedConfig:
    return EmbedConfig(backbone=qwen3_folder, device="cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory, qwen3_folder) -> Path:
    """An index of three videos and a broken one; the videos lie beside it."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "videos").mkdir()
    for number in range(3):
        write_video(folder / "videos" / f"v{number}.mp4", [picture(number * 37 + frame) for frame in range(10)])
    (folder / "videos" / "bad.mp4").write_text("no video")
    result = run("index", folder / "videos", "--to", folder / "index", "--backbone", qwen3_folder)
    assert result.returncode == 1 and "3 embedded" in result.stderr and result.stdout == ""
    assert re.search(r"left out .*bad.mp4: cannot open it as a video", result.stderr), result.stderr
    return folder / "index"


def test_a_second_run_has_nothing_to_do(place):
    result = run("index", place.parent / "videos", "--to", place)
    assert result.returncode == 1, "the same files cannot be read"
    assert "0 embedded, 3 unchanged, 1 left out as before (--retry-failed tries again)" in result.stderr
    assert run("index", "add", place.parent / "videos", "--to", place, "--retry-failed").returncode == 1
    assert run("index", "--to", place, place.parent / "videos").returncode == 1, "options may come first"


def test_options_equal_to_those_of_the_index_are_accepted(place, qwen3_folder):
    words = ("--backbone", qwen3_folder, "--budget", "8f", "--allocator", "uniform", "--segments", "auto")
    result = run("index", place.parent / "videos" / "v0.mp4", "--to", place, *words)
    assert result.returncode == 0, result.stderr


def test_info_ls_verify_and_export(place, tmp_path):
    info = json.loads(run("index", "info", place, "--json").stdout)
    assert (info["videos"], info["failed"], info["budget"], info["allocator"]) == (3, 1, "8f", "uniform")
    assert "8f" in run("index", "info", place).stdout
    listed = run("index", "ls", place)
    assert len(listed.stdout.splitlines()) == 3 and "1 file that could not be read (--failed lists" in listed.stderr
    failed = run("index", "ls", place, "--failed").stdout.splitlines()
    assert len(failed) == 1 and "bad.mp4: cannot open it as a video" in failed[0]
    rows = [json.loads(line) for line in run("index", "ls", place, "--json").stdout.splitlines()]
    assert len(rows) == 4 and {"path", "error", "duration"} <= set(rows[0])
    verified = run("index", "verify", place)
    assert verified.returncode == 0 and "4 files, 0 problems" in verified.stderr, "an unreadable file is no problem"
    assert re.search(r"1 have no vectors, .* --retry-failed\n.*bad.mp4: cannot open it as a video", verified.stderr)
    assert run("index", "export", place, "--out", tmp_path / "new" / "all.npz").returncode == 0
    assert np.load(tmp_path / "new" / "all.npz")["vectors"].shape == (3, 32)


def test_a_list_of_files_holds_nothing_but_files(place):
    listed = run("index", "ls", place).stdout.splitlines()
    assert len(listed) == 3 and all(Path(line).is_file() for line in listed)


def test_an_index_that_a_killed_run_left_empty_is_said_to_be_empty_and_takes_other_settings(place, tmp_path, config):
    VideoIndex.create(tmp_path / "index", config)
    result = run("search", tmp_path / "index", "a dog")
    assert result.returncode == 0 and "the index is empty; fill it with: allocembed index FOLDER" in result.stderr
    words = ("index", place.parent / "videos" / "v0.mp4", "--to", tmp_path / "index", "--budget")
    result = run(*words, "4f")
    assert result.returncode == 0, result.stderr
    assert json.loads(run("index", "info", tmp_path / "index", "--json").stdout)["budget"] == "4f"
    result = run(*words, "2f")
    assert result.returncode == 1 and "was made with --budget 4f, not 2f" in result.stderr


def test_an_index_is_not_made_among_other_files(place, qwen3_folder):
    folder = place.parent / "videos"
    before = sorted(folder.iterdir())
    for to in (folder, folder / "v0.mp4"):
        result = run("index", folder, "--to", to, "-b", qwen3_folder)
        assert result.returncode == 1 and "is not an index" in result.stderr
    assert sorted(folder.iterdir()) == before


def test_listing_an_index_does_not_import_torch(place):
    code = "import sys; from allocembed.cli.main import run; "
    code += "".join(f"assert run(['index', {name!r}, {str(place)!r}]) == 0; " for name in ("ls", "info", "verify"))
    command = [sys.executable, "-c", f"{code} assert 'torch' not in sys.modules"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr


def test_search_prints_a_table_or_json(place):
    table = run("search", place, "a dog")
    assert table.returncode == 0 and "score" in table.stdout and str(place.parent / "videos" / "v1.mp4") in table.stdout
    hits = json.loads(run("search", place, "a dog", "--top", 2, "--json").stdout)
    assert len(hits) == 2 and set(hits[0]) >= {"path", "score", "match", "start", "end", "cost"}
    assert json.loads(run("search", place, "a dog", "--min-score", 1, "--json").stdout) == []


def test_search_says_what_a_score_means(place, tmp_path, config):
    few = json.loads(run("search", place, "a dog", "--json").stdout)
    assert {hit["match"] for hit in few} == {""}
    (tmp_path / "nine").mkdir()
    for number in range(9):
        write_video(tmp_path / "nine" / f"v{number}.mp4", [picture(37 * number + frame) for frame in range(0, 50, 5)])
    index = VideoIndex.create(tmp_path / "index", config)
    index.add([tmp_path / "nine"])
    hits = json.loads(run("search", tmp_path / "index", "a dog", "--json").stdout)
    words = ChanceLevel(index).words(index.embed_query("a dog"), [hit["score"] for hit in hits])
    assert [hit["match"] for hit in hits] == words and set(words) <= {"strong", "likely", "weak"}
    shown = run("search", tmp_path / "index", "a dog")
    assert [line.split()[1] for line in shown.stdout.splitlines()[1:]] == words
    assert ("these are the closest" in shown.stderr) == (set(words) == {"weak"})


def test_search_by_example_cuts_the_moments_out(place, tmp_path):
    words = ("--like", place.parent / "videos" / "v1.mp4", "--top", 1, "--clip", tmp_path / "moments")
    result = run("search", place, *words)
    assert result.returncode == 0 and "v1.mp4" in result.stdout, result.stderr
    assert [path.name for path in (tmp_path / "moments").iterdir()] == ["01-v1-0s.mp4"]


def test_search_takes_sentences_pictures_and_moments_together(place, tmp_path):
    Image.fromarray(picture(37)).save(tmp_path / "a.png")
    video = place.parent / "videos" / "v1.mp4"
    shown = ("--image", tmp_path / "a.png", "--like", f"{video}@0-0:00.2", "--json")
    hits = [
        json.loads(run("search", place, *words, *shown).stdout) for words in ((), ("a", "b", "--not", "c", "--refine"))
    ]
    assert [len(each) for each in hits] == [3, 3] and hits[0][0]["score"] != hits[1][0]["score"]
    assert {hit["look_tokens"] for hit in hits[0]} == {0}


def test_a_budget_that_no_video_can_meet_leaves_no_index(place, tmp_path, qwen3_folder):
    words = ["index", place.parent / "videos", "--to", tmp_path / "new", "--backbone", qwen3_folder]
    result = run(*words, "--budget", 1)
    assert result.returncode == 1 and "→ no index, because nothing could be indexed" in result.stderr, result.stderr
    assert result.stderr.count("left out") == 4 and not (tmp_path / "new").exists()
    assert run(*words).returncode == 1 and (tmp_path / "new").is_dir(), "another budget may follow"
    (tmp_path / "empty").mkdir()
    assert run("index", tmp_path / "empty", "--to", tmp_path / "new", "--prune").returncode == 0
    assert (tmp_path / "new").is_dir(), "an index that was there stays"


def test_a_folder_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path, qwen3_folder, monkeypatch):
    closed = tmp_path / "closed"
    closed.mkdir()
    # Root may read anything, so the system's refusal is simulated.
    monkeypatch.setattr(os, "scandir", mock.Mock(side_effect=PermissionError(13, "Permission denied", str(closed))))
    result = run("index", closed, "--to", tmp_path / "index", "--backbone", qwen3_folder)
    said = f"there is no video in {closed}: {closed} cannot be read (Permission denied); check its permissions"
    assert result.returncode == 1 and said in result.stderr, result.stderr


def test_files_can_be_removed(place, tmp_path):
    write_video(tmp_path / "more.mp4", 7)
    assert run("index", tmp_path / "more.mp4", "--to", place).returncode == 0
    said = run("index", "rm", place, tmp_path / "more.mp4").stderr
    assert "1 file removed" in said and "allocembed index adds them again" in said
    assert json.loads(run("index", "info", place, "--json").stdout)["videos"] == 3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["search", "nowhere", "a dog"], "there is no index at nowhere"),
        (["index", "info", "nowhere"], "there is no index at nowhere"),
        (["serve", "nowhere"], "there is no index at nowhere"),
        (["search", "{place}", ""], "the query is empty"),
        (["search", "{place}", "x" * 3000], "shorten it to 2,000"),
        (["index", "{videos}", "--to", "{place}", "--budget", "4f"], "made with --budget 8f, not 4f"),
        (["index", "{videos}", "--to", "{place}", "--segments", "off"], "made with --segments auto"),
        (["index", "{videos}", "--to", "{place}", "--scale-range", "0.3", "1"], "made with --scale-range 0.2 1.8"),
        (["index", "{videos}", "--to", "{place}", "--backbone", "nano-qwen3"], "made with --backbone"),
        (["index", "{videos}/none", "--to", "{place}"], "no such file or folder"),
        (["index", "{empty}", "--to", "{empty}/index", "--backbone", "nano-qwen3"], "there is no video in"),
        (["index", "{videos}", "--to", "{videos}", "--backbone", "nano-qwen3"], "not an index and not empty"),
        (["index", "{videos}", "--to", "{empty}/i", "--segments", "often"], "--segments 30"),
        (["index", "rm", "{place}", "elsewhere.mp4"], "is not in the index"),
        (["index", "export", "{place}", "--out", "all.txt"], "must end in .npz, .jsonl or .parquet"),
        (["search", "{place}", "--like", "nowhere.mp4"], "no such file or folder"),
        (["search", "{place}", "a dog", "--like", "nowhere.mp4@1-2"], "nowhere.mp4: no such file or folder"),
        (["search", "{place}", "--image", "nowhere.jpg"], "nowhere.jpg: no such file or folder"),
    ],
)
def test_what_a_user_can_fix_is_one_line_and_leaves_nothing(place, tmp_path, words, said):
    names = {"place": place, "videos": place.parent / "videos", "empty": tmp_path}
    result = run(*(word.format(**names) for word in words))
    assert result.returncode == 1 and said in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert result.stderr.startswith("error: ") and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ["search", "{place}"],
        ["search", "{place}", "--not", "a dog"],
        ["search", "{place}", "a dog", "--top", "0"],
        ["index", "--to", "{place}"],
        ["index", "{place}"],
        ["index", "add", "x", "--to", "{place}", "--readers", "0"],
        ["index", "rm", "{place}"],
        ["serve", "{place}", "--port", "70000"],
    ],
)
def test_words_that_do_not_fit_are_a_usage_error(place, words):
    result = run(*(word.format(place=place) for word in words))
    assert result.returncode == 2 and result.stderr.startswith("error: "), result.stderr


def test_without_lancedb_the_error_names_what_to_install(place, monkeypatch):
    monkeypatch.setitem(sys.modules, "lancedb", None)
    result = run("search", place, "a dog")
    assert result.returncode == 1 and "pip install -e '.[search]'" in result.stderr


def test_a_port_that_is_taken_is_an_error(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = run("serve", place, "--port", taken.getsockname()[1])
    assert result.returncode == 1 and "choose another port with --port" in result.stderr


@pytest.mark.slow
def test_serve_answers_until_it_is_stopped(place):
    command = [sys.executable, "-m", "allocembed", "serve", str(place), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}) as server:
        try:
            assert server.stderr
            line = next(line for line in server.stderr if "http://" in line)
            address = re.findall(r"http://127\.0\.0\.1:\d+", line)[0]
            with urllib.request.urlopen(f"{address}/api/info", timeout=60) as reply:
                assert json.load(reply)["videos"] == 3
            server.send_signal(signal.SIGINT)
            server.wait(60)
        finally:
            server.kill()


def test_the_token_comes_from_a_file_or_the_environment(place, tmp_path, monkeypatch):
    secrets = []
    monkeypatch.setattr(
        "allocembed.search.web.server.run", lambda index, host, port, token, show: secrets.append(token)
    )
    (tmp_path / "token").write_text("from a file\n")
    (tmp_path / "empty").touch()
    assert run("serve", place).returncode == 0
    monkeypatch.setenv("ALLOCEMBED_TOKEN", "from outside")
    for words in ([], ["--token-file", tmp_path / "token"], ["--token", "said"]):
        assert run("serve", place, *words).returncode == 0
    assert secrets == [None, "from outside", "from a file", "said"]
    assert run("serve", place, "--token", "said", "--token-file", tmp_path / "token").returncode == 2
    for name in ("empty", "nothing"):
        refused = run("serve", place, "--token-file", tmp_path / name)
        assert refused.returncode == 1 and "cannot read the token" in refused.stderr


def test_the_page_is_opened_in_a_browser_only_if_asked_for(place, monkeypatch):
    shown = []
    monkeypatch.setattr("allocembed.search.web.server.run", lambda index, host, port, token, show: shown.append(show))
    assert run("serve", place).returncode == 0 and run("serve", place, "--open").returncode == 0
    assert shown == [None, ""]


def test_ctrl_c_says_what_is_kept(place, tmp_path, qwen3_folder, monkeypatch):
    real, after = worker.embed_videos, 2

    def interrupted(*given, **named):
        for number, embedded in enumerate(real(*given, **named)):
            if number == after:
                raise KeyboardInterrupt
            yield embedded

    monkeypatch.setattr(worker, "embed_videos", interrupted)
    videos = [place.parent / "videos" / f"v{number}.mp4" for number in range(3)]
    words = ("index", *videos, "--to", tmp_path / "new", "--backbone", qwen3_folder)
    stopped = run(*words)
    said = f"2 videos are kept in {tmp_path / 'new'}; run the same command again to continue"
    assert stopped.returncode == 130 and said in stopped.stderr, stopped.stderr
    monkeypatch.undo()
    assert "1 embedded, 2 unchanged" in run(*words).stderr
    after = 0
    monkeypatch.setattr(worker, "embed_videos", interrupted)
    stopped = run("index", *videos, "--to", tmp_path / "other", "--backbone", qwen3_folder)
    assert stopped.returncode == 130 and "nothing is kept" in stopped.stderr and not (tmp_path / "other").exists()


def test_the_remedy_that_verify_names_works(tmp_path, qwen3_folder):
    path, words = write_video(tmp_path / "a.mp4", 5), ("index", tmp_path / "a.mp4", "--to", tmp_path / "index")
    assert run(*words, "--backbone", qwen3_folder).returncode == 0
    before, content = path.stat(), bytearray(path.read_bytes())
    content[content.rindex(b"Lavf")] ^= 1  # the name of the muxer: no video data
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "1 unchanged" in run(*words).stderr
    verified = run("index", "verify", tmp_path / "index")
    assert verified.returncode == 1 and "--recheck" in verified.stdout
    assert "1 embedded" in run(*words, "--recheck").stderr
    assert run("index", "verify", tmp_path / "index").returncode == 0


@pytest.mark.slow
def test_a_fifo_is_named_and_the_run_goes_on(place, tmp_path, qwen3_folder):
    (tmp_path / "videos").mkdir()
    write_video(tmp_path / "videos" / "good.mp4", 5)
    os.mkfifo(tmp_path / "videos" / "pipe.mp4")
    words = ["index", tmp_path / "videos", "--to", tmp_path / "index", "--backbone", qwen3_folder]
    for said in ("1 embedded", "1 unchanged, 1 left out as before"):
        command = [sys.executable, "-m", "allocembed", *map(str, words)]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert result.returncode == 1 and said in result.stderr, result.stderr
        assert "pipe.mp4: not a regular file" in result.stderr or "as before" in said


def test_what_was_said_filters_and_duplicates(place):
    videos = place.parent / "videos"
    (videos / "v1.srt").write_text("00:00:00,100 --> 00:00:00,300\nthe <b>rates</b> rise\n")
    (videos / "v2.vtt").write_text("nothing with a time\n")
    result = run("index", videos, "--to", place)
    assert (
        "1 lines of what is said" in result.stderr and "note: " in result.stderr and "v2.vtt: no line" in result.stderr
    )
    with mock.patch("allocembed.search.index._load", side_effect=AssertionError("no model is needed")):
        found = run("search", place, "rising rates", "--said")
        assert "v1.mp4" in found.stdout and "“the rates rise”" in found.stdout
        assert "nothing found" in run("search", place, "rates", "--said", "--longest", "0.1").stderr
        hits = json.loads(run("search", place, "rates", "--said", "--has-speech", "--json").stdout)
        assert [(hit["line"], hit["line_start"], hit["score"]) for hit in hits] == [("the rates rise", 0.1, 1.0)]
    assert run("search", place, "rates", "--said", "--seen").returncode == 2
    assert run("search", place, "rates", "--said", "--refine").returncode == 2
    assert "cannot filter by after" in run("search", place, "rates", "--after", "soon").stderr
    groups = json.loads(run("index", "dups", place, "--threshold", "0.01", "--json").stdout)
    assert [len(group) for group in groups] == [3]
    assert "0 groups" in run("index", "dups", place, "--threshold", "1").stderr
    with mock.patch.dict(sys.modules, {"faster_whisper": None}):
        result = run("index", videos, "--to", place, "--speech")
    assert result.returncode == 1 and "speech to text needs faster-whisper" in result.stderr
