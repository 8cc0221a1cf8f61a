"""An index in one SQLite file, `sqlite://videos.db`: a complete `IndexStore` with nothing but Python and numpy.

It compares all vectors in every search, which is enough for some ten thousand. SQLite keeps the promises: a transaction
is all or nothing, readers do not wait, and a killed process holds no lock. `pyproject.toml` names the class under the
scheme `sqlite`; `allocembed.testing.stores` tests it.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from copy import copy
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from allocembed.errors import SearchError
from allocembed.files import FileEntry
from allocembed.search.filters import Filters
from allocembed.search.said.subtitles import Line
from allocembed.search.said.words import words
from allocembed.search.settings import IndexSettings
from allocembed.search.store import EmbeddedSegment, FoundLine, IndexBusy, IndexStore, LineStore, TextSource

SEGMENT = [item.name for item in fields(EmbeddedSegment)]
COLUMNS = {
    "about": ["settings"],
    "vectors": ["video", *SEGMENT],
    "files": [item.name for item in fields(FileEntry)],
    "lines": ["source", "video", "number", "start", "end", "text", "words"],
    "subtitles": [item.name for item in fields(TextSource)],
}
KEYS = {"about": 1, "vectors": 2, "files": 1, "lines": 3, "subtitles": 2}
"""How many of the first columns tell rows apart; a row replaces one of the same key."""
NAMED = "IN (SELECT value FROM json_each(?))"  # one value of a list, which is given as JSON


class Database:
    """One file. Each question opens it anew, so that threads do not share a connection."""

    def __init__(self, uri: str) -> None:
        self.uri, self.path = uri, Path(uri.partition("://")[2])
        self.frozen: sqlite3.Connection | None = None

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """A transaction."""
        try:
            if self.frozen is not None:
                yield self.frozen
            else:
                with closing(self.connect()) as connection, connection:
                    yield connection
        except sqlite3.Error as error:
            raise SearchError(f"the index at {self.uri} cannot be used ({error}): check its file and disk") from error

    def connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        return connection

    def rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with self.opened() as connection:
            return connection.execute(query, values).fetchall()

    def insert(self, **tables: Iterable[Sequence[Any]]) -> None:
        """Add or replace rows of several tables in one commit."""
        with self.opened() as connection:
            for table, rows in tables.items():
                places = ", ".join("?" * len(COLUMNS[table]))
                connection.executemany(f"INSERT OR REPLACE INTO {table} VALUES ({places})", rows)


class SqliteStore(IndexStore):
    """The tables of an index."""

    def __init__(self, database: Database, settings: IndexSettings) -> None:
        self.uri, self.settings, self.database = database.uri, settings, database
        self.lines = SqliteLines(database)

    @classmethod
    def exists(cls, uri: str) -> bool:
        return Database(uri).path.is_file()

    @classmethod
    def check_free(cls, uri: str) -> None:
        if cls.exists(uri):
            raise SearchError(f"there is already an index at {uri}: open it, or choose another name")

    @classmethod
    def create(cls, uri: str, settings: IndexSettings) -> Self:
        database = Database(uri)
        with _lock(database):
            cls.check_free(uri)
            made = Database(f"{uri}.new")  # gets its name when it is complete
            made.path.unlink(missing_ok=True)
            with made.opened() as connection:
                for table, columns in COLUMNS.items():
                    names = [f'"{name}"' for name in columns]
                    key = ", ".join(names[: KEYS[table]])
                    connection.execute(f"CREATE TABLE {table} ({', '.join(names)}, PRIMARY KEY ({key}))")
            made.insert(about=[[settings.as_json()]])
            made.path.rename(database.path)
        return cls(database, settings)

    @classmethod
    def open(cls, uri: str) -> Self:
        if not cls.exists(uri):
            raise SearchError(f"there is no index at {uri}: make one with allocembed index FOLDER --to {uri}")
        database = Database(uri)
        for table, columns in COLUMNS.items():
            if [row[1] for row in database.rows(f"PRAGMA table_info({table})")] != columns:
                raise SearchError(f"the table {table} of the index at {uri} is damaged: make a new index")
        return cls(database, IndexSettings.from_json(database.rows("SELECT settings FROM about")[0][0]))

    def discard(self) -> None:
        for end in ("", "-wal", "-shm"):
            Path(f"{self.database.path}{end}").unlink(missing_ok=True)

    def locked(self) -> closing[sqlite3.Connection]:
        return _lock(self.database)

    def as_of_now(self) -> Self:
        frozen = copy(self)
        frozen.database = Database(self.uri)
        frozen.database.frozen = self.database.connect()
        frozen.database.frozen.execute("BEGIN")
        frozen.file_count()  # the first question fixes what is seen
        return frozen

    def add_videos(self, videos: Iterable[tuple[str, Sequence[EmbeddedSegment]]]) -> None:
        plain = [
            {**vars(each), "video": video, "film": json.dumps(each.film), "vector": each.vector.tobytes()}
            for video, segments in videos
            for each in segments
        ]
        self.database.insert(vectors=[[row[name] for name in COLUMNS["vectors"]] for row in plain])

    def drop_videos(self, videos: Iterable[str]) -> None:
        self.database.rows(f"DELETE FROM vectors WHERE video {NAMED}", _names(videos))

    def videos(self) -> set[str]:
        return {video for (video,) in self.database.rows("SELECT DISTINCT video FROM vectors")}

    def known_videos(self, videos: Iterable[str]) -> set[str]:
        return {row[0] for row in self.database.rows(f"SELECT video FROM vectors WHERE video {NAMED}", _names(videos))}

    def count(self) -> int:
        return self.database.rows("SELECT count(*) FROM vectors")[0][0]

    def segments(self, large: Sequence[str] = ()) -> dict[str, list[EmbeddedSegment]]:
        return self.segments_of(self.videos(), large)

    def segments_of(self, videos: Iterable[str], large: Sequence[str] = ()) -> dict[str, list[EmbeddedSegment]]:
        names = [name for name in SEGMENT if name in large or name not in ("film", "picture", "vector")]
        columns = ", ".join(f'"{name}"' for name in names)
        query = f"SELECT video, {columns} FROM vectors WHERE video {NAMED} ORDER BY video, number"
        found: dict[str, list[EmbeddedSegment]] = {}
        for video, *values in self.database.rows(query, _names(videos)):
            row: dict[str, Any] = dict(zip(names, values, strict=True))
            if "film" in row:
                row["film"] = json.loads(row["film"])
            if "vector" in row:
                row["vector"] = np.frombuffer(row["vector"], np.float32)
            found.setdefault(video, []).append(EmbeddedSegment(**row))
        return found

    def picture(self, video: str, number: int) -> bytes | None:
        rows = self.database.rows("SELECT picture FROM vectors WHERE video = ? AND number = ?", video, number)
        return rows[0][0] if rows else None

    def whole_vectors(self, among: Iterable[str] | None = None) -> tuple[list[str], np.ndarray]:
        videos, vectors = self._matrix("number = 0", among)
        return videos, vectors.astype(np.float16)

    def nearest(
        self, vector: np.ndarray, limit: int, *, among: Collection[str] | None = None, share: float = 1.0
    ) -> list[tuple[str, float]]:
        videos, vectors = self._matrix("TRUE", among)
        cosines = vectors @ vector.astype(np.float32)
        return [(videos[place], float(cosines[place])) for place in np.argsort(-cosines, kind="stable")[:limit]]

    def compares_all(self, among: Collection[str] | None) -> bool:
        return True

    def _matrix(self, condition: str, among: Iterable[str] | None) -> tuple[list[str], np.ndarray]:
        """Videos and their vectors (n, dim)."""
        query, values = f"SELECT video, vector FROM vectors WHERE {condition}", []
        if among is not None:
            query, values = f"{query} AND video {NAMED}", [_names(among)]
        rows = self.database.rows(query, *values)
        joined = np.frombuffer(b"".join(vector for _, vector in rows), np.float32)
        return [video for video, _ in rows], joined.reshape(len(rows), len(self.settings.probe))

    def add_files(self, entries: Sequence[FileEntry]) -> None:
        self.put_files(entries)

    def put_files(self, entries: Sequence[FileEntry]) -> None:
        self.database.insert(files=[astuple(entry) for entry in entries])

    def drop_files(self, paths: Iterable[str]) -> None:
        self.database.rows(f"DELETE FROM files WHERE path {NAMED}", _names(paths))

    def files(self) -> list[FileEntry]:
        return self._files("TRUE")

    def files_at(self, paths: Iterable[str]) -> dict[str, FileEntry]:
        return {file.path: file for file in self._files(f"path {NAMED}", _names(paths))}

    def files_of(self, videos: Iterable[str], filters: Filters | None = None) -> list[FileEntry]:
        condition, values = _condition(filters or Filters())
        return self._files(f"{condition} AND video {NAMED}", *values, _names(videos))

    def matching(self, filters: Filters) -> set[str]:
        condition, values = _condition(filters)
        return {file.video for file in self._files(condition, *values)}

    def _files(self, condition: str, *values: Any) -> list[FileEntry]:
        return [FileEntry(*row) for row in self.database.rows(f"SELECT * FROM files WHERE {condition}", *values)]

    def file_count(self) -> int:
        return self.database.rows("SELECT count(*) FROM files")[0][0]

    def totals(self) -> dict[str, float]:
        (row,) = self.database.rows(
            """SELECT (SELECT count(DISTINCT video) FROM vectors), total(error = ''), total(error != ''),
            (SELECT count(*) FROM vectors), total(duration), (SELECT total(cost) FROM vectors) FROM files"""
        )
        return dict(zip(("videos", "files", "failed", "vectors", "seconds", "tokens"), row, strict=True))


class SqliteLines(LineStore):
    """What was said."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, read: Sequence[tuple[TextSource, Sequence[Line]]], known: Collection[str]) -> None:
        rows = [
            (source.source, source.video, number, line.start, line.end, line.text, f" {' '.join(words(line.text))} ")
            for source, lines in read
            if source.source not in known
            for number, line in enumerate(lines)
        ]
        self.database.insert(lines=rows, subtitles=[astuple(source) for source, _ in read])

    def drop_sources(self, keys: Iterable[tuple[str, str]]) -> None:
        with self.database.opened() as connection:
            connection.executemany("DELETE FROM subtitles WHERE owner = ? AND origin = ?", keys)

    def drop_lines(self, ids: Iterable[str]) -> None:
        self.database.rows(f"DELETE FROM lines WHERE source {NAMED}", _names(ids))

    def sources(self) -> list[TextSource]:
        return [TextSource(*row) for row in self.database.rows("SELECT * FROM subtitles")]

    def counts(self) -> dict[str, int]:
        return dict(self.database.rows("SELECT source, count(*) FROM lines GROUP BY source"))

    def ids(self) -> set[str]:
        return set(self.counts())

    def videos(self) -> set[str]:
        return {video for (video,) in self.database.rows("SELECT DISTINCT video FROM lines")}

    def count(self) -> int:
        return self.database.rows("SELECT count(*) FROM lines")[0][0]

    def lines_of(self, video: str) -> list[Line]:
        query = 'SELECT start, "end", text FROM lines WHERE video = ? ORDER BY start, "end"'
        return [Line(*row) for row in self.database.rows(query, video)]

    def find(self, wanted: Sequence[str], limit: int, among: Collection[str] | None = None) -> list[FoundLine]:
        """A word counts the more, the fewer lines have it."""
        has = "instr(words, ' ' || ? || ' ') > 0"
        weights = {word: 1 / (1 + self.database.rows(f"SELECT total({has}) FROM lines", word)[0][0]) for word in wanted}
        relevance = " + ".join([f"({has}) * {weight}" for weight in weights.values()]) or "0"
        query = f"""SELECT * FROM (
            SELECT video, start, "end", text, trim(words), {relevance} AS relevance FROM lines)
            WHERE relevance > 0 AND (? OR video {NAMED}) ORDER BY relevance DESC LIMIT ?"""
        rows = self.database.rows(query, *weights, among is None, _names(among or ()), limit)
        return [FoundLine(*row) for row in rows]


def _lock(database: Database) -> closing[sqlite3.Connection]:
    """Hold the lock, which is SQLite's own on another file, until the connection is closed or its process ends."""
    connection = sqlite3.connect(f"{database.path}.lock", timeout=IndexStore.patience, check_same_thread=False)
    try:
        connection.execute("BEGIN EXCLUSIVE")
    except sqlite3.OperationalError as error:
        connection.close()
        raise IndexBusy(f"another run is indexing into {database.uri}: wait until it is done") from error
    return closing(connection)


def _names(values: Iterable[str]) -> str:
    return json.dumps(list(values))


def _condition(filters: Filters) -> tuple[str, list[Any]]:
    """The files without error that meet the rules of the filters."""
    parts, values = ["error = ''"], []
    for rule in filters.rules():
        starts = rule.operator == "starts with"
        parts.append(f"instr({rule.column}, ?) = 1" if starts else f"{rule.column} {rule.operator} ?")
        values.append(rule.value)
    return " AND ".join(parts), values
