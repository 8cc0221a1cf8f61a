"""Samples candidate frames from a video file, a folder of images or frames in memory: `sample("talk.mp4", 24)`.

Frames come out upright, as 8-bit RGB with square pixels, with the timestamps they are really shown at. Memory is
bounded by the frames asked for, however long the video is. Left out on purpose: tone mapping (HDR keeps its
curve, only its range and matrix are converted), deinterlacing, hardware decoding, and network addresses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image

from allocembed.frames import (
    IMAGE_SUFFIXES,
    Canvas,
    Clip,
    DecodeLimits,
    VideoError,
    VideoInfo,
    candidate_indices,
    over_white,
    sample_arrays,
    sample_folder,
    sample_images,
)
from allocembed.packets import FETCH_AGAIN, FrameTable, Reader, table_from_index, table_from_packets

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame

__all__ = [
    "IMAGE_SUFFIXES",
    "VIDEO_SUFFIXES",
    "Clip",
    "DecodeLimits",
    "VideoError",
    "VideoInfo",
    "is_video",
    "probe",
    "sample",
]

Source = str | Path | np.ndarray | Sequence[np.ndarray | Image.Image]
VIDEO_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".3gp", ".mkv", ".webm", ".ogv", ".avi", ".wmv", ".asf", ".flv", ".f4v", ".mxf"}
    | {".ts", ".mts", ".m2ts", ".mpg", ".mpeg", ".vob", ".m2v", ".h264", ".h265", ".hevc", ".ivf", ".y4m", ".gif"}
)
SEEK_COST = 16  # frames: decoding so many on is no slower than a seek, which empties the decoder's pipeline
# AVColorSpace to the matrices swscale knows (BT.709, FCC, SMPTE 240M, BT.2020); all others are BT.601 to it,
# which is also FFmpeg's reading of a stream that names none.
MATRICES = {1: 1, 4: 4, 7: 7, 9: 9, 10: 9}
BT601 = 5
FULL_RANGE = 2


def sample(
    source: Source,
    count: int = 24,
    *,
    seek: Literal["exact", "keyframe"] = "exact",
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (frozen)
    rate: float | None = None,
) -> Clip:
    """`count` frames spread evenly over `source`, or all of them when there are fewer.

    `exact` decodes those very frames; `keyframe` takes the nearest keyframe within half the distance between two
    candidates instead, which is much faster on long videos, and decodes exactly where there is none. `rate` is
    the frames per second that a folder of images or frames in memory stand for (1 when not given); video files
    have their own clock.

    >>> clip = sample(np.zeros((50, 48, 64, 3), np.uint8), count=4, rate=10)
    >>> clip.indices.tolist(), clip.times.tolist(), clip.frames.shape
    ([0, 16, 32, 49], [0.0, 1.6, 3.2, 4.9], (4, 48, 64, 3))
    """
    if count < 1:
        raise ValueError(f"count is {count}; ask for at least 1 frame")
    if seek not in ("exact", "keyframe"):
        raise ValueError(f"seek is {seek!r}; it must be 'exact' or 'keyframe'")
    if rate is not None and not rate > 0:
        raise ValueError(f"rate is {rate}; it must be frames per second above 0")
    rate = rate or 1.0
    if isinstance(source, str) and not source:
        raise VideoError("''", "the path is empty; give a file or a folder")
    if isinstance(source, str | Path):
        return _sample_path(Path(source), str(source), count, seek, limits, rate)
    if isinstance(source, np.ndarray | Sequence):
        return sample_arrays(source, count, rate)
    kind = type(source).__name__
    raise TypeError(f"cannot sample a {kind}; pass a path, a (T, H, W, 3) uint8 array or a list of frames")


def probe(
    source: Source,
    *,
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (frozen)
    rate: float | None = None,
) -> VideoInfo:
    """Size, length and rate of `source`, from one decoded frame and a count of all of them.

    >>> probe(np.zeros((50, 48, 64, 3), np.uint8), rate=25)
    VideoInfo(width=64, height=48, total=50, duration=2.0, rate=25.0, source='<frames>')
    """
    clip = sample(source, 1, seek="keyframe", limits=limits, rate=rate)
    average = clip.total / clip.duration if clip.duration else 0.0
    return VideoInfo(clip.width, clip.height, clip.total, clip.duration, average, clip.source)


def is_video(path: str | Path) -> bool:
    """Whether the name ends like a video's.

    >>> is_video("talk.MP4"), is_video("notes.txt")
    (True, False)
    """
    return Path(path).suffix.lower() in VIDEO_SUFFIXES


def _sample_path(path: Path, name: str, count: int, seek: str, limits: DecodeLimits, rate: float) -> Clip:
    try:
        if path.is_dir():
            return sample_folder(path, name, count, rate, limits)
        if not path.stat().st_size:
            raise VideoError(name, f"the file is empty; {FETCH_AGAIN}")
    except FileNotFoundError as error:
        raise VideoError(name, "no such file or folder; check the path") from error
    except (OSError, ValueError) as error:
        raise VideoError(name, f"cannot be read ({error}); check the path and its permissions") from error
    if path.suffix.lower() in IMAGE_SUFFIXES:
        return sample_images([path], name, count, rate, limits)
    with Reader(path, name, limits) as reader:
        return _sample_file(reader, count, seek)


class _TableError(Exception):
    """The decoder contradicts the table of frames."""


@dataclass(frozen=True)
class _Choice:
    """A frame to take."""

    index: int
    on_keyframe: bool
    """Whether it can be had alone, or only by decoding up to it."""


@dataclass(frozen=True)
class _Landing:
    """A keyframe, fetched and not yet decoded."""

    index: int
    stamp: int
    packets: tuple["Packet", ...]


def _sample_file(reader: Reader, count: int, seek: str) -> Clip:
    if seek == "keyframe":
        table = table_from_index(reader)
        choices = _choose(table, count, seek) if table else []
        if table and all(choice.on_keyframe for choice in choices):
            try:
                return _sample_table(reader, table, choices)
            except _TableError:
                reader.open()
    table = table_from_packets(reader)
    if table.trusted:
        try:
            return _sample_table(reader, table, _choose(table, count, seek))
        except _TableError:
            pass  # fields as packets, invented timestamps, keyframes that are none: the decoder knows best
    return _read_through(reader, len(table), count)


def _choose(table: FrameTable, count: int, seek: str) -> list[_Choice]:
    """The frames to take, ascending and all different, and which of them are reached as keyframes."""
    wanted = candidate_indices(len(table), count).tolist()
    if seek == "exact" or not len(table.keys):
        return [_Choice(index, False) for index in wanted]
    stamps, key_stamps = table.stamps, table.stamps[table.keys]
    interval = (stamps[wanted[-1]] - stamps[0]) / (len(wanted) - 1) if len(wanted) > 1 else np.inf
    # A keyframe that is itself a candidate is kept for that candidate.
    taken, kept = set(), set(wanted)
    choices = []
    for index in wanted:
        distances = np.abs(key_stamps - stamps[index])
        nearest = int(table.keys[distances.argmin()])
        on_keyframe = distances.min() <= interval / 2 and nearest not in taken
        on_keyframe = bool(on_keyframe and (nearest == index or nearest not in kept))
        taken.add(nearest if on_keyframe else index)
        choices.append(_Choice(nearest if on_keyframe else index, on_keyframe))
    return sorted(choices, key=lambda choice: choice.index)


def _sample_table(reader: Reader, table: FrameTable, choices: list[_Choice]) -> Clip:
    landings = [_fetch_keyframe(reader, table, choice.index) for choice in choices if choice.on_keyframe]
    exact = [choice.index for choice in choices if not choice.on_keyframe]
    indices = sorted([landing.index for landing in landings] + exact)
    if indices[0] != 0:  # times are counted from the first frame
        raise _TableError
    slots = {index: slot for slot, index in enumerate(indices)}
    stamps = np.zeros(len(indices), np.int64)
    canvas, paint = Canvas(len(indices)), _Painter(reader)
    for index, frame in chain(_decode_keyframes(reader, landings), _decode_exactly(reader, table, exact)):
        stamps[slots[index]] = frame.pts
        canvas.put(slots[index], paint(frame))
    times = (stamps - stamps[0]) / table.tick_rate
    return Clip(canvas.frames, times, np.array(indices, np.int64), len(table), table.duration, reader.source)


def _fetch_keyframe(reader: Reader, table: FrameTable, key: int) -> _Landing:
    packets = reader.packets_from(table, int(table.stamps[key]))
    first = next(packets, None)
    if first is None or first.pts is None:
        raise _TableError
    # Where packets are not frames, the keyframe's second field may be a packet of its own.
    sent = (first,) if reader.packet_per_frame else (first, next(packets))
    leading = 0
    if table.by == "dts":
        # The first frames of an open group follow the keyframe in the file and precede it on the screen.
        leading = sum(1 for _ in takewhile(lambda packet: packet.size and packet.pts < first.pts, packets))
    return _Landing(key + leading, first.pts, tuple(packet for packet in sent if packet.size))


def _decode_keyframes(reader: Reader, landings: list[_Landing]) -> Iterator[tuple[int, "VideoFrame"]]:
    """Decode keyframes in one go, nothing between them: they need no other frame, so threads share the work."""
    if not landings:
        return
    due = {landing.stamp: landing.index for landing in landings}
    for packet in (*(packet for landing in landings for packet in landing.packets), None):
        for frame in reader.decode(packet):
            if frame.pts in due:
                yield due.pop(frame.pts), frame
    if due:
        raise _TableError


def _decode_exactly(reader: Reader, table: FrameTable, wanted: list[int]) -> Iterator[tuple[int, "VideoFrame"]]:
    """Decode forward from the keyframe before each wanted frame, going on without a seek where that is near.

    Every frame on the way is held against the table, so that none can pass for another. Where the reader spares frames,
    those on the way from which no other is made are not decoded.
    """
    kept = frozenset(table.stamps[wanted].tolist())
    frames: Iterator[VideoFrame] = iter(())
    following = -SEEK_COST - 1  # the first frame the decoder may give next
    for index in wanted:
        entry, first = table.entry_before(index)
        if first > following + SEEK_COST:
            frames = _decode_from(reader, table, entry, kept)
            following = first
        for frame in frames:
            if frame.pts is not None and frame.pts < table.stamps[following]:
                continue  # of an open group: shown before the keyframe, and broken without the group before it
            place = following
            if reader.spares and frame.pts is not None:
                place = int(np.searchsorted(table.stamps, frame.pts))
            if place > index or frame.pts != table.stamps[place]:
                raise _TableError
            following = place + 1
            if place == index:
                yield index, frame
                break
        else:
            raise _TableError


def _decode_from(reader: Reader, table: FrameTable, entry: int, kept: frozenset[int]) -> Iterator["VideoFrame"]:
    for packet in reader.packets_from(table, entry):
        yield from reader.decode(packet, wanted=packet.pts is None or packet.pts in kept)


def _read_through(reader: Reader, packets: int, count: int) -> Clip:
    """Decode all frames one after another: the slow way that needs no timestamps and no seeking.

    How many there are shows only at the end, so the first pass bets on a frame a packet.
    """
    total = packets
    for _ in range(2):
        reader.open()
        indices = candidate_indices(total, count)
        canvas, paint = Canvas(len(indices)), _Painter(reader)
        stamps, slot = [], 0
        for frame in _decode_all(reader):
            if slot < len(indices) and len(stamps) == indices[slot]:
                canvas.put(slot, paint(frame))
                slot += 1
            stamps.append(frame.pts)
        if len(stamps) == total:
            times, duration = _clock(stamps, reader.stream)
            return Clip(canvas.frames, times[indices], indices, total, duration, reader.source)
        if not stamps or reader.packet_per_frame:
            break
        total = len(stamps)
    cause = f"the file is truncated or corrupt: {len(stamps)} of {packets} frames could be read"
    raise VideoError(reader.source, f"{cause}; {FETCH_AGAIN}")


def _decode_all(reader: Reader) -> Iterator["VideoFrame"]:
    started = False
    for packet in reader.packets():
        started = started or packet.is_keyframe  # what precedes the first keyframe only raises errors
        if started:
            yield from reader.decode(packet)


def _clock(stamps: list[int | None], stream: Any) -> tuple[np.ndarray, float]:
    """Seconds for frames in order, by their stamps if those are sound, else by the stream's frame rate."""
    rate = float(stream.average_rate or stream.guessed_rate or 25)
    if None not in stamps and all(early < late for early, late in pairwise(stamps)):
        times = (np.array(stamps, np.int64) - stamps[0]) / float(1 / stream.time_base)
    else:
        times = np.arange(len(stamps)) / rate
    return times, float(times[-1]) + 1 / rate


class _Painter:
    """Turns decoded frames into upright (H, W, 3) uint8 RGB arrays with square pixels."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        # One converter for all frames: each keeps megabytes of state.
        self.converter = reader.av.video.reformatter.VideoReformatter()
        aspect = float(reader.stream.sample_aspect_ratio or 1)
        self.aspect = aspect if 1 / 16 <= aspect <= 16 else 1.0  # beyond that the header is garbage

    def __call__(self, frame: "VideoFrame") -> np.ndarray:
        if frame.is_corrupt:
            raise VideoError(self.reader.source, f"a frame is damaged: the file is corrupt; {FETCH_AGAIN}")
        width = max(1, round(frame.width * self.aspect))
        self.reader.limits.check_pixels(width, frame.height, self.reader.source)
        opaque = not any(component.is_alpha for component in frame.format.components)
        matrix = MATRICES.get(frame.colorspace, BT601)
        with self.reader.failures("its pixels cannot be converted to RGB", "convert the video to H.264"):
            painted = self.converter.reformat(
                frame,
                width=width,
                format="rgb24" if opaque else "rgba",
                src_colorspace=matrix,
                dst_colorspace=matrix,
                dst_color_range=FULL_RANGE,
                interpolation=self._scaling(frame, width),
            ).to_ndarray()
        return _upright(painted if opaque else over_white(painted), frame)

    def _scaling(self, frame: "VideoFrame", width: int) -> Any:
        method = self.reader.av.video.reformatter.Interpolation
        if width == frame.width and all(component.bits <= 8 for component in frame.format.components):
            return method.BILINEAR  # FFmpeg's own default, and its fast path
        # The fast path turns 10-bit white into 253.
        return method.BICUBIC | method.ACCURATE_RND | method.FULL_CHR_H_INT


def _upright(image: np.ndarray, frame: "VideoFrame") -> np.ndarray:
    """Turn and mirror as the display matrix says, to the nearest quarter turn."""
    try:
        data = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV cannot list side data newer than itself; the angle it finds by other means
        return np.rot90(image, round(frame.rotation / 90))
    if data is None:
        return image
    across, down, _, along, below = np.frombuffer(data, np.int32)[:5].tolist()
    if abs(down) > abs(across):  # x turns into y
        image, across, below = image.swapaxes(0, 1), along, down
    return image[:: -1 if below < 0 else 1, :: -1 if across < 0 else 1]
