"""One run of indexing: find what is new, let workers embed it, write what they report, and remove what is gone.

Vectors are committed by the workers, then the rows of their files here, then what is said in them. So a kill at any
moment leaves at worst vectors without a file. The next run continues by what the tables hold: files that have a row are
not looked at, and contents that have vectors only get their row. Memory does not grow with the number of files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from stat import S_ISREG
from threading import Thread
from typing import TYPE_CHECKING, Any

from allocembed.errors import AllocEmbedError
from allocembed.files import FileEntry, walk_videos
from allocembed.paths import absolute
from allocembed.remote.objects import is_below, is_remote
from allocembed.search.said.reading import SaidReading
from allocembed.search.worker import FileOutcome, IndexTask, together
from allocembed.workers import Workers

if TYPE_CHECKING:
    from allocembed.search.index import VideoIndex
    from allocembed.search.said.speech import Transcriber

PAGE_FILES = 500  # files that are looked up at once
ROWS_AT_ONCE = 4096  # of files that are written at once
WRITE_SECONDS = 5.0  # after which they are written in any case
MANY = 20_000  # files; an index of more is tidied before the run, and searched for what is gone only with a reason


@dataclass
class IndexReport:
    """Counts of a run of indexing, so far or in the end."""

    total: int = 0
    """Files that were found; while they are being counted, 0."""
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
    """Files of the index that no longer exist and were not pruned. A large index is searched for them with `prune`, or
    if a known path or content has changed."""
    tokens: int = 0
    seconds: float = 0.0
    decoding: str = ""
    """Tally of the decoders of a GPU and of PyAV, if a GPU was used."""

    @property
    def done(self) -> int:
        return self.embedded + self.unchanged + self.moved + self.skipped + len(self.failed)


ShowProgress = Callable[[IndexReport], None]


class IndexingRun:
    """One run of `VideoIndex.add`. The caller holds the lock of the index."""

    def __init__(
        self,
        index: VideoIndex,
        sources: Sequence[str | Path],
        *,
        retry_failed: bool = False,
        recheck: bool = False,
        ready: Callable[[FileEntry], bool] | None = None,
        transcriber: Transcriber | None = None,
        progress: ShowProgress | None = None,
    ) -> None:
        self.index, self.store = index, index.store
        self.sources, self._ready = sources, ready
        self._retry_failed, self._recheck = retry_failed, recheck
        self.report, self._show, self._started = IndexReport(), progress, time.monotonic()
        self.said = SaidReading(index.lines, lambda *note: self.report.notes.append(note), transcriber)
        self._before: dict[str, str] = {}
        """Contents, by path, of files that have a row and are looked at again."""
        self._changed = False
        """Whether a known path has new content or a known content a new path, so that old rows may be left over."""
        self._rows: list[FileEntry] = []
        self._known_paths = set[str]()
        """Paths of rows that replace others."""
        self._unheard: list[FileEntry] = []
        """Files with vectors whose subtitles and speech were not looked at yet."""
        self._written = self._started
        self._wrote = False
        self._decoded: Any = None

    def work(self, workers: Workers, task: IndexTask) -> None:
        """Let workers embed what is new, and write what they report."""
        if self.store.file_count() > MANY:
            self.store.tidy()  # a killed run has left rows that no lookup index knows
        try:
            with closing(workers.run(task, self._find(), _give_up)) as outcomes:
                for outcome in outcomes:
                    self._take(outcome)
        finally:
            self._write()
        self._listen()

    def _find(self) -> Iterator[FileEntry]:
        """The files that a worker must look at, one by one."""
        unread: dict[str, str] = {}
        files = (file for file in walk_once(self.sources, unread) if self._ready is None or self._ready(file))
        before, found = self.store.as_of_now(), 0  # what this run writes, it need not look up
        while page := list(islice(files, PAGE_FILES)):
            if not found and len(page) == PAGE_FILES:
                Thread(target=self._count, daemon=True).start()
            found += len(page)
            known = before.files_at(file.path for file in page)
            whole = before.known_videos({file.video for file in known.values() if not file.error})
            for file in page:
                old = known.get(file.path)
                intact = old is not None and not old.error and old.video in whole
                if file.error and intact:
                    found -= 1  # gone for now, as on a disk that is not mounted: its vectors stay
                elif self._must_be_seen(file, old, intact):
                    yield file
            self._listen(at_least=PAGE_FILES)
            self.show()
        self.report.failed += unread.items()
        self.report.total = found + len(unread)

    def _must_be_seen(self, file: FileEntry, old: FileEntry | None, intact: bool) -> bool:
        """Whether a worker must look at a file. Equal size and date are enough, unless contents are checked."""
        if old is not None and old.same_file(file):
            if old.error and not self._retry_failed:
                self.report.skipped += 1
                return False
            if intact and old.width and not self._recheck:
                self.report.unchanged += 1
                self._unheard.append(old)
                return False
        if old is not None:
            self._before[file.path] = old.video
        if file.error:
            self._take(FileOutcome(file, "failed"))
        return not file.error

    def _count(self) -> None:
        """Count the files, for the time left; the run does not wait for it."""
        try:
            total = sum(1 for _ in walk_once(self.sources, {}))
        except (AllocEmbedError, OSError):
            return  # the run itself meets the same error
        self.report.total = self.report.total or total

    def _take(self, outcome: FileOutcome) -> None:
        """Count an outcome, and write its row soon."""
        entry, report = outcome.entry, self.report
        old = self._before.pop(entry.path, None)
        if outcome.status == "failed":
            report.failed.append((entry.path, entry.error))
        elif outcome.status == "embedded":
            report.embedded += 1
        elif old == entry.video:
            report.unchanged += 1
        else:  # its content is known, from another file or from a run that was killed
            report.moved += 1
        report.tokens += outcome.tokens
        self._changed |= (bool(old) and old != entry.video) or (outcome.status == "known" and old != entry.video)
        self._decoded = together(self._decoded, outcome.decoded)
        self._rows.append(entry)
        self._known_paths |= set() if old is None else {entry.path}
        if len(self._rows) >= ROWS_AT_ONCE or time.monotonic() - self._written > WRITE_SECONDS:
            self._write()
            self._listen()
        self.show()

    def _write(self) -> None:
        """Write rows of files. They need no lookup if their paths are new."""
        self.store.put_files([row for row in self._rows if row.path in self._known_paths])
        self.store.add_files([row for row in self._rows if row.path not in self._known_paths])
        self._unheard += [row for row in self._rows if not row.error]
        self._wrote |= bool(self._rows)
        self._rows, self._known_paths, self._written = [], set(), time.monotonic()

    def _listen(self, at_least: int = 1) -> None:
        """Read what is said in videos that have vectors. Of videos in object storage it is not read."""
        if len(self._unheard) < at_least:
            return
        files = [file for file in self._unheard if not is_remote(file.path)]
        self._unheard = []
        with closing(self.said.read(files, self._recheck)) as reading:
            for _ in reading:
                self.report.lines = self.said.lines
                self.show()
        self.report.lines = self.said.lines

    def show(self) -> None:
        """Report progress."""
        self.report.seconds = time.monotonic() - self._started
        if self._show:
            self._show(self.report)

    def finish(self, prune: bool | Callable[[str], bool]) -> IndexReport:
        """Drop doubles and what is gone, merge small files, and build the indices of a large index."""
        self.store.drop_doubles()  # of several processes that were killed
        if prune or self._changed or self.store.file_count() <= MANY:
            self._sweep(prune)
        if self._wrote or self.report.dropped or self.report.lines:
            self.store.tidy()
            self.index.lines.tidy()
        self.report.decoding = str(self._decoded or "")
        self.show()
        return self.report

    def _sweep(self, prune: bool | Callable[[str], bool]) -> None:
        """Drop the old paths of moved files, with `prune` files that are gone, and vectors without a file.

        An object is gone if it lies below one of the sources and is not listed there.
        """
        addresses = [str(source) for source in self.sources if is_remote(source)]
        listed = {file.path for file in walk_videos(addresses, {})}
        files = self.store.files()
        gone = {
            file.path
            for file in files
            if (
                file.path not in listed and any(is_below(file.path, each) for each in addresses)
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


def _give_up(file: FileEntry, cause: str) -> FileOutcome:
    return FileOutcome(replace(file, video="", error=cause), "failed")


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


def walk_once(sources: Sequence[str | Path], unread: dict[str, str]) -> Iterator[FileEntry]:
    """Like `walk_videos`, each file once. Paths are remembered only if a source lies in another one."""
    places = sorted(f"{str(each).rstrip('/') if is_remote(each) else absolute(each).as_posix()}/" for each in sources)
    nested = any(inner.startswith(outer) for outer, inner in pairwise(places))
    seen = set[str]()
    for file in walk_videos(sources, unread):
        if file.path not in seen:
            yield file
        if nested:
            seen.add(file.path)
