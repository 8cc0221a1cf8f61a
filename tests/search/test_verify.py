"""Checking an index."""

import os

import pytest

from allocembed.search.verify import verify

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


def test_verify_names_what_is_wrong(index, folder):
    assert not verify(index)
    (folder / "v0.mp4").write_bytes(b"other")
    index.store.drop_videos([index.files()[1].video])
    problems = verify(index)
    assert len(problems) == 2 and "has changed" in problems[0] and "missing" in problems[1]
    index.add([folder / "v1.mp4"])
    assert len(verify(index)) == 1


def test_the_remedy_for_a_change_that_keeps_size_and_date_works(index, folder):
    path = folder / "v0.mp4"
    before, old = path.stat(), index.files()[0].video
    content = bytearray(path.read_bytes())
    at = content.rindex(b"Lavf") if b"Lavf" in content else len(content) - 1  # the name of the muxer: no video data
    content[at] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert index.add([folder]).unchanged == 9, "by size and date it is unchanged"
    problems = verify(index)
    assert len(problems) == 1 and "--recheck" in problems[0]
    report = index.add([folder], recheck=True)
    assert (report.embedded, report.unchanged) == (1, 8)
    assert not verify(index) and index.files()[0].video != old
