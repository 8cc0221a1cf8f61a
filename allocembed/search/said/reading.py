"""One run of reading what is said: look at subtitles beside videos and inside them, and commit new lines."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from allocembed.errors import VideoError
from allocembed.files import FileEntry, cannot_read, changed_at
from allocembed.search.said.streams import read_streams
from allocembed.search.said.subtitles import LARGEST_SUBTITLES, Line, beside, decoded, parse, read_bytes
from allocembed.search.store.base import INSIDE, SPEECH, LineStore, TextSource
from allocembed.threads import map_ordered

if TYPE_CHECKING:
    from allocembed.search.said.speech import Transcriber

COMMIT_SOURCES = 256
LINES_AT_ONCE = 20_000  # that are read before they are committed, if no single source has more
COMMIT_SECONDS = 5.0
STREAM_READERS = 4  # threads that look for streams: opening a file mostly waits for its disk
OPENED = 64  # videos that are looked at between two answers
NO_LINES = "no line with a time could be read; check that it is an .srt or .vtt file"
TOO_LARGE = f"only its first {LARGEST_SUBTITLES // 1_000_000} MB were read; split it"
Note = Callable[[str, str], None]
"""Called with the path of a subtitle file or of a video, and what is wrong with it."""


class SaidReading:
    """The part of an indexing run that reads lines. The caller holds the lock of the index."""

    def __init__(self, store: LineStore, note: Note, transcriber: Transcriber | None = None) -> None:
        self.store, self.note, self.transcriber = store, note, transcriber
        self.ids = set[str]()
        self.sources = dict[tuple[str, str], TextSource]()
        self.beside = dict[str, set[tuple[str, str]]]()
        self.current = set[tuple[str, str]]()
        """Lines of contents that this run has read."""
        self.gone = set[tuple[str, str]]()
        """Subtitle files that no longer exist."""
        self.lines = 0
        """New lines of this run."""
        self._begun = False

    def _begin(self, recheck: bool) -> None:
        """Look up what is known, when the first video is looked at."""
        self._begun, self.ids = True, self.store.ids()
        # A source whose lines are gone is read again.
        self.sources = {each.key: each for each in self.store.sources() if not each.lines or each.source in self.ids}
        for owner, origin in self.sources:
            self.beside.setdefault(owner, set()).add((owner, origin))
        if recheck:
            self._forget_broken()

    def read(self, files: Sequence[FileEntry], recheck: bool = False) -> Generator[FileEntry, None, None]:
        """Read what is new or changed for videos of the index; yield each video when it was looked at.

        With `recheck`, subtitles are read whatever their date, also those inside videos, speech is written down again
        if there is a transcriber, and lines are counted. Nothing is embedded and no model is loaded but that of a
        transcriber. It may be called several times in a run.
        """
        if files and not self._begun:
            self._begin(recheck)
        portion: list[tuple[TextSource, list[Line]]] = []
        last = time.monotonic()
        found = beside(file.path for file in files)
        try:
            for file, inside in self._with_streams(files, recheck):
                subtitles = self._read_beside(file, found.get(file.path), recheck)
                has_lines = any(lines for _, lines in subtitles)
                portion += [*subtitles, *self._read_content(file, inside, has_lines, recheck)]
                full = len(portion) >= COMMIT_SOURCES or sum(len(lines) for _, lines in portion) >= LINES_AT_ONCE
                if full or time.monotonic() - last > COMMIT_SECONDS:
                    done, portion, last = portion, [], time.monotonic()
                    self._commit(done)
                yield file
        finally:
            self._commit(portion)  # whatever stopped the run, what was read is kept

    def _forget_broken(self) -> None:
        """Drop sources that do not have the right number of lines, so that they are read again."""
        counts = self.store.counts()
        broken = [each for each in self.sources.values() if counts.get(each.source, 0) != each.lines]
        self.store.drop_lines({each.source for each in broken})
        for each in broken:
            self.ids.discard(each.source)
            del self.sources[each.key]

    def _read_beside(
        self, file: FileEntry, paths: Sequence[str] | None, recheck: bool
    ) -> list[tuple[TextSource, list[Line]]]:
        if paths is None:
            return []  # its folder cannot be listed; what is known stays
        known = self.beside.get(file.path, set())
        gone = known - {(file.path, path) for path in paths}
        self.gone |= gone
        for key in gone:
            self.sources.pop(key, None)
        read = []
        for path in paths:
            try:
                status = Path(path).stat()
                old = self.sources.get((file.path, path))
                stamp = (file.video, status.st_size, changed_at(status))
                if old is not None and (old.video, old.size, old.changed) == stamp and not recheck:
                    continue
                content = read_bytes(path)
            except OSError as error:
                self.note(path, cannot_read(error))
                continue
            lines = parse(decoded(content, path))
            if not lines or status.st_size > LARGEST_SUBTITLES:
                self.note(path, TOO_LARGE if lines else NO_LINES)
            source = source_id(file.video, content)
            read.append((TextSource(file.path, path, file.video, source, len(lines), *stamp[1:]), lines))
        return read

    def _with_streams(
        self, files: Sequence[FileEntry], recheck: bool
    ) -> Iterator[tuple[FileEntry, list[Line] | VideoError | None]]:
        """Videos with the lines of their streams, or None where these are known. Several are opened at once."""
        for first in range(0, len(files), OPENED):
            some = files[first : first + OPENED]
            new = {file.video: file.path for file in some if self._is_wanted(file, INSIDE, recheck)}
            lines = dict(zip(new, map_ordered(_streams_of, new.values(), workers=STREAM_READERS), strict=True))
            for file in some:
                yield file, lines.pop(file.video, None)

    def _is_wanted(self, file: FileEntry, origin: str, recheck: bool) -> bool:
        """Whether the lines of a content are to be read: once, and once again in a run that checks."""
        return (file.video, origin) not in (self.current if recheck else self.sources) and _is_unchanged(file)

    def _read_content(
        self, file: FileEntry, inside: list[Line] | VideoError | None, has_lines: bool, recheck: bool
    ) -> list[tuple[TextSource, list[Line]]]:
        """Lines that belong to the content of a video, read once for each content. Speech is the last resort.

        What cannot be read is noted, and the next run tries again.
        """
        read: list[tuple[TextSource, list[Line]]] = []
        if isinstance(inside, VideoError):
            self.note(file.path, inside.cause)
        elif inside is not None:
            read.append(self._content_source(file, INSIDE, inside))
        looked_inside = (file.video, INSIDE) in self.sources
        needed = looked_inside and not has_lines and not self._has_lines(file)
        if self.transcriber and needed and self._is_wanted(file, SPEECH, recheck):
            try:
                read.append(self._content_source(file, SPEECH, self.transcriber.lines(file.path)))
            except VideoError as error:
                self.note(file.path, error.cause)
        return read

    def _content_source(self, file: FileEntry, origin: str, lines: list[Line]) -> tuple[TextSource, list[Line]]:
        content = "\n".join([origin, *(f"{line.start} {line.end} {line.text}" for line in lines)])
        source = TextSource(file.video, origin, file.video, source_id(file.video, content.encode()), len(lines))
        self.sources[source.key] = source  # another file of this run may have the same content
        self.current.add(source.key)
        return source, lines

    def _has_lines(self, file: FileEntry) -> bool:
        """Whether a video is known to have lines other than a transcript."""
        keys = {(file.video, INSIDE), *self.beside.get(file.path, ())}
        return any(key in self.sources and self.sources[key].lines for key in keys)

    def _commit(self, portion: Sequence[tuple[TextSource, list[Line]]]) -> None:
        self.store.drop_sources(self.gone)
        self.gone = set()
        if not portion:
            return
        self.store.add(portion, self.ids)
        for source, lines in portion:
            self.lines += len(lines) if source.source not in self.ids else 0
            self.sources[source.key] = source
            self.beside.setdefault(source.owner, set()).add(source.key)
            self.ids |= {source.source} if lines else set()


def source_id(video: str, content: bytes) -> str:
    """The id of lines: 32 hex digits that stand for the video and for what was read."""
    return hashlib.blake2b(content, key=video.encode(), digest_size=16).hexdigest()


def _streams_of(path: str) -> list[Line] | VideoError:
    try:
        return read_streams(path)
    except VideoError as error:
        return error


def _is_unchanged(file: FileEntry) -> bool:
    """Whether the file still is what was recognised; else the next run looks at it."""
    try:
        status = Path(file.path).stat()
    except OSError:
        return False
    return (status.st_size, changed_at(status)) == (file.size, file.changed)
