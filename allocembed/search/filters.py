"""Filters: which videos a search may return, by folder, date, length, resolution and speech.

A filter is a field with its rules, declared once: the column of a file, an operator, and what the value is called. The
backends, the command line, the server and the tools for agents read them from here.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from allocembed.errors import SearchError
from allocembed.paths import absolute
from allocembed.remote.objects import is_remote

LARGEST_NUMBER = 10**9  # seconds or pixels: more than any video has
LATEST = 2**63 // 10**9  # seconds from 1970, before or after it, that an index can hold in nanoseconds
FOLDER, DATE = "FOLDER", "DATE"  # kinds of values that are not compared as they are given
Operator = Literal["starts with", "<", "<=", ">="]


@dataclass(frozen=True)
class Rule:
    """A condition on one column of a file. Backends translate it; all rules of a search must be met."""

    column: str
    """A field of `FileEntry`."""
    operator: Operator
    value: str | int | float


def _compared(columns: str, operator: Operator, metavar: str) -> Mapping[str, Any]:
    """The declaration of a filter. Its value is compared with each of the columns, separated by spaces."""
    return {"columns": columns.split(), "operator": operator, "metavar": metavar}


@dataclass(frozen=True)
class Filters:
    """Conditions on the files of an index. A video must have one file that meets all of them.

    >>> Filters(folder="/videos", after="2026-01-01").is_empty, Filters().is_empty
    (False, True)
    """

    folder: str | Path | None = field(default=None, metadata=_compared("path", "starts with", FOLDER))
    """Only files in this folder, or below it."""
    after: str | None = field(default=None, metadata=_compared("changed", ">=", DATE))
    """Only files changed on this day or later, as in 2026-01-31 or 2026-01-31T18:00."""
    before: str | None = field(default=None, metadata=_compared("changed", "<", DATE))
    """Only files changed before this day or time."""
    shortest: float | None = field(default=None, metadata=_compared("duration", ">=", "SECONDS"))
    """Only videos of at least this length."""
    longest: float | None = field(default=None, metadata=_compared("duration", "<=", "SECONDS"))
    """Only videos of at most this length."""
    least_height: int | None = field(default=None, metadata=_compared("width height", ">=", "PIXELS"))
    """Only videos whose shorter side has at least this many pixels, as in 720p."""
    speech: bool | None = field(default=None, metadata=_compared("", ">=", ""))
    """Only videos with subtitles or a transcript; False: only those without."""

    def __post_init__(self) -> None:
        for item, value in self._given():
            if item.metadata["metavar"] == DATE:
                moment(value, item.name)
            elif isinstance(value, int | float) and not 0 <= value <= LARGEST_NUMBER:
                raise SearchError(f"cannot filter by {item.name} {value}: give a number from 0 to {LARGEST_NUMBER:,}")

    @property
    def is_empty(self) -> bool:
        """Whether all videos meet them."""
        return self == Filters()

    def rules(self) -> list[Rule]:
        """The conditions on a file; speech is no property of a file.

        >>> Filters(longest=60, least_height=720).rules()[1]
        Rule(column='width', operator='>=', value=720)
        """
        return [
            Rule(column, item.metadata["operator"], _comparable(item.metadata["metavar"], value))
            for item, value in self._given()
            for column in item.metadata["columns"]
        ]

    def _given(self) -> Iterator[tuple[Field[Any], Any]]:
        values = ((item, getattr(self, item.name)) for item in fields(self))
        return ((item, value) for item, value in values if value is not None)


def _comparable(metavar: str, value: Any) -> str | int | float:
    """A value as the index holds it: the start of a path, or nanoseconds."""
    if metavar == FOLDER:
        folder = value if is_remote(value) else absolute(value)
        return str(folder).rstrip(os.sep) + os.sep
    return moment(value) if metavar == DATE else value


def moment(text: str, name: str = "date") -> int:
    """A day or a time of day, in this machine's time zone unless it names one, in nanoseconds since 1970.

    >>> moment("2026-01-31T18:00+00:00")
    1769882400000000000
    >>> moment("yesterday", "after")
    Traceback (most recent call last):
        ...
    allocembed.errors.SearchError: cannot filter by after 'yesterday': give a date such as 2026-01-31
    """
    try:
        seconds = int(datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise SearchError(f"cannot filter by {name} {text!r}: give a date such as 2026-01-31") from error
    if abs(seconds) >= LATEST:
        raise SearchError(f"cannot filter by {name} {text!r}: give a date from 1678 to 2261")
    return seconds * 10**9
