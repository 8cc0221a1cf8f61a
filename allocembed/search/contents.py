"""Whether a file still has the content that was indexed. Whoever serves files by their id asks here first."""

from pathlib import Path

from allocembed.errors import SearchError
from allocembed.search.files import fingerprint, identity


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
            raise FileGone("the file is gone from the disk; index again to forget it") from error
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
