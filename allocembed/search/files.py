"""Find videos in folders, and recognise files by their content."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from errno import EINVAL
from pathlib import Path
from stat import S_ISREG
from typing import Self

from allocembed.errors import SearchError
from allocembed.video.clip import is_video

BLOCK = 65_536
BLOCKS = 64  # 4 MB of a file are read, so that a terabyte of renamed videos is recognised in minutes
DANGLING = "a link to a file that does not exist; restore the file, or remove the link"
NOT_REGULAR = "not a regular file; only files can be indexed"
NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # Windows has neither this nor FIFOs
NOT_UTF8 = "its name is not valid UTF-8; rename it"


@dataclass(frozen=True)
class FileEntry:
    """A file on disk and what the index knows about it."""

    path: str
    """Absolute."""
    video: str = ""
    """Fingerprint of the content, if the file could be read."""
    size: int = 0
    changed: int = 0
    """Time of the last change in nanoseconds."""
    duration: float = 0.0
    width: int = 0
    height: int = 0
    error: str = ""
    """Why the file has no vectors; empty if it has."""

    def same_file(self, other: Self) -> bool:
        """Whether size and time of change are equal."""
        return (self.size, self.changed) == (other.size, other.changed)


def find_videos(sources: Iterable[str | Path]) -> tuple[list[FileEntry], dict[str, str]]:
    """List the given files and, in order, all files in the given folders with a video suffix.

    Hidden files and folders are skipped. Links to files are followed, links to folders are not, because they may form
    cycles. Entries that can never be opened have an `error`. The second result maps paths that cannot be looked at to
    the reason.
    """
    found: dict[str, FileEntry] = {}
    unread: dict[str, str] = {}

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # else it was deleted meanwhile
            unread[str(Path(error.filename).absolute())] = cannot_read(error)

    for source in map(Path, sources):
        if not source.exists():
            raise SearchError(f"{source}: no such file or folder; check the path")
        for path in _walk(source, refuse) if source.is_dir() else [source]:
            absolute = str(path.absolute())
            try:
                absolute.encode()
                status = path.stat()
            except UnicodeEncodeError:
                unread[os.fsencode(absolute).decode(errors="replace")] = NOT_UTF8
            except PermissionError as error:
                refuse(error)  # its folder can be listed, but not entered
            except OSError:
                if path.is_symlink():  # else it was deleted meanwhile
                    found[absolute] = FileEntry(absolute, error=DANGLING)
            else:
                cause = "" if S_ISREG(status.st_mode) else NOT_REGULAR
                found[absolute] = FileEntry(absolute, size=status.st_size, changed=status.st_mtime_ns, error=cause)
    return list(found.values()), unread


def _walk(folder: Path, refuse: Callable[[OSError], None]) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if is_video(name) and not name.startswith("."):
                yield Path(parent, name)


def cannot_read(error: OSError) -> str:
    """Why a file or folder is left out, and what to do."""
    return f"cannot be read ({error.strerror}); check its permissions"


def identity(path: str | Path) -> tuple[int, ...]:
    """Numbers that change when a path gets another file or its file is written; also when it is moved and back.

    Only regular files have them: opening a FIFO or a device may wait for ever.
    """
    return _identity(Path(path).stat())


def _identity(status: os.stat_result) -> tuple[int, ...]:
    if not S_ISREG(status.st_mode):
        raise OSError(EINVAL, "it is not a regular file")
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_there(path: str | Path) -> bool:
    """Whether a file exists and its folder can be entered."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def fingerprint(path: str | Path) -> str:
    """32 hex digits that identify the content: the size and up to 64 blocks, spread evenly, both ends included.

    A file of up to 4 MB is read whole. In a larger one, an edit that keeps the exact size and touches none of the
    blocks is not noticed; re-encoding or re-muxing a video always changes its header or its end.
    """
    digest = hashlib.blake2b(digest_size=16)
    # A file may have become a FIFO since it was found. Opening one does not wait with O_NONBLOCK.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        _identity(status)
        size = status.st_size
        digest.update(size.to_bytes(8, "big"))
        for offset in block_offsets(size):
            file.seek(offset)
            digest.update(file.read(BLOCK))
    return digest.hexdigest()


def block_offsets(size: int) -> list[int]:
    """Where the blocks of a file begin.

    >>> block_offsets(100), block_offsets(BLOCK + 1), len(block_offsets(10**12)), block_offsets(10**12)[-1]
    ([0], [0, 65536], 64, 999999934464)
    """
    if size <= BLOCK * BLOCKS:
        return list(range(0, max(size, 1), BLOCK))
    return [number * (size - BLOCK) // (BLOCKS - 1) for number in range(BLOCKS)]
