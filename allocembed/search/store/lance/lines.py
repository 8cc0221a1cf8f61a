"""The two tables of what was said: `lines` with a full-text index, and `subtitles`, which says where lines come from.

A source of lines is a subtitle file beside a video, the streams inside it, or its transcript. Its id is a digest of the
video and of its content. The lines of a source are committed together, and its row in `subtitles` after them. So a
kill at any moment leaves at worst lines without a row; the next run recognises them by their id and only adds the row.
Both tables are optional: they are made when they are first needed.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, fields
from datetime import timedelta
from typing import Any

from allocembed.search.said.subtitles import Line
from allocembed.search.said.words import LONGEST_WORD, words
from allocembed.search.store.base import FoundLine, LineStore, TextSource
from allocembed.search.store.lance.storage import (
    EVERYTHING,
    LOOKUP_UP_TO,
    UNREADABLE,
    conditions,
    connect,
    has_table,
    import_lancedb,
    one_of,
    storage_errors,
)

LONGEST_TOKEN = 4 * LONGEST_WORD + 1  # bytes of UTF-8: LanceDB leaves out words that are not shorter


class LanceLines(LineStore):
    """The tables of what was said of one index. Nothing is opened before it is needed."""

    def __init__(self, uri: str, writing: Callable[[], AbstractContextManager[None]]) -> None:
        """`writing` is put around each write: it asks for the lease of the index, and names errors of the storage."""
        self.uri, self.writing = uri, writing
        self._opened: dict[str, Any] = {}

    def _table(self, name: str) -> Any:
        """The table, or None if it does not exist. Another process may make it at any time."""
        if name not in self._opened and has_table(self.uri, name):
            with storage_errors(self.uri, UNREADABLE):
                database = connect(self.uri, read_consistency_interval=timedelta(0))
                self._opened[name] = database.open_table(name)
        return self._opened.get(name)

    def _made(self, name: str) -> Any:
        """The table, made if it does not exist. The caller holds the lock of the index."""
        if self._table(name) is None:
            _, pyarrow = import_lancedb()
            with self.writing():
                database = connect(self.uri)
                database.drop_table(name, ignore_missing=True)  # what a kill has left of one
                database.create_table(name, schema=_schemas(pyarrow)[name], mode="create")
        table = self._table(name)
        if name == "lines":
            with self.writing():
                self._index_words(table)
        return table

    @staticmethod
    def _index_words(table: Any) -> None:
        """Make the full-text index, also after a kill between the table and the index."""
        from lancedb.index import FTS

        if not table.list_indices():
            # Words are written alike before, so they are only split at spaces.
            config = FTS(
                base_tokenizer="whitespace",
                max_token_length=LONGEST_TOKEN,
                stem=False,
                remove_stop_words=False,
                ascii_folding=False,
                lower_case=False,
            )
            table.create_index("words", config=config)

    def sources(self) -> list[TextSource]:
        table = self._table("subtitles")
        columns = [item.name for item in fields(TextSource)]
        return [] if table is None else [TextSource(**row) for row in self._rows(table, None, columns)]

    def ids(self) -> set[str]:
        return self._first_rows("source")

    def videos(self) -> set[str]:
        return self._first_rows("video")

    def _first_rows(self, column: str) -> set[str]:
        table = self._table("lines")
        return set() if table is None else {row[column] for row in self._rows(table, "number = 0", [column])}

    def lines_of(self, video: str) -> list[Line]:
        table = self._table("lines")
        if table is None:
            return []
        rows = self._rows(table, one_of("video", [video]), ["start", "end", "text"])
        return sorted((Line(**row) for row in rows), key=lambda line: (line.start, line.end))

    def counts(self) -> dict[str, int]:
        table = self._table("lines")
        found: dict[str, int] = {}
        for row in [] if table is None else self._rows(table, None, ["source"]):
            found[row["source"]] = found.get(row["source"], 0) + 1
        return found

    def count(self) -> int:
        table = self._table("lines")
        if table is None:
            return 0
        with storage_errors(self.uri, UNREADABLE):
            return table.count_rows()

    def find(self, wanted: Sequence[str], limit: int, among: Collection[str] | None = None) -> list[FoundLine]:
        table = self._table("lines")
        if table is None or not wanted:
            return []
        from lancedb import query as queries

        match: Any = queries.MatchQuery  # a dataclass whose defaults type checkers do not see
        with storage_errors(self.uri, UNREADABLE):
            query = table.search(match(" ".join(wanted), "words"), query_type="fts").limit(limit)
            if among is not None:
                query = query.where(one_of("video", among), prefilter=True)
            columns = ["video", "start", "end", "text", "words", "_score"]
            rows = query.select(columns).to_list()
        return [FoundLine(*(row[column] for column in columns)) for row in rows]

    def _rows(self, table: Any, condition: str | None, columns: list[str]) -> list[dict[str, Any]]:
        with storage_errors(self.uri, UNREADABLE):
            query = table.search().select(columns).limit(EVERYTHING)
            return (query.where(condition) if condition else query).to_list()

    def add(self, read: Sequence[tuple[TextSource, Sequence[Line]]], known: Collection[str]) -> None:
        new = {source.source: (source, lines) for source, lines in read if lines and source.source not in known}
        rows = [row for source, lines in new.values() for row in _line_rows(source, lines)]
        if rows:
            table = self._made("lines")
            with self.writing():
                table.add(rows)
        table = self._made("subtitles")
        with self.writing():
            merge = table.merge_insert("key")
            rows = [{"key": "\n".join(source.key), **asdict(source)} for source, _ in read]
            merge.when_matched_update_all().when_not_matched_insert_all().execute(rows)

    def drop_sources(self, keys: Iterable[tuple[str, str]]) -> None:
        if (table := self._table("subtitles")) is not None:
            for condition in conditions("key", map("\n".join, keys)):
                with self.writing():
                    table.delete(condition)

    def drop_lines(self, ids: Iterable[str]) -> None:
        if (table := self._table("lines")) is not None:
            for condition in conditions("source", ids):
                with self.writing():
                    table.delete(condition)

    def tidy(self) -> None:
        from lancedb.index import BTree

        lines, subtitles = self._table("lines"), self._table("subtitles")
        if lines is not None:
            with self.writing():
                built = {column for index in lines.list_indices() for column in index.columns}
                if lines.count_rows() > LOOKUP_UP_TO and "video" not in built:
                    lines.create_index("video", config=BTree())
        for table in (lines, subtitles):
            if table is not None:
                with self.writing():
                    table.optimize(cleanup_older_than=timedelta(hours=1))


def _line_rows(source: TextSource, lines: Sequence[Line]) -> list[dict[str, Any]]:
    about = {"source": source.source, "video": source.video}
    return [
        {**about, "number": number, **vars(line), "words": " ".join(words(line.text))}
        for number, line in enumerate(lines)
    ]


def _schemas(pyarrow: Any) -> dict[str, Any]:
    text, whole, real = pyarrow.string(), pyarrow.int64(), pyarrow.float64()
    columns = {
        "lines": {
            "source": text,
            "video": text,
            "number": whole,
            "start": real,
            "end": real,
            "text": text,
            "words": text,
        },
        "subtitles": {
            "key": text,
            "owner": text,
            "origin": text,
            "video": text,
            "source": text,
            "lines": whole,
            "size": whole,
            "changed": whole,
        },
    }
    return {name: pyarrow.schema(list(table.items())) for name, table in columns.items()}
