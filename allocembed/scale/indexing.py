"""Index with Ray: workers embed and commit vectors, one driver finds the files and writes their table.

Vectors are appended by the workers, under the fingerprint of the content, and never leave them otherwise. The driver
gets what the table of files holds, a few hundred bytes a video. A run that was killed is continued by what the tables
hold: files that have a row are not looked at, and contents that have vectors only get their row.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from allocembed.config import EmbedConfig
from allocembed.errors import AllocEmbedError, SearchError
from allocembed.files import FileEntry, cannot_read, fingerprint, walk_videos
from allocembed.paths import absolute
from allocembed.remote.objects import is_below, is_remote
from allocembed.scale.cluster import Cluster, ClusterOptions, connected
from allocembed.scale.pool import WorkerPool
from allocembed.search.embedding import EmbeddedVideo, commit_portions, embed_videos
from allocembed.search.index import VideoIndex
from allocembed.search.indexing import IndexingRun, IndexReport, ShowProgress, known_content
from allocembed.search.store import exists

if TYPE_CHECKING:
    from allocembed.embedder import AllocEmbed

PAGE = 500  # files that are looked up at once
ROWS = 4096  # of files that are written at once
SECONDS = 5.0  # after which they are written in any case
COMMIT_SECONDS = 60.0  # after which a worker commits in any case; many workers share one table


@dataclass(frozen=True)
class FileOutcome:
    """What became of a file: all that travels back to the driver."""

    entry: FileEntry
    status: Literal["embedded", "known", "failed"]
    tokens: int = 0


class IndexWorker:
    """A process with a model, which embeds files and commits their vectors. Ray makes it an actor."""

    def __init__(self, uri: str, config: EmbedConfig, cores: int, commit: int, readers: int | None) -> None:
        import torch

        from allocembed.threads import limit_cores

        limit_cores(cores)
        torch.set_num_threads(cores)
        self.process, self.commit, self.readers = uuid4().hex, commit, readers
        self.index = VideoIndex.open(uri, config)
        self.embedder: AllocEmbed = self.index.embedder

    def ready(self) -> str:
        """A value that no other process returns, once the model is loaded."""
        return self.process

    def work(self, files: Sequence[FileEntry], again: bool = False) -> list[FileOutcome]:
        """Embed files that have new content; one outcome for each file. The table tells what is new, also `again`."""
        outcomes: list[FileOutcome] = []
        contents: dict[str, list[FileEntry]] = {}
        for file in files:
            try:
                if file.error:
                    raise OSError(None, file.error)
                contents.setdefault(file.video or fingerprint(file.path), []).append(file)
            except OSError as error:
                outcomes.append(FileOutcome(replace(file, error=file.error or cannot_read(error)), "failed"))
        known = self.index.store.known_videos(contents)
        sized = {each.video: each for each in self.index.store.files_of(known) if each.width}
        for video in known:
            for file in contents.pop(video):
                entry = known_content(self.index, file, video, sized.get(video))
                outcomes.append(FileOutcome(entry, "known"))
        outcomes += self._embed(contents)
        return outcomes

    def _embed(self, waiting: dict[str, list[FileEntry]]) -> list[FileOutcome]:
        contents = {files[0].path: video for video, files in waiting.items()}
        outcomes: list[FileOutcome] = []

        def commit(portion: list[EmbeddedVideo]) -> None:
            good = {contents[video.path]: video.segments for video in portion if not video.error}
            self.index.store.add_videos(good.items())
            for video in portion:
                content = contents[video.path]
                for number, file in enumerate(waiting[content]):
                    status = "failed" if video.error else "known" if number else "embedded"
                    tokens = 0 if number else video.tokens
                    outcomes.append(FileOutcome(video.entry(file, content), status, tokens))

        settings = self.index.settings
        embedded = embed_videos(self.embedder, contents, settings.segments, self.readers, near=settings.near)
        commit_portions(embedded, commit, seen=self.embedded, every=self.commit, seconds=COMMIT_SECONDS)
        return outcomes

    def embedded(self, video: EmbeddedVideo) -> None:
        """Called with each video before it is committed."""


def index_with_ray(
    uri: str,
    sources: Sequence[str | Path],
    config: EmbedConfig,
    cluster: ClusterOptions,
    *,
    segments: str | None = None,
    prune: bool = False,
    retry_failed: bool = False,
    recheck: bool = False,
    readers: int | None = None,
    progress: ShowProgress | None = None,
    worker: type[IndexWorker] = IndexWorker,
) -> tuple[VideoIndex, IndexReport]:
    """Bring an index up to date with files and folders, or make it. It may be killed at any moment and run again.

    Ray is started only if there is something to embed.
    """
    with ExitStack() as stack:
        connection = None
        if not exists(uri):
            connection = stack.enter_context(connected(cluster))
            _make_there(connection, uri, config, segments or "auto")
        index = VideoIndex.open(uri, config, segments=segments)
        index.settings.check_may_grow()
        run, started = RayIndexing(index, progress), time.monotonic()
        with index.store.locked():
            new = run.find(sources, retry_failed, recheck)
            if (first := next(new, None)) is not None:
                connection = connection or stack.enter_context(connected(cluster))
                named = (index.store.uri, config, connection.cores, cluster.commit, readers)
                pool = WorkerPool[FileEntry, FileOutcome](connection, worker, *named, portion=cluster.commit)
                try:
                    run.add(pool.run(chain([first], new), _give_up))
                finally:
                    pool.close()
            run.finish(sources, prune)
            run.report.seconds = time.monotonic() - started
    return index, run.report


def _make_there(connection: Cluster, uri: str, config: EmbedConfig, segments: str) -> None:
    """Make an index on a worker's machine: its settings hold what only the loaded model knows."""
    make = connection.ray.remote(_make_index).options(**connection.resources(), max_retries=0)
    try:
        connection.ray.get(make.remote(uri, config, segments))
    except connection.ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, AllocEmbedError):
            raise error.cause from error
        raise
    except connection.ray.exceptions.RayActorError as error:
        cause = "the worker that makes the index died: check its memory, and run the command again"
        raise SearchError(cause) from error


def _make_index(uri: str, config: EmbedConfig, segments: str) -> None:
    VideoIndex.create(uri, config, segments=segments)


class RayIndexing:
    """The driver of one run. It holds the lock of the index."""

    def __init__(self, index: VideoIndex, progress: ShowProgress | None) -> None:
        self.index, self.store = index, index.store
        self.report, self._show = IndexReport(), progress
        self.changed = False
        """Whether a known path has new content or a known content a new path, so that old rows may be left over."""
        self.wrote = False
        self.unread: dict[str, str] = {}
        self.old = set[str]()
        """Paths that have a row and are looked at again."""
        self.rows: list[FileEntry] = []
        self.written = time.monotonic()

    def find(self, sources: Sequence[str | Path], retry_failed: bool, recheck: bool) -> Iterator[FileEntry]:
        """The files that a worker must look at, one by one."""
        self.store.tidy()  # a killed run has left rows that no lookup index knows
        sources = outermost(sources)
        Thread(target=self._count, args=[sources], daemon=True).start()
        return self._new(walk_videos(sources, self.unread), retry_failed, recheck)

    def add(self, outcomes: Iterable[FileOutcome]) -> None:
        """Write what the workers report."""
        try:
            for outcome in outcomes:
                self.take(outcome)
        finally:
            self._write()

    def take(self, outcome: FileOutcome) -> None:
        """Count an outcome, and write its row soon."""
        if outcome.status == "failed":
            self.report.failed.append((outcome.entry.path, outcome.entry.error))
        elif outcome.status == "embedded":
            self.report.embedded += 1
        else:  # its content is known, from another file or from a run that was killed
            self.report.moved += 1
            self.changed = True
        self.report.tokens += outcome.tokens
        self.rows.append(outcome.entry)
        if len(self.rows) >= ROWS or time.monotonic() - self.written > SECONDS:
            self._write()
        if self._show:
            self._show(self.report)

    def _write(self) -> None:
        self.store.put_files([row for row in self.rows if row.path in self.old])
        self.store.add_files([row for row in self.rows if row.path not in self.old])
        self.wrote |= bool(self.rows)
        self.rows, self.written = [], time.monotonic()

    def _count(self, sources: Sequence[str | Path]) -> None:
        """Count the files, for the time left; the run does not wait for it."""
        try:
            self.report.total = sum(1 for _ in walk_videos(sources, {}))
        except (AllocEmbedError, OSError):
            return  # the run itself meets the same error

    def _new(self, found: Iterable[FileEntry], retry_failed: bool, recheck: bool) -> Iterator[FileEntry]:
        """The files that a worker must look at."""
        files, before = iter(found), self.store.as_of_now()  # what this run writes, it need not look up
        empty = not before.file_count()
        while page := list(islice(files, PAGE)):
            known = {} if empty else before.files_at(file.path for file in page)
            for file in page:
                old = known.get(file.path)
                if file.error and old is not None and not old.error:
                    continue  # gone for now, as on a disk that is not mounted: its vectors stay
                same = old is not None and old.same_file(file)
                if old is not None and same and old.error and not retry_failed:
                    self.report.skipped += 1
                elif old is not None and same and old.width and not old.error and not recheck:
                    self.report.unchanged += 1
                else:
                    self.changed |= old is not None and not old.error
                    self.old |= {file.path} if old is not None else set()
                    yield file

    def finish(self, sources: Sequence[str | Path], prune: bool) -> None:
        """Drop doubles and what is gone, merge small files, and build the indices of a large index."""
        self.report.failed += self.unread.items()
        self.store.drop_doubles()
        if prune or self.changed:
            run = IndexingRun(self.index, self.report, None)
            run.listed = {file.path for file in walk_videos(filter(is_remote, sources), {})}
            run.sweep(prune, [str(source) for source in sources if is_remote(source)])
        if self.wrote or self.report.dropped:
            self.store.tidy()
        if self._show:
            self._show(self.report)


def _give_up(file: FileEntry, cause: str) -> FileOutcome:
    return FileOutcome(replace(file, video="", error=cause), "failed")


def outermost(sources: Sequence[str | Path]) -> list[str | Path]:
    """The sources without those that lie in another one, so that no file is found twice.

    >>> [str(each) for each in outermost(["s3://b/x/a.mp4", "s3://b/x", "/y/z", "/y", "/yz"])]
    ['s3://b/x', '/y', '/yz']
    """
    places = {str(each) if is_remote(each) else str(absolute(each)): each for each in sources}
    return [
        each for place, each in places.items() if not any(place != other and is_below(place, other) for other in places)
    ]


def check_sources(sources: Sequence[str | Path]) -> None:
    """Raise SearchError if there is no video in the sources, before anything is started."""
    unread: dict[str, str] = {}
    if next(walk_videos(sources, unread), None) is None:
        remedy = next((f"{path} {cause}" for path, cause in unread.items()), "give a folder that holds some")
        raise SearchError(f"there is no video in {', '.join(map(str, sources))}: {remedy}")
