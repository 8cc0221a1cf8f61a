"""Write files whole: a result appears at its path only when it is complete."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from allocembed.errors import AllocEmbedError, OutputError

FULL = (errno.ENOSPC, errno.EDQUOT)  # the disk, or the user's quota
NAME_BYTES = 60  # bytes of a file's name in that of its scratch file
DISK = (*FULL, errno.EIO, errno.EROFS, errno.EFBIG)  # causes that are the disk's, whatever was being written


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Give a scratch path beside `path`; it replaces `path` when the block succeeds and is removed when it fails.

    Missing folders are made first, and removed again on failure. Several runs may write the same file: each has its own
    scratch file, and the last to finish wins.
    """
    made: list[Path] = []
    scratch: Path | None = None
    try:
        with _refusals(path):
            if path.exists() and not (path.is_file() or path.is_dir()):
                raise OSError(errno.EINVAL, "it is not a regular file")
            made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch = _scratch(path.parent, path.name)
        yield scratch
        # Scratch files are private; the finished one gets the permissions of any other new file.
        umask = os.umask(0)
        os.umask(umask)
        scratch.chmod(0o666 & ~umask)
        with _refusals(path):
            _sync(scratch)  # else a power cut could leave the name without the content
            scratch.replace(path.resolve())
            _sync(path.resolve().parent)
        made.clear()
    except Exception as error:
        if (cause := _disk_error(error)) is None or isinstance(error, AllocEmbedError):
            raise
        raise OutputError(_cannot_write(path, cause)) from error
    finally:
        if scratch is not None:
            scratch.unlink(missing_ok=True)
        with suppress(OSError):  # another run has put a file there
            for folder in made:
                folder.rmdir()


def write_text(path: Path, text: str) -> None:
    """Write a text file whole. Characters that are not valid Unicode are replaced."""
    with whole_file(path) as scratch:
        scratch.write_text(text, encoding="utf-8", errors="replace")


def make_room(path: Path) -> Path:
    """Check that a file can be written at `path`, before any work is done; nothing is left on the disk.

    The test file goes into the nearest folder that exists, since `whole_file` makes the missing ones.
    """
    with _refusals(path):
        if path.is_dir():
            raise OutputError(f"cannot write {path}: it is a folder; give a file name")
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        _scratch(folder, path.name).unlink()
    return path


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open folders
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _scratch(folder: Path, name: str) -> Path:
    # A name may be as long as the system allows, and this one must be longer.
    start = os.fsencode(name)[:NAME_BYTES].decode(errors="ignore")
    handle, scratch = tempfile.mkstemp(prefix=f".{start}.", suffix=".partial", dir=folder)
    os.close(handle)
    return Path(scratch)


@contextmanager
def _refusals(path: Path) -> Iterator[None]:
    """Turn errors of the system into OutputError."""
    try:
        yield
    except OSError as error:
        raise OutputError(_cannot_write(path, error)) from error


def _disk_error(error: BaseException | None) -> OSError | None:
    """The full or failing disk behind an error, if any: torch raises an error of its own on top of the system's."""
    while error is not None and not (isinstance(error, OSError) and error.errno in DISK):
        error = error.__context__
    return error


def _cannot_write(path: Path, error: OSError) -> str:
    remedy = "make room there, or choose another place" if error.errno in FULL else "choose another place"
    return f"cannot write {path}: {error.strerror}; {remedy}"
