"""Files that are whole or not there: written beside their place under a name of their own, then moved."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or the user's share of it


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A scratch path beside `path`, which takes its place when the block ends well and is removed when it doesn't.

    Several runs may write the same file at a time: each has its own scratch, and the last to finish wins.
    """
    with _naming(path):
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
        os.close(handle)
        scratch = Path(name)
        try:
            yield scratch
            # Scratch files are private; the finished one gets the permissions of any other new file.
            umask = os.umask(0)
            os.umask(umask)
            scratch.chmod(0o666 & ~umask)
            scratch.replace(path.resolve())
        finally:
            scratch.unlink(missing_ok=True)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Says which file a full disk has no room for: the system's own message doesn't."""
    try:
        yield
    except Exception as error:
        if (full := _full_disk(error)) is None:
            raise
        raise OSError(_cannot_write(path, full)) from error


def _full_disk(error: BaseException | None) -> OSError | None:
    """The full disk that an error comes from, if it does: torch raises an error of its own on top of the system's."""
    while error is not None and not (isinstance(error, OSError) and error.errno in FULL):
        error = error.__context__
    return error


def _cannot_write(path: Path, error: OSError) -> str:
    remedy = "make room there, or choose another place" if error.errno in FULL else "choose another place"
    return f"cannot write {path}: {error.strerror}; {remedy}"


def make_room(path: Path) -> Path:
    """Makes the folder of a file to be written; a ValueError says why where it can't be, before any work is done."""
    if path.is_dir():
        raise ValueError(f"cannot write {path}: it is a folder; give a file name")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".partial", dir=path.parent)
    except OSError as error:
        raise ValueError(_cannot_write(path, error)) from error
    os.close(handle)
    Path(name).unlink()
    return path
