"""Decoders of an NVIDIA GPU, one call of PyNvVideoCodec at a time, and the streams in which they work."""

from __future__ import annotations

import ctypes
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from allocembed.threads import SETTING_UP
from allocembed.video.decoders.nvdec import HardwareError
from allocembed.video.decoders.nvdec.bitstream import Stream

SESSIONS = 2  # kept in each slot


@dataclass(frozen=True, eq=False)
class Surface:
    """A decoded picture on the GPU, valid until the next packet is decoded, unless it is RGB already."""

    pts: int
    frame: Any
    rgb: Any = None


class Session:
    """One decoder of the GPU, which serves one file after the other of the same kind.

    The library can reconfigure a decoder. But then it scales pictures to the size of the first file, and keeps the
    number of reference pictures. Where only the cropping differs, it writes past its buffers. So files share a session
    only if their parameter sets are equal.
    """

    def __init__(self, library: Any, slot: DecoderSlot, codec: str, size: tuple[int, int]) -> None:
        self.library, self.fed, self.running = library, False, False
        self.pictures = 0
        """Decoded so far, of all files."""
        kind = getattr(self.library.cudaVideoCodec, codec)
        with HardwareError.wrapped():
            self.decoder: Any = self.library.CreateDecoder(
                gpuid=slot.device.index or 0,
                codec=kind,
                cudacontext=0,
                cudastream=slot.stream.cuda_stream if slot.stream else 0,
                usedevicememory=True,
                maxwidth=size[1],
                maxheight=size[0],
            )

    def end(self) -> None:
        """Free what the library holds, whatever still refers to it."""
        with SETTING_UP:
            self.decoder = None

    def decode(self, address: int, size: int, pts: int) -> list[Surface]:
        """Give the decoder a packet; return the pictures that are complete. Of several pictures in a packet, only the
        first one has the given time."""
        packet = self.library.PacketData()
        packet.bsl_data, packet.bsl, packet.pts = address, size, pts
        self.fed = True
        return self._feed(packet)

    def decode_bytes(self, data: bytes, pts: int) -> list[Surface]:
        """Decode a packet in Python's memory."""
        return self.decode(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value or 0, len(data), pts)

    def drain(self) -> list[Surface]:
        """End a sequence, by an empty packet; return the pictures that are left."""
        if not self.fed:
            return []
        self.fed = False
        return self._feed(self.library.PacketData())

    def _feed(self, packet: Any) -> list[Surface]:
        # The library creates the decoder with the first picture.
        with nullcontext() if self.running else SETTING_UP, HardwareError.wrapped():
            frames = self.decoder.Decode(packet)
        self.running = self.running or bool(frames)
        self.pictures += len(frames)
        return [Surface(frame.timestamp, frame) for frame in frames]


class DecoderSlot:
    """A stream of the GPU for one file at a time, and the sessions that last worked in it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.sessions: OrderedDict[Hashable, Session] = OrderedDict()

    def within(self) -> AbstractContextManager[Any]:
        """Work in the stream: after pictures are decoded, and before the next one is."""
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()

    @contextmanager
    def lane(self) -> Iterator[None]:
        """Work in the stream, and wait until all of it is done."""
        with self.within():
            try:
                yield
            finally:
                if self.stream:
                    self.stream.synchronize()

    def share(self, tensor: torch.Tensor) -> None:
        """Use a tensor of another slot in this one's stream: its memory is not used again before that is done."""
        if self.stream:
            tensor.record_stream(self.stream)

    def session(self, library: Any, stream: Stream, bits: int, size: tuple[int, int]) -> tuple[Hashable, Session]:
        """A session for a stream that the GPU decodes, and its name."""
        key = stream.codec, bits, size, stream.kind
        session = self.sessions.get(key)
        if session is None:
            with SETTING_UP:
                session = Session(library, self, stream.codec, size)
        if not isinstance(stream.kind, Stream):
            self.keep(key, session)
        return key, session

    def keep(self, key: Hashable, session: Session) -> None:
        """Keep a session for the next file of its kind, and drop the one that was used least recently."""
        self.sessions[key] = session
        self.sessions.move_to_end(key)
        if len(self.sessions) > SESSIONS:
            self.sessions.popitem(last=False)[1].end()

    def drop(self, key: Hashable) -> None:
        """End a session that may be in any state."""
        if (session := self.sessions.pop(key, None)) is not None:
            session.end()
