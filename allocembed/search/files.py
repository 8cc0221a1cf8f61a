"""Finds videos in folders and tells by their content whether two files are the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from allocembed.search.errors import SearchError
from allocembed.video import is_video

BLOCK = 65_536
BLOCKS = 64  # 4 MB of a file are looked at, so that a terabyte of renamed videos is recognised in minutes


@dataclass(frozen=True)
class Found:
    """A file on disk: its absolute path, size and time of change."""

    path: str
    size: int
    changed: int
    """Nanoseconds, as the file system has them."""
    dangling: bool = False
    """Whether it is a link to a file that is not there."""


def find_videos(sources: Iterable[str | Path]) -> tuple[list[Found], dict[str, str]]:
    """All videos in folders, by their suffix and in order, and the files that were named themselves.

    Hidden files and folders are passed over. A link is followed to a file but not to a folder, so that none is walked
    in circles; one that leads nowhere is found as such. The second result is what can't be looked into, and why.
    """
    found: dict[str, Found] = {}
    unread: dict[str, str] = {}

    def refused(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # else it went as we looked
            unread[str(Path(error.filename).absolute())] = cannot_read(error)

    for source in map(Path, sources):
        if not source.exists():
            raise SearchError(f"{source}: no such file or folder; check the path")
        for path in _walk(source, refused) if source.is_dir() else [source]:
            absolute = str(path.absolute())
            try:
                absolute.encode()
                status = path.stat()
            except UnicodeEncodeError:
                continue  # a name that is no text
            except PermissionError as error:
                refused(error)  # its folder may be listed, but not entered
                continue
            except OSError:
                if path.is_symlink():  # else it went as we looked
                    found[absolute] = Found(absolute, 0, 0, dangling=True)
                continue
            found[absolute] = Found(absolute, status.st_size, status.st_mtime_ns)
    return list(found.values()), unread


def _walk(folder: Path, refused: Callable[[OSError], None]) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder, onerror=refused):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            if is_video(name) and not name.startswith("."):
                yield Path(parent, name)


def cannot_read(error: OSError) -> str:
    """Why a file or folder is left out, and what to do."""
    return f"cannot be read ({error.strerror}); check its permissions"


def is_there(path: str | Path) -> bool:
    """Whether a file can be reached: not where it is gone, nor in a folder that may not be entered."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def fingerprint(path: str | Path) -> str:
    """32 hex digits that say what is in a file: its size and up to 64 blocks of it, spread evenly, ends included.

    A file of up to 4 MB is read whole. In a longer one, an edit that keeps the size to the byte and touches none of
    the blocks would pass unnoticed; what re-encodes or re-muxes a video changes its header or its tail.
    """
    digest = hashlib.blake2b(digest_size=16)
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
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
