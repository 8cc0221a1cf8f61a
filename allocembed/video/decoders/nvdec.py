"""Decode on the decoders of an NVIDIA card, through PyNvVideoCodec. Frames stay on the card.

The packets come from our own `Demuxer`, so seeking, frame tables and checks are those of PyAV's path, and exact means
the same frames. What the card cannot decode, PyAV decodes: the file as a whole, or what is left of it after an error.
A damaged picture is concealed by the card, where PyAV would report it.
"""

from __future__ import annotations

import importlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from threading import BoundedSemaphore, Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.errors import ConfigError, MissingDependency, VideoError
from allocembed.video.decoders.base import Decoder, FrameTable, Picture, TableMismatch
from allocembed.video.decoders.bitstream import Stream, describe
from allocembed.video.decoders.colours import Colours, Turn
from allocembed.video.decoders.pyav import BT601, FULL_RANGE, MATRICES, PyAVDecoder, display_turn, shown_width

if TYPE_CHECKING:
    from av.packet import Packet

    from allocembed.video.packets import Demuxer

LIBRARY = "PyNvVideoCodec"
FORMATS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10}
SIZES = ((1920, 1088), (4096, 2304), (8192, 8192))  # a session serves all videos up to its own size
SLOTS = 12  # files that the card decodes at the same time; more do not make an H200 faster
logger = logging.getLogger("allocembed")


class CannotDecodeHere(Exception):  # noqa: N818 (caught inside this module)
    """This card cannot decode this file; the text says why."""


@dataclass(frozen=True, eq=False)
class Surface:
    """A decoded picture on the card, valid until the next packet is decoded."""

    pts: int
    frame: Any


@dataclass(frozen=True)
class Look:
    """What a file's first keyframe says about all of its pictures."""

    colours: Colours
    turn: Turn
    width: int
    """Pixels across, once they are square."""
    size: tuple[int, int]
    """Height and width as coded."""


class Session:
    """One decoder of the card, which serves one file after the other, and the stream it works in."""

    def __init__(self, card: Nvdec, codec: str, size: tuple[int, int]) -> None:
        self.library, self.device = card.library, card.device
        self.stream = torch.cuda.Stream(card.device) if card.device.type == "cuda" else None
        self.decoder = self.library.CreateDecoder(
            gpuid=card.device.index or 0,
            codec=getattr(self.library.cudaVideoCodec, codec),
            cudacontext=0,
            cudastream=self.stream.cuda_stream if self.stream else 0,
            usedevicememory=True,
            maxwidth=size[0],
            maxheight=size[1],
        )

    def lane(self) -> AbstractContextManager[Any]:
        """Where pictures are converted: after they are decoded, and before the next one is."""
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()

    def decode(self, address: int, size: int, pts: int) -> list[Surface]:
        """Give the decoder a packet; return the pictures that are complete."""
        packet = self.library.PacketData()
        packet.bsl_data, packet.bsl, packet.pts = address, size, pts
        return [Surface(frame.timestamp, frame) for frame in self.decoder.Decode(packet)]

    def drain(self) -> list[Surface]:
        """End a sequence; return the pictures that are left."""
        packet = self.library.PacketData()
        packet.bsl = 0
        packet.decode_flag = self.library.VideoPacketFlag.ENDOFSTREAM
        return [Surface(frame.timestamp, frame) for frame in self.decoder.Decode(packet)]


class Nvdec:
    """The decoders of one card, for all threads. `shared` means that PyAV decodes the files for which none is free."""

    def __init__(self, device: torch.device, *, shared: bool = True, library: Any = None) -> None:
        self.device, self.library = device, library or find_library()
        self.declined: Counter[str] = Counter()
        """Files that PyAV had to decode, by reason."""
        self.files = 0
        """Files that the card decoded."""
        self._slots = BoundedSemaphore(SLOTS) if shared else None
        self._idle: dict[tuple[str, int, tuple[int, int]], list[Session]] = {}
        self._able: dict[tuple[str, int], dict[str, int]] = {}
        self._lock = Lock()

    def open(self, demuxer: Demuxer) -> Decoder | None:
        """A decoder for a file; None if all are busy."""
        if self._slots is not None and not self._slots.acquire(blocking=False):
            return None
        try:
            return NvdecDecoder(self, demuxer)
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """A file is closed."""
        if self._slots is not None:
            self._slots.release()

    def session(self, stream: Stream, bits: int, size: tuple[int, int]) -> tuple[Any, Session]:
        """A session for a codec, bits and (height, width), and the key to return it with."""
        height, width = size
        able = self._ask(stream.codec, bits)
        fits = able["width_min"] <= width <= able["width_max"] and able["height_min"] <= height <= able["height_max"]
        if not able["supported"] or not fits or width * height > 256 * able["mb_num_max"]:
            raise CannotDecodeHere(f"{stream.codec} of {bits} bits and {width}x{height}")
        largest = next(most for most in SIZES if width <= most[0] and height <= most[1])
        key = stream.codec, bits, largest
        with self._lock:
            if idle := self._idle.get(key):
                return key, idle.pop()
        return key, Session(self, stream.codec, largest)

    def give_back(self, key: Any, session: Session) -> None:
        """Keep a session for the next file."""
        with self._lock:
            self._idle.setdefault(key, []).append(session)

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
                self._able[codec, bits] = library.GetDecoderCaps(
                    gpuid=self.device.index or 0,
                    codec=getattr(library.cudaVideoCodec, codec),
                    chromaformat=library.cudaVideoChromaFormat(1),
                    bitdepth=bits,
                )
            return self._able[codec, bits]


class NvdecDecoder(PyAVDecoder):
    """Decodes one file on the card, and with PyAV what the card cannot."""

    def __init__(self, card: Nvdec, demuxer: Demuxer) -> None:
        super().__init__(demuxer)
        self.card, self.fallback = card, PyAVDecoder(demuxer)
        self._unable = ""
        self._look: Look | None = None
        self._session: Session | None = None
        self._key: Any = None
        self._stream: Stream | None = None
        self._closed = self._counted = False

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if self._session is not None:
                self.card.give_back(self._key, self._session)
            self.card.release()

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
                return
        except CannotDecodeHere as reason:
            self._unable = str(reason)
        except VideoError:
            raise
        except Exception as error:  # the card's library raises errors of several kinds
            self._unable = "unusual times" if isinstance(error, TableMismatch) else f"{type(error).__name__} on the GPU"
            logger.debug("%s: %s", self.demuxer.source, error)
            self._session = None  # it may be in any state
        finally:
            if self._session is not None and self._session.stream is not None:
                self._session.stream.synchronize()  # others may use the pictures now
        self._count(self._unable)
        for index, stamp, pixels in self.fallback.pictures(table, left, left_keys):
            yield index, stamp, self._send(pixels)

    def in_order(self, wanted: frozenset[int]) -> Iterator[tuple[int | None, np.ndarray | None]]:
        self._count("no usable times")
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

    def to_rgb(self, frame: Any) -> Any:
        assert self._session is not None
        assert self._look is not None
        height, width = self._look.size
        with self._session.lane():
            surface = torch.from_dlpack(frame.frame)
            if surface.shape != (height * 3 // 2, width):
                raise CannotDecodeHere("frames of different sizes")
            # The library states a wrong step between 16-bit words.
            surface = surface.as_strided(surface.shape, (surface.stride(0), 1))
            chroma = surface[height:].unflatten(1, (-1, 2))
            image = self._look.colours.to_rgb(surface[:height], chroma)
            if self._look.width != width:
                image = _widen(image, self._look.width)
            return self._look.turn.apply(image).contiguous()

    def restart(self) -> None:
        """Forget what was decoded before a seek."""
        assert self._session is not None
        assert self._stream is not None
        self._session.drain()
        if header := self._stream.header:
            self._session.decode(*header, 0)

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
        self._key, self._session = self.card.session(self._stream, self._look.colours.bits, self._look.size)

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

    def _send(self, pixels: np.ndarray) -> Any:
        return torch.from_numpy(np.ascontiguousarray(pixels)).to(self.card.device)

    def _count(self, reason: str | None) -> None:
        if not self._counted:
            self._counted = True
            self.card.count(reason)


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


def _widen(image: torch.Tensor, width: int) -> torch.Tensor:
    """Make the pixels of (H, W, 3) square."""
    planes = image.permute(2, 0, 1)[None].float()
    wide = F.interpolate(planes, size=(image.shape[0], width), mode="bicubic", antialias=True)
    return wide[0].permute(1, 2, 0).round_().clamp_(0, 255).to(torch.uint8)
