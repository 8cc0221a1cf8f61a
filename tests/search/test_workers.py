"""Indexing over each engine: the same rows, lines, notes and counts, and vectors bit for bit."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from allocembed.bulk import EmbedTask
from allocembed.cli.watch import IndexUpdater
from allocembed.errors import SearchError
from allocembed.search import VideoIndex, worker
from allocembed.search.embedding import embed_videos
from allocembed.search.verify import verify
from allocembed.search.watch import FolderState
from allocembed.workers import WORKERS, WorkerOptions, Workers, base, find_workers
from allocembed.workers.inline import InlineWorkers
from tests.clips import picture, write_video
from tests.command import run
from tests.search.said.test_reading import write_lines, write_with_sound
from tests.search.said.test_streams import write_with_subtitles

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")

ENGINES = {
    "inline": WorkerOptions(commit=4),
    "processes": WorkerOptions(devices="cpu,cpu", commit=4),
    "ray": WorkerOptions(workers=2, commit=4),
}


@pytest.fixture(params=[name if name == "inline" else pytest.param(name, marks=pytest.mark.slow) for name in ENGINES])
def workers(request, tmp_path, monkeypatch) -> Iterator[Workers]:
    if request.param == "ray":
        if find_spec("ray") is None:  # not imported here: before that, ours says where a local cluster may listen
            pytest.skip("pip install -e '.[ray]'")
        request.getfixturevalue("ray_home")
    with find_workers(request.param, ENGINES[request.param]) as made:
        yield made


@pytest.fixture
def whisper(monkeypatch) -> None:
    """A stand-in for the library of speech."""

    class WhisperModel:
        def __init__(self, name, device, compute_type):
            pass

        def transcribe(self, samples, vad_filter):
            return iter([SimpleNamespace(start=0.0, end=0.05, text=" Hallo Welt")]), None

    library = ModuleType("faster_whisper")
    library.WhisperModel = WhisperModel
    monkeypatch.setitem(sys.modules, "faster_whisper", library)


def test_whoever_works_the_index_is_the_same(workers, folder, finished, tmp_path, config, whisper, one_thread):
    write_lines(folder / "v1.srt", "a needle", "in a haystack")
    write_with_subtitles(folder / "inside.mkv")
    write_with_sound(folder / "spoken.mkv")
    shutil.copy(folder / "v0.mp4", folder / "copy.mp4")
    (folder / "bad.mp4").write_bytes(b"no video")
    (folder / "dead.mp4").symlink_to(folder / "nowhere.mp4")
    (folder / "v2.srt").write_bytes(os.urandom(500))
    index = VideoIndex.create(tmp_path / "index", config, workers=workers)
    report = index.add([folder, folder / "v0.mp4"], workers=workers, speech="tiny")
    # Two workers that get copies of one video at the same moment both embed it; its vectors are kept once.
    assert (report.embedded + report.moved, report.unchanged, report.total) == (12, 0, 14)
    assert report.embedded in ((11, 12) if workers.separate else (11,)) and len(index.store.videos()) == 11
    assert sorted(Path(path).name for path, _ in report.failed) == ["bad.mp4", "dead.mp4"]
    assert [Path(path).name for path, _ in report.notes] == ["v2.srt"]
    assert report.lines == 2 + 2 + 1 and report.done == report.total and report.tokens > 0
    assert not verify(index)
    for query, name in (("needle", "v1.mp4"), ("guten morgen", "inside.mkv"), ("hallo", "spoken.mkv")):
        assert [Path(hit.path).name for hit in index.search(query, said=True)] == [name]

    wanted = VideoIndex.open(finished).store.segments(("vector",))
    found = index.store.segments(("vector",))
    assert wanted.keys() < found.keys()
    for video, segments in wanted.items():
        assert all(
            np.array_equal(one.vector, two.vector) and one.film == two.film
            for one, two in zip(segments, found[video], strict=True)
        )

    again = index.add([folder], workers=workers)
    assert (again.embedded, again.unchanged, again.skipped, again.failed) == (0, 12, 2, [])
    write_lines(folder / "v1.srt", "an elephant")
    (folder / "v3.mp4").rename(folder / "renamed.mp4")
    (folder / "v4.mp4").unlink()
    write_video(folder / "v5.mp4", [picture(900 + frame) for frame in range(10)])
    shutil.copy(folder / "v6.mp4", folder / "bad.mp4")
    last = index.add([folder], workers=workers, prune=True, retry_failed=True)
    assert (last.embedded, last.moved, last.unchanged, last.dropped, last.lines) == (1, 2, 9, 1, 1)
    assert [Path(path).name for path, _ in last.failed] == ["dead.mp4"] and not verify(index)
    os.utime(folder / "v7.mp4")
    checked = index.add([folder], workers=workers, recheck=True)
    assert (checked.embedded, checked.moved, checked.unchanged, checked.lines) == (0, 0, 12, 0)


def test_an_engine_of_a_package_is_chosen_by_its_name(folder, tmp_path, config, monkeypatch):
    used = []

    class Nearby(InlineWorkers):
        def run(self, task, items, give_up):
            used.append(task)
            return super().run(task, items, give_up)

    monkeypatch.setitem(WORKERS, "nearby", Nearby)
    common = ("--backbone", config.backbone, "--budget", "64", "--candidates", "4", "--engine")
    assert run("index", folder / "v0.mp4", "--to", tmp_path / "index", *common, "nearby").returncode == 0
    assert run("embed", folder / "v0.mp4", "--out", tmp_path / "v.npz", *common, "nearby").returncode == 0
    assert [type(task) for task in used] == [worker.IndexTask, EmbedTask]
    refused = run("index", folder / "v0.mp4", "--to", tmp_path / "index", *common, "nearbi")
    assert refused.returncode == 1 and "did you mean nearby?" in refused.stderr


def test_a_file_that_is_found_twice_is_counted_once(empty, folder):
    """Also in a folder that the walk of another source skips, and if only its own source names it."""
    hidden = folder / ".hidden"
    hidden.mkdir()
    (folder / "v0.mp4").rename(hidden / "v0.mp4")
    (folder / "v1.mp4").rename(folder / "v1.bin")
    report = empty.add([folder, hidden, folder / "v1.bin", folder / "v2.mp4", folder])
    assert (report.embedded, report.total, len(empty.files())) == (9, 9, 9)


def test_what_is_finished_is_committed_while_the_next_video_takes_long(empty, folder, monkeypatch):
    """A run that is killed has then lost the work of some seconds, not all that was embedded."""
    real, seen = embed_videos, threading.Event()
    monkeypatch.setattr(base, "COMMIT_SECONDS", 0.2)

    def slow(*given, **named):
        for number, embedded in enumerate(real(*given, **named)):
            if number == 4:
                deadline = time.monotonic() + 60
                while time.monotonic() < deadline and not seen.is_set():
                    if len(VideoIndex.open(empty.store.uri).store.videos()) == 4:
                        seen.set()
                    time.sleep(0.05)
            yield embedded

    monkeypatch.setattr(worker, "embed_videos", slow)
    assert empty.add([folder]).embedded == 9
    assert seen.is_set(), "four were embedded, and none of them committed"


@pytest.mark.slow
def test_a_model_that_the_workers_cannot_load_is_named(tmp_path, folder, config):
    from dataclasses import replace

    absent = replace(config, backbone=str(tmp_path / "nowhere"))
    with (
        find_workers("processes", WorkerOptions(devices="cpu")) as workers,
        pytest.raises(Exception, match="nowhere") as caught,
    ):
        VideoIndex.create(tmp_path / "index", absent, workers=workers)
    assert not isinstance(caught.value, SearchError) and not (tmp_path / "index").exists()


@pytest.mark.slow
def test_a_watch_keeps_its_workers(tmp_path, folder, config):
    added = [folder / "v0.mp4", folder / "v1.mp4"]
    for path in added:
        path.rename(tmp_path / path.name)
    with find_workers("processes", WorkerOptions(devices="cpu")) as workers:
        state = FolderState([folder])
        updater = IndexUpdater(state, str(tmp_path / "index"), config, None, {}, workers)
        processes = set[int]()
        for path in (None, *added):
            if path is not None:
                (tmp_path / path.name).rename(path)
            deadline = time.monotonic() + 60
            while (state.look() == {} or state.waits) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert updater.update()
            processes |= {child.pid for child in multiprocessing.active_children() if child.pid}
    assert updater.index is not None and updater.index.info()["videos"] == 9
    assert len(processes) == 1, "the model was loaded once"


@pytest.mark.slow
def test_two_processes_index_a_folder_and_a_kill_loses_nothing(tmp_path, qwen3_folder):
    """Nothing twice, nothing lost, and the same vectors as from one process."""
    videos = tmp_path / "videos"
    videos.mkdir()
    for number in range(9):
        write_video(videos / f"{number}.mp4", [picture(20 * number + index) for index in range(6)])
    write_lines(videos / "3.srt", "a needle")
    (videos / "bad.mp4").write_bytes(b"nothing")
    common = ["-b", qwen3_folder, "--candidates", 4, "--budget", "2f", "--allocator", "uniform", "--segments", "off"]
    assert run("index", videos, "--to", tmp_path / "one", *common, "--device", "cpu").returncode == 1

    words = [str(word) for word in ("index", videos, "--to", tmp_path / "two", *common, "--devices", "cpu,cpu")]
    first = subprocess.Popen([sys.executable, "-m", "allocembed", *words, "--commit", "1"], stderr=subprocess.DEVNULL)
    until = time.monotonic() + 60
    while len(children := workers_of(first.pid)) < 2 and time.monotonic() < until:  # one alone loads the model first
        time.sleep(0.02)
    os.kill(children[-1], signal.SIGKILL)
    assert first.wait(timeout=120) == 1  # a file is bad
    assert run(*words).returncode == 1

    one, two = (vectors_in(tmp_path / name) for name in ("one", "two"))
    assert len(one) == 9 and one == two

    (videos / "0.mp4").rename(videos / "renamed.mp4")
    assert "1 with known content" in run(*words, "--recheck").stderr
    listed = run("index", "ls", tmp_path / "two").stdout
    assert "renamed.mp4" in listed and "0.mp4" not in listed
    assert "3.mp4" in run("search", tmp_path / "two", "needle", "--said").stdout


def workers_of(parent: int) -> list[int]:
    """Processes that it started to work, not those of Python itself."""
    command = ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(parent)]  # without -ww, long lines are cut off
    found = subprocess.run(command, capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if "spawn_main" in line]


def vectors_in(folder: Path) -> dict[str, bytes]:
    """The vector of each file, by name."""
    store = VideoIndex.open(folder, device="cpu").store
    names = {file.video: Path(file.path).name for file in store.files() if not file.error}
    held = store.segments(large=["vector"])
    assert all(len(segments) == 1 for segments in held.values())
    return {names[video]: segments[0].vector.tobytes() for video, segments in held.items()}
