"""Filters: which videos a search may return, by folder, date, length, resolution and speech."""

import os
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from allocembed.errors import SearchError
from allocembed.paths import absolute
from allocembed.remote.objects import is_remote
from allocembed.search.storage import quoted

MOST = 10**9  # seconds or pixels: more than any video has
LATEST = 2**63 // 10**9  # seconds from 1970, before or after it, that an index can hold in nanoseconds


@dataclass(frozen=True)
class Filters:
    """Conditions on the files of an index. A video must have one file that meets all of them.

    >>> Filters(folder="/videos", after="2026-01-01").is_empty, Filters().is_empty
    (False, True)
    """

    folder: str | Path | None = None
    """Only files in this folder, or in folders below it."""
    after: str | None = None
    """Only files that were changed on this day or later: 2026-01-31, or 2026-01-31T18:00."""
    before: str | None = None
    """Only files that were changed before this day or time."""
    shortest: float | None = None
    longest: float | None = None
    """Seconds."""
    least_height: int | None = None
    """Pixels of the shorter side, as in 720p: the height of a wide video, the width of a tall one."""
    speech: bool | None = None
    """Only videos with subtitles or a transcript; False: only those without."""

    def __post_init__(self) -> None:
        for name in ("after", "before"):
            moment(getattr(self, name), name)
        for name in ("shortest", "longest", "least_height"):
            value = getattr(self, name)
            if value is not None and not (0 <= value <= MOST):
                raise SearchError(f"cannot filter by {name} {value}: give a number from 0 to {MOST:,}")

    @property
    def is_empty(self) -> bool:
        """Whether all videos meet them."""
        return self == Filters()


def moment(text: str | None, name: str = "date") -> int | None:
    """A day or a time of day, in this machine's time zone unless it names one, in nanoseconds since 1970.

    >>> moment("2026-01-31T18:00+00:00"), moment(None)
    (1769882400000000000, None)
    >>> moment("yesterday", "after")
    Traceback (most recent call last):
        ...
    allocembed.errors.SearchError: cannot filter by after 'yesterday': give a date such as 2026-01-31
    """
    if text is None:
        return None
    try:
        seconds = int(datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise SearchError(f"cannot filter by {name} {text!r}: give a date such as 2026-01-31") from error
    if abs(seconds) >= LATEST:
        raise SearchError(f"cannot filter by {name} {text!r}: give a date from 1678 to 2261")
    return seconds * 10**9


def file_condition(filters: Filters) -> str:
    """What the filters mean for a file, in SQL; speech is no property of a file.

    >>> file_condition(Filters(folder="/it's", shortest=60, least_height=720))
    "error = '' and starts_with(path, '/it''s/') and duration >= 60 and width >= 720 and height >= 720"
    """
    parts = ["error = ''"]
    if filters.folder is not None:
        folder = filters.folder if is_remote(filters.folder) else absolute(filters.folder)
        parts.append(f"starts_with(path, {quoted(str(folder).rstrip(os.sep) + os.sep)})")
    after, before = moment(filters.after), moment(filters.before)
    height = filters.least_height
    for condition, value in (
        ("changed >= {}", after),
        ("changed < {}", before),
        ("duration >= {}", filters.shortest),
        ("duration <= {}", filters.longest),
        ("width >= {}", height),
        ("height >= {}", height),
    ):
        parts += [] if value is None else [condition.format(value)]
    return " and ".join(parts)
