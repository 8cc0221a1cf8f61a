"""Decode one file on the decoders of a GPU.

Frame tables are those of PyAV's path, and pictures are checked against them, so exact means the same frames. Of a local
MP4, `groups` reads many pictures at once; other packets come from our own `Demuxer`. What the GPU cannot decode, PyAV
decodes: the file as a whole, or what is left of it after an error. A damaged picture is concealed by the GPU, where
PyAV would report it.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, closing
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from allocembed.threads import map_ordered
from allocembed.video.clip import Pixels, on_host
from allocembed.video.decoders.base import FrameTable, Picture, SampleLayout, TableMismatch
from allocembed.video.decoders.nvdec import CannotDecodeHere, HardwareError
from allocembed.video.decoders.nvdec.bitstream import Stream, describe
from allocembed.video.decoders.nvdec.display import Display, check_format, find_display
from allocembed.video.decoders.nvdec.gpu import PyAVCompanion
from allocembed.video.decoders.nvdec.groups import Group, GroupDecoder, GroupReader, OpenGroup, plan
from allocembed.video.decoders.nvdec.sessions import DecoderSlot, Session, Surface
from allocembed.video.decoders.nvdec.turns import DecoderPlace
from allocembed.video.decoders.pyav import FrameFinder, PyAVDecoder

if TYPE_CHECKING:
    from av.packet import Packet

    from allocembed.video.decoders.nvdec.gpu import Nvdec

BESIDE_OTHERS = 0.5  # what FFmpeg takes for a picture beside other work, relative to the first keyframe (H.264, 720p)
WAITING_BYTES = 1 << 29  # of pictures of one file, decoded in several sessions, that wait for earlier ones
PACKETS = 64  # in which pictures are shown in another order than they are decoded, if that is so at all
logger = logging.getLogger("allocembed")


class NvdecDecoder(PyAVCompanion):
    """Decodes one file on the GPU, and with PyAV what the GPU cannot."""

    def __init__(self, gpu: Nvdec, slot: DecoderSlot, pyav: PyAVDecoder, place: DecoderPlace | None) -> None:
        super().__init__(pyav)
        # FFmpeg decodes a single picture, unless it has to take over.
        self.demuxer.stream.codec_context.thread_count = 1
        self.gpu, self.slot, self.spares = gpu, slot, pyav.spares
        self._unable = ""
        self._display: Display | None = None
        self._session: Session | None = None
        self._key: Hashable = None
        self._stream: Stream | None = None
        self._own: GroupDecoder | None = None
        self._running: Generator[Picture, None, None] | None = None
        self._closed = self._counted = self._took_over = self._in_order = False
        self._place = place
        self._guess: float | None = None  # seconds that the cores would have taken, if the GPU has decoded the file
        self._keyframe_seconds, self._before = 0.0, 0

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                self._stop()
                if self._own is not None:
                    self._own.close()
                if self._session is not None and self.slot.sessions.get(self._key) is not self._session:
                    self._session.end()
            finally:
                self._session = None
                self.gpu.keep(self.slot)
                self._give_place_back()
                super().close()

    def lane(self) -> AbstractContextManager[Any]:
        return self.slot.lane()

    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        self.demuxer.check_open()
        self._stop()
        self._running = self._pictures(table, exact, keyframes)
        return self._running

    def _stop(self) -> None:
        """End what decodes pictures that nobody asks for any more, and its threads."""
        if self._running is not None:
            self._running.close()
            self._running = None

    def _pictures(
        self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int]
    ) -> Generator[Picture, None, None]:
        left, left_keys = list(exact), list(keyframes)
        try:
            if not self._unable:
                self._open(table)
                if exact:
                    self._check_order(table)
                if self._place is not None and (not exact or self._layout(table) is None):
                    self._place.use_beside(0)
                finder = FrameFinder(self.demuxer, self)
                found = chain(self._keyframes(finder, table, keyframes), self._exactly(finder, table, exact))
                for index, frame in found:
                    stamp, pixels = frame.pts or 0, self.to_rgb(frame)
                    for waiting in (left, left_keys):
                        if table.by == "pts" and index in waiting:
                            waiting.remove(index)
                    yield index, stamp, pixels
                self._count(None)
                if self._session is not None:
                    self._guess = BESIDE_OTHERS * self._keyframe_seconds * (self._session.pictures - self._before)
                return
        except CannotDecodeHere as reason:
            self._unable = str(reason)
        except TableMismatch:
            self._unable = "unusual times"
        except (HardwareError, RuntimeError) as error:  # as torch raises for a device
            name = str(error) if isinstance(error, HardwareError) else type(error).__name__
            self._unable = f"{name} on the GPU"
            logger.debug("%s: %s", self.demuxer.source, error.__cause__ or error)
        if self._session is not None:
            self.slot.drop(self._key)
            self._session.end()
            self._session = None
        self._count(self._unable)
        self._take_over()
        for index, stamp, pixels in self.pyav.pictures(table, left, left_keys):
            yield index, stamp, self._send(pixels)

    def in_order(self, wanted: frozenset[int]) -> Iterator[tuple[int | None, Pixels | None]]:
        self._count("no usable times")
        self._took_over = True  # what follows opens the file again
        self._give_place_back()
        for stamp, pixels in self.pyav.in_order(wanted):
            yield stamp, None if pixels is None else self._send(pixels)

    def decode(self, packet: Packet | None, *, wanted: bool = True) -> list[Any]:
        assert self._session is not None
        assert self._stream is not None
        if packet is None or not packet.size:
            return self._session.drain()
        if not wanted and self.spares and self._stream.is_disposable(packet):
            return []
        found: list[Surface] = []
        for part in self._stream.parts(packet):  # which empties the packet
            found += self._session.decode(part.buffer_ptr, part.buffer_size, part.pts or 0)
        return found

    def decode_alone(self, keyframes: Sequence[Sequence[Packet]]) -> Iterator[Any]:
        for packets in keyframes:
            self.restart()  # or the GPU would fill what it takes for a gap between two of them
            for packet in (*packets, None):
                yield from self.decode(packet)

    def _exactly(self, finder: FrameFinder, table: FrameTable, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
        if (layout := self._layout(table)) is None:
            yield from finder.exactly(table, wanted)
        else:
            groups = deque(plan(table, layout, wanted))
            if slots := self._borrow(groups):
                yield from self._decode_side_by_side(table, groups, slots)
            yield from self._decode_groups(table, groups, finder.exactly)

    def _keyframes(self, finder: FrameFinder, table: FrameTable, keys: Sequence[int]) -> Iterator[tuple[int, Any]]:
        if (layout := self._layout(table)) is None:
            yield from finder.keyframes(table, keys)
        else:
            samples = layout.find(table.stamps[list(keys)]).tolist()
            groups = [Group(sample, sample, [key]) for key, sample in zip(keys, samples, strict=True)]
            yield from self._decode_groups(table, deque(groups), finder.keyframes)

    def _layout(self, table: FrameTable) -> SampleLayout | None:
        """Places of the pictures, if they can be read from the file without PyAV."""
        assert self._stream is not None
        assert self._session is not None
        if table.layout is None or not isinstance(self.demuxer.file, Path) or not self._stream.in_place:
            return None
        if self._own is None:
            self._own = self._group_decoder(self.slot, self._session, table.layout)
        return table.layout

    def _group_decoder(self, slot: DecoderSlot, session: Session, layout: SampleLayout) -> GroupDecoder:
        assert self._stream is not None
        assert self._display is not None
        assert isinstance(self.demuxer.file, Path)
        reader = GroupReader(self.demuxer.file, layout, self._stream, self.demuxer.stopwatch.check)
        return GroupDecoder(slot, session, reader, self._display, spares=self.spares)

    def _decode_groups(
        self,
        table: FrameTable,
        groups: deque[Group],
        decode_open: Callable[[FrameTable, Sequence[int]], Iterator[tuple[int, Any]]],
    ) -> Iterator[tuple[int, Any]]:
        """Decode many pictures in each call. Groups that cannot be read so are left to another way."""
        assert self._own is not None
        self._own.start()
        for group in groups:
            try:
                yield from self._own.decode(table, group)
            except OpenGroup:
                yield from self._own.finish()
                yield from decode_open(table, group.wanted)
                self._own.start()
        yield from self._own.finish()

    def _borrow(self, groups: Sequence[Group]) -> list[DecoderSlot]:
        """Other slots in which a session of this file's kind is idle, with a place for each, to decode groups at once.

        Pictures wait there until it is their turn, so there are only as many slots as memory for them.
        """
        if self._place is None:
            return []
        assert self._display is not None
        most = 0
        if len(groups) > 2:
            largest = max(len(group.wanted) for group in groups) * self._display.rgb_bytes
            most = min(len(groups), WAITING_BYTES // largest) - 1
            self._place.turns.widen(self._place)
        slots = self.gpu.lend(self._key, max(0, min(most, self._place.beside)))
        used = self._place.use_beside(len(slots))
        for slot in slots[used:]:  # another file took the place meanwhile
            self.gpu.keep(slot)
        return slots[:used]

    def _decode_side_by_side(
        self, table: FrameTable, left: deque[Group], slots: Sequence[DecoderSlot]
    ) -> Iterator[tuple[int, Any]]:
        """Decode groups in this slot and others, and take them from `left`, until one has to be decoded otherwise."""
        assert self._own is not None
        assert table.layout is not None
        own, others = self._own, list[GroupDecoder]()
        idle: SimpleQueue[GroupDecoder] = SimpleQueue()
        idle.put(own)

        def decode(group: Group) -> list[tuple[int, Surface]] | None:
            decoder = idle.get()
            try:
                return decoder.decode_whole(table, group)
            finally:
                idle.put(decoder)

        try:
            for slot in slots:
                others.append(self._group_decoder(slot, slot.sessions[self._key], table.layout))
                idle.put(others[-1])
            workers = 1 + len(others)
            with closing(map_ordered(decode, list(left), workers=workers, ahead=workers)) as found:
                for frames in found:
                    if frames is None:
                        break
                    left.popleft()
                    for index, surface in frames:
                        self.slot.share(surface.rgb)
                        yield index, surface
        except Exception:
            for slot in slots:
                slot.drop(self._key)
            raise
        finally:
            for decoder in others:
                decoder.close()
            for slot in slots:
                self.gpu.keep(slot)
            if self._place is not None:
                self._place.use_beside(0)

    def to_rgb(self, frame: Any) -> Any:
        if frame.rgb is not None:
            return frame.rgb
        assert self._display is not None
        with self.slot.within():
            return self._display.to_rgb(frame.frame)

    def restart(self) -> None:
        """Forget what was decoded before a seek."""
        assert self._session is not None
        assert self._stream is not None
        self._session.drain()
        if self._stream.headers:
            self._session.decode_bytes(self._stream.headers, 0)

    def _open(self, table: FrameTable) -> None:
        """Look at the first keyframe, and take a session for its kind."""
        if self._session is not None:
            return
        if self._stream is None:
            self._stream = describe(self.demuxer)
            if self._stream is None:
                raise CannotDecodeHere(self.demuxer.stream.codec_context.name)
        if self._display is None:
            began = time.monotonic()
            frame = FrameFinder(self.demuxer, self.pyav).first(table)
            self._keyframe_seconds = time.monotonic() - began
            if frame is None:
                raise TableMismatch
            self.gpu.check(self._stream, check_format(frame), (frame.height, frame.width))
            self._display = find_display(self.pyav, frame, self.gpu.device)
        if not self._stream.is_set_up:
            stamp = table.stamps[table.keys[0]] if len(table.keys) else table.entries[0]
            for packet in islice(self.demuxer.packets_from(table, int(stamp)), 1):
                self._stream.set_up(packet)
        display = self._display
        self._key, self._session = self.slot.session(self.gpu.library, self._stream, display.colours.bits, display.size)
        self._before = self._session.pictures

    def _check_order(self, table: FrameTable) -> None:
        """Raise TableMismatch if the times of a file may not be in the order of its pictures. A muxer may have written
        times of decoding. The GPU would not notice, since it gives times back in ascending order."""
        if self._in_order or not self.demuxer.stream.codec_context.has_b_frames:
            return
        if table.layout is not None:
            stamps = table.layout.stamps
        else:
            packets = islice(self.demuxer.packets_from(table, int(table.entries[0])), PACKETS)
            stamps = [packet.pts for packet in packets if packet.pts is not None]
        if (np.diff(stamps) >= 0).all():
            raise TableMismatch
        self._in_order = True

    def _take_over(self) -> None:
        """Let FFmpeg decode with all threads that it may use."""
        if not self._took_over and self.demuxer.limits.threads != 1:
            self.demuxer.open()
        self._took_over, self._guess = True, None
        self._give_place_back()

    def _give_place_back(self) -> None:
        if self._place is not None:
            self._place.give_back(self._guess)

    def _send(self, pixels: Pixels) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(on_host(pixels))).to(self.gpu.device)

    def _count(self, reason: str | None) -> None:
        if not self._counted:
            self._counted = True
            self.gpu.count(reason)
