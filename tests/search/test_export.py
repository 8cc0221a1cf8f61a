"""Exporting an index."""

import json

import numpy as np
import pytest

from allocembed.errors import OutputError
from allocembed.search.export import export

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".jsonl"])
def test_an_export_holds_every_vector_with_its_file(index, tmp_path, suffix):
    path = tmp_path / f"out{suffix}"
    assert export(index, path) == 11
    if suffix == ".npz":
        saved = np.load(path)
        paths, vectors, numbers = saved["paths"], saved["vectors"], saved["number"]
    elif suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        paths, vectors, numbers = ([row[name] for row in rows] for name in ("path", "vector", "number"))
        vectors = np.array(vectors)
        assert list(rows[0])[:3] == ["path", "video", "number"]
    else:
        from pyarrow import parquet

        table = parquet.read_table(path).to_pydict()
        paths, vectors, numbers = table["path"], np.array(table["vector"]), table["number"]
    assert len(set(paths)) == 9 and vectors.shape == (11, 32) and sorted(numbers) == [0] * 9 + [1, 2]
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    with pytest.raises(OutputError, match="must end in"):
        export(index, tmp_path / "out.txt")
