"""An index in a folder, in LanceDB: locks, full disks, damage and folders. What all stores do is in `test_contract`."""

import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from allocembed.errors import BackboneError
from allocembed.search import SearchError, VideoIndex
from allocembed.search.store import IndexStore
from allocembed.search.store.lance import LanceStore, storage
from allocembed.search.verify import verify
from tests.clips import picture, write_video

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


def test_a_read_only_index_is_searched_but_not_written(index, folder, monkeypatch):
    """Root may write anywhere, so the system's refusal is played."""
    write_video(folder / "new.mp4", 5)
    before = index.info()
    real = os.open

    def refuse(path, flags, *rest, **named):
        if str(path).endswith("indexing.lock"):
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, flags, *rest, **named)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SearchError, match="cannot be written"):
        index.add([folder])
    assert index.search("anything", top=3) and index.info() == before


def test_a_full_disk_is_said_and_loses_nothing(tmp_path, folder, config, embedder):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        (disk / "filler").write_bytes(b"x" * _free(disk))
        with pytest.raises(SearchError, match=r"cannot make the index, .*: its disk is full: make room"):
            VideoIndex.create(disk / "index", config, embedder=embedder)
        (disk / "filler").unlink()
        index = VideoIndex.create(disk / "index", config, embedder=embedder)
        index.add([folder / "v0.mp4"])
        (disk / "filler").write_bytes(b"x" * (_free(disk) - 4096))
        with pytest.raises(SearchError, match="disk is full: make room"):
            index.add([folder])
        assert [Path(hit.path).name for hit in index.search("anything", top=5)] == ["v0.mp4"]
        (disk / "filler").unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)
        assert index.add([folder]).embedded == 8 and not verify(index)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _free(disk: Path) -> int:
    status = os.statvfs(disk)
    return status.f_bavail * status.f_frsize


def test_a_large_index_is_looked_up_and_searched_approximately(index, folder, monkeypatch):
    exact = [hit.video for hit in index.search("anything", top=9)]
    monkeypatch.setattr(LanceStore, "lookup_up_to", 5)
    monkeypatch.setattr(LanceStore, "exact_up_to", 5)
    write_video(folder / "new.mp4", [picture(5000 + frame) for frame in range(10)])
    assert index.add([folder]).embedded == 1
    assert index.store.indexed_columns() == {"video", "vector"}
    assert set(exact) < {hit.video for hit in index.search("anything", top=10)}
    write_video(folder / "newer.mp4", [picture(6000 + frame) for frame in range(10)])
    assert index.add([folder]).embedded == 1
    assert len(index.search("anything", top=20)) == 11, "what came after the index was built is found, too"


def test_an_index_is_never_made_over_another(index, config, embedder, monkeypatch):
    """Two runs that both saw no index: the second looks again when it holds the lock."""
    before = index.info()
    with pytest.raises(SearchError, match="already an index"):
        VideoIndex.create(index.store.uri, config, embedder=embedder)
    monkeypatch.setattr(storage, "exists", lambda uri: False)
    with pytest.raises(SearchError, match="it has vectors"):
        VideoIndex.create(index.store.uri, config, embedder=embedder)
    monkeypatch.setattr(storage, "_holds_vectors", lambda uri: False)
    monkeypatch.setattr("allocembed.search.store.lance.store.drop_tables", lambda uri: None)
    with pytest.raises(SearchError, match="cannot make the index"):
        VideoIndex.create(index.store.uri, config, embedder=embedder)
    assert index.info() == before


def test_a_lock_that_is_held_for_a_moment_stops_nobody(tmp_path, config, embedder):
    """Of two runs that start at once, one holds the lock only to see that it comes second."""
    place, taken = str(tmp_path / "index"), Event()

    def hold():
        with storage.locked(place):
            taken.set()
            time.sleep(0.4)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(hold)
        assert taken.wait(10)
        assert VideoIndex.create(place, config, embedder=embedder).info()["vectors"] == 0


def test_a_second_run_is_refused_while_the_first_makes_the_index(tmp_path, config, embedder, monkeypatch):
    monkeypatch.setattr(IndexStore, "patience", 0)
    place = str(tmp_path / "index")
    with storage.locked(place), pytest.raises(SearchError, match="another run is indexing"):
        VideoIndex.create(place, config, embedder=embedder)
    assert not Path(place).exists(), "a folder with nothing but a lock is removed"


def test_an_index_that_was_never_completed_counts_as_none_and_is_made_again(empty, config, embedder):
    shutil.rmtree(Path(empty.store.uri) / "about.lance" / "_versions")
    with pytest.raises(SearchError, match="there is no index"):
        VideoIndex.open(empty.store.uri)
    assert VideoIndex.create(empty.store.uri, config, embedder=embedder).info()["vectors"] == 0


def test_an_index_that_may_not_be_read_is_not_called_absent(index, monkeypatch):
    """Root may read everything, so the system's refusal is played."""
    refused = PermissionError(13, "Permission denied")
    monkeypatch.setattr(Path, "is_dir", lambda path: (_ for _ in ()).throw(refused))
    with pytest.raises(SearchError, match=r"cannot be read, .*: Permission denied; check its permissions"):
        VideoIndex.open(index.store.uri)


def test_vectors_are_not_thrown_away_because_the_settings_are_gone(tmp_path, finished, config, embedder):
    shutil.copytree(finished, tmp_path / "index")
    shutil.move(tmp_path / "index" / "about.lance", tmp_path / "about.lance")
    with pytest.raises(SearchError, match=r"is damaged: it has vectors, but its table of settings is gone. Restore"):
        VideoIndex.create(tmp_path / "index", config, embedder=embedder)
    shutil.move(tmp_path / "about.lance", tmp_path / "index" / "about.lance")
    assert VideoIndex.open(tmp_path / "index").info()["videos"] == 9


def test_a_failure_to_make_an_index_leaves_no_folder(tmp_path, config):
    (tmp_path / "model").mkdir()
    with pytest.raises(BackboneError):
        VideoIndex.create(tmp_path / "new" / "index", replace(config, backbone=str(tmp_path / "model")))
    assert not (tmp_path / "new").exists()
    with pytest.raises(SearchError, match="not an index and not empty"):
        VideoIndex.create(tmp_path, config)


def test_an_empty_index_is_discarded_with_its_folder(empty, folder):
    assert empty.discard_if_empty() and not Path(empty.store.uri).exists()


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_that_was_there_before_stays(tmp_path, config, embedder, there):
    place = tmp_path / "index"
    if there:
        place.mkdir(mode=0o750)
    index = VideoIndex.create(place, config, embedder=embedder)
    assert index.discard_if_empty() and place.exists() == there
    with pytest.raises(KeyError), storage.locked(str(place)):
        raise KeyError
    assert place.exists() == there and (not there or (place.stat().st_mode & 0o777, *place.iterdir()) == (0o750,))


@pytest.mark.slow
@pytest.mark.parametrize("table", storage.TABLES)
def test_one_flipped_bit_in_a_manifest_is_an_error_that_names_the_index(index, table):
    manifest = max((Path(index.store.uri) / f"{table}.lance" / "_versions").glob("*.manifest"), key=os.path.getmtime)
    whole, refused = manifest.read_bytes(), 0
    for place in range(0, len(whole), max(1, len(whole) // 60)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        manifest.write_bytes(damaged)
        try:
            opened = VideoIndex.open(index.store.uri)
            opened.files(), opened.info()
        except SearchError as error:
            assert index.store.uri in str(error) or "settings of the index" in str(error)
            refused += 1
    assert refused
    manifest.write_bytes(whole)
    assert VideoIndex.open(index.store.uri).info()["videos"] == 9


def test_a_table_without_one_of_its_columns_is_named_when_the_index_is_opened(index):
    index.store.files_table.drop_columns(["width"])
    with pytest.raises(SearchError, match=r"the table files of the index at .* is damaged: make a new index"):
        VideoIndex.open(index.store.uri)


class PanicException(BaseException):
    """As PyO3 raises it."""


@pytest.mark.parametrize("error", [PanicException("range end index"), KeyError("lance"), TypeError("no such column")])
def test_whatever_lance_raises_is_an_error_that_a_user_can_read(error):
    with (
        pytest.raises(SearchError, match="the index cannot be read, here"),
        storage.storage_errors("here", storage.UNREADABLE),
    ):
        raise error


def test_ctrl_c_is_no_storage_error():
    with pytest.raises(KeyboardInterrupt), storage.storage_errors("here", storage.UNREADABLE):
        raise KeyboardInterrupt


def test_vectors_are_read_as_one_array(index):
    pieces = [piece for each in index.store.segments(("vector",)).values() for piece in each]
    assert all(piece.vector.base is pieces[0].vector.base for piece in pieces)
    assert pieces[0].vector.base.size == 11 * len(index.settings.probe) and pieces[0].vector.dtype == np.float32
