"""The three tables of an index in LanceDB, on disk or in object storage. The only module with conditions in SQL.

`vectors` has a row per vector, under the fingerprint of the content. `files` says which content a path has, or why it
has none. `about` holds the settings and is written once, last: an index without it counts as absent. The vectors of a
video are committed together, and its file after them. So a kill at any moment leaves at worst vectors without a file;
the next run recognises them by their fingerprint and only adds the file.
"""

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import numpy as np

from allocembed.errors import AllocEmbedError, SearchError
from allocembed.search.files import FileEntry
from allocembed.search.lance import import_lancedb
from allocembed.search.settings import IndexSettings

LOCK = "indexing.lock"
PATIENCE = 5.0  # seconds to wait for the lock: two runs that start at once must not both give way
TABLES = ("vectors", "files", "about")
EVERYTHING = 2**31 - 1
LOOKUP_UP_TO = 20_000  # vectors; in a larger index, the rows of a video are found by an index on that column
EXACT_UP_TO = 50_000  # vectors; a larger index is searched approximately
PARTITION = 4096  # vectors in one partition of the approximate index
NAMES_AT_ONCE = 500  # values in one condition
LARGE = ("film", "picture", "vector")
UNREADABLE, UNWRITABLE = "the index cannot be read", "the index cannot be written"


@dataclass(frozen=True, eq=False)
class EmbeddedSegment:
    """A whole video (number 0) or one of its windows. The large fields are empty unless they were requested."""

    number: int
    start: float
    end: float
    """Seconds of the source."""
    cost: int
    budget: int
    base_cost: int
    film: dict[str, Any] = field(default_factory=dict)
    """The allocation in plain numbers, as by `film.as_json`."""
    picture: bytes = b""
    """A JPEG: the frame of a window with most tokens, or the first frames of all chunks of a whole video in a row."""
    vector: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    """(dim,) fp32."""


SMALL = tuple(item.name for item in fields(EmbeddedSegment) if item.name not in LARGE)


class IndexStore:
    """The opened tables of an index."""

    def __init__(self, uri: str, tables: dict[str, Any], settings: IndexSettings) -> None:
        self.uri, self.settings = uri, settings
        self.vectors, self.files_table = tables["vectors"], tables["files"]

    @classmethod
    def create(cls, uri: str, settings: IndexSettings) -> Self:
        """Make an empty index. The caller holds the lock and has checked that none exists."""
        lancedb, pyarrow = import_lancedb()
        _drop_tables(uri)  # those of an index that was never completed
        try:
            with storage_errors(uri, "cannot make the index"):
                database = lancedb.connect(uri)
                for name, schema in _schemas(pyarrow, len(settings.probe)).items():
                    database.create_table(name, schema=schema, mode="create")
                database.create_table("about", [{"settings": settings.as_json()}], mode="create")
        except SearchError:
            with suppress(SearchError):  # the same cause may prevent this
                _drop_tables(uri)
            raise
        return cls.open(uri)

    @classmethod
    def open(cls, uri: str) -> Self:
        """Open an existing index."""
        if not exists(uri):
            raise SearchError(f"there is no index at {uri}: make one with allocembed index FOLDER --to {uri}")
        lancedb, pyarrow = import_lancedb()
        with storage_errors(uri, UNREADABLE):
            # Another process may be indexing while this one searches.
            database = lancedb.connect(uri, read_consistency_interval=timedelta(0))
            tables = {name: database.open_table(name) for name in TABLES}
            stored = tables["about"].search().limit(1).to_list()
        if not stored or "settings" not in stored[0]:
            raise SearchError(f"the index at {uri} has no settings: it is damaged; make a new one")
        settings = IndexSettings.from_json(stored[0]["settings"])
        with storage_errors(uri, UNREADABLE):
            for name, schema in _schemas(pyarrow, len(settings.probe)).items():
                if _columns(tables[name].schema) != _columns(schema):
                    raise SearchError(f"the table {name} of the index at {uri} is damaged: make a new index")
        return cls(uri, tables, settings)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock of this index."""
        return locked(self.uri)

    def add_videos(self, videos: Iterable[tuple[str, Sequence[EmbeddedSegment]]]) -> None:
        """Add the segments of videos, by fingerprint, in one commit."""
        rows = [_row(video, segment) for video, segments in videos for segment in segments]
        if rows:
            with storage_errors(self.uri, UNWRITABLE):
                self.vectors.add(rows)

    def put_files(self, entries: Sequence[FileEntry]) -> None:
        """Add or replace files, by path."""
        if entries:
            with storage_errors(self.uri, UNWRITABLE):
                merge = self.files_table.merge_insert("path")
                merge.when_matched_update_all().when_not_matched_insert_all().execute(
                    [asdict(file) for file in entries]
                )

    def drop_files(self, paths: Iterable[str]) -> None:
        """Remove files; their vectors stay."""
        self._delete(self.files_table, "path", paths)

    def drop_videos(self, videos: Iterable[str]) -> None:
        """Remove the vectors of videos."""
        self._delete(self.vectors, "video", videos)

    def _delete(self, table: Any, column: str, values: Iterable[str]) -> None:
        with storage_errors(self.uri, UNWRITABLE):
            for condition in _conditions(column, values):
                table.delete(condition)

    def files(self) -> list[FileEntry]:
        """All files."""
        return self._files(None)

    def files_of(self, videos: Iterable[str]) -> list[FileEntry]:
        """The files that have the given contents."""
        conditions = _conditions("video", videos)
        return [file for condition in conditions for file in self._files(f"error = '' and {condition}")]

    def _files(self, condition: str | None) -> list[FileEntry]:
        with storage_errors(self.uri, UNREADABLE):
            query = self.files_table.search().limit(EVERYTHING)
            rows = (query.where(condition) if condition else query).to_list()
            return [FileEntry(**row) for row in self._complete(rows)]

    def videos(self) -> set[str]:
        """Fingerprints of all contents that have vectors."""
        return {row["video"] for row in self._rows("number = 0", ["video"])}

    def segments(self, large: Sequence[str] = ()) -> dict[str, list[EmbeddedSegment]]:
        """All segments of all videos, the whole video first; `large` names the large fields that are wanted."""
        return self._segments(["number >= 0"], large)

    def segments_of(self, videos: Iterable[str], large: Sequence[str] = ()) -> dict[str, list[EmbeddedSegment]]:
        """The same of some videos."""
        return self._segments(_conditions("video", videos), large)

    def _segments(self, conditions: Sequence[str], large: Sequence[str]) -> dict[str, list[EmbeddedSegment]]:
        found: dict[str, list[EmbeddedSegment]] = {}
        for condition in conditions:
            for row in self._rows(condition, ["video", *SMALL, *large]):
                found.setdefault(row.pop("video"), []).append(_segment(row))
        return {video: sorted(segments, key=lambda segment: segment.number) for video, segments in found.items()}

    def picture(self, video: str, number: int) -> bytes | None:
        """The picture of one segment."""
        rows = self._rows(f"{_conditions('video', [video])[0]} and number = {number}", ["picture"])
        return rows[0]["picture"] if rows else None

    def _rows(self, condition: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        with storage_errors(self.uri, UNREADABLE):
            query = self.vectors.search().where(condition).select(list(columns)).limit(EVERYTHING)
            return self._complete(query.to_list())

    def _complete(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The same rows, if each has all its values: a damaged manifest may hide a column."""
        if any(value is None for row in rows for value in row.values()):
            raise SearchError(f"the index at {self.uri} is damaged: make a new index")
        return rows

    def nearest(self, vector: np.ndarray, limit: int) -> list[tuple[str, float]]:
        """Video and cosine of the nearest vectors, best first. A video may occur several times."""
        with storage_errors(self.uri, UNREADABLE):
            query = self.vectors.search(vector.astype(np.float32)).metric("cosine").limit(limit)
            # 20 partitions and ten times as many candidates as requested cost a few milliseconds and lose little.
            rows = query.nprobes(20).refine_factor(10).select(["video", "_distance"]).to_list()
        return [(row["video"], 1 - row["_distance"]) for row in rows]

    def count(self) -> int:
        """Number of vectors."""
        with storage_errors(self.uri, UNREADABLE):
            return self.vectors.count_rows()

    def tidy(self) -> None:
        """Merge the small files that many commits leave, delete old versions, and build what a large index needs."""
        with storage_errors(self.uri, UNWRITABLE):
            for table in (self.vectors, self.files_table):
                # One hour, because another process may be reading an older version.
                table.optimize(cleanup_older_than=timedelta(hours=1))
            self._build_indices()

    def _build_indices(self) -> None:
        """Build each index once; `optimize` keeps it up to date from then on."""
        from lancedb.index import BTree, IvfSq

        count, built = self.vectors.count_rows(), self.indexed_columns()
        if count > LOOKUP_UP_TO and "video" not in built:
            for table in (self.vectors, self.files_table):
                table.create_index("video", config=BTree())
        if count > EXACT_UP_TO and "vector" not in built:
            partitions = max(1, count // PARTITION)
            self.vectors.create_index("vector", config=IvfSq(distance_type="cosine", num_partitions=partitions))

    def indexed_columns(self) -> set[str]:
        """Columns of the vectors' table that have an index of their own."""
        return {column for index in self.vectors.list_indices() for column in index.columns}

    def discard(self) -> None:
        """Remove the index. The caller holds the lock."""
        with storage_errors(self.uri, "the empty index cannot be removed"):
            _drop_tables(self.uri)


def exists(uri: str) -> bool:
    """Whether there is a complete index. In a folder, this needs no LanceDB."""
    if is_local(uri):
        return any((Path(uri) / "about.lance" / "_versions").glob("*.manifest"))
    lancedb, _ = import_lancedb()
    with storage_errors(uri, UNREADABLE):
        return "about" in lancedb.connect(uri).list_tables().tables


def is_free(uri: str) -> bool:
    """Whether an index can be made here: nothing exists, or only parts of an index that was never completed."""
    if not is_local(uri) or not Path(uri).exists():
        return True
    ours = {LOCK, *(f"{name}.lance" for name in TABLES)}
    return Path(uri).is_dir() and all(path.name in ours for path in Path(uri).iterdir())


def is_local(uri: str) -> bool:
    """Whether the index is in a folder and not in object storage."""
    return "://" not in uri


@contextmanager
def locked(uri: str) -> Iterator[None]:
    """Hold the lock of an index, so that no other run writes to it. A killed process holds no lock.

    The folder is made if it does not exist, and is removed at the end if it holds nothing but the lock. Object storage
    has no locks: there, two runs may embed the same video twice.
    """
    if not is_local(uri):
        yield
        return
    from filelock import FileLock, Timeout

    path, deadline = Path(uri) / LOCK, time.monotonic() + PATIENCE
    made = [folder for folder in path.parent.parents if not folder.exists()]
    lock = FileLock(path, timeout=0)
    while not lock.is_locked:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (Timeout, FileNotFoundError) as error:  # a run that made nothing removes the folder again
            if time.monotonic() > deadline:
                raise SearchError(f"another run is indexing into {uri}: wait until it is done") from error
            time.sleep(0.05)
        except OSError as error:
            cause = f"the index at {uri} cannot be written ({error.strerror})"
            raise SearchError(f"{cause}: check its permissions and the space on its disk") from error
    try:
        yield
    finally:
        with suppress(OSError):
            if list(path.parent.iterdir()) == [path]:
                # A process that has opened this file meanwhile sees that it has no name any more, and opens it again.
                path.unlink()
                for folder in (path.parent, *made):
                    folder.rmdir()
        lock.release()


def _drop_tables(uri: str) -> None:
    """Drop what there is of an index; `about` first, so that a partly dropped index counts as absent."""
    lancedb, _ = import_lancedb()
    with storage_errors(uri, UNWRITABLE):
        database = lancedb.connect(uri)
        for name in reversed(TABLES):
            database.drop_table(name, ignore_missing=True)


@contextmanager
def storage_errors(uri: str, cause: str) -> Iterator[None]:
    """Turn errors of LanceDB and the file system into one sentence. Earlier commits are kept in any case."""
    try:
        yield
    except AllocEmbedError:
        raise
    except BaseException as error:
        # A Rust panic, as after one flipped bit in a manifest, is no Exception, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        message = " ".join(str(error).split())
        kept = "what was indexed before is kept"
        if any(sign in message.lower() for sign in ("no space", "storage full", "quota exceeded")):
            # LanceDB's own message is long and mostly about its internals.
            raise SearchError(
                f"{cause}, {uri}: its disk is full: make room and run the same command again, or choose another place "
                f"with --to; {kept}"
            ) from error
        remedy = "check that it is an index, its permissions, and the space on its disk"
        if any(sign in message.lower() for sign in ("permission denied", "read-only")):
            remedy = "it is read-only: check its permissions"
        raise SearchError(f"{cause}, {uri} ({message[:200]}): {remedy}; {kept}") from error


def _conditions(column: str, values: Iterable[str]) -> list[str]:
    """Conditions that together select the rows with these values.

    >>> _conditions("path", ["it's.mp4", "b.mp4"]), _conditions("path", [])
    (["path in ('it''s.mp4', 'b.mp4')"], [])
    """
    quoted = ["'" + value.replace("'", "''") + "'" for value in values]
    parts = (quoted[first : first + NAMES_AT_ONCE] for first in range(0, len(quoted), NAMES_AT_ONCE))
    return [f"{column} in ({', '.join(part)})" for part in parts]


def _row(video: str, segment: EmbeddedSegment) -> dict[str, Any]:
    return {**vars(segment), "video": video, "film": json.dumps(segment.film)}


def _segment(row: dict[str, Any]) -> EmbeddedSegment:
    if "film" in row:
        row["film"] = json.loads(row["film"])
    if "vector" in row:
        row["vector"] = np.asarray(row["vector"], np.float32)
    return EmbeddedSegment(**row)


def _columns(schema: Any) -> dict[str, Any]:
    return {column.name: column.type for column in schema}


def _schemas(pyarrow: Any, dim: int) -> dict[str, Any]:
    text, whole, real = pyarrow.string(), pyarrow.int64(), pyarrow.float64()
    times, costs = {"start": real, "end": real}, {"cost": whole, "budget": whole, "base_cost": whole}
    vector = pyarrow.list_(pyarrow.float32(), dim)
    large = {"film": text, "picture": pyarrow.binary(), "vector": vector}
    size = {"duration": real, "width": whole, "height": whole}
    columns = {
        "vectors": {"video": text, "number": whole, **times, **costs, **large},
        "files": {"path": text, "video": text, "size": whole, "changed": whole, **size, "error": text},
    }
    return {name: pyarrow.schema(list(table.items())) for name, table in columns.items()}
