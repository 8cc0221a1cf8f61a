"""Vector files in their three formats."""

import json
import os
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from allocembed.embedder import VideoEmbedding
from allocembed.errors import MissingDependency, OutputError
from allocembed.output import vectors
from allocembed.output.formats import parquet as parquet_format
from allocembed.output.vectors import check_vector_path, row_of, vector_file


def row(number: int, source: str = "") -> dict[str, Any]:
    allocation: Any = SimpleNamespace(cost=number, budget=10, base_cost=20, look_tokens=30)
    return row_of(VideoEmbedding(np.full(4, number, np.float32), source or f"v{number}.mp4", allocation))


def read(path) -> dict[str, list]:
    """Columns of a vector file."""
    if path.suffix == ".npz":
        saved = np.load(path)
        return {name if name == "look_tokens" else name.removesuffix("s"): saved[name].tolist() for name in saved}
    if path.suffix == ".jsonl":
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        return {name: [line[name] for line in lines] for name in lines[0]}
    return pytest.importorskip("pyarrow.parquet").read_table(path).to_pydict()


@pytest.mark.parametrize("suffix", vectors.FORMATS)
def test_every_format_holds_sources_vectors_and_costs(tmp_path, suffix):
    path = tmp_path / "new" / f"v{suffix}"
    with vector_file(path) as writer:
        for number in range(3):
            writer.add(row(number))
        assert not path.exists(), "the file appears when it is whole"
    found = read(path)
    assert found["source"] == ["v0.mp4", "v1.mp4", "v2.mp4"] and found["cost"] == [0, 1, 2]
    assert found["budget"] == [10] * 3 and found["base_cost"] == [20] * 3
    assert found["look_tokens"] == [30] * 3
    assert found["vector"] == [[float(number)] * 4 for number in range(3)] and writer.count == 3


def test_parquet_is_written_in_row_groups_of_fixed_size_vectors(tmp_path, monkeypatch):
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(parquet_format, "ROW_GROUP", 2)
    with vector_file(tmp_path / "v.parquet") as writer:
        for number in range(5):
            writer.add(row(number))
    file = parquet.ParquetFile(tmp_path / "v.parquet")
    assert [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)] == [2, 2, 1]
    assert str(file.schema_arrow.field("vector").type) == "fixed_size_list<element: float>[4]"


@pytest.mark.parametrize("suffix", vectors.FORMATS)
def test_names_that_are_not_unicode_can_be_written(tmp_path, suffix):
    path = tmp_path / f"v{suffix}"
    with vector_file(path) as writer:
        writer.add(row(1, os.fsdecode(b"odd\xff.mp4")))
    assert read(path)["source"][0].startswith("odd")


@pytest.mark.parametrize("suffix", vectors.FORMATS)
def test_no_embedding_or_an_error_leaves_nothing(tmp_path, suffix):
    path = tmp_path / "new" / f"v{suffix}"
    with vector_file(path):
        pass
    with pytest.raises(RuntimeError), vector_file(path) as writer:
        writer.add(row(1))
        raise RuntimeError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("suffix", vectors.FORMATS)
def test_a_full_disk_is_named(tmp_path, full_disk, suffix):
    path = tmp_path / f"v{suffix}"
    with pytest.raises(OutputError) as caught, vector_file(path) as writer:
        writer.add(row(1))
    assert str(caught.value) == full_disk.format(path) and not list(tmp_path.iterdir())


def test_a_path_is_checked_before_the_work(tmp_path, monkeypatch):
    with pytest.raises(OutputError, match=r"must end in \.npz, \.jsonl or \.parquet"):
        check_vector_path(tmp_path / "v.txt")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingDependency, match=r"allocembed\[search\]"):
        check_vector_path(tmp_path / "v.parquet")


def test_a_format_is_a_function_and_a_line_of_registration(tmp_path, monkeypatch):
    @contextmanager
    def write_names(file, first, arrays):
        yield lambda row: file.write(f"{row['source']}\n".encode())

    monkeypatch.setitem(vectors.FORMATS, ".names", write_names)
    with vector_file(tmp_path / "v.names") as writer:
        writer.write_rows([row(1), row(2)])
    assert (tmp_path / "v.names").read_text() == "v1.mp4\nv2.mp4\n"
