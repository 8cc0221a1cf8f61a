"""Opens a video file and finds where its frames are without decoding any: timestamps, keyframes, missing tails.

Two ways to the table of frames: `table_from_packets` reads every packet's header and is right for any container;
`table_from_index` reads only the sample table of an MP4, where that says enough. Neither believes the frame
counts and lengths that headers claim, which are missing or estimated too often.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from allocembed.frames import DecodeLimits, Stopwatch, VideoError

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame

FETCH_AGAIN = "download or copy it again"
STEADY = 0.1  # spread of frame intervals, relative to their median, that still counts as a constant rate
SPARING = ("h264", "hevc", "mpeg4", "mpeg2video")  # codecs that mark frames from which no other is made
SEEK_BACK_SECONDS = (0, 2, 20)  # how much earlier to try when a container's seek lands past what was asked for


@dataclass(frozen=True, eq=False)
class FrameTable:
    """Every shown frame of a stream, in the order of presentation."""

    stamps: np.ndarray
    """(N,) int64 ascending ticks: presentation times, or decode times where `by` is "dts"."""
    keys: np.ndarray
    """(K,) int64: the keyframes. By "dts" a keyframe is counted before the frames of an open group of pictures
    that follow it in the file but are shown before it."""
    entries: np.ndarray
    """(E,) int64 ascending: stamps of all keyframes, with those that an edit list hides but decoding starts from."""
    end: int
    """The tick at which the last frame ends."""
    tick_rate: float
    """Ticks in a second."""
    by: Literal["pts", "dts"] = "pts"
    seek_offset: int = 0
    """From a stamp to what the container seeks by: presentation times, even where `by` is "dts"."""
    trusted: bool = True
    """Whether frames can be sought by these stamps; if not, only reading through tells which is which."""

    def __len__(self) -> int:
        return len(self.stamps)

    @property
    def duration(self) -> float:
        """Seconds from the first frame's start to the last one's end."""
        return float(self.end - self.stamps[0]) / self.tick_rate

    def entry_before(self, index: int) -> tuple[int, int]:
        """The stamp of the keyframe from which frame `index` can be decoded, and the first frame that gives."""
        entry = self.entries[np.searchsorted(self.entries, self.stamps[index], side="right") - 1]
        return int(entry), int(np.searchsorted(self.stamps, entry))


class Reader:
    """One video file and its best video stream; all that goes wrong inside FFmpeg comes out as VideoError."""

    def __init__(self, path: Path, source: str, limits: DecodeLimits) -> None:
        try:
            import av
        except ImportError as error:
            raise VideoError(source, "reading video needs PyAV; install it with: pip install av") from error
        self.av = av
        self.path = path
        self.source = source
        self.limits = limits
        self.stopwatch = Stopwatch(limits, source)
        self.container: Any = None
        try:
            self.open()
        except VideoError:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        if self.container is not None:
            self.container.close()

    def open(self) -> None:
        """Start anew at the beginning of the file."""
        self.close()
        # A playlist dressed up as a video must not make us read anything but this file.
        options = {"protocol_whitelist": "file"}
        with self.failures("not a video that can be opened", "check that it is one, and complete"):
            self.container = self.av.open(str(self.path.absolute()), options=options, metadata_errors="ignore")
        self.stream = self._best_stream()
        self.stream.thread_type = "AUTO"
        self.stream.codec_context.thread_count = self.limits.threads
        self.stream.codec_context.options = {"max_pixels": str(self.limits.max_pixels)}
        self.spares = self._can_spare_frames()

    @contextmanager
    def failures(self, cause: str, remedy: str) -> Iterator[None]:
        """Turn FFmpeg's errors into VideoError, with its own words between cause and remedy."""
        try:
            yield
        except self.av.error.FFmpegError as error:
            raise VideoError(self.source, f"{cause} ({error.strerror}); {remedy}") from error

    @property
    def packet_per_frame(self) -> bool:
        """Whether the container's own rules say that a packet is a frame. In others a packet may be half a frame
        (one field), or hold two."""
        return any(name in self.container.format.name for name in ("mp4", "matroska"))

    def packets(self) -> Iterator["Packet"]:
        """The stream's packets from here on; the last, empty one drains the decoder."""
        # PyAV trips over streams that turn up in the middle of a file, but only after our stream's last packet.
        with self.failures("the file is truncated or corrupt", FETCH_AGAIN), suppress(IndexError):
            for packet in self.container.demux(self.stream):
                self.stopwatch.check()
                # An AVI marks a frame that repeats the last one by an empty packet, which a decoder would take
                # for the end.
                if packet.size or packet.dts is None:
                    yield packet

    def packets_from(self, table: FrameTable, stamp: int) -> Iterator["Packet"]:
        """The packets from exactly the keyframe with that stamp on; none when it is not to be found.

        Containers disagree on what a seek means: by which stamp, and whether it may land later. So look at where
        it landed, step over what comes before, and seek further back when it was too late.
        """
        for seconds in (*SEEK_BACK_SECONDS, None):
            try:
                if seconds is None:
                    self.open()
                else:
                    back = round(seconds * table.tick_rate)
                    self.container.seek(stamp + table.seek_offset - back, stream=self.stream)
            except self.av.error.FFmpegError:  # this container cannot seek, or not there
                continue
            packets = self.packets()
            for packet in packets:
                here = getattr(packet, table.by)
                if here == stamp and packet.is_keyframe:
                    yield packet
                    yield from packets
                    return
                # Nothing before a keyframe is stamped later than it. A stamp like its own on another packet was
                # made up: MPEG program streams do so after a seek.
                if here is not None and here >= stamp:
                    break

    def decode(self, packet: "Packet | None", *, wanted: bool = True) -> list["VideoFrame"]:
        """The frames that come out when `packet` goes in; None drains the decoder.

        Where the reader `spares` frames, a packet that is not `wanted` itself is left out if no other frame is made
        from it, as from most B-frames.
        """
        if self.spares:
            self.stream.codec_context.skip_frame = "DEFAULT" if wanted else "NONREF"
        remedy = FETCH_AGAIN
        if self.limits.max_pixels < DecodeLimits.max_pixels:  # a decoder that refuses large frames does not say so
            remedy += f", or raise DecodeLimits.max_pixels if frames grow past {self.limits.max_pixels}"
        with self.failures("a frame cannot be decoded, the file is truncated or corrupt", remedy):
            return self.stream.codec_context.decode(packet)

    def _can_spare_frames(self) -> bool:
        """Whether the decoder may leave out frames from which no other is made, and what comes out still tells which
        frame it is: a packet must be a frame. In HEVC with temporal layers the mark speaks of its own layer alone."""
        context = self.stream.codec_context
        if not self.packet_per_frame or context.name not in SPARING:
            return False
        record = context.extradata or b""  # of HEVC one that counts the layers, in its 22nd byte
        return context.name != "hevc" or (len(record) > 21 and record[21] >> 3 & 7 == 1)

    def _best_stream(self) -> Any:
        cover = self.av.stream.Disposition.attached_pic
        streams = [stream for stream in self.container.streams.video if not stream.disposition & cover]
        if not streams:
            raise VideoError(self.source, "no video stream; pass a file with moving pictures")
        best = self.container.streams.best("video")
        stream = best if best in streams else streams[0]
        if stream.codec_context is None:
            raise VideoError(self.source, "no decoder for its codec; convert it to H.264: ffmpeg -i FILE out.mp4")
        self.limits.check_pixels(stream.width, stream.height, self.source)
        for other in self.container.streams:
            if other is not stream:
                other.discard = self.av.stream.Discard.all
        return stream


def table_from_index(reader: Reader) -> FrameTable | None:
    """The table an MP4's own index gives, by decode time; None where it leaves anything open.

    Decode times stand in for presentation times only where the two differ by a constant, that is without
    B-frames or at a constant rate. Hidden frames, fragments and other containers go the long way.
    """
    stream = reader.stream
    entries = _index_entries(reader)
    if not entries or len(entries) != stream.frames or any(hidden for _, _, hidden, _ in entries):
        return None
    _refuse_missing_tail(reader, entries)
    stamps = np.array([stamp for stamp, _, _, _ in entries], np.int64)
    keys = np.flatnonzero([key for _, key, _, _ in entries])
    steps = np.diff(stamps)
    if not keys.size or keys[0] != 0 or (steps <= 0).any():
        return None
    if stream.codec_context.has_b_frames and steps.size and np.ptp(steps) > STEADY * np.median(steps):
        return None
    last = int(steps[-1]) if steps.size else stream.duration or 0
    return FrameTable(
        stamps=stamps,
        keys=keys,
        entries=stamps[keys],
        end=int(stamps[-1]) + last,
        tick_rate=float(1 / stream.time_base),
        by="dts",
        seek_offset=(stream.start_time or 0) - int(stamps[0]),
    )


def table_from_packets(reader: Reader) -> FrameTable:
    """The table from reading all packets, by presentation time; untrusted where packets do not tell it."""
    rows = []
    cut_off = False
    for packet in reader.packets():
        if packet.size and _shows_frame(packet, reader.stream.codec_context.name):
            rows.append((packet.pts, packet.is_keyframe, packet.is_discard, packet.duration or 0))
            cut_off = packet.is_corrupt
    shown = sum(not hidden for _, _, hidden, _ in rows)
    if not shown:
        raise VideoError(reader.source, f"the video stream holds no frames; {FETCH_AGAIN}")
    _refuse_missing_tail(reader, _index_entries(reader))
    if cut_off:
        cause = f"the file is truncated: {shown - 1} frames are whole, then it breaks off"
        raise VideoError(reader.source, f"{cause}; {FETCH_AGAIN}")
    table = _in_order(rows, float(1 / reader.stream.time_base))
    seconds, promised = table.end / table.tick_rate, _promised_seconds(reader)
    # Some slack, as the last frame's length is counted in more than one way.
    if table.trusted and seconds < promised - max(0.2, promised / 100):
        cause = f"the file is truncated: {seconds:.2f} of {promised:.2f} s ({len(table)} frames) are there"
        raise VideoError(reader.source, f"{cause}; {FETCH_AGAIN}")
    return table


def _in_order(rows: list[tuple[int | None, bool, bool, int]], tick_rate: float) -> FrameTable:
    """Sort (stamp, keyframe, hidden, length), given in file order, into the order of presentation."""
    stamps, flags, hidden, lengths = (list(column) for column in zip(*rows, strict=True))
    shown = np.flatnonzero(~np.array(hidden))
    untrusted = FrameTable(
        np.arange(len(shown)), np.zeros(1, int), np.zeros(1, int), len(shown), tick_rate, trusted=False
    )
    if None in stamps or True not in flags:
        return untrusted
    pts, keys = np.array(stamps, np.int64), np.flatnonzero(flags)
    # What comes before the first keyframe, in the file or on the screen, cannot be decoded: a recording that starts
    # in the middle of a broadcast has such frames.
    shown = shown[(shown >= keys[0]) & (pts[shown] >= pts[keys[0]])]
    order = shown[np.argsort(pts[shown])]
    steps = np.diff(pts[order])
    # A keyframe shown before something that precedes it in the file is no place to start from.
    latest = np.maximum.accumulate(pts[keys[0] :])[keys[1:] - keys[0] - 1]
    if not order.size or (steps <= 0).any() or (latest >= pts[keys[1:]]).any():
        return untrusted
    length = lengths[order[-1]] or (int(np.median(steps)) if steps.size else 0)
    return FrameTable(
        stamps=pts[order],
        keys=np.flatnonzero(np.array(flags)[order]),
        entries=pts[keys],
        end=int(pts[order[-1]]) + length,
        tick_rate=tick_rate,
    )


def _shows_frame(packet: "Packet", codec: str) -> bool:
    """Whether a picture comes of it: VP8 alone puts hidden reference frames in packets of their own."""
    return codec != "vp8" or bool(memoryview(packet)[0] & 0x10)  # show_frame, RFC 6386 section 9.1


def _index_entries(reader: Reader) -> list[tuple[int, bool, bool, int]]:
    """Decode time, keyframe, hidden and end byte of every sample in an MP4; nothing for other containers."""
    if "mp4" not in reader.container.format.name:
        return []
    index = reader.stream.index_entries
    return [(entry.timestamp, entry.is_keyframe, entry.is_discard, entry.pos + entry.size) for entry in index]


def _refuse_missing_tail(reader: Reader, entries: list[tuple[int, bool, bool, int]]) -> None:
    size = reader.path.stat().st_size
    there = sum(end <= size for _, _, _, end in entries)
    if there < len(entries):
        cause = f"the file is truncated: {there} of {len(entries)} frames are there"
        raise VideoError(reader.source, f"{cause}; {FETCH_AGAIN}")


def _promised_seconds(reader: Reader) -> float:
    """When the stream ends by what was written down as the file was made; 0 where a length can be an estimate."""
    name, stream = reader.container.format.name, reader.stream
    if name == "avi" and stream.average_rate:
        return stream.frames / float(stream.average_rate)
    if name == "flv" and len(reader.container.streams) == 1:  # with sound, the length may be that of the sound
        return (reader.container.duration or 0) / reader.av.time_base
    tag = stream.metadata.get("DURATION", "") if "matroska" in name else ""
    parts = [float(part) for part in tag.split(":")] if re.fullmatch(r"\d+:\d+:\d+(\.\d+)?", tag) else [0.0]
    return sum(part * 60**place for place, part in enumerate(reversed(parts)))
