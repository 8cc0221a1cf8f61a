"""Videos by their id, and whether a file still has what was indexed. Whoever serves files by id asks here first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from allocembed.errors import SearchError
from allocembed.files import FileEntry, fingerprint, identity
from allocembed.remote.objects import is_remote

if TYPE_CHECKING:
    from allocembed.search.index import VideoIndex
    from allocembed.search.store import EmbeddedSegment


class NoSuchVideo(SearchError):  # noqa: N818 (named for what happened)
    """An id that is not in the index, or not any more."""

    def __init__(self) -> None:
        super().__init__("there is no such video in the index: use an id that a search has returned")


def file_of(index: VideoIndex, video: str) -> FileEntry:
    """The file of a video. Raise NoSuchVideo if there is none."""
    found = index.files_of([video])
    if video not in found:
        raise NoSuchVideo
    return found[video]


def path_of(file: FileEntry) -> Path:
    """The path of a file on a disk. Raise FileGone for an object, which is not fetched for others."""
    if is_remote(file.path):
        raise FileGone("the video is in object storage, from where it is not served; open it there")
    return Path(file.path)


def segments_of(index: VideoIndex, video: str, *large: str) -> list[EmbeddedSegment]:
    """The segments of a video, the whole first. Raise NoSuchVideo if there are none: it may just have been removed."""
    segments = index.segments(video, *large)
    if not segments:
        raise NoSuchVideo
    return segments


class FileGone(SearchError):  # noqa: N818 (named for what happened)
    """A file no longer exists, or has other content than was indexed."""


class TrustedContents:
    """Fingerprints of files, computed again when a file has another identity."""

    def __init__(self) -> None:
        self.known: dict[Path, tuple[tuple[int, ...], str]] = {}

    def check(self, path: Path, video: str) -> None:
        """Raise FileGone unless the file has the content that was indexed."""
        try:
            unchanged = self.fingerprint(path) == video
        except OSError as error:
            raise FileGone("the file is gone from the disk; index again with --prune to forget it") from error
        if not unchanged:
            raise FileGone("the file has changed since it was indexed; index again")

    def fingerprint(self, path: Path) -> str:
        """The fingerprint of a file as it is now."""
        now = identity(path)
        before, content = self.known.get(path, ((), ""))
        if now != before:
            content = fingerprint(path)
            if identity(path) == now:  # else it is being written, and the fingerprint holds for no moment
                self.known[path] = now, content
        return content
