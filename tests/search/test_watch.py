"""Watching folders: what is ready, what has really gone, and an index that follows."""

import importlib.util
import os
import random
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from allocembed.errors import BackboneError
from allocembed.files import find_videos
from allocembed.search import VideoIndex
from tests import command

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
pytest.importorskip("watchfiles", reason="pip install 'allocembed[search]'")

from allocembed.cli.watch import IndexUpdater
from allocembed.search import watch
from allocembed.search.store import IndexStore, exists
from allocembed.search.watch import FolderState, follow

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    for name, value in {"SETTLE": 0.1, "GRACE": 0.1, "TICK": 50, "DEBOUNCE": 50, "RETRY": 0.2}.items():
        monkeypatch.setattr(watch, name, value)


@pytest.fixture
def videos(tmp_path) -> Path:
    """Files that look like videos, some in a folder below."""
    folder = tmp_path / "videos"
    (folder / "disk").mkdir(parents=True)
    for name in ("a.mp4", "b.mp4", "disk/c.mp4", "disk/d.mp4"):
        (folder / name).write_bytes(name.encode())
    return folder


def settled(state: FolderState) -> set[str]:
    """Names of the files that are ready after enough time without a change."""
    state.look()
    time.sleep(watch.SETTLE + watch.GRACE + 0.05)
    return {Path(path).name for path in state.look()}


def gone(state: FolderState, folder: Path, *names: str) -> list[str]:
    """Which of some files are taken for removed, after enough time."""
    settled(state)
    return [name for name in names if state.vanished(str(folder / name))]


def test_a_file_is_ready_when_it_has_not_changed_for_a_while(videos):
    state = FolderState([videos])
    assert settled(state) == {"a.mp4", "b.mp4", "c.mp4", "d.mp4"}
    for part in range(4):
        with (videos / "new.mp4").open("ab") as file:
            file.write(b"part")
        state.look()
        ready = {Path(file.path).name for file in find_videos([videos])[0] if state.ready(file)}
        assert ready == {"a.mp4", "b.mp4", "c.mp4", "d.mp4"} and state.waits, part
        time.sleep(watch.SETTLE / 2)
    assert "new.mp4" in settled(state) and not state.waits


def test_a_source_that_is_removed_during_a_look_does_not_end_the_watch(videos, monkeypatch):
    state = FolderState([videos])
    monkeypatch.setattr(state, "there", lambda: [videos, videos / "removed"])
    assert settled(state) == {"a.mp4", "b.mp4", "c.mp4", "d.mp4"}


def test_a_file_that_has_changed_since_the_last_look_is_not_ready(videos):
    state = FolderState([videos])
    settled(state)
    (videos / "a.mp4").write_bytes(b"longer than before")
    assert not any(state.ready(file) for file in find_videos([videos / "a.mp4"])[0])


def test_old_files_are_ready_at_once_when_the_watch_starts(videos):
    for path in videos.rglob("*.mp4"):
        os.utime(path, (1e9, 1e9))
    assert len(FolderState([videos]).look()) == 4


def test_subtitles_count_as_changes_but_hidden_and_other_files_do_not(videos):
    state = FolderState([videos])
    for name in ("a.srt", ".hidden.srt", "notes.txt", ".part.mp4"):
        (videos / name).write_text("1")
    assert settled(state) == {"a.mp4", "b.mp4", "c.mp4", "d.mp4", "a.srt"}


def test_a_removed_file_has_vanished_and_so_has_one_whose_folder_is_removed(videos):
    state = FolderState([videos])
    settled(state)
    (videos / "a.mp4").unlink()
    shutil.rmtree(videos / "disk")
    assert gone(state, videos, "a.mp4", "b.mp4", "disk/c.mp4", "disk/d.mp4") == ["a.mp4", "disk/c.mp4", "disk/d.mp4"]


def test_a_file_that_has_just_gone_may_come_back_under_another_name(videos):
    state = FolderState([videos])
    before = settled(state)
    (videos / "a.mp4").unlink()
    now = {Path(path).name for path in state.look()}
    assert now == before and not state.vanished(str(videos / "a.mp4")) and state.waits


@pytest.mark.parametrize("place", ["", "disk"], ids=["source", "folder below"])
def test_files_of_a_disk_that_is_not_mounted_have_not_vanished(videos, tmp_path, place):
    """An empty folder is left in place of the disk."""
    state = FolderState([videos])
    settled(state)
    (videos / place).rename(tmp_path / "elsewhere")
    (videos / place).mkdir()
    assert gone(state, videos, "disk/c.mp4", "disk/d.mp4") == []
    (videos / place).rmdir()
    if not place:
        assert gone(state, videos, "a.mp4", "disk/c.mp4") == [], "the source itself is gone"


def test_files_that_were_never_seen_have_not_vanished(videos):
    state = FolderState([videos])
    assert gone(state, videos, "other.mp4") == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every folder")
def test_files_in_a_folder_that_cannot_be_read_have_not_vanished(videos):
    state = FolderState([videos])
    settled(state)
    (videos / "disk").chmod(0)
    try:
        assert gone(state, videos, "disk/c.mp4", "disk/d.mp4") == []
        assert str(videos / "disk") in state.unread
    finally:
        (videos / "disk").chmod(0o755)


def test_a_watch_looks_again_when_a_source_comes_back(videos, tmp_path):
    state, stop, updates = FolderState([videos]), threading.Event(), []

    def update() -> bool:
        updates.append({Path(file.path).name for file in find_videos(state.there())[0]})
        return True

    thread = threading.Thread(target=follow, args=[state, update], kwargs={"stop": stop}, daemon=True)
    thread.start()
    for change, expected in (
        (lambda: None, {"a.mp4", "b.mp4", "c.mp4", "d.mp4"}),
        (lambda: videos.rename(tmp_path / "elsewhere"), set()),
        (lambda: (tmp_path / "elsewhere").rename(videos), {"a.mp4", "b.mp4", "c.mp4", "d.mp4"}),
        (lambda: (videos / "e.mp4").write_bytes(b"e"), {"a.mp4", "b.mp4", "c.mp4", "d.mp4", "e.mp4"}),
    ):
        change()
        deadline = time.monotonic() + 10
        while (not updates or updates[-1] != expected) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert updates[-1] == expected
    stop.set()
    thread.join(5)
    assert not thread.is_alive()


def load_churn():
    spec = importlib.util.spec_from_file_location("churn", ROOT / "bench" / "torture_parts" / "churn.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_random_changes_end_in_an_index_equal_to_one_made_from_scratch(tmp_path, config, embedder, originals):
    bench = load_churn()
    folder, place, stop = tmp_path / "videos", tmp_path / "index", threading.Event()
    folder.mkdir()
    churn = bench.Churn(folder, originals, 12, random.Random(3))
    state = FolderState([folder])
    updater = IndexUpdater(state, str(place), config, None, {}, embedder=embedder)
    thread = threading.Thread(target=follow, args=[state, updater.update], kwargs={"stop": stop}, daemon=True)
    thread.start()
    for _ in range(40):
        churn.step()
        time.sleep(churn.source.uniform(0, 0.12))
    churn.wait()
    scratch = VideoIndex.create(tmp_path / "scratch", config, embedder=embedder)
    scratch.add([folder])
    wanted, deadline = bench.contents(tmp_path / "scratch"), time.monotonic() + 30
    while (left := bench.differences(bench.contents(place), wanted)) and time.monotonic() < deadline:
        time.sleep(0.1)
    stop.set()
    thread.join(10)
    assert not left and not thread.is_alive() and len(wanted) > 3


def test_the_lock_is_free_between_runs_and_a_run_by_hand_is_waited_for(
    folder, tmp_path, config, embedder, monkeypatch, capsys
):
    monkeypatch.setattr(IndexStore, "patience", 0.1)
    state = FolderState([folder])
    updater = IndexUpdater(state, str(tmp_path / "index"), config, None, {}, embedder=embedder)
    settled(state)
    assert updater.update()
    (folder / "v0.mp4").unlink()
    settled(state)
    by_hand = VideoIndex.open(tmp_path / "index", embedder=embedder)
    with by_hand.store.locked():
        assert not updater.update()
    assert len(by_hand.files()) == 9
    assert updater.update() and len(by_hand.files()) == 8
    printed = capsys.readouterr().err
    assert "waits for its turn" in printed and f"removed {folder / 'v0.mp4'}" in printed
    assert f"added {folder / 'v0.mp4'}" in printed


def test_an_error_of_the_model_ends_only_a_watch_that_has_just_begun(videos, tmp_path, config, monkeypatch, capsys):
    def fail(updater: IndexUpdater) -> bool:
        raise BackboneError("the model cannot be loaded: the device is busy")

    updater = IndexUpdater(FolderState([videos]), str(tmp_path / "index"), config, None, {})
    monkeypatch.setattr(IndexUpdater, "_run", fail)
    with pytest.raises(BackboneError):
        updater.update()
    updater.begun = True
    assert not updater.update() and "the device is busy" in capsys.readouterr().err


def test_a_renamed_file_keeps_its_vectors(folder, tmp_path, config, embedder, monkeypatch):
    state = FolderState([folder])
    updater = IndexUpdater(state, str(tmp_path / "index"), config, None, {}, embedder=embedder)
    settled(state)
    assert updater.update()
    (folder / "v1.mp4").rename(folder / "other.mp4")
    state.look()
    monkeypatch.setattr("allocembed.search.worker.embed_videos", None)  # would be called
    settled(state)
    assert updater.update()
    names = {Path(file.path).name for file in updater.index.files()}
    assert "other.mp4" in names and "v1.mp4" not in names and len(names) == 9


def test_an_index_is_made_when_there_is_something_to_index(tmp_path, config, embedder, originals):
    folder, place = tmp_path / "videos", tmp_path / "index"
    folder.mkdir()
    state = FolderState([folder])
    updater = IndexUpdater(state, str(place), config, None, {}, embedder=embedder)
    settled(state)
    assert updater.update() and not exists(str(place))
    (folder / "junk.mp4").write_bytes(b"no video")
    settled(state)
    assert updater.update() and not exists(str(place)), "nothing could be indexed"
    shutil.copy(originals[0], folder)
    settled(state)
    assert updater.update() and VideoIndex.open(place).info()["videos"] == 1


@pytest.mark.slow
def test_ctrl_c_ends_the_command_and_what_was_indexed_is_kept(folder, tmp_path, qwen3_folder):
    place = tmp_path / "index"
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it

    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not (exists(str(place)) and len(VideoIndex.open(place).files()) == 9):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    options = ("--backbone", qwen3_folder, "--budget", "64", "--candidates", "4")
    try:
        done = command.run("index", folder, "--to", place, "--watch", *options)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.returncode == 0 and "what was indexed is kept" in done.stderr
    assert VideoIndex.open(place).info()["videos"] == 9


def test_a_source_that_does_not_exist_is_an_error(tmp_path):
    done = command.run("index", tmp_path / "absent", "--to", tmp_path / "index", "--watch")
    assert done.returncode == 1 and "no such file or folder" in done.stderr


def test_a_store_that_does_not_answer_does_not_end_a_watch(videos, config, embedder, bucket, monkeypatch, capsys):
    updater = IndexUpdater(FolderState([videos]), f"{bucket}/my.index", config, None, {}, embedder=embedder)
    updater.begun = True
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert not updater.update() and "error:" in capsys.readouterr().err
