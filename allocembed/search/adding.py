"""One run of indexing: which files are new, embedding them, committing them in portions, forgetting what is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING, Any

from allocembed.search.files import Found, cannot_read, fingerprint

if TYPE_CHECKING:
    from allocembed.search.index import VideoIndex
    from allocembed.search.pipeline import Embedded

COMMIT_VIDEOS = 16
COMMIT_SECONDS = 5.0  # at most so much work is done anew after a kill
DANGLING = "a link to a file that is not there; bring the file back, or remove the link"
Progress = Callable[["Added"], None]


@dataclass
class Added:
    """What indexing did, so far or in the end."""

    total: int = 0
    """Files that were looked at."""
    embedded: int = 0
    unchanged: int = 0
    moved: int = 0
    """Known contents under a new path."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Paths and why, of this run."""
    skipped: int = 0
    """Files that failed in an earlier run and have not changed since."""
    dropped: int = 0
    missing: int = 0
    """Files in the index that are gone, and stay until they are pruned."""
    tokens: int = 0
    seconds: float = 0.0

    @property
    def done(self) -> int:
        return self.embedded + self.unchanged + self.moved + self.skipped + len(self.failed)


class Run:
    """One run of `VideoIndex.add`."""

    def __init__(self, index: VideoIndex, added: Added, progress: Progress, started: float) -> None:
        self.index, self.store, self.added = index, index.store, added
        self.started, self._tell = started, progress
        self.known = {row["path"]: row for row in self.store.file_rows()}
        self.videos = self.store.videos()
        self.shapes = {row["video"]: row for row in self.known.values() if not row["error"]}
        self.waiting: dict[str, list[Found]] = {}
        """What is to be embedded: contents, each with the files that hold it."""

    def tell(self) -> None:
        self.added.seconds = time.monotonic() - self.started
        self._tell(self.added)

    def sort_out(self, found: Sequence[Found], retry_failed: bool) -> None:
        """Decides for every file whether it is unchanged, moved, or to be embedded."""
        # A link whose file is away keeps its vectors, as a file on an unplugged disk does.
        found = [file for file in found if not (file.dangling and self._has_vectors(self.known.get(file.path)))]
        self.added.total = len(found) + len(self.added.failed)
        rows = []
        for file in found:
            old = self.known.get(file.path)
            same = old is not None and (old["size"], old["changed"]) == (file.size, file.changed)
            if same and old["error"] and not retry_failed:
                self.added.skipped += 1
            elif same and self._has_vectors(old):
                self.added.unchanged += 1
            else:
                rows += self._look_into(file, old)
            self.tell()
        self.store.put_files(rows)

    def _has_vectors(self, row: dict | None) -> bool:
        return row is not None and not row["error"] and row["video"] in self.videos

    def _look_into(self, file: Found, old: dict | None) -> list[dict]:
        try:
            video = fingerprint(file.path)
        except OSError as error:
            cause = DANGLING if file.dangling else cannot_read(error)
            self.added.failed.append((file.path, cause))
            return [_file_row(file, "", error=cause)]
        if video not in self.videos:
            self.waiting.setdefault(video, []).append(file)
            return []
        if old is not None and old["video"] == video:
            self.added.unchanged += 1
        else:
            self.added.moved += 1
        return [self._with_shape(file, video)]

    def _with_shape(self, file: Found, video: str) -> dict:
        """A row for known content; after a kill its length is known from its vectors only."""
        if video in self.shapes:
            shape = {name: self.shapes[video][name] for name in ("duration", "width", "height")}
        else:
            shape = {"duration": self.index.pieces(video)[0]["end"]}
        return _file_row(file, video, **shape)

    def embed(self, readers: int | None) -> None:
        """Embeds what is new and commits it in small portions."""
        if not self.waiting:
            return
        from allocembed.search.pipeline import embed_files

        embedder = self.index.embedder
        contents = {files[0].path: video for video, files in self.waiting.items()}
        portion: list[tuple[str, Embedded]] = []
        last = time.monotonic()
        try:
            for embedded in embed_files(embedder, list(contents), self.index.settings.segments, readers=readers):
                video = contents[embedded.path]
                portion.append((video, embedded))
                self._count(self.waiting[video], embedded)
                self.tell()
                if len(portion) >= COMMIT_VIDEOS or time.monotonic() - last > COMMIT_SECONDS:
                    done, portion, last = portion, [], time.monotonic()
                    self._commit(done)
        except KeyboardInterrupt:
            self._commit(portion)  # what is finished is kept
            raise
        self._commit(portion)

    def _count(self, files: Sequence[Found], embedded: Embedded) -> None:
        if embedded.error:
            self.added.failed += [(file.path, embedded.error) for file in files]
            return
        self.added.embedded += 1
        self.added.moved += len(files) - 1
        self.added.tokens += sum(piece.cost for piece in embedded.pieces)

    def _commit(self, portion: Sequence[tuple[str, Embedded]]) -> None:
        good = [(video, embedded) for video, embedded in portion if not embedded.error]
        self.store.add(good)
        self.videos |= {video for video, _ in good}
        rows = []
        for video, embedded in portion:
            shape = {name: getattr(embedded, name) for name in ("duration", "width", "height", "error")}
            rows += [_file_row(file, "" if embedded.error else video, **shape) for file in self.waiting[video]]
        self.store.put_files(rows)

    def sweep(self, prune: bool) -> None:
        """Drops files that are gone, where asked to, and vectors that no file needs any more."""
        files = self.store.file_rows()
        gone = [row["path"] for row in files if _is_gone(row)]
        # A file that was moved is known by its content under its new name; its old name says nothing any more.
        kept = {row["video"] for row in files if row["path"] not in set(gone)}
        moved = [row["path"] for row in files if row["path"] in set(gone) and row["video"] in kept and not row["error"]]
        dropped = gone if prune else moved
        self.store.drop_files(dropped)
        self.added.dropped = len(gone) - len(moved) if prune else 0
        self.added.missing = 0 if prune else len(gone) - len(moved)
        self.store.drop_videos(self.index.unused())


def _is_gone(row: dict) -> bool:
    """Whether a file has left the disk; a link that never led to a video is listed as long as the link is there."""
    path = Path(row["path"])
    try:
        there = S_ISREG(path.stat().st_mode)
    except PermissionError:
        return False  # nobody can say, as long as its folder can't be entered
    except OSError:
        there = False
    return not there and not (row["error"] and path.is_symlink())


def _file_row(file: Found, video: str, **shape: Any) -> dict:
    row = {"duration": 0.0, "width": 0, "height": 0, "error": "", **shape}
    return {"path": file.path, "video": video, "size": file.size, "changed": file.changed, **row}
