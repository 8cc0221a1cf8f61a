"""One run of indexing: find what is new, embed it, commit it in portions, and remove what is gone."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

from allocembed.errors import VideoError
from allocembed.files import FileEntry, cannot_read, fingerprint
from allocembed.remote.objects import is_below, is_remote
from allocembed.search.embedding import CHANGED, COMMIT_VIDEOS, EmbeddedVideo, commit_portions, embed_videos
from allocembed.search.said.reading import SaidReading

if TYPE_CHECKING:
    from allocembed.search.index import VideoIndex
    from allocembed.search.said.speech import Transcriber

__all__ = ["CHANGED", "COMMIT_VIDEOS", "IndexReport", "IndexingRun", "ShowProgress", "embed_videos", "known_content"]


@dataclass
class IndexReport:
    """What a run of indexing has done so far, or in the end."""

    total: int = 0
    """Files that were found."""
    embedded: int = 0
    unchanged: int = 0
    moved: int = 0
    """Known contents under a new path."""
    failed: list[tuple[str, str]] = field(default_factory=list)
    """Paths that failed in this run, and why."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    """Subtitle files with a problem, and videos whose subtitles or speech could not be read; all are indexed."""
    lines: int = 0
    """New lines of what is said."""
    skipped: int = 0
    """Files that failed in an earlier run and have not changed since."""
    dropped: int = 0
    missing: int = 0
    """Files of the index that no longer exist and were not pruned."""
    tokens: int = 0
    seconds: float = 0.0
    decoding: str = ""
    """What a GPU decoded and what PyAV, if a GPU was used."""

    @property
    def done(self) -> int:
        return self.embedded + self.unchanged + self.moved + self.skipped + len(self.failed)


ShowProgress = Callable[[IndexReport], None]


class IndexingRun:
    """One run of `VideoIndex.add`. The caller holds the lock of the index."""

    def __init__(
        self,
        index: VideoIndex,
        report: IndexReport,
        progress: ShowProgress | None,
        transcriber: Transcriber | None = None,
    ) -> None:
        self.index, self.store, self.report = index, index.store, report
        self.started, self._show = time.monotonic(), progress
        self.known = {file.path: file for file in self.store.files()}
        self.videos = self.store.videos()
        self.with_size = {file.video: file for file in self.known.values() if not file.error and file.width}
        self.listed: set[str] = set()
        """Addresses that exist."""
        self.waiting: dict[str, list[FileEntry]] = {}
        """What is to be embedded: fingerprints, and the files that have this content."""
        self.said = SaidReading(index.lines, lambda path, cause: report.notes.append((path, cause)), transcriber)

    def show(self) -> None:
        """Report progress."""
        self.report.seconds = time.monotonic() - self.started
        if self._show:
            self._show(self.report)

    def sort(self, found: Sequence[FileEntry], retry_failed: bool, recheck: bool) -> None:
        """Decide for each file whether it is unchanged, moved, or to be embedded.

        Size and date tell whether a file is unchanged; with `recheck`, its content does.
        """
        # A link whose target is absent keeps its vectors, like a file on a disk that is not mounted.
        found = [file for file in found if not (file.error and self._has_vectors(self.known.get(file.path)))]
        self.report.total = len(found) + len(self.report.failed)
        self.listed = {file.path for file in found if is_remote(file.path)}
        entries: list[FileEntry] = []
        ready: list[FileEntry] = []
        for file in found:
            old = self.known.get(file.path)
            same = old if old is not None and old.same_file(file) else None
            if same and same.error and not retry_failed:
                self.report.skipped += 1
            elif same and same.width and self._has_vectors(same) and not recheck:
                self.report.unchanged += 1
                ready.append(same)
            else:
                entries += self._inspect(file, old)
            self.show()
        self.store.put_files(entries)
        self._listen([*ready, *(entry for entry in entries if not entry.error)], recheck)

    def _listen(self, files: Sequence[FileEntry], recheck: bool = False) -> None:
        """Read what is said in videos that have vectors. Of videos in object storage it is not read."""
        files = [file for file in files if not is_remote(file.path)]
        with closing(self.said.read(files, recheck)) as reading:
            for _ in reading:
                self.report.lines = self.said.lines
                self.show()
        self.report.lines = self.said.lines

    def _has_vectors(self, file: FileEntry | None) -> bool:
        return file is not None and not file.error and file.video in self.videos

    def _inspect(self, file: FileEntry, old: FileEntry | None) -> list[FileEntry]:
        """Return the entry of a file that cannot be read or has known content; else let it wait for embedding."""
        if not file.error:
            try:
                return self._recognise(file, file.video or fingerprint(file.path), old)
            except OSError as error:
                file = replace(file, error=cannot_read(error))
        self.report.failed.append((file.path, file.error))
        return [file]

    def _recognise(self, file: FileEntry, video: str, old: FileEntry | None) -> list[FileEntry]:
        if video not in self.videos:
            self.waiting.setdefault(video, []).append(file)
            return []
        if old is not None and old.video == video:
            self.report.unchanged += 1
        else:
            self.report.moved += 1
        return [self._known_content(file, video)]

    def _known_content(self, file: FileEntry, video: str) -> FileEntry:
        """An entry for content that has vectors. After a kill between the two tables, its size is read again."""
        entry = known_content(self.index, file, video, self.with_size.get(video))
        if entry.width:
            self.with_size[video] = entry
        return entry

    def embed(self, readers: int | None) -> None:
        """Embed what is new, and commit it in small portions."""
        if not self.waiting:
            return
        contents = {files[0].path: video for video, files in self.waiting.items()}
        unheard: list[FileEntry] = []

        def listen() -> None:
            files = unheard[:]
            unheard.clear()
            self._listen(files)

        def seen(video: EmbeddedVideo) -> None:
            self._count(self.waiting[contents[video.path]], video)
            self.show()
            listen()

        def commit(portion: list[EmbeddedVideo]) -> None:
            unheard.extend(self._commit(portion, contents))

        settings = self.index.settings
        decoders = self.index.embedder.decoders
        before = decoders.tally()
        made = embed_videos(self.index.embedder, contents, settings.segments, readers, near=settings.near)
        with closing(made) as embedded:
            commit_portions(embedded, commit, seen=seen, every=COMMIT_VIDEOS)
        if before and (after := decoders.tally()):
            self.report.decoding = str(after.since(before))
        listen()

    def _count(self, files: Sequence[FileEntry], video: EmbeddedVideo) -> None:
        if video.error:
            self.report.failed += [(file.path, video.error) for file in files]
            return
        self.report.embedded += 1
        self.report.moved += len(files) - 1
        self.report.tokens += video.tokens

    def _commit(self, portion: Sequence[EmbeddedVideo], contents: dict[str, str]) -> list[FileEntry]:
        """Add finished videos to the index; return the files that have vectors now."""
        good = {contents[video.path]: video.segments for video in portion if not video.error}
        self.store.add_videos(good.items())
        self.videos |= set(good)
        entries = [
            video.entry(file, contents[video.path]) for video in portion for file in self.waiting[contents[video.path]]
        ]
        self.store.put_files(entries)
        return [entry for entry in entries if not entry.error]

    def sweep(self, prune: bool | Callable[[str], bool], addresses: Sequence[str] = ()) -> None:
        """Drop the old paths of moved files, with `prune` files that are gone, and vectors without a file.

        An object is gone if it lies below one of the `addresses` and was not listed there.
        """
        files = self.store.files()
        gone = {
            file.path
            for file in files
            if (
                file.path not in self.listed and any(is_below(file.path, each) for each in addresses)
                if is_remote(file.path)
                else _is_gone(file)
            )
        }
        kept = {file.video for file in files if file.path not in gone}
        moved = {file.path for file in files if file.path in gone and file.video in kept and not file.error}
        pruned = {path for path in gone - moved if (prune(path) if callable(prune) else prune)}
        self.store.drop_files(moved | pruned)
        self.report.dropped, self.report.missing = len(pruned), len(gone - moved - pruned)
        self.store.drop_videos(self.index.unused())
        self.index.lines.sweep(self.store.files())


def _is_gone(file: FileEntry) -> bool:
    """Whether a file no longer exists. A link that never led to a video is listed as long as the link exists."""
    path = Path(file.path)
    try:
        there = S_ISREG(path.stat().st_mode)
    except PermissionError:
        return False  # unknown as long as its folder cannot be entered
    except OSError:
        there = False
    return not there and not (file.error and (path.is_symlink() or path.exists()))


def known_content(index: VideoIndex, file: FileEntry, video: str, other: FileEntry | None) -> FileEntry:
    """An entry for content that has vectors: as `other`, which has the same content, or with its size read again."""
    if other is not None:
        return replace(file, video=video, duration=other.duration, width=other.width, height=other.height)
    whole = index.store.segments_of([video])[video][0]
    entry = replace(file, video=video, duration=whole.end - whole.start)
    with suppress(VideoError), index.settings.config.open_video(file.path) as source:
        about = source.probe()
        entry = replace(entry, width=about.width, height=about.height)
    return entry
