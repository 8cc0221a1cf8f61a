"""An index in PostgreSQL with pgvector: `postgresql://USER@HOST/DATABASE?schema=NAME`.

Each index is a schema of five tables, `allocembed` if none is named; other options of the address are libpq's. A commit
is a transaction. The lock is an advisory lock of the session that writes: a run that loses its connection cannot write.
Behind a pooler, a session must stay with its client. Passwords are best kept in PGPASSWORD or in ~/.pgpass.

Up to `exact_up_to` vectors, a search compares all of them. Beyond, `tidy` builds an HNSW index in half precision over
at most 4,000 dimensions, all that pgvector can index; what it finds is compared exactly. Words are kept as arrays, as
`said.words` splits them, so the database's own rules for languages play no part.
"""

from __future__ import annotations

import json
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import astuple
from hashlib import blake2b
from typing import Any, ClassVar, Self, get_type_hints
from urllib.parse import unquote

import numpy as np

from allocembed.errors import AllocEmbedError, MissingDependency, SearchError
from allocembed.files import FileEntry
from allocembed.search.filters import Filters
from allocembed.search.said.subtitles import Line
from allocembed.search.said.words import words
from allocembed.search.settings import IndexSettings
from allocembed.search.store.base import (
    LARGE_COLUMNS,
    SMALL_COLUMNS,
    EmbeddedSegment,
    FoundLine,
    IndexBusy,
    IndexStore,
    LineStore,
    TextSource,
)
from allocembed.words import without_passwords

try:
    import psycopg
    from psycopg import Connection, errors, sql
    from psycopg.adapt import Dumper, Loader
    from psycopg.pq import Format
except ImportError as error:
    raise MissingDependency("an index in PostgreSQL", "psycopg", "postgres") from error

SCHEMA = "allocembed"
OLDEST = (0, 8)  # the first version of pgvector that continues a search until enough rows pass a filter
INDEXED = 4000  # dimensions that pgvector can index in half precision
ONE_BY_ONE = 500  # videos whose vectors are compared without the approximate index
MOST_CANDIDATES = 1000  # that pgvector looks at before it continues in rounds
USUAL_LINE = 8  # words of a line
UNREADABLE, UNWRITABLE = "the index cannot be read", "the index cannot be written"
KINDS = {str: "text", int: "bigint", float: "float8", bytes: "bytea", dict[str, Any]: "text", np.ndarray: "vector"}


def _columns(kind: type) -> dict[str, str]:
    """Columns for the fields of a dataclass, and their types."""
    return {name: KINDS[hint] for name, hint in get_type_hints(kind).items()}


COLUMNS = {
    "about": {"settings": "text"},
    "vectors": {"video": "text", **_columns(EmbeddedSegment)},
    "files": _columns(FileEntry),
    "lines": {"source": "text", "video": "text", "number": "bigint", **_columns(Line), "words": "text[]"},
    "subtitles": _columns(TextSource),
}
INDEXES = (
    "CREATE UNIQUE INDEX ON vectors (video, number)",
    "CREATE INDEX ON files USING hash (path)",  # which takes paths of any length
    "CREATE INDEX ON files (video)",
    "CREATE INDEX ON lines (source, number)",
    "CREATE INDEX ON lines (video)",
    "CREATE INDEX ON lines USING gin (words)",
)
Row = tuple[Any, ...]


class Database:
    """Connections to the schema of one index. Several threads may use them at once."""

    def __init__(self, uri: str) -> None:
        self.uri, self.place = uri, without_passwords(uri)
        address, _, options = uri.partition("?")
        given = [option for option in options.split("&") if option]
        named = [option.partition("=")[2] for option in given if option.startswith("schema=")]
        self.schema = unquote(named[0]) if named else SCHEMA
        self._conninfo = "?".join([address, "&".join(each for each in given if not each.startswith("schema="))])
        self._free = deque[Connection]()
        self._writer: Connection | None = None
        self._writing = threading.Lock()
        weakref.finalize(self, _close, self._free)

    def connect(self) -> Connection:
        """A new connection that finds the tables of the index, and knows pgvector's type if it is there."""
        try:
            # Routers forget connections that say nothing for minutes, as that of the lock may.
            options = {"connect_timeout": 10, "client_encoding": "utf8", "keepalives_idle": 60}
            connection = psycopg.connect(self._conninfo, autocommit=True, **options)
        except psycopg.Error as error:
            raise SearchError(_why_refused(self.place, error)) from None  # its words may hold parts of the address
        found = connection.execute(
            "SELECT nspname, pg_type.oid FROM pg_extension JOIN pg_namespace ON pg_namespace.oid = extnamespace "
            "JOIN pg_type ON typnamespace = extnamespace AND typname = 'vector' WHERE extname = 'vector'"
        ).fetchone()
        if found is not None:
            _register_vectors(connection, found[1])
            path = sql.SQL(", ").join([sql.Identifier(self.schema), sql.Identifier(found[0])])
            connection.execute(sql.SQL("SET search_path TO {}").format(path))
        return connection

    def rows(self, query: str, *values: Any) -> list[Row]:
        """All rows of a query."""
        return list(self.stream(query, *values))

    def stream(self, query: str, *values: Any) -> Iterator[Row]:
        """The rows of a query, one by one, so that vectors need not fit into memory twice."""
        with _sentences(self.place, UNREADABLE), self.lent() as connection, connection.cursor(binary=True) as cursor:
            yield from cursor.stream(query.encode(), values)

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction. While this store holds the lock, it runs in the session that holds it."""
        with _sentences(self.place, UNWRITABLE):
            if self._writer is None:
                with self.lent() as connection, connection.transaction():
                    yield connection
            else:
                with self._writing, self._writer.transaction():
                    yield self._writer

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        """A connection that nobody else uses meanwhile."""
        connection = self._living()
        try:
            yield connection
        finally:
            self._free.append(connection)

    def _living(self) -> Connection:
        """A connection that answers: the server may have ended those that waited."""
        while self._free:
            with suppress(IndexError, psycopg.Error):
                connection = self._free.pop()
                connection.execute("")
                return connection
        return self.connect()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the advisory lock of the schema. The server gives it back when the process ends."""
        digest = blake2b(f"allocembed {self.schema}".encode(), digest_size=8).digest()
        with self.connect() as connection:
            deadline = time.monotonic() + IndexStore.patience
            with _sentences(self.place, UNWRITABLE):
                while not _first(connection, "SELECT pg_try_advisory_lock(%s)", *struct.unpack(">q", digest)):
                    if time.monotonic() > deadline:
                        raise IndexBusy(f"another run is indexing into {self.place}: wait until it is done")
                    time.sleep(0.1)
            self._writer = connection
            try:
                yield
            finally:
                self._writer = None


class Snapshot(Database):
    """The tables as they were when this was made, in a transaction that ends with the object."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri)
        self._turn = threading.Lock()
        self._free.append(self.connect())
        for command in (
            "SET idle_in_transaction_session_timeout = 0",
            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
            "SELECT 1 FROM about",  # the first question takes the snapshot
        ):
            self._free[0].execute(command)

    @contextmanager
    def lent(self) -> Iterator[Connection]:
        with self._turn:
            yield self._free[0]


class PostgresStore(IndexStore):
    """The tables of an index in one schema."""

    exact_up_to: ClassVar[int] = 20_000  # which takes a fourth of a second for 2,048 dimensions

    def __init__(self, database: Database, settings: IndexSettings) -> None:
        self.uri, self.settings, self._database = database.uri, settings, database
        self.lines = PostgresLines(database)
        self._made_schema = False
        """Whether this process made the schema of the index, and may remove it."""

    @classmethod
    def exists(cls, uri: str) -> bool:
        return "about" in _tables(Database(uri))

    @classmethod
    def check_free(cls, uri: str) -> None:
        database = Database(uri)
        if "about" in (tables := _tables(database)):
            raise SearchError(f"there is already an index at {database.place}: open it, or choose another schema")
        if tables:
            raise SearchError(
                f"{database.place} is not an index, and its schema {database.schema} is not empty: choose another one "
                "with ?schema=NAME"
            )

    @classmethod
    def create(cls, uri: str, settings: IndexSettings) -> Self:
        database = Database(uri)
        _require_pgvector(Database(uri))
        with database.locked():
            cls.check_free(uri)
            with database.writing() as connection:
                there = _first(connection, "SELECT 1 FROM pg_namespace WHERE nspname = %s", database.schema)
                if not there:
                    connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(database.schema)))
                _make_tables(connection, len(settings.probe))
                connection.execute("INSERT INTO about VALUES (%s)", [settings.as_json()])
        store = cls(database, settings)
        store._made_schema = not there
        return store

    @classmethod
    def open(cls, uri: str) -> Self:
        database = Database(uri)
        found = _tables(database)
        if "about" not in found:
            raise SearchError(
                f"there is no index at {database.place}: make one with allocembed index FOLDER --to {database.place}"
            )
        for table, columns in COLUMNS.items():
            if found.get(table) != columns.keys():
                raise SearchError(f"the table {table} of the index at {database.place} is damaged: make a new index")
        stored = database.rows("SELECT settings FROM about")
        if not stored:
            raise SearchError(f"the index at {database.place} has no settings: it is damaged; make a new one")
        return cls(database, IndexSettings.from_json(stored[0][0]))

    def discard(self) -> None:
        with self._database.writing() as connection:
            for table in COLUMNS:
                connection.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(table)))
            if self._made_schema:
                connection.execute(sql.SQL("DROP SCHEMA {}").format(sql.Identifier(self._database.schema)))

    @contextmanager
    def locked(self) -> Iterator[None]:
        with self._database.locked():
            yield

    def as_of_now(self) -> Self:
        frozen = copy(self)
        with _sentences(self._database.place, UNREADABLE):
            frozen._database = Snapshot(self.uri)
        return frozen

    def tidy(self) -> None:
        count = self.count()
        with self._database.writing() as connection:
            connection.execute("ANALYZE vectors, files, lines")  # the planner knows nothing of new tables
            if count > self.exact_up_to:
                what = f"({self._indexed('vector')}) halfvec_cosine_ops"
                connection.execute(f"CREATE INDEX IF NOT EXISTS near ON vectors USING hnsw ({what})".encode())

    def _indexed(self, vector: str) -> str:
        """The form of a vector in the approximate index, in SQL."""
        dim = min(len(self.settings.probe), INDEXED)
        return f"subvector({vector}, 1, {dim})::halfvec({dim})"

    def add_videos(self, videos: Iterable[tuple[str, Sequence[EmbeddedSegment]]]) -> None:
        names = [name for name in COLUMNS["vectors"] if name != "video"]
        rows = [
            (video, *(json.dumps(each.film) if name == "film" else getattr(each, name) for name in names))
            for video, segments in videos
            for each in segments
        ]
        columns = ", ".join(f'"{name}"' for name in names)
        with self._database.writing() as connection:
            _insert(connection, f"vectors (video, {columns})", rows, "ON CONFLICT DO NOTHING")

    def drop_videos(self, videos: Iterable[str]) -> None:
        with self._database.writing() as connection:
            connection.execute("DELETE FROM vectors WHERE video = ANY(%s)", [list(videos)])

    def videos(self) -> set[str]:
        return {video for (video,) in self._database.stream("SELECT video FROM vectors WHERE number = 0")}

    def known_videos(self, videos: Iterable[str]) -> set[str]:
        query = "SELECT video FROM vectors WHERE number = 0 AND video = ANY(%s)"
        return {video for (video,) in self._database.stream(query, list(videos))}

    def count(self) -> int:
        return self._database.rows("SELECT count(*) FROM vectors")[0][0]

    def segments(self, large: Sequence[str] = ()) -> dict[str, list[EmbeddedSegment]]:
        return self._segments(large, "TRUE")

    def segments_of(self, videos: Iterable[str], large: Sequence[str] = ()) -> dict[str, list[EmbeddedSegment]]:
        return self._segments(large, "video = ANY(%s)", list(videos))

    def _segments(self, large: Sequence[str], condition: str, *values: Any) -> dict[str, list[EmbeddedSegment]]:
        names = [*SMALL_COLUMNS, *(name for name in LARGE_COLUMNS if name in large)]
        columns = ", ".join(f'"{name}"' for name in names)
        query = f"SELECT video, {columns} FROM vectors WHERE {condition} ORDER BY video, number"
        found: dict[str, list[EmbeddedSegment]] = {}
        for video, *row in self._database.stream(query, *values):
            values_of = dict(zip(names, row, strict=True))
            if "film" in values_of:
                values_of["film"] = json.loads(values_of["film"])
            found.setdefault(video, []).append(EmbeddedSegment(**values_of))
        return found

    def picture(self, video: str, number: int) -> bytes | None:
        rows = self._database.rows("SELECT picture FROM vectors WHERE video = %s AND number = %s", video, number)
        return rows[0][0] if rows else None

    def whole_vectors(self, among: Iterable[str] | None = None) -> tuple[list[str], np.ndarray]:
        query, values = "SELECT video, vector FROM vectors WHERE number = 0", []
        if among is not None:
            query, values = f"{query} AND video = ANY(%s)", [list(among)]
        found = [(video, vector.astype(np.float16)) for video, vector in self._database.stream(query, *values)]
        empty = np.empty((0, len(self.settings.probe)), np.float16)
        return [video for video, _ in found], np.stack([vector for _, vector in found]) if found else empty

    def nearest(
        self, vector: np.ndarray, limit: int, *, among: Collection[str] | None = None, share: float = 1.0
    ) -> list[tuple[str, float]]:
        condition, names = ("TRUE", []) if among is None else ("video = ANY(%s)", [list(among)])
        wanted = vector.astype(np.float32)
        built = self._database.rows(
            "SELECT reltuples FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace "
            "WHERE relname = 'near' AND nspname = %s",
            self._database.schema,
        )
        if not built or self.compares_all(among) or 2 * limit > built[0][0]:
            query = f"SELECT video, vector <=> %s AS distance FROM vectors WHERE {condition} ORDER BY distance LIMIT %s"
            return _cosines(self._database.rows(query, wanted, *names, limit))
        query = f"""
            WITH found AS MATERIALIZED (
                SELECT video, vector FROM vectors WHERE {condition}
                ORDER BY {self._indexed("vector")} <=> {self._indexed("%s")} LIMIT %s)
            SELECT video, vector <=> %s AS distance FROM found ORDER BY distance LIMIT %s"""
        database = self._database
        with database.lent() as connection, _sentences(database.place, UNREADABLE), connection.transaction():
            _search_on(connection, min(MOST_CANDIDATES, 100 + 2 * limit))
            values = [*names, wanted, 2 * limit, wanted, limit]
            return _cosines(connection.execute(query.encode(), values, binary=True).fetchall())

    def compares_all(self, among: Collection[str] | None) -> bool:
        return among is not None and len(among) <= ONE_BY_ONE

    def add_files(self, entries: Sequence[FileEntry]) -> None:
        with self._database.writing() as connection:
            _insert(connection, "files", [astuple(entry) for entry in entries])

    def put_files(self, entries: Sequence[FileEntry]) -> None:
        latest = {entry.path: entry for entry in entries}
        with self._database.writing() as connection:
            connection.execute("DELETE FROM files WHERE path = ANY(%s)", [list(latest)])
            _insert(connection, "files", [astuple(entry) for entry in latest.values()])

    def drop_files(self, paths: Iterable[str]) -> None:
        with self._database.writing() as connection:
            connection.execute("DELETE FROM files WHERE path = ANY(%s)", [list(paths)])

    def files(self) -> list[FileEntry]:
        return self._files("TRUE")

    def files_at(self, paths: Iterable[str]) -> dict[str, FileEntry]:
        return {file.path: file for file in self._files("path = ANY(%s)", list(paths))}

    def files_of(self, videos: Iterable[str], filters: Filters | None = None) -> list[FileEntry]:
        condition, values = _condition(filters or Filters())
        return self._files(f"{condition} AND video = ANY(%s)", *values, list(videos))

    def _files(self, condition: str, *values: Any) -> list[FileEntry]:
        query = f"SELECT {', '.join(COLUMNS['files'])} FROM files WHERE {condition}"
        return [FileEntry(*row) for row in self._database.stream(query, *values)]

    def matching(self, filters: Filters) -> set[str]:
        condition, values = _condition(filters)
        query = f"SELECT DISTINCT video FROM files WHERE {condition}"
        return {video for (video,) in self._database.stream(query, *values)}

    def file_count(self) -> int:
        return self._database.rows("SELECT count(*) FROM files")[0][0]

    def totals(self) -> dict[str, float]:
        (row,) = self._database.rows(
            """SELECT (SELECT count(*) FROM vectors WHERE number = 0), count(*) FILTER (WHERE error = ''),
            count(*) FILTER (WHERE error != ''), (SELECT count(*) FROM vectors), coalesce(sum(duration), 0),
            (SELECT coalesce(sum(cost), 0)::bigint FROM vectors) FROM files"""
        )
        return dict(zip(("videos", "files", "failed", "vectors", "seconds", "tokens"), row, strict=True))


class PostgresLines(LineStore):
    """Spoken lines, in the tables `lines` and `subtitles`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def add(self, read: Sequence[tuple[TextSource, Sequence[Line]]], known: Collection[str]) -> None:
        latest = {source.key: source for source, _ in read}
        new = {source.source: (source, lines) for source, lines in read if lines and source.source not in known}
        rows = [
            (source.source, source.video, number, line.start, line.end, line.text, words(line.text))
            for source, lines in new.values()
            for number, line in enumerate(lines)
        ]
        with self._database.writing() as connection:
            _insert(connection, "lines", rows)
            _delete_sources(connection, latest)
            _insert(connection, "subtitles", [astuple(source) for source in latest.values()])

    def drop_sources(self, keys: Iterable[tuple[str, str]]) -> None:
        with self._database.writing() as connection:
            _delete_sources(connection, keys)

    def drop_lines(self, ids: Iterable[str]) -> None:
        with self._database.writing() as connection:
            connection.execute("DELETE FROM lines WHERE source = ANY(%s)", [list(ids)])

    def sources(self) -> list[TextSource]:
        rows = self._database.stream(f"SELECT {', '.join(COLUMNS['subtitles'])} FROM subtitles")
        return [TextSource(*row) for row in rows]

    def counts(self) -> dict[str, int]:
        return dict(self._database.rows("SELECT source, count(*) FROM lines GROUP BY source"))

    def ids(self) -> set[str]:
        return {source for (source,) in self._database.stream("SELECT source FROM lines WHERE number = 0")}

    def videos(self) -> set[str]:
        return {video for (video,) in self._database.stream("SELECT video FROM lines WHERE number = 0")}

    def count(self) -> int:
        return self._database.rows("SELECT count(*) FROM lines")[0][0]

    def lines_of(self, video: str) -> list[Line]:
        query = 'SELECT start, "end", text FROM lines WHERE video = %s ORDER BY start, "end"'
        return [Line(*row) for row in self._database.stream(query, video)]

    def find(self, wanted: Sequence[str], limit: int, among: Collection[str] | None = None) -> list[FoundLine]:
        """Ranked by BM25, with each word counted once in a line: the rarer its words and the shorter it is."""
        if not wanted:
            return []
        total = self.count()
        counted = self._database.rows(
            "SELECT word, (SELECT count(*) FROM lines WHERE words @> ARRAY[word]) FROM unnest(%s::text[]) AS word",
            list(wanted),
        )
        weights = {word: float(np.log(1 + (total - count + 0.5) / (count + 0.5))) for word, count in counted if count}
        condition, names = ("TRUE", []) if among is None else ("video = ANY(%s)", [list(among)])
        query = f"""
            SELECT video, start, "end", text, array_to_string(words, ' '),
                (SELECT sum(weight) FROM unnest(%s::text[], %s::float8[]) AS wanted (word, weight)
                    WHERE word = ANY(words)) * 2.2 / (1.3 + 0.9 * cardinality(words) / {USUAL_LINE}) AS relevance
            FROM lines WHERE words && %s::text[] AND {condition} ORDER BY relevance DESC LIMIT %s"""
        values = (list(weights), list(weights.values()), list(weights), *names, limit)
        return [FoundLine(*row) for row in self._database.stream(query, *values)]


class VectorDumper(Dumper):
    """Writes an array as pgvector's `vector` is sent: the number of dimensions, two bytes of zero, and its floats."""

    format = Format.BINARY

    def dump(self, obj: np.ndarray) -> bytes:
        return struct.pack(">HH", len(obj), 0) + obj.astype(">f4").tobytes()


class VectorLoader(Loader):
    """Reads it back."""

    format = Format.BINARY

    def load(self, data: Any) -> np.ndarray:
        return np.frombuffer(bytes(data), ">f4", offset=4).astype(np.float32)


def _register_vectors(connection: Connection, oid: int) -> None:
    dumper = type("VectorDumperHere", (VectorDumper,), {"oid": oid})  # its number differs between databases
    connection.adapters.register_dumper(np.ndarray, dumper)
    connection.adapters.register_loader(oid, VectorLoader)


def _close(connections: deque[Connection]) -> None:
    for connection in connections:
        connection.close()


def _first(connection: Connection, query: str, *values: Any) -> Any:
    """The first value of the first row, or None."""
    row = connection.execute(query.encode(), values).fetchone()
    return row and row[0]


def _tables(database: Database) -> dict[str, set[str]]:
    """The tables and views in the schema of an index, and their columns."""
    found: dict[str, set[str]] = {}
    for table, column in database.stream(
        "SELECT table_name::text, column_name::text FROM information_schema.columns WHERE table_schema = %s",
        database.schema,
    ):
        found.setdefault(table, set()).add(column)
    return found


def _require_pgvector(database: Database) -> None:
    """Raise SearchError if pgvector is missing and cannot be added, or too old."""
    with _sentences(database.place, UNWRITABLE), database.lent() as connection:
        try:
            connection.execute("CREATE EXTENSION IF NOT EXISTS vector")
        except errors.InsufficientPrivilege as error:
            cause = "ask the owner of the database to run CREATE EXTENSION vector in it"
            raise SearchError(f"the database at {database.place} has no pgvector: {cause}") from error
        except (errors.FeatureNotSupported, errors.UndefinedFile) as error:
            cause = "install it there (its package is called postgresql-NN-pgvector)"
            raise SearchError(f"the server of {database.place} has no pgvector: {cause}") from error
        version = _first(connection, "SELECT extversion FROM pg_extension WHERE extname = 'vector'")
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        cause = "update it there, and run ALTER EXTENSION vector UPDATE"
        raise SearchError(f"the database at {database.place} has pgvector {version}, which is too old: {cause}")


def _make_tables(connection: Connection, dim: int) -> None:
    for table, columns in COLUMNS.items():
        kinds = {name: f"vector({dim})" if kind == "vector" else kind for name, kind in columns.items()}
        stated = ", ".join(f'"{name}" {kind} NOT NULL' for name, kind in kinds.items())
        connection.execute(f"CREATE TABLE {table} ({stated})".encode())
    for command in INDEXES:
        connection.execute(command.encode())


def _insert(connection: Connection, table: str, rows: Iterable[Sequence[Any]], more: str = "") -> None:
    """Insert rows. PostgreSQL's texts hold everything but NUL."""
    rows = [tuple(each.replace("\0", "") if isinstance(each, str) else each for each in row) for row in rows]
    if rows:
        places = ", ".join(["%s"] * len(rows[0]))
        with connection.cursor() as cursor:
            cursor.executemany(f"INSERT INTO {table} VALUES ({places}) {more}".encode(), rows)


def _delete_sources(connection: Connection, keys: Iterable[tuple[str, str]]) -> None:
    owners, origins = [list(part) for part in zip(*keys, strict=True)] or [[], []]
    connection.execute(
        "DELETE FROM subtitles WHERE (owner, origin) IN (SELECT * FROM unnest(%s::text[], %s::text[]))",
        [owners, origins],
    )


def _search_on(connection: Connection, candidates: int) -> None:
    """In this transaction, search the approximate index until enough rows meet the conditions."""
    for name, value in {
        "hnsw.ef_search": candidates,
        "hnsw.iterative_scan": "relaxed_order",
        "hnsw.max_scan_tuples": 2**31 - 1,
        "enable_seqscan": "off",  # the planner does not count that long vectors lie in a table of their own
    }.items():
        connection.execute("SELECT set_config(%s, %s, true)", [name, str(value)])


def _cosines(rows: Iterable[Row]) -> list[tuple[str, float]]:
    return [(video, 1 - distance) for video, distance in rows]


def _condition(filters: Filters) -> tuple[str, list[Any]]:
    """The files without error that meet the rules of the filters."""
    parts, values = ["error = ''"], []
    for rule in filters.rules():
        starts = rule.operator == "starts with"
        parts.append(f"starts_with({rule.column}, %s)" if starts else f"{rule.column} {rule.operator} %s")
        values.append(rule.value)
    return " AND ".join(parts), values


def _why_refused(place: str, error: psycopg.Error) -> str:
    """Why there is no connection, and what to do."""
    if isinstance(error, psycopg.ProgrammingError):
        return (
            f"cannot read the address {place}: write postgresql://USER@HOST:PORT/DATABASE?schema=NAME, and other "
            "characters than letters and digits as %XX"
        )
    cause = " ".join(str(error).rpartition(" failed: ")[2].split()).removeprefix("FATAL: ").rstrip(".?")
    remedies: Mapping[str, str] = {
        "does not exist": "check the names of the user and of the database",
        "password": "check the user's name, and set PGPASSWORD or write the password to ~/.pgpass",
        "pg_hba.conf": "the server admits no such connection; ask its owner",
    }
    remedy = next((words for sign, words in remedies.items() if sign in cause), "check the address, and that it runs")
    return f"there is no connection to PostgreSQL at {place} ({cause[:200]}): {remedy}"


@contextmanager
def _sentences(place: str, cause: str) -> Iterator[None]:
    """Turn errors of the server into one sentence. Earlier commits are kept in any case."""
    try:
        yield
    except AllocEmbedError:
        raise
    except psycopg.Error as error:
        remedies: list[tuple[type[Exception], str]] = [
            (errors.InsufficientPrivilege, "ask the owner of the schema for this permission"),
            (errors.ReadOnlySqlTransaction, "the server only reads; give the address of one that writes"),
            (errors.DiskFull, "its disk is full: make room and run the same command again"),
            (errors.UndefinedTable, "it is damaged: make a new index"),
            (errors.UndefinedColumn, "it is damaged: make a new index"),
            (psycopg.OperationalError, "look at the server, and run the same command again"),
        ]
        remedy = next((words for kind, words in remedies if isinstance(error, kind)), "look at the log of the server")
        message = " ".join((error.diag.message_primary or str(error)).split())
        raise SearchError(f"{cause}, {place} ({message[:200]}): {remedy}; what was indexed before is kept") from error
