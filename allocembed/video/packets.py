"""Open a video file and find its frames without decoding any: timestamps, keyframes, missing tails.

There are four ways to the frame table. `table_from_packets` reads the header of every packet and is right for any
container. `table_from_header` gives the same table of an MP4 in object storage, and `samples.table_from_samples` that
of most local ones; neither reads a packet. `table_from_index` reads only FFmpeg's index of an MP4, where that is
complete. None trusts the frame counts and lengths in file headers, which are often missing or estimated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allocembed.errors import VideoError
from allocembed.remote.ranged import HollowFile, RangedFile
from allocembed.video.clip import FETCH_AGAIN
from allocembed.video.decoders.base import FrameTable, VideoInput

if TYPE_CHECKING:
    from av.packet import Packet

STEADY = 0.1  # spread of frame intervals, relative to their median, that still counts as a constant rate
MOST_PIXELS = 2**31 - 1  # that FFmpeg accepts
SEEK_BACK_SECONDS = (0, 2, 20)  # how much earlier to try when a container's seek lands past the target


class Demuxer:
    """One video file and its best video stream. Every failure inside FFmpeg becomes a VideoError."""

    def __init__(self, video: VideoInput) -> None:
        self.video, self.source = video, video.name
        self.file, self.limits, self.stopwatch = video.file, video.limits, video.stopwatch
        try:
            import av
        except ImportError as error:
            raise VideoError(self.source, "reading video needs PyAV; install it with: pip install av") from error
        self.av: Any = av
        self.container: Any = None
        self.closed = False
        try:
            self.open()
        except VideoError:
            self.close()
            raise

    def close(self) -> None:
        """Release the file for good."""
        self.closed = True
        self._release()

    def _release(self) -> None:
        if self.container is not None:
            self.container.close()

    def check_open(self) -> None:
        """Raise VideoError once the file is closed: FFmpeg would read memory that is free."""
        if self.closed:
            raise VideoError(self.source, "it was closed; open it again, and use it inside its with block")

    def open(self) -> None:
        """Open the file, or open it again to restart at its beginning."""
        self.check_open()
        self._release()
        # A playlist renamed to a video must not make FFmpeg read anything but this file.
        options = {"protocol_whitelist": "file" if isinstance(self.file, Path) else "none"}
        with self.failures("cannot open it as a video", "check that it is one, and complete"):
            if not isinstance(self.file, Path):
                self.file.seek(0)
            target = str(self.file.absolute()) if isinstance(self.file, Path) else self.file
            self.container = self.av.open(target, options=options, metadata_errors="ignore")
        self.at_start = True
        self.stream = self._best_stream()
        self.stream.thread_type = "AUTO"
        self.stream.codec_context.thread_count = self.limits.threads
        self.stream.codec_context.options = {"max_pixels": str(min(self.limits.max_pixels, MOST_PIXELS))}

    @contextmanager
    def failures(self, cause: str, remedy: str) -> Iterator[None]:
        """Turn errors of FFmpeg and the system into VideoError, with their own words between cause and remedy."""
        try:
            yield
        except (self.av.error.FFmpegError, OSError) as error:
            if isinstance(error, PermissionError):
                cause, remedy = "cannot be read", "check its permissions"
            raise VideoError(self.source, f"{cause} ({error.strerror or error}); {remedy}") from error

    def size(self) -> int:
        """Bytes of the file."""
        return self.file.stat().st_size if isinstance(self.file, Path) else self.file.size

    @property
    def packet_per_frame(self) -> bool:
        """Whether the container guarantees one frame per packet. In others a packet may hold one field, or two
        frames."""
        return any(name in self.container.format.name for name in ("mp4", "matroska"))

    def packets(self) -> Iterator[Packet]:
        """Yield the stream's packets from the current position; the last, empty one drains the decoder."""
        self.at_start = False
        # PyAV fails on streams that appear in the middle of a file, but only after our stream's last packet.
        with self.failures("the file is truncated or corrupt", FETCH_AGAIN), suppress(IndexError):
            self.check_open()
            for packet in self.container.demux(self.stream):
                self.stopwatch.check()
                # An AVI marks a frame that repeats the last one by an empty packet, which a decoder would take for the
                # end of the stream.
                if packet.size or packet.dts is None:
                    yield packet
                    self.check_open()

    def packets_from(self, table: FrameTable, stamp: int) -> Iterator[Packet]:
        """Yield the packets from exactly the keyframe with that stamp on; none if it cannot be found.

        Containers disagree on the meaning of a seek: by which stamp, and whether it may land later. So check where
        it landed, skip what comes before the target, and seek further back if it landed after the target.
        """
        self.check_open()
        for seconds in (*SEEK_BACK_SECONDS, None):
            try:
                if seconds is None:
                    self.open()
                else:
                    back = round(seconds * table.tick_rate)
                    self.container.seek(stamp + table.seek_offset - back, stream=self.stream)
            except self.av.error.FFmpegError:  # this container cannot seek, or not to there
                continue
            packets = self.packets()
            for packet in packets:
                here = getattr(packet, table.by)
                if here == stamp and packet.is_keyframe:
                    yield packet
                    yield from packets
                    return
                # Nothing before a keyframe has a later stamp. An equal stamp on another packet is invented: MPEG
                # program streams do so after a seek.
                if here is not None and here >= stamp:
                    break

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


def table_from_index(demuxer: Demuxer) -> FrameTable | None:
    """Return the table that an MP4's own index gives, by decode time; None where it is incomplete or ambiguous.

    Decode times can replace presentation times only where the two differ by a constant, that is without B-frames or at
    a constant rate. Files with hidden frames or fragments and other containers need `table_from_packets`.
    """
    stream = demuxer.stream
    entries = _index_entries(demuxer)
    if not entries or len(entries) != stream.frames or any(hidden for _, _, hidden, _ in entries):
        return None
    _check_tail(demuxer, entries)
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
        end=int(stamps[-1]) + last,
        tick_rate=float(1 / stream.time_base),
        by="dts",
        seek_offset=(stream.start_time or 0) - int(stamps[0]),
    )


def table_from_header(demuxer: Demuxer) -> FrameTable | None:
    """Return the table that `table_from_packets` would give of an MP4 in object storage, without fetching a packet.

    FFmpeg knows all packets of an MP4 from its header and lists them from zeros as well. None where the header is
    incomplete, as in fragmented files, or where what is listed is not what the index says.
    """
    if not isinstance(demuxer.file, RangedFile):
        return None
    entries = _index_entries(demuxer)
    if not entries or len(entries) != demuxer.stream.frames:
        return None
    if demuxer.stream.codec_context.name == "vp8":  # whose packets must be looked into
        return None
    view = HollowFile(demuxer.file)
    stamps: list[int | None] = []

    def noted(packets: Iterable[Packet]) -> Iterator[Packet]:
        for packet in packets:
            stamps.extend([packet.dts] if packet.size else [])
            yield packet

    listing = Demuxer(replace(demuxer.video, file=view))
    try:
        view.hollow = True
        # FFmpeg looks into a packet to tell a keyframe; the index marks them too.
        table = table_from_packets(listing, noted(listing.packets()), [key for _, key, _, _ in entries])
    finally:
        listing.close()
    return table if stamps == [stamp for stamp, _, _, _ in entries] else None


def table_from_packets(
    demuxer: Demuxer, packets: Iterable[Packet], keyframes: Sequence[bool] | None = None
) -> FrameTable:
    """Return the table from reading all packets, by presentation time; untrusted where their stamps are unusable.

    `keyframes` says which packets are some, if the packets themselves do not.
    """
    rows = []
    cut_off = False
    for packet in packets:
        if packet.size and _shows_frame(packet, demuxer.stream.codec_context.name):
            key = packet.is_keyframe if keyframes is None else len(rows) < len(keyframes) and keyframes[len(rows)]
            rows.append((packet.pts, key, packet.is_discard, packet.duration or 0))
            cut_off = packet.is_corrupt
    shown = sum(not hidden for _, _, hidden, _ in rows)
    if not shown:
        raise VideoError(demuxer.source, f"the video stream holds no frames; {FETCH_AGAIN}")
    _check_tail(demuxer, _index_entries(demuxer))
    if cut_off:
        raise VideoError(demuxer.source, f"the file is truncated after {shown - 1} whole frames; {FETCH_AGAIN}")
    stamps, flags, hidden, lengths = (np.array(column) for column in zip(*rows, strict=True))
    table = arrange(stamps, flags, hidden, lengths, float(1 / demuxer.stream.time_base))
    seconds, promised = table.end / table.tick_rate, _promised_seconds(demuxer)
    # Some tolerance, as the length of the last frame is counted in more than one way.
    if table.trusted and seconds < promised - max(0.2, promised / 100):
        cause = f"the file is truncated: {seconds:.2f} of {promised:.2f} s ({len(table)} frames) are there"
        raise VideoError(demuxer.source, f"{cause}; {FETCH_AGAIN}")
    return table


def arrange(
    pts: np.ndarray, flags: np.ndarray, hidden: np.ndarray, lengths: np.ndarray, tick_rate: float
) -> FrameTable:
    """Sort (N,) frames, given in file order, into presentation order; `flags` mark the keyframes."""
    shown, keys = np.flatnonzero(~hidden), np.flatnonzero(flags)
    untrusted = FrameTable(np.arange(len(shown)), np.zeros(1, int), len(shown), tick_rate, trusted=False)
    if pts.dtype == object or not keys.size:  # a frame has no stamp, or none is a keyframe
        return untrusted
    # Frames before the first keyframe, in the file or on the screen, cannot be decoded: a recording that starts in the
    # middle of a broadcast has such frames.
    shown = shown[(shown >= keys[0]) & (pts[shown] >= pts[keys[0]])]
    order = shown[np.argsort(pts[shown])]
    steps = np.diff(pts[order])
    # Decoding cannot start at a keyframe that is shown before something that precedes it in the file.
    latest = np.maximum.accumulate(pts[keys[0] :])[keys[1:] - keys[0] - 1]
    if not order.size or (steps <= 0).any() or (latest >= pts[keys[1:]]).any():
        return untrusted
    length = int(lengths[order[-1]]) or (int(np.median(steps)) if steps.size else 0)
    return FrameTable(
        stamps=pts[order],
        keys=np.flatnonzero(flags[order]),
        entries=pts[keys],
        end=int(pts[order[-1]]) + length,
        tick_rate=tick_rate,
    )


def _shows_frame(packet: Packet, codec: str) -> bool:
    """Whether the packet gives a picture: only VP8 puts hidden reference frames in packets of their own."""
    return codec != "vp8" or bool(memoryview(packet)[0] & 0x10)  # show_frame, RFC 6386 section 9.1


def _index_entries(demuxer: Demuxer) -> list[tuple[int, bool, bool, int]]:
    """Return decode time, keyframe, hidden and end byte of every sample in an MP4; nothing for other containers."""
    if "mp4" not in demuxer.container.format.name:
        return []
    index = demuxer.stream.index_entries
    return [(entry.timestamp, entry.is_keyframe, entry.is_discard, entry.pos + entry.size) for entry in index]


def _check_tail(demuxer: Demuxer, entries: list[tuple[int, bool, bool, int]]) -> None:
    with demuxer.failures("cannot read the file", "check the file and its disk"):
        size = demuxer.size()
    there = sum(end <= size for _, _, _, end in entries)
    if there < len(entries):
        cause = f"the file is truncated: {there} of {len(entries)} frames are there"
        raise VideoError(demuxer.source, f"{cause}; {FETCH_AGAIN}")


def _promised_seconds(demuxer: Demuxer) -> float:
    """Return when the stream ends according to the finished file's header; 0 where that can be an estimate."""
    name, stream = demuxer.container.format.name, demuxer.stream
    if name == "avi" and stream.average_rate:
        return stream.frames / float(stream.average_rate)
    if name == "flv" and len(demuxer.container.streams) == 1:  # with sound, the length may be that of the sound
        return (demuxer.container.duration or 0) / demuxer.av.time_base
    tag = stream.metadata.get("DURATION", "") if "matroska" in name else ""
    parts = [float(part) for part in tag.split(":")] if re.fullmatch(r"\d+:\d+:\d+(\.\d+)?", tag) else [0.0]
    return sum(part * 60**place for place, part in enumerate(reversed(parts)))
