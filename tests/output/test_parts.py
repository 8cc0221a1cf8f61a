"""Parquet files of vectors: what is read of them, on a disk and in object storage."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from allocembed.bulk import key_of
from allocembed.errors import OutputError
from allocembed.files import FileEntry
from allocembed.output.parts import PartFolder
from allocembed.remote.objects import write
from tests.object_storage import proxy_of

FILES = [FileEntry(f"/videos/{number}.mp4", size=100, changed=1) for number in range(2000)]


@pytest.fixture
def part(tmp_path) -> Path:
    """Eight megabytes: 2,000 vectors that do not compress."""
    vectors = np.random.default_rng(0).standard_normal((len(FILES), 1024)).astype(np.float32)
    columns = {"source": [file.path for file in FILES], "key": [key_of(file) for file in FILES]}
    parquet.write_table(pa.table(columns | {"vector": list(vectors)}), tmp_path / "part-0.parquet")
    return tmp_path / "part-0.parquet"


def test_asking_what_is_done_does_not_fetch_vectors(part, bucket, object_server, monkeypatch):
    write(f"{bucket}/vectors/part-0.parquet", part.read_bytes())
    with proxy_of(object_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.variables["AWS_ENDPOINT_URL"])
        folder = PartFolder(f"{bucket}/vectors")
        folder.look()
        assert all(folder.holds(file.path, key_of(file)) for file in FILES)
        assert proxy.sent < part.stat().st_size / 10
        before = proxy.sent
        folder.look()
        assert proxy.sent < before + 10_000, "the list of names alone"


@pytest.mark.parametrize("kind", ["damaged", "foreign"])
def test_a_part_that_cannot_be_read_is_named(part, kind):
    """A worker raises it, too: it is the fault of no video."""
    if kind == "damaged":
        data = bytearray(part.read_bytes())
        data[4:4000] = bytes(3996)  # the page header of the first column
        part.write_bytes(data)
    else:
        parquet.write_table(pa.table({"name": ["a"]}), part.with_name("other.parquet"))
    with pytest.raises(OutputError, match=f"cannot read {part.parent}: .*; repair it, or choose another --out"):
        PartFolder(str(part.parent)).look()


def test_rows_of_changed_files_are_dropped_and_the_others_kept(part):
    folder = PartFolder(str(part.parent))
    changed = FileEntry(FILES[7].path, size=101, changed=2)
    folder.look()
    assert folder.holds(FILES[8].path, key_of(FILES[8])) and not folder.holds(changed.path, key_of(changed))
    folder.drop_changed()
    left = parquet.read_table(part)
    assert left["source"].to_pylist() == [file.path for file in FILES if file.path != changed.path]
    assert len(left["vector"][0]) == 1024
