"""Takes an index elsewhere: .parquet for tables, .npz for numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from allocembed.output import make_room, whole_file
from allocembed.search.errors import SearchError
from allocembed.search.index import VideoIndex

FORMATS = (".parquet", ".npz")
NUMBERS = ("number", "start", "end", "cost", "budget", "base_cost")


def export(index: VideoIndex, path: Path) -> int:
    """Writes a row for every vector of every file: path, video, number (0 is the whole), times, costs, vector."""
    if path.suffix.lower() not in FORMATS:
        raise SearchError(f"cannot write {path}: the name must end in {' or '.join(FORMATS)}")
    make_room(path)
    paths: dict[str, list[str]] = {}
    for row in index.files():
        if not row["error"]:
            paths.setdefault(row["video"], []).append(row["path"])
    stored = index.store.rows("number >= 0", ["video", *NUMBERS, "vector"])
    stored.sort(key=lambda row: (row["video"], row["number"]))
    rows = [{"path": path, **row} for row in stored for path in paths.get(row["video"], ())]
    if not rows:
        raise SearchError("the index is empty: there is nothing to export")
    with whole_file(path) as scratch:
        (_write_parquet if path.suffix.lower() == ".parquet" else _write_npz)(rows, scratch)
    return len(rows)


def _write_parquet(rows: list[dict], path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    columns = {name: [row[name] for row in rows] for name in ("path", "video", *NUMBERS)}
    vectors = np.stack([row["vector"] for row in rows]).astype(np.float32)
    columns["vector"] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1])
    parquet.write_table(pyarrow.table(columns), path)


def _write_npz(rows: list[dict], path: Path) -> None:
    arrays = {name: np.array([row[name] for row in rows]) for name in ("path", "video", *NUMBERS)}
    vectors = np.stack([row["vector"] for row in rows]).astype(np.float32)
    with path.open("wb") as file:
        np.savez(file, paths=arrays.pop("path"), videos=arrays.pop("video"), vectors=vectors, **arrays)
