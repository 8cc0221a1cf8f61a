"""Find videos in folders and in object storage, and recognise files by their content."""

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from errno import EINVAL
from pathlib import Path
from stat import S_ISREG
from typing import Self

from allocembed.errors import VideoError
from allocembed.paths import absolute, why_absent
from allocembed.remote.objects import ObjectInfo, is_remote, list_objects, look
from allocembed.video.clip import is_video

BLOCK_BYTES = 65_536
BLOCKS = 64  # 4 MB of a file are read, so that a terabyte of renamed videos is recognised in minutes
DANGLING = "a link to a file that does not exist; restore the file, or remove the link"
NOT_REGULAR = "not a regular file; only files can be indexed"
NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # Windows has neither this nor FIFOs
LATEST_NANOSECONDS = 2**63 - 1
NOT_UTF8 = "its name is not valid UTF-8; rename it"


@dataclass(frozen=True)
class FileEntry:
    """A file on disk or in object storage, and what the index knows about it."""

    path: str
    """Absolute, or an address."""
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
    unread: dict[str, str] = {}
    found = {file.path: file for file in walk_videos(sources, unread)}
    return list(found.values()), unread


def walk_videos(sources: Iterable[str | Path], unread: dict[str, str]) -> Iterator[FileEntry]:
    """Yield files one at a time, so that memory does not grow with their number. A file may be yielded twice.

    Paths that cannot be looked at are added to `unread`. An object comes with its fingerprint, which lists give.
    """

    def refuse(error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):  # else it was deleted meanwhile
            unread[str(absolute(error.filename))] = cannot_read(error)

    for source in sources:
        if is_remote(source):
            yield from _objects(str(source), unread)
            continue
        source = Path(source)
        if source.is_symlink() and not source.exists():  # one of many names that a shell has filled in
            yield FileEntry(str(absolute(source)), error=DANGLING)
            continue
        if cause := why_absent(source):
            raise VideoError(str(source), cause)
        for path in _walk(source, refuse) if source.is_dir() else [source]:
            name = str(absolute(path))
            try:
                name.encode()
                status = path.stat()
            except UnicodeEncodeError:
                unread[os.fsencode(name).decode(errors="replace")] = NOT_UTF8
            except PermissionError as error:
                refuse(error)  # its folder can be listed, but not entered
            except OSError:
                if path.is_symlink():  # else it was deleted meanwhile
                    yield FileEntry(name, error=DANGLING)
            else:
                cause = "" if S_ISREG(status.st_mode) else NOT_REGULAR
                yield FileEntry(name, size=status.st_size, changed=changed_at(status), error=cause)


def _objects(source: str, unread: dict[str, str]) -> Iterator[FileEntry]:
    """The object with this address, or the videos below it."""
    refused: dict[str, str] = {}
    source, empty = source.rstrip("/"), True
    try:
        with suppress(FileNotFoundError):
            if is_video(source):
                yield _object_entry(look(source))
                return
        for info in list_objects(source, refused):
            empty = False
            names = info.address.removeprefix(source).strip("/").split("/")
            if is_video(info.address) and not any(name.startswith(".") for name in names):
                yield _object_entry(info)
    except OSError as error:
        raise VideoError(source, f"cannot be listed: {error.strerror or error}") from error
    unread |= {address: cause for address, cause in refused.items() if is_video(address)}
    if empty and not refused:
        raise VideoError(source, "there is nothing below this address; check it")


def _object_entry(info: ObjectInfo) -> FileEntry:
    return FileEntry(info.address, _object_fingerprint(info), info.size, info.changed)


def _object_fingerprint(info: ObjectInfo) -> str:
    """An object is what its ETag and size say: nothing of it is read."""
    return hashlib.blake2b(f"{info.tag} {info.size}".encode(), digest_size=16).hexdigest()


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

    Only regular files have them: opening a FIFO or a device may wait for ever. An object has its size, its date and
    its ETag.
    """
    if is_remote(path):
        info = look(str(path))
        return info.size, info.changed, int(_object_fingerprint(info), 16)
    return _identity(Path(path).stat())


def _identity(status: os.stat_result) -> tuple[int, ...]:
    if not S_ISREG(status.st_mode):
        raise OSError(EINVAL, "it is not a regular file")
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def changed_at(status: os.stat_result) -> int:
    """When a file was changed, in nanoseconds since 1970, within what 64 bits hold: 1677 to 2262.

    A camera without a clock, or a copy tool, may state any year.
    """
    return min(max(status.st_mtime_ns, -LATEST_NANOSECONDS), LATEST_NANOSECONDS)


def is_there(path: str | Path) -> bool:
    """Whether a file exists and its folder can be entered."""
    try:
        if is_remote(path):
            return bool(look(str(path)))
        return Path(path).is_file()
    except OSError:
        return False


def fingerprint(path: str | Path) -> str:
    """32 hex digits that identify the content: the size and up to 64 blocks, spread evenly, both ends included.

    A file of up to 4 MB is read whole. In a larger one, an edit that keeps the exact size and touches none of the
    blocks is not noticed; re-encoding or re-muxing a video always changes its header or its end. Of an object, the ETag
    stands for the content.
    """
    if is_remote(path):
        return _object_fingerprint(look(str(path)))
    digest = hashlib.blake2b(digest_size=16)
    # A file may have become a FIFO since it was found. Opening one does not wait with O_NONBLOCK.
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | NONBLOCK)) as file:
        status = os.fstat(file.fileno())
        _identity(status)
        size = status.st_size
        digest.update(size.to_bytes(8, "big"))
        for offset in block_offsets(size):
            file.seek(offset)
            digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()


def block_offsets(size: int) -> list[int]:
    """The starts of the blocks of a file.

    >>> block_offsets(100), block_offsets(BLOCK_BYTES + 1), len(block_offsets(10**12)), block_offsets(10**12)[-1]
    ([0], [0, 65536], 64, 999999934464)
    """
    if size <= BLOCK_BYTES * BLOCKS:
        return list(range(0, max(size, 1), BLOCK_BYTES))
    return [number * (size - BLOCK_BYTES) // (BLOCKS - 1) for number in range(BLOCKS)]
