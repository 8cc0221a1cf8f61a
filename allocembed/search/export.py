"""Export an index: .parquet for tables, .npz for numpy."""

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from allocembed.errors import SearchError
from allocembed.output.files import make_room, whole_file
from allocembed.search.index import VideoIndex
from allocembed.search.store import SMALL

FORMATS = (".parquet", ".npz")


def export(index: VideoIndex, path: Path) -> int:
    """Write a row per vector and file: path, video, number (0 is the whole video), times, costs and vector."""
    if path.suffix.lower() not in FORMATS:
        raise SearchError(f"cannot write {path}: the name must end in {' or '.join(FORMATS)}")
    make_room(path)
    paths = defaultdict[str, list[str]](list)
    for file in index.files():
        if not file.error:
            paths[file.video].append(file.path)
    columns: dict[str, Any] = {name: [] for name in ("path", "video", *SMALL, "vector")}
    for video, segments in sorted(index.store.segments(("vector",)).items()):
        for segment in segments:
            for name in paths[video]:
                for column, value in {**vars(segment), "path": name, "video": video}.items():
                    if column in columns:
                        columns[column].append(value)
    if not columns["path"]:
        raise SearchError("the index is empty: there is nothing to export")
    vectors = np.stack(columns.pop("vector"))
    with whole_file(path) as scratch:
        (_write_parquet if path.suffix.lower() == ".parquet" else _write_npz)(columns, vectors, scratch)
    return len(vectors)


def _write_parquet(columns: dict[str, Any], vectors: np.ndarray, path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1])
    parquet.write_table(pyarrow.table(columns | {"vector": rows}), path)


def _write_npz(columns: dict[str, Any], vectors: np.ndarray, path: Path) -> None:
    arrays: dict[str, Any] = {name: np.array(values) for name, values in columns.items()}
    with path.open("wb") as file:
        np.savez(file, paths=arrays.pop("path"), videos=arrays.pop("video"), vectors=vectors, **arrays)
