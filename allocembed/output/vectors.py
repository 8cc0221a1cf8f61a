"""Vector files: .npz for numpy, .parquet for tables, .jsonl for everything else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allocembed.errors import MissingDependency, OutputError
from allocembed.output.files import make_room, whole_file

if TYPE_CHECKING:
    from allocembed.embedder import VideoEmbedding

COSTS = ("cost", "budget", "base_cost", "look_tokens")
ROW_GROUP = 1024  # rows that a parquet file collects before it writes them


Row = dict[str, Any]
"""Source, cost, budget, base_cost, look_tokens and vector (dim,) of a video."""


class VectorWriter:
    """Writes embeddings to a file. The file is opened at the first one: no embeddings, no file."""

    def __init__(self, path: Path, stack: ExitStack) -> None:
        self.path, self.stack, self.count = path, stack, 0
        self.content = ExitStack()

    def add(self, embedding: VideoEmbedding) -> None:
        """Add the embedding of one video."""
        if not self.count:
            self.scratch = self.stack.enter_context(whole_file(self.path))
            self.stack.enter_context(self.content)
            write = FORMATS[self.path.suffix.lower()](self.scratch, len(embedding.vector))
            self.write = self.content.enter_context(write)
        self.count += 1
        self.write(_row(embedding))

    def keep_apart(self) -> Path:
        """Write what was added so far to a file beside the path, for a run that ends early; return its path."""
        self.content.close()
        path = self.path.with_name(f"{self.path.stem}.stopped{self.path.suffix}")
        with whole_file(path) as scratch:
            shutil.copyfile(self.scratch, scratch)
        return path


def _row(embedding: VideoEmbedding) -> Row:
    costs = {name: int(getattr(embedding.allocation, name)) for name in COSTS}
    return {"source": embedding.source, **costs, "vector": embedding.vector}


@contextmanager
def _json_lines(scratch: Path, _dim: int) -> Iterator[Callable[[Row], None]]:
    """One line per video, written at once, so memory does not grow."""
    with scratch.open("w", encoding="utf-8") as file:

        def write(row: Row) -> None:
            # Plain ASCII: file names need not be valid Unicode, JSON escapes always are.
            file.write(json.dumps({**row, "vector": row["vector"].tolist()}) + "\n")

        yield write


@contextmanager
def _npz(scratch: Path, _dim: int) -> Iterator[Callable[[Row], None]]:
    """Arrays `sources` (N,), `costs`, `budgets`, `base_costs`, `look_tokens` (N,) and `vectors` (N, dim)."""
    rows: list[Row] = []
    yield rows.append
    columns: Row = {f"{name.removesuffix('s')}s": np.array([row[name] for row in rows]) for name in rows[0]}
    with scratch.open("wb") as file:
        np.savez(file, **columns)


@contextmanager
def _parquet(scratch: Path, dim: int) -> Iterator[Callable[[Row], None]]:
    """Columns as in a row, the vector as a list of `dim` float32. Written in row groups."""
    import pyarrow
    from pyarrow import parquet

    schema = _schema(dim)
    rows: list[Row] = []
    with scratch.open("wb") as file, parquet.ParquetWriter(file, schema) as writer:

        def flush() -> None:
            writer.write_table(pyarrow.Table.from_pylist(rows, schema))
            rows.clear()

        def write(row: Row) -> None:
            rows.append(_in_unicode(row))
            if len(rows) == ROW_GROUP:
                flush()

        yield write
        flush()


def _schema(dim: int) -> Any:
    import pyarrow

    costs = [(name, pyarrow.int64()) for name in COSTS]
    vector = ("vector", pyarrow.list_(pyarrow.float32(), dim))
    return pyarrow.schema([("source", pyarrow.string()), *costs, vector])


def _in_unicode(row: Row) -> Row:
    """Parquet holds valid Unicode only; other bytes of a file name are written as \\xff."""
    return {**row, "source": row["source"].encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")}


def table_of(embeddings: Sequence[VideoEmbedding]) -> Any:
    """Embeddings as a table of pyarrow, with the columns of a Parquet file."""
    import pyarrow

    rows = [_in_unicode(_row(embedding)) for embedding in embeddings]
    return pyarrow.Table.from_pylist(rows, _schema(len(embeddings[0].vector)))


FORMATS = {".npz": _npz, ".jsonl": _json_lines, ".parquet": _parquet}


def check_vector_path(path: Path) -> None:
    """Raise if no vectors can be written at this path, before any work is done."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        *others, last = FORMATS
        raise OutputError(f"cannot write {path}: the name must end in {', '.join(others)} or {last}")
    if suffix == ".parquet":
        MissingDependency.check("writing .parquet files", "pyarrow", "search")
    make_room(path)


@contextmanager
def vector_file(path: Path) -> Iterator[VectorWriter]:
    """A writer for the path's suffix. The file appears when the block succeeds and at least one vector was added."""
    check_vector_path(path)
    with ExitStack() as stack:
        yield VectorWriter(path, stack)
