"""Decode on the decoders of an NVIDIA card, through PyNvVideoCodec. Frames stay on the card.

Frame tables are those of PyAV's path, and pictures are checked against them, so exact means the same frames. Of a local
MP4, `groups` reads many pictures at once; other packets come from our own `Demuxer`. What the card cannot decode, PyAV
decodes: the file as a whole, or what is left of it after an error. A damaged picture is concealed by the card, where
PyAV would report it.
"""

from __future__ import annotations

import importlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from allocembed.errors import ConfigError, MissingDependency, VideoError
from allocembed.video.decoders.base import (
    CORES_BESIDE,
    SETTING_UP,
    CannotDecodeHere,
    Decoder,
    FrameTable,
    Layout,
    Picture,
    TableMismatch,
)
from allocembed.video.decoders.bitstream import Entry, Stream, describe
from allocembed.video.decoders.colours import Colours, Turn
from allocembed.video.decoders.groups import Group, GroupReader, Order, plan
from allocembed.video.decoders.pyav import BT601, FULL_RANGE, MATRICES, PyAVDecoder, display_turn, shown_width
from allocembed.video.decoders.sessions import Session, Slot, Surface
from allocembed.video.decoders.turns import Place, Turns

if TYPE_CHECKING:
    from av.packet import Packet

    from allocembed.video.packets import Demuxer

LIBRARY = "PyNvVideoCodec"
FORMATS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10}
BUSY = "all decoders were busy"
PROOF = 16  # pictures of a file whose order is compared with their times, before others are known by their order
TOGETHER, TOGETHER_BYTES = 32, 1 << 25  # pictures to decode in one call, and their bytes: the library holds them all
logger = logging.getLogger("allocembed")


@dataclass(frozen=True)
class Look:
    """What a file's first keyframe says about all of its pictures."""

    colours: Colours
    turn: Turn
    width: int
    """Pixels across, once they are square."""
    size: tuple[int, int]
    """Height and width as coded."""

    @property
    def bytes(self) -> int:
        """Of a picture on the card."""
        return self.size[0] * self.size[1] * 3 // 2 * (1 if self.colours.bits == 8 else 2)


class Nvdec:
    """The decoders of one card, for all threads. With `shared`, PyAV decodes a file if it would finish it first."""

    places = 8
    """Files to decode at the same time. An H200 has seven decoders; more files only take longer each."""

    def __init__(self, device: torch.device, *, shared: bool = True, library: Any = None) -> None:
        self.device, self.library = device, library or find_library()
        self.declined: Counter[str] = Counter()
        """Files that PyAV decoded, by reason."""
        self.files = 0
        """Files that the card decoded."""
        self.shared, self.turns = shared, Turns(self.places)
        self._idle: list[Slot] = []
        self._able: dict[tuple[str, int], dict[str, int]] = {}
        self._lock = Lock()

    def open(self, demuxer: Demuxer) -> Decoder:
        """A decoder for a file."""
        work = pixels(demuxer)
        place = self.turns.take_place(work) if self.shared else self.turns.wait_for_place(work)
        if self.shared and place is None:
            self.count(BUSY)
            return OnCores(self.turns, demuxer)
        slot = None
        try:
            with self._lock:
                slot = self._idle.pop() if self._idle else None
            slot = slot or Slot(self.device)
            return NvdecDecoder(self, slot, demuxer, place)
        except BaseException:
            self.keep(slot)
            if place is not None:
                place.give_back(decoded=False)
            raise

    def keep(self, slot: Slot | None) -> None:
        """Keep a slot for another file."""
        if slot is not None:
            with self._lock:
                self._idle.append(slot)

    def session(self, slot: Slot, stream: Stream, bits: int, size: tuple[int, int]) -> tuple[Hashable, Session]:
        """A session for a stream of (height, width), and its name."""
        height, width = size
        able = self._ask(stream.codec, bits)
        fits = able["width_min"] <= width <= able["width_max"] and able["height_min"] <= height <= able["height_max"]
        if not able["supported"] or not fits or width * height > 256 * able["mb_num_max"]:
            raise CannotDecodeHere(f"{stream.codec} of {bits} bits and {width}x{height}")
        key = stream.codec, bits, size, stream.kind
        session = slot.sessions.get(key)
        if session is None:
            with SETTING_UP:
                session = Session(self.library, slot, stream.codec, size)
        if not isinstance(stream.kind, Stream):
            slot.keep(key, session)
        return key, session

    def count(self, reason: str | None) -> None:
        """Note a file, and why PyAV decoded it if it did."""
        with self._lock:
            if reason is None:
                self.files += 1
            else:
                self.declined[reason] += 1

    def summary(self) -> str:
        """One line about what was decoded where.

        >>> card = Nvdec(torch.device("cpu"), library=object())
        >>> card.count(None), card.count("VP8"), card.summary()
        (None, None, 'the GPU decoded 1 file, PyAV 1 (VP8)')
        """
        others = sum(self.declined.values())
        reasons = f" ({', '.join(self.declined)})" if others else ""
        return f"the GPU decoded {self.files} file{'s' * (self.files != 1)}, PyAV {others}{reasons}"

    def _ask(self, codec: str, bits: int) -> dict[str, int]:
        """What the card says about a codec, 4:2:0."""
        with self._lock:
            if (codec, bits) not in self._able:
                library = self.library
                with SETTING_UP:  # the library creates a context to ask in
                    self._able[codec, bits] = library.GetDecoderCaps(
                        gpuid=self.device.index or 0,
                        codec=getattr(library.cudaVideoCodec, codec),
                        chromaformat=library.cudaVideoChromaFormat(1),
                        bitdepth=bits,
                    )
            return self._able[codec, bits]


class OnCores(PyAVDecoder):
    """Decodes one file with PyAV, and says how long that took."""

    def __init__(self, turns: Turns, demuxer: Demuxer) -> None:
        super().__init__(demuxer)
        demuxer.stream.codec_context.thread_count = max(demuxer.limits.threads, CORES_BESIDE)
        self.turns, self.began, self.decoded = turns, time.monotonic(), False

    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        yield from super().pictures(table, exact, keyframes)
        self.decoded = True

    def close(self) -> None:
        if self.decoded:
            self.decoded = False
            self.turns.note_cores(time.monotonic() - self.began, pixels(self.demuxer))


class NvdecDecoder(PyAVDecoder):
    """Decodes one file on the card, and with PyAV what the card cannot."""

    def __init__(self, card: Nvdec, slot: Slot, demuxer: Demuxer, place: Place | None) -> None:
        super().__init__(demuxer)
        demuxer.stream.codec_context.thread_count = 1  # FFmpeg decodes a single picture, unless it has to take over
        self.card, self.slot, self.fallback = card, slot, PyAVDecoder(demuxer)
        self._unable = ""
        self._look: Look | None = None
        self._session: Session | None = None
        self._key: Hashable = None
        self._stream: Stream | None = None
        self._reader: GroupReader | None = None
        self._closed = self._counted = self._took_over = False
        self._place, self._decoded = place, False
        self._unproved = PROOF

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            try:
                if self._reader is not None:
                    self._reader.close()
                kept = self._session is not None and self.slot.sessions.get(self._key) is self._session
                with nullcontext() if kept else SETTING_UP:
                    self._session = None
            finally:
                self.card.keep(self.slot)
                self._give_place_back()

    def lane(self) -> AbstractContextManager[Any]:
        return self.slot.lane()

    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        left, left_keys = list(exact), list(keyframes)
        try:
            if not self._unable:
                self._open(table)
                for index, stamp, pixels in super().pictures(table, exact, keyframes):
                    for waiting in (left, left_keys):
                        if table.by == "pts" and index in waiting:
                            waiting.remove(index)
                    yield index, stamp, pixels
                self._count(None)
                self._decoded = True
                return
        except CannotDecodeHere as reason:
            self._unable = str(reason)
        except VideoError:
            raise
        except Exception as error:  # the card's library raises errors of several kinds
            self._unable = "unusual times" if isinstance(error, TableMismatch) else f"{type(error).__name__} on the GPU"
            logger.debug("%s: %s", self.demuxer.source, error)
        with SETTING_UP:  # what the session holds is freed: it may be in any state
            self._session = None
            self.slot.sessions.pop(self._key, None)
        self._count(self._unable)
        self._take_over()
        for index, stamp, pixels in self.fallback.pictures(table, left, left_keys):
            yield index, stamp, self._send(pixels)

    def in_order(self, wanted: frozenset[int]) -> Iterator[tuple[int | None, np.ndarray | None]]:
        self._count("no usable times")
        self._took_over = True  # what follows opens the file again
        self._give_place_back()
        for stamp, pixels in self.fallback.in_order(wanted):
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
            self.restart()  # or the card would fill what it takes for a gap between two of them
            for packet in (*packets, None):
                yield from self.decode(packet)

    def _decode_exactly(self, table: FrameTable, wanted: Sequence[int]) -> Iterator[tuple[int, Any]]:
        if (layout := self._layout(table)) is None:
            yield from super()._decode_exactly(table, wanted)
        else:
            yield from self._decode_groups(table, plan(table, layout, wanted), super()._decode_exactly)

    def _decode_keyframes(self, table: FrameTable, keys: Sequence[int]) -> Iterator[tuple[int, Any]]:
        if (layout := self._layout(table)) is None:
            yield from super()._decode_keyframes(table, keys)
        else:
            samples = layout.find(table.stamps[list(keys)]).tolist()
            groups = [Group(sample, sample, [key]) for key, sample in zip(keys, samples, strict=True)]
            yield from self._decode_groups(table, groups, super()._decode_keyframes)

    def _layout(self, table: FrameTable) -> Layout | None:
        """Where the pictures are, if they can be read from the file without PyAV."""
        assert self._stream is not None
        file = self.demuxer.file
        if table.layout is None or not isinstance(file, Path) or not self._stream.in_place:
            return None
        if self._reader is None:
            self._reader = GroupReader(file, table.layout, self._stream, self.demuxer.stopwatch.check)
        return table.layout

    def _decode_groups(
        self,
        table: FrameTable,
        groups: Sequence[Group],
        decode_open: Callable[[FrameTable, Sequence[int]], Iterator[tuple[int, Any]]],
    ) -> Iterator[tuple[int, Any]]:
        """Decode many pictures in each call. Groups that cannot be read so are left to another way.

        What one group leaves in the decoder comes out when the next one begins.
        """
        assert self._session is not None
        assert self._reader is not None
        assert self._look is not None
        session, order = self._session, Order(table, [index for group in groups for index in group.wanted], self._keep)
        most = max(1, min(TOGETHER, TOGETHER_BYTES // self._look.bytes))

        def is_spare(stamp: int) -> bool:
            return self.spares and stamp not in order.missing

        session.drain()
        for group in groups:
            singly = self._unproved if group.last > group.first else 0
            entry, packets = self._reader.packets(group, most, is_spare, singly=singly)
            if entry is not Entry.ANYWHERE:
                yield from order.finish(session.drain())
            if entry is Entry.NOWHERE:
                for index, frame in decode_open(table, group.wanted):
                    del order.missing[int(table.stamps[index])]
                    yield index, frame
                session.drain()
                continue
            for packet in packets:
                order.expect(packet.stamps)
                self._unproved -= singly > 0
                yield from order.identify(session.decode_bytes(packet.data, packet.stamps[0]))
        yield from order.finish(session.drain())
        if order.missing:
            raise TableMismatch

    def _keep(self, surface: Surface, pts: int) -> Surface:
        return Surface(pts, None, self.to_rgb(surface))

    def to_rgb(self, frame: Any) -> Any:
        if frame.rgb is not None:
            return frame.rgb
        assert self._look is not None
        height, width = self._look.size
        with self.slot.within():
            surface = torch.from_dlpack(frame.frame)
            if surface.shape != (height * 3 // 2, width):
                raise CannotDecodeHere("frames of different sizes")
            if self._look.colours.bits > 8:  # the library states a wrong step between 16-bit words
                surface = surface.as_strided(surface.shape, (surface.stride(0), 1))
            image = self._look.colours.to_rgb(surface, self._look.width)
            return self._look.turn.apply(image).contiguous()

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
        if self._look is None:
            self._look = self._look_at(table)
        look = self._look
        self._key, self._session = self.card.session(self.slot, self._stream, look.colours.bits, look.size)

    def _look_at(self, table: FrameTable) -> Look:
        frame = self.fallback.first_keyframe(table)
        if frame is None:
            raise TableMismatch
        if frame.format.name not in FORMATS or frame.width % 2 or frame.height % 2:
            raise CannotDecodeHere(f"{frame.format.name} of {frame.width}x{frame.height}")
        if frame.interlaced_frame:
            raise CannotDecodeHere("interlaced pictures")
        width = shown_width(self.demuxer, frame)
        self.demuxer.limits.check_pixels(width, frame.height, self.demuxer.source)
        matrix = MATRICES.get(frame.colorspace, BT601)
        full = frame.color_range == FULL_RANGE or frame.format.name == "yuvj420p"
        colours = Colours(matrix, full, FORMATS[frame.format.name])
        return Look(colours, Turn(*display_turn(frame)), width, (frame.height, frame.width))

    def _take_over(self) -> None:
        """Let FFmpeg decode with all threads that it may use."""
        if not self._took_over and self.demuxer.limits.threads != 1:
            self.demuxer.open()
        self._took_over, self._decoded = True, False
        self._give_place_back()

    def _give_place_back(self) -> None:
        if self._place is not None:
            self._place.give_back(decoded=self._decoded)

    def _send(self, pixels: np.ndarray) -> Any:
        return torch.from_numpy(np.ascontiguousarray(pixels)).to(self.card.device)

    def _count(self, reason: str | None) -> None:
        if not self._counted:
            self._counted = True
            self.card.count(reason)


def pixels(demuxer: Demuxer) -> int:
    """Of a picture, as the file says."""
    return max(1, demuxer.stream.width * demuxer.stream.height)


@cache
def find_card(decoder: str, device: torch.device) -> Nvdec | None:
    """The decoders to use beside a model on `device`: one object for each card, for all who ask.

    With "auto", None if there are none; with "nvdec" that is an error.
    """
    if decoder == "pyav" or (decoder == "auto" and device.type != "cuda"):
        return None
    if device.type != "cuda":
        raise ConfigError("cannot decode on a GPU: the model is on the CPU; use --device cuda, or --decoder pyav")
    try:
        return Nvdec(device, shared=decoder == "auto")
    except (ConfigError, MissingDependency):
        if decoder == "nvdec":
            raise
        return None


def find_library() -> Any:
    """PyNvVideoCodec, or a reason why it cannot be used."""
    logging.getLogger(LIBRARY).setLevel(logging.CRITICAL)  # it writes pages about a missing driver
    try:
        return importlib.import_module(LIBRARY)
    except ModuleNotFoundError as error:
        raise MissingDependency("decoding on the GPU", LIBRARY, "gpu") from error
    except (ImportError, RuntimeError, OSError) as error:
        cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        remedy = "use --decoder pyav, or install NVIDIA's driver with its video libraries"
        raise ConfigError(f"cannot decode on the GPU: {cause}; {remedy}") from error
