"""The place of an index in LanceDB: a folder or an address of object storage, its lock, errors, and SQL conditions."""

import gc
import os
import random
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from allocembed.errors import AllocEmbedError, MissingDependency, SearchError
from allocembed.paths import why_absent
from allocembed.remote.objects import (
    StorageFailure,
    environment_options,
    explain,
    has_objects,
    is_remote,
    list_objects,
    split,
)
from allocembed.search.filters import Filters, Rule
from allocembed.search.places import without_folders
from allocembed.search.store.base import IndexBusy, IndexStore
from allocembed.search.store.lance.lease import LEASE, Lease, LeaseHeld

LOCK = "indexing.lock"
APPENDS = 20  # attempts to append, of half a minute each
TABLES = ("vectors", "files", "about")
SPOKEN = ("lines", "subtitles")  # tables of what was said; an index without it, or of an older version, has none
NAMES_AT_ONCE = 500  # values in one condition
EVERYTHING = 2**31 - 1
LOOKUP_UP_TO = 20_000  # rows; in a larger table, those of a video are found by an index on that column
UNREADABLE, UNWRITABLE = "the index cannot be read", "the index cannot be written"


def import_lancedb() -> tuple[Any, Any]:
    """The modules lancedb and pyarrow. They cost about a second of CPU, so only what reads or writes tables asks."""
    os.environ.setdefault("LANCEDB_LOG", "error")  # else it warns of each table that does not exist yet
    collects = gc.isenabled()
    gc.disable()  # all that an import makes stays; to look through it takes a fourth of the time
    try:
        import lancedb
        import pyarrow
    except ImportError as error:
        raise MissingDependency("an index", "LanceDB", "search") from error
    finally:
        if collects:
            gc.enable()
    return lancedb, pyarrow


def exists(uri: str) -> bool:
    """Whether there is a complete index. In a folder, this needs no LanceDB."""
    return has_table(uri, "about")


def has_table(uri: str, name: str) -> bool:
    """Whether there is a table whose making was completed."""
    if not is_remote(uri):
        versions = Path(uri) / f"{name}.lance" / "_versions"
        try:
            return versions.is_dir() and any(versions.glob("*.manifest"))
        except PermissionError as error:
            raise SearchError(f"{UNREADABLE}, {uri}: {error.strerror}; check its permissions") from error
        except (OSError, ValueError):  # a name that cannot be
            return False
    with storage_errors(uri, UNREADABLE):
        return has_objects(f"{uri}/{name}.lance/_versions")


def connect(uri: str, **options: Any) -> Any:
    """LanceDB's connection to an index."""
    lancedb, _ = import_lancedb()
    if is_remote(uri):
        options["storage_options"] = environment_options(uri) or None
    return lancedb.connect(uri, **options)


def check_free(uri: str) -> None:
    """Raise SearchError if an index cannot be made here, because there is one, or something else."""
    if exists(uri):
        raise SearchError(f"there is already an index at {uri}: open it, or choose another place")
    if has_table(uri, "vectors") and has_table(uri, "files") and _holds_vectors(uri):
        raise SearchError(
            f"the index at {uri} is damaged: it has vectors, but its table of settings is gone. Restore its folder "
            "about.lance from a copy, or choose another place with --to"
        )
    if not _is_free(uri):
        raise SearchError(f"{uri} is not an index and not empty: choose another place with --to")


def _holds_vectors(uri: str) -> bool:
    """Whether there is anything in an incomplete index that is not made again in a moment."""
    try:
        return connect(uri).open_table("vectors").count_rows() > 0
    except Exception:  # LanceDB raises many kinds for a table that cannot be read
        return False


def _is_free(uri: str) -> bool:
    """Whether nothing exists here, or only parts of an index that was never completed."""
    ours = {LOCK, LEASE, *(f"{name}.lance" for name in (*TABLES, *SPOKEN))}
    if is_remote(uri):
        with storage_errors(uri, UNREADABLE):
            names = (each.address.removeprefix(f"{uri}/").partition("/")[0] for each in list_objects(uri))
            return all(name in ours or name.startswith("indexing.probe-") for name in names)
    if why_absent(uri):
        return True  # or making it fails, with the reason
    with storage_errors(uri, UNREADABLE):
        return Path(uri).is_dir() and all(path.name in ours for path in Path(uri).iterdir())


def place_of(uri: str) -> str:
    """An address without a slash at its end, or a path as it is. Raise ConfigError for other schemes."""
    if not is_remote(uri):
        return uri
    if not split(uri)[2]:
        raise SearchError(f"cannot keep an index in the whole bucket {uri}: give it a name, as in {uri}/videos.index")
    return uri.rstrip("/")


@contextmanager
def locked(uri: str, *, made_folder: bool = False) -> Iterator[Lease | None]:
    """Hold the lock of an index, so that no other run writes to it. A killed process holds no lock.

    The folder is made if it does not exist. If it was made here, or by an earlier block (`made_folder`), it is removed
    at the end if it holds nothing but the lock. In object storage the lock is a lease, which is given to the block:
    another run may take it over if it cannot be renewed.
    """
    if is_remote(uri):
        lease = Lease(uri)
        with storage_errors(uri, UNWRITABLE):
            try:
                lease.acquire()
            except LeaseHeld as error:
                raise IndexBusy(str(error)) from error
        try:
            yield lease
        finally:
            lease.release()
        return
    from filelock import FileLock, Timeout

    path, deadline = Path(uri) / LOCK, time.monotonic() + IndexStore.patience
    made = [folder for folder in path.parents if not folder.exists()]
    if made_folder and not made:
        made = [path.parent]
    lock = FileLock(path, timeout=0)
    while not lock.is_locked:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except (Timeout, FileNotFoundError) as error:  # a run that made nothing removes the folder again
            if time.monotonic() > deadline:
                raise IndexBusy(f"another run is indexing into {uri}: wait until it is done") from error
            time.sleep(0.05)
        except OSError as error:
            cause = f"the index at {uri} cannot be written ({error.strerror})"
            raise SearchError(f"{cause}: check its permissions and the space on its disk") from error
    try:
        yield None
    finally:
        with suppress(OSError):
            if list(path.parent.iterdir()) == [path]:
                # A process that has opened this file meanwhile sees that it has no name any more, and opens it again.
                path.unlink()
                for folder in made:
                    folder.rmdir()
        lock.release()


def append(table: Any, rows: list[dict[str, Any]]) -> None:
    """Append rows to a table that others append to at the same time, as workers of Ray do.

    LanceDB gives up after half a minute of lost races. Then nothing was written, and it is tried again after a while.
    """
    for attempt in range(APPENDS):
        try:
            table.add(rows)
            return
        except Exception as error:
            if "concurrent writers" not in str(error) or attempt == APPENDS - 1:
                raise
            time.sleep(random.uniform(0, 2 ** min(attempt + 1, 5)))


def drop_tables(uri: str) -> None:
    """Drop what there is of an index; `about` first, so that a partly dropped index counts as absent."""
    with storage_errors(uri, UNWRITABLE):
        database = connect(uri)
        for name in (*reversed(TABLES), *SPOKEN):
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
        kept = "what was indexed before is kept"
        if isinstance(error, StorageFailure):
            raise SearchError(f"{cause}, {uri}: {error.strerror}; {kept}") from error
        if is_remote(uri):
            raise SearchError(f"{cause}, {uri}: {explain(uri, str(error))}; {kept}") from error
        message = without_folders(" ".join(str(error).split()), [uri])  # it is named already
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


def conditions(column: str, values: Iterable[str]) -> list[str]:
    """Conditions that together select the rows with these values.

    >>> conditions("path", ["it's.mp4", "b.mp4"]), conditions("path", [])
    (["path in ('it''s.mp4', 'b.mp4')"], [])
    """
    literals = [quoted(value) for value in values]
    parts = (literals[first : first + NAMES_AT_ONCE] for first in range(0, len(literals), NAMES_AT_ONCE))
    return [f"{column} in ({', '.join(part)})" for part in parts]


def one_of(column: str, values: Iterable[str]) -> str:
    """The condition that a column has one of these values, which is false if there are none.

    >>> one_of("video", ["a", "b"]), one_of("video", [])
    ("video in ('a', 'b')", 'false')
    """
    literals = ", ".join(map(quoted, values))
    return f"{column} in ({literals})" if literals else "false"


def file_condition(filters: Filters) -> str:
    """The files without error that meet the rules of the filters.

    >>> file_condition(Filters(folder="/it's", shortest=60, least_height=720))
    "error = '' and starts_with(path, '/it''s/') and duration >= 60 and width >= 720 and height >= 720"
    """
    return " and ".join(["error = ''", *map(_in_sql, filters.rules())])


def _in_sql(rule: Rule) -> str:
    value = quoted(rule.value) if isinstance(rule.value, str) else rule.value
    if rule.operator == "starts with":
        return f"starts_with({rule.column}, {value})"
    return f"{rule.column} {rule.operator} {value}"


def quoted(value: str) -> str:
    """A string in SQL."""
    return "'" + value.replace("'", "''") + "'"
