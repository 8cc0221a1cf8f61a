"""Workers of an indexing run: they recognise files, embed new contents, and commit their vectors.

Vectors are appended by the workers, under the fingerprint of the content. The run gets what the table of files holds, a
few hundred bytes a video, once the vectors are committed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from operator import add
from typing import TYPE_CHECKING, Any, Literal

from allocembed.errors import VideoError
from allocembed.files import FileEntry, cannot_read, fingerprint
from allocembed.search.embedding import EmbeddedVideo, embed_videos
from allocembed.threads import map_ordered
from allocembed.workers.base import WorkerShare
from allocembed.workers.commits import Commits

if TYPE_CHECKING:
    from allocembed.search.index import VideoIndex
    from allocembed.search.settings import IndexSettings

FILE_READERS = 4  # threads that recognise files, which mostly wait for the disk


@dataclass(frozen=True)
class FileOutcome:
    """The result of a file."""

    entry: FileEntry
    status: Literal["embedded", "known", "failed"]
    tokens: int = 0
    decoded: Any = None
    """Tally of a GPU's decoders since an earlier outcome of this worker."""


@dataclass(frozen=True)
class IndexTask:
    """Makes a worker that adds files to an index. Pickled, the index is its place."""

    index: VideoIndex
    commit: int
    readers: int | None = None

    def __call__(self, share: WorkerShare) -> IndexWorker:
        share.take()
        if share.separate:
            _ = self.index.embedder  # loaded now, and not for the first new content
        return IndexWorker(self.index, self.commit, share.commit_seconds, self.readers)


@dataclass(frozen=True)
class SettingsTask:
    """Completes the settings of an index where the model is, for a machine that has none."""

    settings: IndexSettings

    def __call__(self, share: WorkerShare) -> SettingsTask:
        from allocembed.embedder import AllocEmbed

        share.take()
        return SettingsTask(self.settings.completed(AllocEmbed.from_config(self.settings.config)))

    def work(self, items: Sequence[None], again: bool) -> list[IndexSettings]:
        """The completed settings."""
        return [self.settings for _ in items]


class IndexWorker:
    """Embeds files, and commits at most `commit` videos or the work of some seconds at once."""

    def __init__(self, index: VideoIndex, commit: int, seconds: float, readers: int | None) -> None:
        self.index, self.commit, self.seconds, self.readers = index, commit, seconds, readers

    def work(self, items: Sequence[FileEntry], again: bool) -> Iterator[FileOutcome]:
        """One outcome for each file. The tables tell what is new, also `again`."""
        contents: dict[str, list[FileEntry]] = {}
        for file, content in zip(items, map_ordered(_content_of, items, workers=FILE_READERS), strict=True):
            if isinstance(content, OSError):
                yield FileOutcome(replace(file, error=cannot_read(content)), "failed")
            else:
                contents.setdefault(content, []).append(file)
        yield from self._known(contents)
        if contents:
            yield from self._embed(contents)

    def _known(self, contents: dict[str, list[FileEntry]]) -> Iterator[FileOutcome]:
        """Take the contents that have vectors already."""
        known = self.index.store.known_videos(contents)
        sized = {file.video: file for file in self.index.store.files_of(known) if file.width}
        for video in known:
            for file in contents.pop(video):
                entry = known_content(self.index, file, video, sized.get(video))
                if entry.width:
                    sized[video] = entry
                yield FileOutcome(entry, "known")

    def _embed(self, waiting: dict[str, list[FileEntry]]) -> Iterator[FileOutcome]:
        """Embed contents; yield the outcomes of those that are committed, whatever ends the work."""
        contents = {files[0].path: video for video, files in waiting.items()}
        settings, embedder = self.index.settings, self.index.embedder
        decoders, outcomes = embedder.decoders, deque[FileOutcome]()
        tally = decoders.tally()

        def commit(portion: list[EmbeddedVideo]) -> None:
            nonlocal tally
            good = {contents[video.path]: video.segments for video in portion if not video.error}
            self.index.store.add_videos(good.items())
            found = [each for video in portion for each in _outcomes(video, contents[video.path], waiting)]
            before, tally = tally, decoders.tally()
            if before and tally:
                found[0] = replace(found[0], decoded=tally.since(before))
            outcomes.extend(found)

        failure: BaseException | None = None
        made = embed_videos(embedder, contents, settings.segments, self.readers, near=settings.near)
        try:
            with Commits(commit, self.commit, self.seconds) as commits, closing(made) as embedded:
                for video in embedded:
                    self.embedded(video)
                    commits.add(video)
                    while outcomes:
                        yield outcomes.popleft()
        except GeneratorExit:
            raise
        except BaseException as error:
            failure = error
        yield from outcomes
        if failure is not None:
            raise failure

    def embedded(self, video: EmbeddedVideo) -> None:
        """Called with each video before it is committed."""


def together(tally: Any, more: Any) -> Any:
    """The sum of two tallies, of which one may be None."""
    return more if tally is None else tally if more is None else type(tally)(*map(add, tally, more))


def _content_of(file: FileEntry) -> str | OSError:
    try:
        return file.video or fingerprint(file.path)
    except OSError as error:
        return error


def _outcomes(video: EmbeddedVideo, content: str, waiting: dict[str, list[FileEntry]]) -> Iterator[FileOutcome]:
    """Outcomes of all files with this content, which was embedded once."""
    for number, file in enumerate(waiting[content]):
        status = "failed" if video.error else "known" if number else "embedded"
        yield FileOutcome(video.entry(file, content), status, 0 if number else video.tokens)


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
