"""The three tables of an index in LanceDB, on disk or in object storage.

`vectors` holds a row for every vector, under the fingerprint of the content it came from; `files` says which path has
which content, or why it has none; `about` holds the settings, written once. A video's vectors come in one commit and
its file after them, so that a kill at any moment leaves at worst vectors whose file is not yet there: the next run
finds them by their fingerprint and only adds the file.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allocembed.search.errors import SearchError
from allocembed.search.settings import Settings

if TYPE_CHECKING:
    from allocembed.search.pipeline import Embedded, Piece

INSTALL = "pip install -e '.[search]'"
LOCK = "indexing.lock"
EVERYTHING = 2**31 - 1
LOOKUP_UP_TO = 20_000  # vectors; beyond, a video's rows are looked up and no longer searched for
EXACT_UP_TO = 50_000  # vectors; beyond, they are searched by an approximate index
PARTITION = 4096  # vectors in one part of that index
COLUMNS = ("video", "number", "start", "end", "cost", "budget", "base_cost")


def _import_lancedb() -> tuple[Any, Any]:
    # Unless told otherwise, it warns of every table that is not there before it makes it.
    os.environ.setdefault("LANCEDB_LOG", "error")
    try:
        import lancedb
        import pyarrow
    except ImportError as error:
        raise SearchError(f"an index needs LanceDB, which is not installed: {INSTALL}") from error
    return lancedb, pyarrow


class Store:
    """The tables, opened."""

    def __init__(self, uri: str, tables: dict[str, Any], settings: Settings) -> None:
        self.uri = uri
        self.vectors, self.files = tables["vectors"], tables["files"]
        self.settings = settings

    @classmethod
    def create(cls, uri: str, settings: Settings) -> Store:
        """Makes an empty index; `about` comes last, so that one made by halves is none."""
        lancedb, pa = _import_lancedb()
        try:
            with storage_errors(uri, "cannot make the index"):
                database = lancedb.connect(uri)
                schemas = _schemas(pa, len(settings.probe))
                for name, schema in schemas.items():
                    database.create_table(name, schema=schema, mode="overwrite")
                database.create_table("about", [{"settings": settings.as_json()}], mode="overwrite")
        except SearchError:
            with suppress(SearchError):  # what is in the way of making it may be in the way of this, too
                discard(uri)
            raise
        return cls.open(uri)

    @classmethod
    def open(cls, uri: str) -> Store:
        """Opens an index that is there."""
        lancedb, _ = _import_lancedb()
        if not exists(uri):
            raise SearchError(f"there is no index at {uri}: make one with allocembed index FOLDER --to {uri}")
        with storage_errors(uri, "the index cannot be read"):
            # Others may be indexing into it as we search.
            database = lancedb.connect(uri, read_consistency_interval=timedelta(0))
            tables = {name: database.open_table(name) for name in ("about", "vectors", "files")}
            stored = tables["about"].search().limit(1).to_list()
        if not stored:
            raise SearchError(f"the index at {uri} holds no settings: it is broken; make a new one")
        return cls(uri, tables, Settings.from_json(stored[0]["settings"]))

    def add(self, videos: Sequence[tuple[str, Embedded]]) -> None:
        """Adds the vectors of videos, by fingerprint, in one commit."""
        rows = [_row(video, piece) for video, embedded in videos for piece in embedded.pieces]
        if rows:
            with storage_errors(self.uri, "the index cannot be written"):
                self.vectors.add(rows)

    def put_files(self, rows: Sequence[dict]) -> None:
        """Adds files, or what is new about them, by their paths."""
        if rows:
            with storage_errors(self.uri, "the index cannot be written"):
                merge = self.files.merge_insert("path")
                merge.when_matched_update_all().when_not_matched_insert_all().execute(list(rows))

    def drop_files(self, paths: Iterable[str]) -> None:
        """Takes files out of the index; their vectors go with `drop_unused`."""
        self._delete(self.files, "path", paths)

    def drop_videos(self, videos: Iterable[str]) -> None:
        """Takes vectors out of the index."""
        self._delete(self.vectors, "video", videos)

    def _delete(self, table: Any, column: str, values: Iterable[str]) -> None:
        values = list(values)
        with storage_errors(self.uri, "the index cannot be written"):
            for first in range(0, len(values), 500):
                table.delete(f"{column} in ({', '.join(map(quote, values[first : first + 500]))})")

    def file_rows(self, where: str | None = None) -> list[dict]:
        """The files, as they were written."""
        with storage_errors(self.uri, "the index cannot be read"):
            query = self.files.search().limit(EVERYTHING)
            return (query.where(where) if where else query).to_list()

    def videos(self) -> set[str]:
        """Fingerprints of everything that has vectors."""
        return {row["video"] for row in self.rows("number = 0", ["video"])}

    def rows(self, where: str, columns: Sequence[str]) -> list[dict]:
        """Chosen columns of the vectors' rows that meet a condition."""
        with storage_errors(self.uri, "the index cannot be read"):
            return self.vectors.search().where(where).select(list(columns)).limit(EVERYTHING).to_list()

    def nearest(self, vector: np.ndarray, limit: int) -> list[dict]:
        """Rows of the nearest vectors, best first, with their cosines as `score`."""
        with storage_errors(self.uri, "the index cannot be read"):
            query = self.vectors.search(vector.astype(np.float32)).metric("cosine").limit(limit)
            # Twenty parts and ten times as many candidates as asked for cost a few milliseconds and lose little.
            found = query.nprobes(20).refine_factor(10).select([*COLUMNS, "_distance"]).to_list()
        return [{**row, "score": 1 - row.pop("_distance")} for row in found]

    def count(self) -> int:
        """Vectors in the index."""
        with storage_errors(self.uri, "the index cannot be read"):
            return self.vectors.count_rows()

    def tidy(self) -> None:
        """Joins the many small files that many commits leave, forgets old versions, and keeps search quick."""
        with storage_errors(self.uri, "the index cannot be written"):
            for table in (self.vectors, self.files):
                # An hour, because somebody may be reading the version before.
                table.optimize(cleanup_older_than=timedelta(hours=1))
            self._build_indices()

    def _build_indices(self) -> None:
        """Makes what a large index needs to be quick, once; `optimize` keeps it up to date from then on."""
        count = self.vectors.count_rows()
        there = {column for made in self.vectors.list_indices() for column in made.columns}
        if count > LOOKUP_UP_TO and "video" not in there:
            self.make_lookup()
        if count > EXACT_UP_TO and "vector" not in there:
            self.make_approximate()

    def make_lookup(self) -> None:
        """A way straight to the rows of a video."""
        from lancedb.index import BTree

        for table in (self.vectors, self.files):
            table.create_index("video", config=BTree())

    def make_approximate(self) -> None:
        """A way to the nearest vectors that passes most of them over: parts of some thousands, kept as small codes."""
        from lancedb.index import IvfSq

        parts = max(1, self.vectors.count_rows() // PARTITION)
        self.vectors.create_index("vector", config=IvfSq(distance_type="cosine", num_partitions=parts))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps a second run from indexing into the same folder; a killed run holds no lock."""
        if "://" in self.uri:
            yield  # object storage has no locks; there, two runs may embed the same video twice
            return
        path = Path(self.uri) / LOCK
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            cause = f"the index at {self.uri} cannot be written ({error.strerror})"
            raise SearchError(f"{cause}: check its permissions and the space on its disk") from error
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise SearchError(f"another run is indexing into {self.uri}: wait until it is done") from error
            yield
        finally:
            os.close(handle)


def discard(uri: str) -> None:
    """Takes an index away, or what there is of it; `about` goes first, so that one half gone is none."""
    lancedb, _ = _import_lancedb()
    with storage_errors(uri, "the empty index cannot be removed"):
        database = lancedb.connect(uri)
        for name in ("about", "vectors", "files"):
            database.drop_table(name, ignore_missing=True)
    if "://" not in uri:
        with suppress(OSError):  # what else is in there is not ours
            (Path(uri) / LOCK).unlink(missing_ok=True)
            Path(uri).rmdir()


def exists(uri: str) -> bool:
    """Whether there is a whole index."""
    lancedb, _ = _import_lancedb()
    if "://" not in uri and not Path(uri).is_dir():
        return False
    with storage_errors(uri, "the index cannot be read"):
        return "about" in lancedb.connect(uri).list_tables().tables


@contextmanager
def storage_errors(uri: str, cause: str) -> Iterator[None]:
    """Turns what LanceDB and the file system raise into one sentence; what was committed before stays."""
    try:
        yield
    except SearchError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split())
        kept = "what was indexed before is kept"
        if any(sign in said.lower() for sign in _FULL):
            # LanceDB says it in many words, most of them about itself.
            raise SearchError(
                f"{cause}, {uri}: its disk is full: make room and run the same command again, or choose another place "
                f"with --to; {kept}"
            ) from error
        remedy = "check that it is an index, its permissions, and the space on its disk"
        for sign, words in _REMEDIES.items():
            if sign in said.lower():
                remedy = words
        raise SearchError(f"{cause}, {uri} ({said[:200]}): {remedy}; {kept}") from error


_FULL = ("no space", "storage full", "quota exceeded")
_REMEDIES = {
    "permission denied": "it is read-only: check its permissions",
    "read-only": "it is read-only: check its permissions",
}


def quote(text: str) -> str:
    """A string as the tables' conditions spell it.

    >>> quote("it's.mp4")
    "'it''s.mp4'"
    """
    return "'" + text.replace("'", "''") + "'"


def _row(video: str, piece: Piece) -> dict:
    return {
        "video": video,
        "number": piece.number,
        "start": piece.start,
        "end": piece.end,
        "cost": piece.cost,
        "budget": piece.budget,
        "base_cost": piece.base_cost,
        "film": json.dumps(piece.film),
        "picture": piece.picture,
        "vector": piece.vector.astype(np.float32),
    }


def _schemas(pa: Any, dim: int) -> dict[str, Any]:
    kinds = {str: pa.string(), int: pa.int64(), float: pa.float64(), bytes: pa.binary()}
    vectors = {
        "video": str,
        "number": int,
        "start": float,
        "end": float,
        "cost": int,
        "budget": int,
        "base_cost": int,
        "film": str,
        "picture": bytes,
    }
    files = {
        "path": str,
        "video": str,
        "size": int,
        "changed": int,
        "duration": float,
        "width": int,
        "height": int,
        "error": str,
    }
    columns = {
        "vectors": [(name, kinds[kind]) for name, kind in vectors.items()],
        "files": [(name, kinds[kind]) for name, kind in files.items()],
    }
    columns["vectors"].append(("vector", pa.list_(pa.float32(), dim)))
    return {name: pa.schema(fields) for name, fields in columns.items()}
