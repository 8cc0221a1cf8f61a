"""Tables of vectors: .npz for numpy, .parquet for tables, .jsonl for everything else. All are written here.

A format is a function in a module of `formats`, and a line in `FORMATS`.
"""

from __future__ import annotations

import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from allocembed.errors import MissingDependency, OutputError
from allocembed.output.files import make_room, whole_file
from allocembed.plugins import Names

if TYPE_CHECKING:
    from allocembed.embedder import VideoEmbedding

COSTS = ("cost", "budget", "base_cost", "look_tokens")
ARRAYS = {"source": "sources", "cost": "costs", "budget": "budgets", "base_cost": "base_costs", "vector": "vectors"}
"""Names of numpy's arrays in a file of embeddings, where they are not those of the columns."""

Row = dict[str, Any]
"""Texts and numbers by column, and a `vector` (dim,). All rows of a table have the columns of the first."""
WriteFormat = Callable[[BinaryIO, Row, Mapping[str, str]], AbstractContextManager[Callable[[Row], None]]]
"""From a file, its first row and `ARRAYS` to a context in which rows are written."""
FORMATS = Names[WriteFormat](
    "allocembed.vectors",
    {
        ".npz": "allocembed.output.formats.npz:write_npz",
        ".jsonl": "allocembed.output.formats.jsonl:write_jsonl",
        ".parquet": "allocembed.output.formats.parquet:write_parquet",
    },
)
"""Formats by the end of a file's name."""


class VectorOutput(ABC):
    """The output of many videos' vectors: a file, or a folder of files that several processes write."""

    keyed = False
    """Whether rows have a `key`, which stands for a path with its size and date."""

    def settle(self, settings: dict[str, Any]) -> None:  # noqa: B027 (a new file has nothing to compare with)
        """Make sure that what is there was made with the same settings."""

    def look(self) -> None:  # noqa: B027 (likewise)
        """Look at what was written since the last look."""

    def holds(self, source: str, key: str) -> bool:
        """Whether there was a video at the last look, as it is now."""
        return False

    @abstractmethod
    def write_rows(self, rows: Sequence[Row]) -> None:
        """Add rows."""

    def drop_changed(self) -> None:  # noqa: B027 (likewise)
        """Drop the rows of videos that were not there as they are now."""


class VectorWriter(VectorOutput):
    """Writes rows to a file. The file is opened at the first one: no rows, no file."""

    def __init__(self, path: Path, arrays: Mapping[str, str], stack: ExitStack) -> None:
        self.path, self.arrays, self.stack, self.count = path, arrays, stack, 0
        self.content = ExitStack()

    def add(self, row: Row) -> None:
        """Add a row."""
        if not self.count:
            self.scratch = self.stack.enter_context(whole_file(self.path))
            self.stack.enter_context(self.content)
            file = self.content.enter_context(self.scratch.open("wb"))
            write = FORMATS[self.path.suffix.lower()](file, row, self.arrays)
            self.write = self.content.enter_context(write)
        self.count += 1
        self.write(row)

    def write_rows(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self.add(row)

    def keep_apart(self) -> Path:
        """Write what was added so far to a file beside the path, for a run that ends early; return its path."""
        self.content.close()
        path = self.path.with_name(f"{self.path.stem}.stopped{self.path.suffix}")
        with whole_file(path) as scratch:
            shutil.copyfile(self.scratch, scratch)
        return path


def row_of(embedding: VideoEmbedding) -> Row:
    """Source, costs and vector of a video."""
    costs = {name: int(getattr(embedding.allocation, name)) for name in COSTS}
    return {"source": embedding.source, **costs, "vector": embedding.vector}


def check_vector_path(path: Path) -> None:
    """Raise if no vectors can be written at this path, before any work is done."""
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        *others, last = FORMATS
        raise OutputError(f"cannot write {path}: the name must end in {', '.join(others)} or {last}")
    if suffix == ".parquet":
        check_parquet()
    make_room(path)


def check_parquet() -> None:
    """Raise MissingDependency if no Parquet files can be written."""
    MissingDependency.check("writing .parquet files", "pyarrow", "search")


@contextmanager
def vector_file(path: Path, arrays: Mapping[str, str] = ARRAYS) -> Iterator[VectorWriter]:
    """A writer for the path's suffix. The file appears when the block succeeds and at least one row was added."""
    check_vector_path(path)
    with ExitStack() as stack:
        yield VectorWriter(path, arrays, stack)
