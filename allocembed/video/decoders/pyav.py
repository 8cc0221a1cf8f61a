"""Decode on the CPU with FFmpeg, through PyAV.

Not supported: tone mapping (HDR keeps its curve; only range and matrix are converted) and deinterlacing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from allocembed.errors import VideoError
from allocembed.video.clip import FETCH_AGAIN, DecodeLimits
from allocembed.video.decoders.base import Decoder, Decoders, FrameTable, Picture, TableMismatch, VideoInput
from allocembed.video.images import over_white
from allocembed.video.packets import Demuxer, table_from_header, table_from_index, table_from_packets
from allocembed.video.samples import table_from_samples

if TYPE_CHECKING:
    from av.packet import Packet
    from av.video.frame import VideoFrame

SEEK_COST = 16  # frames that decode about as fast as a seek, which empties the decoder's pipeline
SPARING = ("h264", "hevc", "mpeg4", "mpeg2video")  # codecs that mark frames which no other frame refers to
# AVColorSpace to the matrices swscale knows (BT.709, FCC, SMPTE 240M, BT.2020). It treats all others as BT.601, as
# FFmpeg does with a stream that names none.
MATRICES = {1: 1, 4: 4, 7: 7, 9: 9, 10: 9}
BT601 = 5
FULL_RANGE = 2


class PyAV(Decoders):
    """FFmpeg's decoders on the cores. They read every file that ours read."""

    def open(self, video: VideoInput) -> PyAVDecoder:
        return PyAVDecoder(Demuxer(video))


class PyAVDecoder(Decoder):
    """Decodes what a `Demuxer` reads. Its table comes from the file's header, or from the packets where that is odd."""

    def __init__(self, demuxer: Demuxer) -> None:
        self.demuxer = demuxer
        self.spares = self._can_spare_frames()
        # One converter for all frames: each keeps megabytes of state.
        self.converter = demuxer.av.video.reformatter.VideoReformatter()

    def close(self) -> None:
        self.demuxer.close()

    def find_frames(self) -> FrameTable:
        table = table_from_header(self.demuxer) or self._samples or self._list_packets()
        stream = self.demuxer.stream
        rate = float(stream.average_rate or stream.guessed_rate or table.rate)
        return replace(table, rate=rate, counted=self.demuxer.packet_per_frame)

    def find_frames_again(self) -> FrameTable | None:
        if self._samples is None:
            return None
        self._samples = self._index = None  # both are the header's
        return self.find_frames()

    def find_keyframes(self) -> FrameTable | None:
        return self._index

    def _list_packets(self) -> FrameTable:
        demuxer = self.demuxer
        if not demuxer.at_start and self._index:  # sampled by the index already: go back without opening it again
            return table_from_packets(demuxer, demuxer.packets_from(self._index, int(self._index.stamps[0])))
        if not demuxer.at_start:
            demuxer.open()
        return table_from_packets(demuxer, demuxer.packets())

    @cached_property
    def _samples(self) -> FrameTable | None:
        return table_from_samples(self.demuxer)

    @cached_property
    def _index(self) -> FrameTable | None:
        return table_from_index(self.demuxer) if self._samples is None else None

    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        try:
            finder = FrameFinder(self.demuxer, self)
            for index, frame in chain(finder.keyframes(table, keyframes), finder.exactly(table, exact)):
                yield index, frame.pts or 0, self.to_rgb(frame)
        except TableMismatch:
            if table is self._index:
                self._index = None
            raise

    def in_order(self, wanted: frozenset[int]) -> Iterator[tuple[int | None, np.ndarray | None]]:
        self.demuxer.open()
        started, index = False, 0
        for packet in self.demuxer.packets():
            started = started or packet.is_keyframe  # packets before the first keyframe only raise errors
            for frame in self.decode(packet) if started else ():
                yield frame.pts, self.to_rgb(frame) if index in wanted else None
                index += 1

    def decode(self, packet: Packet | None, *, wanted: bool = True) -> list[VideoFrame]:
        """Return the frames that the decoder gives for `packet`; None drains it.

        Where the decoder `spares` frames, it skips a packet that is not `wanted` if no other frame refers to it, as is
        true of most B-frames.
        """
        context, limit = self.demuxer.stream.codec_context, self.demuxer.limits.max_pixels
        if self.spares:
            context.skip_frame = "DEFAULT" if wanted else "NONREF"
        remedy = FETCH_AGAIN
        if limit < DecodeLimits.max_pixels:  # FFmpeg does not say that it refused a frame for its size
            remedy += f", or raise max_pixels (--max-pixels) if frames grow past {limit}"
        with self.demuxer.failures("cannot decode a frame, the file is truncated or corrupt", remedy):
            return context.decode(packet)

    def decode_alone(self, keyframes: Sequence[Sequence[Packet]]) -> Iterator[Any]:
        """Decode keyframes, given by their packets."""
        for packet in (*chain.from_iterable(keyframes), None):
            yield from self.decode(packet)

    def restart(self) -> None:
        """Forget what was decoded before a seek. PyAV does so by itself."""

    def _can_spare_frames(self) -> bool:
        """Whether frames that no other refers to may be skipped and the output can still be identified, which needs
        one frame per packet. In HEVC with temporal layers the mark is valid only within its own layer."""
        context = self.demuxer.stream.codec_context
        if not self.demuxer.packet_per_frame or context.name not in SPARING:
            return False
        record = context.extradata or b""  # for HEVC its 22nd byte holds the number of layers
        return context.name != "hevc" or (len(record) > 21 and record[21] >> 3 & 7 == 1)

    def to_rgb(self, frame: VideoFrame) -> np.ndarray:
        """Convert a decoded frame to an upright (H, W, 3) uint8 RGB array with square pixels."""
        demuxer = self.demuxer
        if frame.is_corrupt:
            raise VideoError(demuxer.source, f"a frame is damaged: the file is corrupt; {FETCH_AGAIN}")
        demuxer.limits.check_pixels(shown_width(demuxer, frame), frame.height, demuxer.source)
        return _upright(self.convert(frame), frame)

    def convert(self, frame: VideoFrame, threads: int = 0) -> np.ndarray:
        """Convert a decoded frame to RGB with square pixels, not turned. 0 threads are one per core."""
        demuxer, width = self.demuxer, shown_width(self.demuxer, frame)
        opaque = not any(component.is_alpha for component in frame.format.components)
        matrix = MATRICES.get(frame.colorspace, BT601)
        with demuxer.failures("cannot convert its pixels to RGB", "convert the video to H.264"):
            pixels = self.converter.reformat(
                frame,
                width=width,
                format="rgb24" if opaque else "rgba",
                src_colorspace=matrix,
                dst_colorspace=matrix,
                dst_color_range=FULL_RANGE,
                interpolation=self._scaling(frame, width),
                threads=threads,
            ).to_ndarray()
        return pixels if opaque else over_white(pixels)

    def _scaling(self, frame: VideoFrame, width: int) -> Any:
        method = self.demuxer.av.video.reformatter.Interpolation
        if width == frame.width and all(component.bits <= 8 for component in frame.format.components):
            return method.BILINEAR  # FFmpeg's own default, and its fast path
        # The fast path turns 10-bit white into 253.
        return method.BICUBIC | method.ACCURATE_RND | method.FULL_CHR_H_INT


class PacketCodec(Protocol):
    """Makes frames of packets: FFmpeg's codec, or a GPU's. A frame is any object with its time as `pts`."""

    spares: bool
    """Whether it may skip frames that no other frame refers to."""

    def decode(self, packet: Packet | None, *, wanted: bool = True) -> list[Any]:
        """The frames that are complete after a packet; None drains the codec."""
        ...

    def decode_alone(self, keyframes: Sequence[Sequence[Packet]]) -> Iterator[Any]:
        """Decode keyframes, given by their packets."""
        ...

    def restart(self) -> None:
        """Forget what was decoded before a seek."""
        ...


class FrameFinder:
    """Finds frames of a table in what a codec makes of the packets, and proves that they are the right ones."""

    def __init__(self, demuxer: Demuxer, codec: PacketCodec) -> None:
        self.demuxer, self.codec = demuxer, codec

    def keyframes(self, table: FrameTable, keys: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Decode keyframes with nothing between them. They need no other frame, so threads decode in parallel.

        Those of open groups are not all given so, and are then decoded one by one.
        """
        if not keys:
            return
        fetched = [self._fetch_keyframe(table, key) for key in keys]
        due = {stamp: index for index, stamp, _ in fetched}
        for frame in self.codec.decode_alone([packets for _, _, packets in fetched]):
            if frame.pts is not None and frame.pts in due:
                yield due.pop(frame.pts), frame
        for key in [key for key, (_, stamp, _) in zip(keys, fetched, strict=True) if stamp in due]:
            index, stamp, packets = self._fetch_keyframe(table, key)  # a seek also empties the decoder
            for frame in self.codec.decode_alone([packets]):
                if frame.pts == stamp and due.pop(stamp, None) is not None:
                    yield index, frame
        if due:
            raise TableMismatch

    def exactly(self, table: FrameTable, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """Decode forward from the keyframe before each wanted frame; where that is near, continue without a seek.

        Every frame on the way is compared with the table, so none can be taken for another.
        """
        kept = frozenset(table.stamps[list(wanted)].tolist())
        frames: Iterator[Any] = iter(())
        following = -SEEK_COST - 1  # the first frame that the decoder may give next
        for index in wanted:
            entry, first = table.entry_before(index)
            if first > following + SEEK_COST:
                frames = self._decode_from(table, entry, kept)
                following = first
            for frame in frames:
                if frame.pts is not None and frame.pts < table.stamps[following]:
                    continue  # of an open group: shown before the keyframe, and broken without the group before it
                place = following
                if self.codec.spares and frame.pts is not None:
                    place = int(np.searchsorted(table.stamps, frame.pts))
                if place > index or frame.pts != table.stamps[place]:
                    raise TableMismatch
                following = place + 1
                if place == index:
                    yield index, frame
                    break
            else:
                raise TableMismatch

    def _decode_from(self, table: FrameTable, entry: int, kept: frozenset[int]) -> Iterator[Any]:
        self.codec.restart()
        for packet in self.demuxer.packets_from(table, entry):
            yield from self.codec.decode(packet, wanted=packet.pts is None or packet.pts in kept)

    def first(self, table: FrameTable) -> Any:
        """Decode the frame that says how all frames are to be shown: the first keyframe. FFmpeg gives out no hidden
        ones; if all keyframes are hidden, it is the first frame after one."""
        if len(table.keys):
            return next((frame for _, frame in self.keyframes(table, [int(table.keys[0])])), None)
        packets = self.demuxer.packets_from(table, int(table.entries[0])) if len(table.entries) else iter(())
        return next((frame for packet in packets for frame in self.codec.decode(packet)), None)

    def _fetch_keyframe(self, table: FrameTable, key: int) -> tuple[int, int, list[Packet]]:
        """Return the frame number and the stamp of a keyframe, and its packets, not decoded yet."""
        packets = self.demuxer.packets_from(table, int(table.stamps[key]))
        first = next(packets, None)
        if first is None or first.pts is None:
            raise TableMismatch
        stamp = first.pts
        # Without one frame per packet, the keyframe's second field may be a packet of its own.
        second = None if self.demuxer.packet_per_frame else next(packets, None)
        leading = 0
        if table.by == "dts":
            # The first frames of an open group follow the keyframe in the file and precede it on the screen.
            earlier = takewhile(lambda each: each.size and each.pts is not None and each.pts < stamp, packets)
            leading = sum(1 for _ in earlier)
        return key + leading, stamp, [packet for packet in (first, second) if packet and packet.size]


def shown_width(demuxer: Demuxer, frame: VideoFrame) -> int:
    """Pixels across, once they are square."""
    aspect = float(demuxer.stream.sample_aspect_ratio or 1)
    # Beyond these bounds the header is garbage.
    return max(1, round(frame.width * (aspect if 1 / 16 <= aspect <= 16 else 1.0)))


def display_turn(frame: VideoFrame) -> tuple[bool, bool, bool]:
    """Whether rows and columns are swapped, and whether the result is then upside down, and mirrored, to stand upright
    as the display matrix says, to the nearest quarter turn."""
    try:
        data = frame.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV cannot list side data types newer than itself, but still knows the angle
        turns = round(frame.rotation / 90) % 4
        return turns % 2 == 1, turns in (1, 2), turns in (2, 3)
    if data is None:
        return False, False, False
    across, down, _, along, below = np.frombuffer(data, np.int32)[:5].tolist()
    if abs(down) > abs(across):  # x turns into y
        return True, down < 0, along < 0
    return False, below < 0, across < 0


def _upright(image: np.ndarray, frame: VideoFrame) -> np.ndarray:
    swap, down, across = display_turn(frame)
    image = image.swapaxes(0, 1) if swap else image
    return image[:: -1 if down else 1, :: -1 if across else 1]
