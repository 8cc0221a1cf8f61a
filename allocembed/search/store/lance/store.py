"""The three tables of an index in LanceDB, on disk or in object storage.

`vectors` has a row per vector, under the fingerprint of the content. `files` says which content a path has, or why it
has none. `about` holds the settings and is written once, last: an index without it counts as absent. The vectors of a
video are committed together, and its file after them. So a kill at any moment leaves at worst vectors without a file;
the next run recognises them by their fingerprint and only adds the file.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from datetime import timedelta
from typing import Any, ClassVar, Self

import numpy as np

from allocembed.errors import MissingDependency, SearchError
from allocembed.files import FileEntry
from allocembed.paths import is_folder
from allocembed.remote.objects import is_remote
from allocembed.search.filters import Filters
from allocembed.search.settings import IndexSettings
from allocembed.search.store.base import SMALL_COLUMNS, EmbeddedSegment, IndexStore
from allocembed.search.store.lance import storage
from allocembed.search.store.lance.lease import Lease
from allocembed.search.store.lance.lines import LanceLines
from allocembed.search.store.lance.storage import (
    EVERYTHING,
    LOOKUP_UP_TO,
    NAMES_AT_ONCE,
    TABLES,
    UNREADABLE,
    UNWRITABLE,
    append,
    conditions,
    connect,
    drop_tables,
    file_condition,
    import_lancedb,
    one_of,
    storage_errors,
)

PARTITION = 4096  # vectors in one partition of the approximate index
MOST_PROBES = 100_000  # more partitions than an index has
ONE_BY_ONE = 500  # videos whose vectors are compared without the approximate index


class LanceStore(IndexStore):
    """The opened tables of an index."""

    lookup_up_to: ClassVar[int] = LOOKUP_UP_TO

    def __init__(self, uri: str, tables: dict[str, Any], settings: IndexSettings) -> None:
        self.uri, self.settings = uri, settings
        self.vectors, self.files_table = tables["vectors"], tables["files"]
        self.lines = LanceLines(uri, self.writing)
        self._lease: Lease | None = None
        self._made_folder = False
        """Whether this process made the folder of the index, and may remove it."""

    @classmethod
    def place(cls, uri: str) -> str:
        return storage.place_of(uri)

    @classmethod
    def check_installed(cls, uri: str) -> None:
        for package in ("lancedb", "pyarrow", "filelock"):
            MissingDependency.check("an index", package, "search")
        if is_remote(uri):
            MissingDependency.check("object storage", "obstore", "cloud")

    @classmethod
    def exists(cls, uri: str) -> bool:
        return storage.exists(uri)

    @classmethod
    def check_free(cls, uri: str) -> None:
        storage.check_free(uri)

    @classmethod
    def create(cls, uri: str, settings: IndexSettings) -> Self:
        there = is_folder(uri)
        with storage.locked(uri):
            cls.check_free(uri)
            cls._make_tables(uri, settings)
            store = cls.open(uri)
        store._made_folder = not there
        return store

    @staticmethod
    def _make_tables(uri: str, settings: IndexSettings) -> None:
        _, pyarrow = import_lancedb()
        drop_tables(uri)  # those of an index that was never completed
        try:
            with storage_errors(uri, "cannot make the index"):
                database = connect(uri)
                for name, schema in _schemas(pyarrow, len(settings.probe)).items():
                    database.create_table(name, schema=schema, mode="create")
                database.create_table("about", [{"settings": settings.as_json()}], mode="create")
        except SearchError:
            with suppress(SearchError):  # the same cause may prevent this
                drop_tables(uri)
            raise

    @classmethod
    def open(cls, uri: str) -> Self:
        if not cls.exists(uri):
            raise SearchError(f"there is no index at {uri}: make one with allocembed index FOLDER --to {uri}")
        _, pyarrow = import_lancedb()
        with storage_errors(uri, UNREADABLE):
            # Another process may be indexing while this one searches.
            database = connect(uri, read_consistency_interval=timedelta(0))
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

    def as_of_now(self) -> Self:
        with storage_errors(self.uri, UNREADABLE):
            files = connect(self.uri).open_table("files")
            files.checkout(files.version)
        return type(self)(self.uri, {"vectors": self.vectors, "files": files}, self.settings)

    @contextmanager
    def locked(self) -> Iterator[None]:
        with storage.locked(self.uri, made_folder=self._made_folder) as self._lease:
            try:
                yield
            finally:
                self._lease = None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around a write: the lease, if there is one, must be held."""
        if self._lease is not None:
            self._lease.check()
        with storage_errors(self.uri, UNWRITABLE):
            yield

    def add_videos(self, videos: Iterable[tuple[str, Sequence[EmbeddedSegment]]]) -> None:
        rows = [_row(video, segment) for video, segments in videos for segment in segments]
        if rows:
            with self.writing():
                append(self.vectors, rows)

    def add_files(self, entries: Sequence[FileEntry]) -> None:
        if entries:
            with self.writing():
                self.files_table.add([asdict(file) for file in entries])

    def put_files(self, entries: Sequence[FileEntry]) -> None:
        if entries:
            with self.writing():
                merge = self.files_table.merge_insert("path")
                merge.when_matched_update_all().when_not_matched_insert_all().execute(
                    [asdict(file) for file in entries]
                )

    def drop_files(self, paths: Iterable[str]) -> None:
        self._delete(self.files_table, "path", paths)

    def drop_videos(self, videos: Iterable[str]) -> None:
        self._delete(self.vectors, "video", videos)

    def _delete(self, table: Any, column: str, values: Iterable[str]) -> None:
        with self.writing():
            for condition in conditions(column, values):
                table.delete(condition)

    def files(self) -> list[FileEntry]:
        return self._files(None)

    def files_of(self, videos: Iterable[str], filters: Filters | None = None) -> list[FileEntry]:
        wanted = file_condition(filters or Filters())
        return [file for each in conditions("video", videos) for file in self._files(f"{wanted} and {each}")]

    def matching(self, filters: Filters) -> set[str]:
        with storage_errors(self.uri, UNREADABLE):
            query = self.files_table.search().where(file_condition(filters)).select(["video"]).limit(EVERYTHING)
            return set(query.to_arrow()["video"].to_pylist())

    def _files(self, condition: str | None) -> list[FileEntry]:
        with storage_errors(self.uri, UNREADABLE):
            query = self.files_table.search().limit(EVERYTHING)
            rows = (query.where(condition) if condition else query).to_list()
            return [FileEntry(**row) for row in self._complete(rows)]

    def videos(self) -> set[str]:
        return {row["video"] for row in self._rows("number = 0", ["video"])}

    def known_videos(self, videos: Iterable[str]) -> set[str]:
        found = (self._rows(f"number = 0 and {each}", ["video"]) for each in conditions("video", videos))
        return {row["video"] for rows in found for row in rows}

    def files_at(self, paths: Iterable[str]) -> dict[str, FileEntry]:
        return {file.path: file for each in conditions("path", paths) for file in self._files(each)}

    def segments(self, large: Sequence[str] = ()) -> dict[str, list[EmbeddedSegment]]:
        return self._segments(["number >= 0"], large)

    def segments_of(self, videos: Iterable[str], large: Sequence[str] = ()) -> dict[str, list[EmbeddedSegment]]:
        return self._segments(conditions("video", videos), large)

    def _segments(self, conditions: Sequence[str], large: Sequence[str]) -> dict[str, list[EmbeddedSegment]]:
        found: dict[str, list[EmbeddedSegment]] = {}
        for condition in conditions:
            for row in self._rows(condition, ["video", *SMALL_COLUMNS, *large]):
                found.setdefault(row.pop("video"), []).append(_segment(row))
        return {video: sorted(segments, key=lambda segment: segment.number) for video, segments in found.items()}

    def whole_vectors(self, among: Iterable[str] | None = None) -> tuple[list[str], np.ndarray]:
        videos: list[str] = []
        parts = [np.empty((0, len(self.settings.probe)), np.float16)]
        wanted = ["number = 0"] if among is None else [f"number = 0 and {each}" for each in conditions("video", among)]
        with storage_errors(self.uri, UNREADABLE):
            for condition in wanted:
                query = self.vectors.search().where(condition).select(["video", "vector"]).limit(EVERYTHING)
                for batch in query.to_batches():
                    videos += batch["video"].to_pylist()
                    values = batch["vector"].flatten().to_numpy(zero_copy_only=False)
                    parts.append(values.reshape(len(batch), -1).astype(np.float16))
        return videos, np.concatenate(parts)

    def picture(self, video: str, number: int) -> bytes | None:
        rows = self._rows(f"{conditions('video', [video])[0]} and number = {number}", ["picture"])
        return rows[0]["picture"] if rows else None

    def _rows(self, condition: str, columns: Sequence[str]) -> list[dict[str, Any]]:
        with storage_errors(self.uri, UNREADABLE):
            query = self.vectors.search().where(condition).select(list(columns)).limit(EVERYTHING)
            table = query.to_arrow()
            if "vector" not in columns:
                return self._complete(table.to_pylist())
            # As Python's numbers, vectors would take many times their size.
            values = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            rows = self._complete(table.drop_columns(["vector"]).to_pylist())
        if len(values) != len(rows) * len(self.settings.probe):
            raise self._damaged()
        vectors = np.array(values, np.float32).reshape(len(rows), len(self.settings.probe))
        return [{**row, "vector": vector} for row, vector in zip(rows, vectors, strict=True)]

    def _complete(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows if each has all its values: a damaged manifest may hide a column."""
        if any(value is None for row in rows for value in row.values()):
            raise self._damaged()
        return rows

    def _damaged(self) -> SearchError:
        return SearchError(f"the index at {self.uri} is damaged: make a new index")

    def nearest(
        self, vector: np.ndarray, limit: int, *, among: Collection[str] | None = None, share: float = 1.0
    ) -> list[tuple[str, float]]:
        with storage_errors(self.uri, UNREADABLE):
            query = self.vectors.search(vector.astype(np.float32)).metric("cosine").limit(limit)
            if among is not None:
                query = query.where(one_of("video", among), prefilter=True)
            if self.compares_all(among):
                query = query.bypass_vector_index()
            else:
                # 20 partitions and ten times as many candidates as requested cost a few milliseconds and lose little.
                query = query.nprobes(min(MOST_PROBES, int(20 / share))).refine_factor(10)
            rows = query.select(["video", "_distance"]).to_list()
        return [(row["video"], 1 - row["_distance"]) for row in rows]

    def compares_all(self, among: Collection[str] | None) -> bool:
        return among is not None and len(among) <= ONE_BY_ONE

    def totals(self) -> dict[str, float]:
        with storage_errors(self.uri, UNREADABLE):
            return {
                "videos": self.vectors.count_rows("number = 0"),
                "files": self.files_table.count_rows("error = ''"),
                "failed": self.files_table.count_rows("error != ''"),
                "vectors": self.vectors.count_rows(),
                "seconds": self._sum(self.files_table, "duration"),
                "tokens": self._sum(self.vectors, "cost"),
            }

    def _sum(self, table: Any, column: str) -> float:
        total = 0
        for batch in table.search().select([column]).limit(EVERYTHING).to_batches():
            if batch[column].null_count:
                raise self._damaged()
            total += batch[column].sum().as_py() or 0
        return total

    def count(self) -> int:
        with storage_errors(self.uri, UNREADABLE):
            return self.vectors.count_rows()

    def file_count(self) -> int:
        with storage_errors(self.uri, UNREADABLE):
            return self.files_table.count_rows()

    def tidy(self) -> None:
        with self.writing():
            for table in (self.vectors, self.files_table):
                # One hour, because another process may be reading an older version.
                table.optimize(cleanup_older_than=timedelta(hours=1))
            self._build_indices()

    def _build_indices(self) -> None:
        """Build each index once; `optimize` keeps it up to date from then on."""
        from lancedb.index import BTree, IvfSq

        count, built = self.vectors.count_rows(), self.indexed_columns()
        if count > self.lookup_up_to and "video" not in built:
            for table in (self.vectors, self.files_table):
                table.create_index("video", config=BTree())
        if self.file_count() > self.lookup_up_to and "path" not in _indexed(self.files_table):
            self.files_table.create_index("path", config=BTree())
        if count > self.exact_up_to and "vector" not in built:
            partitions = max(1, count // PARTITION)
            self.vectors.create_index("vector", config=IvfSq(distance_type="cosine", num_partitions=partitions))

    def drop_doubles(self) -> int:
        surplus: list[int] = []
        with storage_errors(self.uri, UNREADABLE):
            for condition in conditions("video", self._repeated()):
                query = self.vectors.search().where(condition).select(["video", "number"]).with_row_id(True)
                kept: set[tuple[str, int]] = set()
                for row in sorted(query.limit(EVERYTHING).to_list(), key=lambda row: row["_rowid"]):
                    key = (row["video"], row["number"])
                    surplus += [row["_rowid"]] if key in kept else []
                    kept.add(key)
        with self.writing():
            for first in range(0, len(surplus), NAMES_AT_ONCE):
                ids = ", ".join(map(str, surplus[first : first + NAMES_AT_ONCE]))
                self.vectors.delete(f"_rowid in ({ids})")
        return len(surplus)

    def _repeated(self) -> list[str]:
        """Contents that have the vector of the whole more than once. In memory, each content takes eight bytes."""
        parts = [np.array([int(name[:16], 16) for name in names], np.uint64) for names in self._contents()]
        values, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]), return_counts=True)
        wanted = {int(value) for value in values[counts > 1]}
        if not wanted:
            return []
        return sorted({name for names in self._contents() for name in names if int(name[:16], 16) in wanted})

    def _contents(self) -> Iterator[list[str]]:
        query = self.vectors.search().where("number = 0").select(["video"]).limit(EVERYTHING)
        for batch in query.to_batches():
            yield batch["video"].to_pylist()

    def indexed_columns(self) -> set[str]:
        """Columns of the vectors' table that have an index of their own."""
        return _indexed(self.vectors)

    def discard(self) -> None:
        with storage_errors(self.uri, "the empty index cannot be removed"):
            drop_tables(self.uri)


def _row(video: str, segment: EmbeddedSegment) -> dict[str, Any]:
    return {**vars(segment), "video": video, "film": json.dumps(segment.film)}


def _segment(row: dict[str, Any]) -> EmbeddedSegment:
    if "film" in row:
        row["film"] = json.loads(row["film"])
    return EmbeddedSegment(**row)


def _indexed(table: Any) -> set[str]:
    return {column for index in table.list_indices() for column in index.columns}


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
