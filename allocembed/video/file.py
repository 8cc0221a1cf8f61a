"""Open a video and read frames from it: `with open_video("talk.mp4") as video: video.sample(24)`.

Frames come out upright, as 8-bit RGB with square pixels, with their true presentation times. Memory is bounded by the
number of frames requested, however long the video is. Files in object storage (s3://, gs://) are read by ranges: of an
MP4, only the header and what the frames need.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import numpy as np
from PIL import Image

from allocembed.errors import ConfigError, VideoError
from allocembed.remote.objects import is_remote
from allocembed.remote.ranged import RangedFile
from allocembed.video.clip import IMAGE_SUFFIXES, IN_MEMORY, Clip, DecodeLimits, Seek, VideoInfo, candidate_indices
from allocembed.video.decoders.base import FrameTable, Hardware, TableMismatch
from allocembed.video.decoders.pyav import PyAVDecoder
from allocembed.video.images import FrameSequence, check_frames, check_regular, list_images, read_image, to_rgb
from allocembed.video.packets import FETCH_AGAIN, Demuxer, table_from_header, table_from_index, table_from_packets
from allocembed.video.samples import table_from_samples
from allocembed.video.source import Canvas, Part, VideoSource, choose_frames

Source = str | Path | np.ndarray | Sequence[np.ndarray | Image.Image]


def open_video(
    source: Source,
    *,
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (frozen)
    rate: float | None = None,
    start: float | None = None,
    end: float | None = None,
    rounds: bool = False,
    hardware: Hardware | None = None,
) -> VideoSource:
    """Open a video file, also one in object storage (s3://bucket/a.mp4), a folder of images, one image, or frames.

    `rate` is the frames per second of images and frames in memory; without it they are numbered, one a second, and the
    clip is not `timed`. Video files have their own clock. With `start` and `end` in seconds, only frames with
    start <= time < end exist: counts and lengths are those of that part, times and frame numbers stay those of the
    source. `rounds` chooses frames of a file as `candidate_indices` explains. With `hardware`, frames of a file that it
    decodes are tensors on its device.
    """
    if rate is not None and not rate > 0:
        raise ConfigError(f"rate must be frames per second above 0, not {rate}")
    part = Part(start, end)
    if isinstance(source, str) and is_remote(source):
        return VideoFile(_open_object(source), source, limits, part, rounds=rounds, hardware=hardware)
    if isinstance(source, str | Path):
        return _open_path(Path(source), str(source), rate, limits, part, rounds, hardware)
    if isinstance(source, np.ndarray | Sequence):
        check_frames(source)
        frames, total = (lambda index: to_rgb(source[index], f"frame {index}")), len(source)
        return FrameSequence(frames, total, IN_MEMORY, rate, limits, part)
    kind = type(source).__name__
    raise TypeError(f"cannot open a {kind} as a video; pass a path, a (T, H, W, 3) uint8 array or a list of frames")


def sample(
    source: Source,
    count: int = 24,
    *,
    seek: Seek = "exact",
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (frozen)
    rate: float | None = None,
) -> Clip:
    """Return `count` evenly spread frames; see `open_video` and `VideoSource.sample`.

    >>> clip = sample(np.zeros((50, 48, 64, 3), np.uint8), count=4, rate=10)
    >>> clip.indices.tolist(), clip.times.tolist(), clip.frames.shape
    ([0, 16, 32, 49], [0.0, 1.6, 3.2, 4.9], (4, 48, 64, 3))
    """
    with open_video(source, limits=limits, rate=rate) as video:
        return video.sample(count, seek)


def probe(
    source: Source,
    *,
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (frozen)
    rate: float | None = None,
) -> VideoInfo:
    """Return size, length and rate of `source`.

    >>> probe(np.zeros((50, 48, 64, 3), np.uint8), rate=25)
    VideoInfo(width=64, height=48, total=50, duration=2.0, rate=25.0, source='<frames>')
    """
    with open_video(source, limits=limits, rate=rate) as video:
        return video.probe()


def _open_object(address: str) -> RangedFile:
    if Path(address).suffix.lower() in IMAGE_SUFFIXES:
        raise VideoError(address, "a picture in object storage is not read as a video; copy it to a disk")
    try:
        file = RangedFile(address)
    except OSError as error:
        raise VideoError(address, error.strerror or str(error)) from error
    if not file.size:
        raise VideoError(address, f"the file is empty; {FETCH_AGAIN}")
    return file


def _open_path(
    path: Path, name: str, rate: float | None, limits: DecodeLimits, part: Part, rounds: bool, hardware: Hardware | None
) -> VideoSource:
    if not name:
        raise VideoError("''", "the path is empty; give a file or a folder")
    try:
        images = list_images(path, name) if path.is_dir() else []
        if not images:
            size = path.stat().st_size
            check_regular(path, name)
            if not size:
                raise VideoError(name, f"the file is empty; {FETCH_AGAIN}")
    except FileNotFoundError as error:
        raise VideoError(name, "no such file or folder; check the path") from error
    except (OSError, ValueError) as error:
        raise VideoError(name, f"cannot be read ({error}); check the path and its permissions") from error
    if not images and path.suffix.lower() not in IMAGE_SUFFIXES:
        return VideoFile(path, name, limits, part, rounds=rounds, hardware=hardware)
    images = images or [path]
    return FrameSequence(lambda index: read_image(images[index], limits), len(images), name, rate, limits, part)


class VideoFile(VideoSource):
    """A video file, opened once, for one thread. `probe`, `sample` and `windows` share one demux of the whole file.

    The file is opened again only where seeking fails or the decoder contradicts the packets' timestamps.
    """

    def __init__(
        self,
        file: Path | RangedFile,
        source: str,
        limits: DecodeLimits,
        part: Part,
        *,
        rounds: bool = False,
        hardware: Hardware | None = None,
    ) -> None:
        super().__init__(source, limits, part)
        self.rounds = rounds
        self._demuxer = Demuxer(file, source, limits, self.stopwatch)
        try:
            self.decoder = hardware.open(self._demuxer) if hardware else PyAVDecoder(self._demuxer)
        except BaseException:
            self._demuxer.close()
            raise

    def close(self) -> None:
        try:
            self.decoder.close()
        finally:
            self._demuxer.close()

    def sample(self, count: int, seek: Seek = "exact") -> Clip:
        self._begin(count, seek)
        index = self._index if seek == "keyframe" and self.part == Part() else None
        # Worth it only if all candidates have a keyframe.
        if index and not choose_frames(index, self._span(index), count, seek, rounds=self.rounds)[1]:
            try:
                return self._sample_table(index, count, seek)
            except TableMismatch:
                self._index = None
        if self.table.trusted:
            with suppress(TableMismatch):
                return self._sample_table(self.table, count, seek)
            if self._find_frames_again():
                return self.sample(count, seek)
        # Fields as packets, invented timestamps, false keyframes: only decoding tells the frames.
        return self._read_through(count, seek)

    @cached_property
    def _samples(self) -> FrameTable | None:
        return table_from_samples(self._demuxer)

    @cached_property
    def _index(self) -> FrameTable | None:
        return table_from_index(self._demuxer) if self._samples is None else None

    def _find_frames(self) -> FrameTable:
        demuxer = self._demuxer
        if (table := table_from_header(demuxer)) is not None:
            return table
        if self._samples is not None:
            return self._samples
        if not demuxer.at_start and self._index:  # sampled by the index already: go back without opening it again
            return table_from_packets(demuxer, demuxer.packets_from(self._index, int(self._index.stamps[0])))
        if not demuxer.at_start:
            demuxer.open()
        return table_from_packets(demuxer, demuxer.packets())

    def _find_frames_again(self) -> bool:
        if self._samples is None:
            return False
        self._samples = self._index = None  # both are the header's
        self.table = self._find_frames()
        self.spans.clear()
        return True

    def _read_through(self, count: int, seek: Seek) -> Clip:
        """Decode all frames in order: slow, but without need of timestamps or seeking.

        The number of frames is known only at the end, so the first pass assumes one frame per packet.
        """
        packets = len(self.table)
        wanted = candidate_indices(packets if self.part == Part() else 0, count, rounds=self.rounds)
        stamps: list[int | None] = []
        for _ in range(2):
            canvas, position, stamps = Canvas(len(wanted)), 0, []
            with self.decoder.lane():
                for stamp, pixels in self.decoder.in_order(frozenset(wanted.tolist())):
                    stamps.append(stamp)
                    if pixels is not None:
                        canvas.put(position, pixels)
                        position += 1
            if not stamps or (len(stamps) != packets and self._demuxer.packet_per_frame):
                break
            times, duration = self._clock(stamps)
            span = self.spans[seek] = self.part.span(times, duration, self.source)
            indices = span.candidates(count, rounds=self.rounds)
            if np.array_equal(indices, wanted):
                return self.make_clip(canvas, times[indices], indices, span, span.start)
            wanted = indices
        cause = f"the file is truncated or corrupt: {len(stamps)} of {packets} frames could be read"
        raise VideoError(self.source, f"{cause}; {FETCH_AGAIN}")

    def _clock(self, stamps: list[int | None]) -> tuple[np.ndarray, float]:
        """Return times and duration in seconds of frames in order: by their stamps if those never fall and seldom are
        equal, else by the stream's frame rate."""
        stream = self._demuxer.stream
        rate = float(stream.average_rate or stream.guessed_rate or 25)
        known = [stamp for stamp in stamps if stamp is not None]
        steps = np.diff(known)
        if len(known) == len(stamps) and (steps >= 0).all() and np.count_nonzero(steps == 0) <= len(steps) / 20:
            times = (np.array(known, np.int64) - known[0]) / float(1 / stream.time_base)
        else:
            times = np.arange(len(stamps)) / rate
        return times, float(times[-1]) + 1 / rate
