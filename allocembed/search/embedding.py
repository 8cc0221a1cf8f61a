"""Embed videos for an index: whole, in windows, with a picture of each."""

from __future__ import annotations

import io
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from allocembed.errors import VideoError
from allocembed.files import FileEntry, fingerprint, identity
from allocembed.remote.objects import StorageFailure
from allocembed.search.segments import window_config, window_count
from allocembed.search.store import EmbeddedSegment

if TYPE_CHECKING:
    from allocembed.budget import Allocation
    from allocembed.embedder import AllocEmbed
    from allocembed.execution.stream import Prepared, PrepareResources
    from allocembed.video import Clip

PICTURE = 320  # pixels on the longer side of a hit's picture
THUMBNAIL = 128  # pixels on the longer side of a frame in a filmstrip
CHANGED = "the file was changed or replaced while it was read; index it again"
UNKNOWN = -1  # time of change of a file that the next run must look at, whatever its date


@dataclass(frozen=True, eq=False)
class EmbeddedVideo:
    """A video with its segments, or the reason why it has none."""

    path: str
    segments: Sequence[EmbeddedSegment] = ()
    width: int = 0
    height: int = 0
    error: str = ""
    passing: bool = False
    """Whether the error is not the file's, such as a network that is down: the next run looks again."""

    @property
    def tokens(self) -> int:
        return sum(segment.cost for segment in self.segments)

    def entry(self, file: FileEntry, content: str) -> FileEntry:
        """The entry of the index for a file that has this content."""
        if self.error:
            again = self.error == CHANGED or self.passing
            return replace(file, video="", error=self.error, changed=UNKNOWN if again else file.changed)
        duration = self.segments[0].end - self.segments[0].start
        return replace(file, video=content, duration=duration, width=self.width, height=self.height)


def embed_videos(
    embedder: AllocEmbed, contents: dict[str, str], segments: str, readers: int | None = None, *, near: float = 0.0
) -> Generator[EmbeddedVideo, None, None]:
    """Embed files whole and, as `segments` says (auto, off or seconds), in windows; yield each when it is complete.

    `contents` maps paths to the fingerprints of what is expected there. `near` is that of the index's settings.
    """
    from allocembed.execution.stream import embed_jobs

    decoders = embedder.decoders  # bad options raise; bad files only fail themselves
    narrow = embedder.with_config(window_config(embedder.config, embedder.backbone.geometry.frames_per_chunk))

    sizes: dict[str, tuple[int, int]] = {}

    def prepare(path: str, resources: PrepareResources) -> Iterator[Prepared[EmbeddedSegment]]:
        try:
            opened = identity(path)
            with embedder.open(path, decoder_threads=resources.decoder_threads, on_device=True) as video:
                whole = video.sample(embedder.frames_wanted, embedder.config.seek)
                sizes[path] = (whole.width, whole.height)
                windows = min(window_count(whole.duration, segments), whole.total)
                edges = (whole.start + np.linspace(0, whole.duration, max(1, windows) + 1)).tolist()
                yield _prepare_segment(embedder, resources, whole, 0, edges[0], edges[-1])
                if windows > 1:
                    clips = video.windows(windows, narrow.frames_wanted, embedder.config.seek, within=near)
                    for number, clip in enumerate(clips, 1):
                        yield _prepare_segment(narrow, resources, clip, number, edges[number - 1], edges[number])
            # The path may have been given to another file since its content was recognised.
            # Equal content now is not enough: another file may have had the path in between.
            if fingerprint(path) != contents[path] or identity(path) != opened:
                raise VideoError(path, CHANGED)
        except OSError as error:
            cause = f"cannot be read ({error.strerror or error}); check the file and its disk"
            raise VideoError(path, cause) from error

    for outcome in embed_jobs(embedder.backbone, contents, prepare, workers=readers, decoders=decoders, ordered=False):
        if outcome.error is not None:
            cause = outcome.error.cause if isinstance(outcome.error, VideoError) else str(outcome.error)
            yield EmbeddedVideo(outcome.job, error=cause, passing=_is_passing(outcome.error))
            continue
        width, height = sizes.pop(outcome.job)
        made = [replace(segment, vector=vector) for segment, vector in outcome.pieces]
        yield EmbeddedVideo(outcome.job, made, width, height)


def _is_passing(error: BaseException | None) -> bool:
    """Whether object storage could not be reached, somewhere behind an error."""
    while error is not None:
        if isinstance(error, StorageFailure):
            return True
        error = error.__cause__
    return False


def _prepare_segment(
    embedder: AllocEmbed, resources: PrepareResources, clip: Clip, number: int, start: float, end: float
) -> Prepared[EmbeddedSegment]:
    from allocembed import film
    from allocembed.execution.stream import Prepared

    with resources.lane():
        allocation, item = embedder.prepare(clip)
    costs = (int(allocation.cost), int(allocation.budget), int(allocation.base_cost))
    picture = _strip(clip, allocation) if number == 0 else _shrink(_best_frame(clip, allocation), PICTURE)
    numbers = film.as_json(clip, allocation)
    return Prepared(item, EmbeddedSegment(number, start, end, *costs, numbers, _jpeg(picture)))


def _strip(clip: Clip, allocation: Allocation) -> Image.Image:
    """The first frame of every chunk, side by side."""
    frames = [_shrink(clip.picture(chunk[0]), THUMBNAIL) for chunk in allocation.frames]
    strip = Image.new("RGB", (frames[0].width * len(frames), frames[0].height))
    for place, frame in enumerate(frames):
        strip.paste(frame, (place * frame.width, 0))
    return strip


def _best_frame(clip: Clip, allocation: Allocation) -> np.ndarray:
    """The last frame of the chunk with the most tokens."""
    best = max(range(len(allocation)), key=lambda chunk: allocation.grids[chunk].tokens)
    return clip.picture(allocation.frames[best][-1])


def _shrink(frame: np.ndarray, side: int) -> Image.Image:
    picture = Image.fromarray(frame)
    picture.thumbnail((side, side), Image.Resampling.BICUBIC)
    return picture


def _jpeg(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=72)
    return buffer.getvalue()
