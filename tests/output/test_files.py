"""Files that are whole or absent, and checks that leave nothing behind."""

import os
import stat
import tempfile
from pathlib import Path
from unittest import mock

import pytest

from allocembed.errors import OutputError
from allocembed.output.files import make_room, whole_file, write_text


def test_a_name_may_be_as_long_as_the_system_allows(tmp_path):
    path = tmp_path / ("長" * 83 + ".txt")
    write_text(path, "all of it")
    assert [(each, each.read_text()) for each in tmp_path.iterdir()] == [(path, "all of it")]


def test_a_file_appears_with_its_folders_when_the_block_succeeds(tmp_path):
    path = tmp_path / "a" / "b" / "result.txt"
    with whole_file(path) as scratch:
        scratch.write_text("whole")
        assert not path.exists()
    assert path.read_text() == "whole" and list(path.parent.iterdir()) == [path]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_the_content_is_on_the_disk_before_the_name_and_the_name_before_the_end(tmp_path, monkeypatch):
    """A power cut cannot be played here, so the order of the system calls is checked."""
    done = []

    def record(name: str) -> None:
        real = getattr(os, name)

        def call(what, *rest):
            status = os.fstat(what) if name == "fsync" else Path(what).stat()
            done.append((name, status.st_ino))
            return real(what, *rest)

        monkeypatch.setattr(os, name, call)

    record("fsync")
    record("replace")
    with whole_file(tmp_path / "r.txt") as scratch:
        scratch.write_text("whole")
    file, folder = (tmp_path / "r.txt").stat().st_ino, tmp_path.stat().st_ino
    assert done == [("fsync", file), ("replace", file), ("fsync", folder)]


def test_a_failed_block_leaves_neither_file_nor_new_folders(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(RuntimeError, match="halfway"), whole_file(tmp_path / "a" / "b" / "c" / "r.txt") as scratch:
        scratch.write_text("half")
        raise RuntimeError("halfway")
    assert [path.name for path in tmp_path.rglob("*")] == ["a"]


def test_a_failed_block_keeps_the_old_file_and_what_others_wrote(tmp_path):
    path = tmp_path / "new" / "r.txt"
    with pytest.raises(KeyboardInterrupt), whole_file(path):
        (path.parent / "other.txt").write_text("by another run")
        raise KeyboardInterrupt
    assert [each.name for each in path.parent.iterdir()] == ["other.txt"]
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), whole_file(path) as scratch:
        scratch.write_text(str(1 / 0))
    assert path.read_text() == "old"


def test_a_full_disk_is_an_output_error_that_names_the_file(tmp_path, full_disk):
    path = tmp_path / "r.txt"
    with pytest.raises(OutputError) as caught, whole_file(path) as scratch, scratch.open("w") as file:
        file.write("too much")
    assert str(caught.value) == full_disk.format(path) and not list(tmp_path.iterdir())


def test_make_room_checks_the_nearest_folder_and_leaves_nothing(tmp_path):
    assert make_room(tmp_path / "a" / "b" / "r.txt") == tmp_path / "a" / "b" / "r.txt"
    assert not list(tmp_path.iterdir())


def test_make_room_refuses_folders_files_as_folders_and_closed_places(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="it is a folder; give a file name"):
        make_room(tmp_path)
    with pytest.raises(OutputError, match=r"cannot write .*Not a directory; choose another place"):
        make_room(tmp_path / "file" / "r.txt")
    # Root may write anywhere, so the system's refusal is simulated.
    refusal = mock.Mock(side_effect=PermissionError(13, "Permission denied"))
    monkeypatch.setattr(tempfile, "mkstemp", refusal)
    for check in (make_room, lambda path: whole_file(path).__enter__()):
        with pytest.raises(OutputError, match="Permission denied; choose another place"):
            check(Path(tmp_path, "r.txt"))


def test_a_pipe_or_a_device_is_not_replaced_by_a_file(tmp_path, make_fifo):
    make_fifo(tmp_path / "out.json")
    with pytest.raises(OutputError, match="not a regular file"), whole_file(tmp_path / "out.json") as scratch:
        scratch.write_text("x")
    assert [path.is_fifo() for path in tmp_path.iterdir()] == [True]
