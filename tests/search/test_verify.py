"""Checking an index."""

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
