"""One run of indexing: find what is new, embed it, commit it in portions, and remove what is gone."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from allocembed.errors import VideoError
from allocembed.search.files import FileEntry, cannot_read, fingerprint, identity
from allocembed.search.said.reading import SaidReading
from allocembed.search.segments import window_config, window_count
from allocembed.search.store import EmbeddedSegment

if TYPE_CHECKING:
    from allocembed.budget import Allocation
    from allocembed.embedder import AllocEmbed
    from allocembed.execution.stream import Prepared, Worker
    from allocembed.search.index import VideoIndex
    from allocembed.search.said.speech import Transcriber
    from allocembed.video import Clip

COMMIT_VIDEOS = 16
COMMIT_SECONDS = 5.0  # the most work that a kill can undo
PICTURE = 320  # pixels on the longer side of a hit's picture
THUMBNAIL = 128  # pixels on the longer side of a frame in a filmstrip
CHANGED = "the file was changed or replaced while it was read; index it again"
UNKNOWN = -1  # time of change of a file that the next run must look at, whatever its date


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

    @property
    def done(self) -> int:
        return self.embedded + self.unchanged + self.moved + self.skipped + len(self.failed)


ShowProgress = Callable[[IndexReport], None]


@dataclass(frozen=True, eq=False)
class EmbeddedVideo:
    """A video with its segments, or the reason why it has none."""

    path: str
    segments: Sequence[EmbeddedSegment] = ()
    width: int = 0
    height: int = 0
    error: str = ""


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
        """Read what is said in videos that have vectors."""
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
                return self._recognise(file, fingerprint(file.path), old)
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
        if (known := self.with_size.get(video)) is not None:
            return replace(file, video=video, duration=known.duration, width=known.width, height=known.height)
        whole = self.store.segments_of([video])[video][0]
        entry = replace(file, video=video, duration=whole.end - whole.start)
        with suppress(VideoError), self.index.settings.config.open_video(file.path) as source:
            about = source.probe()
            entry = self.with_size[video] = replace(entry, width=about.width, height=about.height)
        return entry

    def embed(self, readers: int | None) -> None:
        """Embed what is new, and commit it in small portions."""
        if not self.waiting:
            return
        contents = {files[0].path: video for video, files in self.waiting.items()}
        portion: list[EmbeddedVideo] = []
        last = time.monotonic()
        with closing(embed_videos(self.index.embedder, contents, self.index.settings.segments, readers)) as embedded:
            try:
                for video in embedded:
                    portion.append(video)
                    self._count(self.waiting[contents[video.path]], video)
                    self.show()
                    if len(portion) >= COMMIT_VIDEOS or time.monotonic() - last > COMMIT_SECONDS:
                        done, portion = portion, []
                        self._listen(self._commit(done, contents))
                        last = time.monotonic()
            finally:
                rest = self._commit(portion, contents)  # whatever stopped the run, finished videos are kept
        self._listen(rest)

    def _count(self, files: Sequence[FileEntry], video: EmbeddedVideo) -> None:
        if video.error:
            self.report.failed += [(file.path, video.error) for file in files]
            return
        self.report.embedded += 1
        self.report.moved += len(files) - 1
        self.report.tokens += sum(segment.cost for segment in video.segments)

    def _commit(self, portion: Sequence[EmbeddedVideo], contents: dict[str, str]) -> list[FileEntry]:
        """Add finished videos to the index; return the files that have vectors now."""
        good = {contents[video.path]: video.segments for video in portion if not video.error}
        self.store.add_videos(good.items())
        self.videos |= set(good)
        entries = []
        for video in portion:
            content = contents[video.path]
            for file in self.waiting[content]:
                if video.error:
                    changed = UNKNOWN if video.error == CHANGED else file.changed
                    entries.append(replace(file, error=video.error, changed=changed))
                    continue
                duration = video.segments[0].end - video.segments[0].start
                size = {"duration": duration, "width": video.width, "height": video.height}
                entries.append(replace(file, video=content, **size))
        self.store.put_files(entries)
        return [entry for entry in entries if not entry.error]

    def sweep(self, prune: bool | Callable[[str], bool]) -> None:
        """Drop the old paths of moved files, with `prune` files that are gone, and vectors without a file."""
        files = self.store.files()
        gone = {file.path for file in files if _is_gone(file)}
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


def embed_videos(
    embedder: AllocEmbed, contents: dict[str, str], segments: str, readers: int | None = None
) -> Generator[EmbeddedVideo, None, None]:
    """Embed files whole and, as `segments` says (auto, off or seconds), in windows; yield each when it is complete.

    `contents` maps paths to the fingerprints of what is expected there.
    """
    from allocembed.execution.stream import embed_jobs

    narrow = embedder.with_config(window_config(embedder.config, embedder.backbone.geometry.frames_per_chunk))

    sizes: dict[str, tuple[int, int]] = {}

    def prepare(path: str, worker: Worker) -> Iterator[Prepared[EmbeddedSegment]]:
        try:
            opened = identity(path)
            with embedder.open(path, decoder_threads=worker.decoder_threads) as video:
                whole = video.sample(embedder.frames_wanted, embedder.config.seek)
                sizes[path] = (whole.width, whole.height)
                windows = min(window_count(whole.duration, segments), whole.total)
                edges = (whole.start + np.linspace(0, whole.duration, max(1, windows) + 1)).tolist()
                yield _prepare_segment(embedder, worker, whole, 0, edges[0], edges[-1])
                if windows > 1:
                    clips = video.windows(windows, narrow.frames_wanted, embedder.config.seek)
                    for number, clip in enumerate(clips, 1):
                        yield _prepare_segment(narrow, worker, clip, number, edges[number - 1], edges[number])
            # The path may have been given to another file since its content was recognised.
            # Equal content now is not enough: another file may have had the path in between.
            if fingerprint(path) != contents[path] or identity(path) != opened:
                raise VideoError(path, CHANGED)
        except OSError as error:
            cause = f"cannot be read ({error.strerror or error}); check the file and its disk"
            raise VideoError(path, cause) from error

    for outcome in embed_jobs(embedder.backbone, contents, prepare, workers=readers, ordered=False):
        if outcome.error is not None:
            cause = outcome.error.cause if isinstance(outcome.error, VideoError) else str(outcome.error)
            yield EmbeddedVideo(outcome.job, error=cause)
            continue
        width, height = sizes.pop(outcome.job)
        made = [replace(segment, vector=vector) for segment, vector in outcome.pieces]
        yield EmbeddedVideo(outcome.job, made, width, height)


def _prepare_segment(
    embedder: AllocEmbed, worker: Worker, clip: Clip, number: int, start: float, end: float
) -> Prepared[EmbeddedSegment]:
    from allocembed import film
    from allocembed.execution.stream import Prepared

    with worker.lane():
        allocation, item = embedder.prepare(clip)
    costs = (int(allocation.cost), int(allocation.budget), int(allocation.base_cost))
    picture = _strip(clip, allocation) if number == 0 else _shrink(_best_frame(clip, allocation), PICTURE)
    numbers = film.as_json(clip, allocation)
    return Prepared(item, EmbeddedSegment(number, start, end, *costs, numbers, _jpeg(picture)))


def _strip(clip: Clip, allocation: Allocation) -> Image.Image:
    """The first frame of every chunk, side by side."""
    frames = [_shrink(clip.frames[chunk[0]], THUMBNAIL) for chunk in allocation.frames]
    strip = Image.new("RGB", (frames[0].width * len(frames), frames[0].height))
    for place, frame in enumerate(frames):
        strip.paste(frame, (place * frame.width, 0))
    return strip


def _best_frame(clip: Clip, allocation: Allocation) -> np.ndarray:
    """The last frame of the chunk with the most tokens."""
    best = max(range(len(allocation)), key=lambda chunk: allocation.grids[chunk].tokens)
    return clip.frames[allocation.frames[best][-1]]


def _shrink(frame: np.ndarray, side: int) -> Image.Image:
    picture = Image.fromarray(frame)
    picture.thumbnail((side, side), Image.Resampling.BICUBIC)
    return picture


def _jpeg(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=72)
    return buffer.getvalue()
