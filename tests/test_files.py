"""Finding videos in folders, and recognising them by their content."""

import os
import stat
import time
from pathlib import Path

import numpy as np
import pytest

from allocembed.errors import VideoError
from allocembed.files import BLOCK_BYTES, BLOCKS, find_videos, fingerprint, identity


def test_a_file_has_one_name_however_it_was_written(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a.mp4").touch()
    monkeypatch.chdir(tmp_path / "deep")
    names = [[file.path for file in find_videos([source])[0]] for source in ("..", "../a.mp4", "../deep/../a.mp4")]
    assert names == [[str(tmp_path / "a.mp4")]] * 3


def test_a_broken_link_among_the_given_files_costs_itself_only(tmp_path):
    (tmp_path / "a.mp4").touch()
    (tmp_path / "b.mp4").symlink_to(tmp_path / "nowhere.mp4")
    files, _ = find_videos([tmp_path / "a.mp4", tmp_path / "b.mp4"])
    assert [(Path(file.path).name, bool(file.error)) for file in files] == [("a.mp4", False), ("b.mp4", True)]


def test_a_folder_gives_its_videos_in_order_without_hidden_ones(tmp_path):
    for name in ("b/two.mkv", "a.mp4", ".hidden/three.mp4", ".four.mp4", "notes.txt", "b/it's five ☃.MOV"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    (tmp_path / "broken.mp4").symlink_to(tmp_path / "nothing")
    (tmp_path / "b" / "around").symlink_to(tmp_path)
    found, unread = find_videos([tmp_path, tmp_path / "b"])
    names = {each.path.removeprefix(f"{tmp_path}/"): each.error for each in found}
    assert not unread and list(names) == ["a.mp4", "broken.mp4", "b/it's five ☃.MOV", "b/two.mkv"]
    assert [name for name, error in names.items() if error] == ["broken.mp4"]
    assert len(find_videos([tmp_path / "notes.txt"])[0]) == 1, "a file that is named is taken whatever its suffix"
    with pytest.raises(VideoError, match="no such file"):
        find_videos([tmp_path / "nowhere"])


@pytest.mark.parametrize("size", [0, 10, BLOCK_BYTES * BLOCKS, BLOCK_BYTES * BLOCKS + 1, 9_000_000])
def test_a_fingerprint_follows_the_content_and_not_the_name(tmp_path, size):
    one, two = tmp_path / "one", tmp_path / "two"
    content = np.random.default_rng(0).bytes(size)
    one.write_bytes(content)
    two.write_bytes(content)
    assert fingerprint(one) == fingerprint(two) and len(fingerprint(one)) == 32
    two.write_bytes(content + b"x")
    assert fingerprint(one) != fingerprint(two)
    if size:
        two.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        assert fingerprint(one) != fingerprint(two)


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_what_is_not_a_regular_file_is_named_and_never_opened(tmp_path, kind):
    path = tmp_path / "x.mp4"
    if kind == "device":
        path.symlink_to("/dev/zero")
    else:
        os.mknod(path, 0o600 | (stat.S_IFIFO if kind == "fifo" else stat.S_IFSOCK))
    found, unread = find_videos([tmp_path])
    assert [(file.error.split(";")[0], file.size) for file in found] == [("not a regular file", 0)] and not unread


def test_a_name_that_is_not_utf8_is_named(tmp_path):
    with open(os.fsencode(tmp_path) + b"/caf\xe9.mp4", "wb"):  # noqa: PTH123 (a Path holds no such name)
        pass
    found, unread = find_videos([tmp_path])
    assert not found and unread == {f"{tmp_path}/caf\ufffd.mp4": "its name is not valid UTF-8; rename it"}


def test_a_file_that_has_become_a_fifo_is_not_waited_for(tmp_path, make_fifo):
    make_fifo(tmp_path / "pipe.mp4")
    for look in (fingerprint, identity):
        with pytest.raises(OSError, match="not a regular file"):
            look(tmp_path / "pipe.mp4")


def test_a_file_that_was_moved_away_and_back_has_another_identity(tmp_path):
    path = tmp_path / "a.mp4"
    path.write_bytes(b"x")
    before = identity(path)
    assert identity(path) == before
    time.sleep(0.02)  # the clock of a file system may tick every 10 ms
    path.rename(tmp_path / "away")
    (tmp_path / "away").rename(path)
    assert identity(path) != before
