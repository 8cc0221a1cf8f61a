"""A stand-in for PyNvVideoCodec: the same interface, decoding with FFmpeg on the CPU.

It has the library's habits that matter: it takes addresses of packets behind start codes, needs their headers again
after a sequence ends, overwrites a picture when the next packet comes, and states a wrong step between 16-bit words.
Of several pictures in a packet, only the first has a time. Times are given back in ascending order, whatever pictures
they belong to.
Files of another size are scaled to the first one's, and pictures are spoiled by other parameter sets, since the GPU
keeps the number of its reference pictures.
"""

from __future__ import annotations

import ctypes
import re
from contextlib import suppress
from types import SimpleNamespace

import av
import numpy as np
import torch

from allocembed.video.decoders.nvdec.gpu import Nvdec

BITS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10}
UNKNOWN = 1 << 40  # times of pictures that are not the first in their packet
ABLE = {"supported": 1, "width_min": 16, "height_min": 16, "width_max": 4096, "height_max": 4096, "mb_num_max": 65536}


class Frame:
    def __init__(self, timestamp: int, surface: torch.Tensor) -> None:
        self.timestamp, self.surface = timestamp, surface

    def __dlpack__(self, **options: object) -> object:
        return self.surface.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple:
        return self.surface.__dlpack_device__()


class Decoder:
    def __init__(self, library: Library, codec: str) -> None:
        self.library, self.context = library, av.CodecContext.create(codec, "r")
        self.given: list[Frame] = []
        self.times: list[int] = []
        self.last: int | None = None
        self.size: tuple[int, int] | None = None
        self.parameters: bytes | None = None
        self.spoils = False

    def Decode(self, packet: PacketData) -> list[Frame]:  # noqa: N802
        for frame in self.given:
            frame.surface.fill_(85)
        self.library.packets += 1
        if self.library.breaks_at is not None and self.library.packets >= self.library.breaks_at:
            raise RuntimeError("HandlePictureDecode : the GPU is gone")
        if packet.bsl:
            data = ctypes.string_at(packet.bsl_data, packet.bsl)
            self.look_at(data)
            frames = []
            parts = self.split(data)
            if parts:
                self.times.append(packet.pts)
            for number, part in enumerate(parts):
                part.pts = packet.pts if number == 0 else packet.pts + UNKNOWN + number
                with suppress(av.error.FFmpegError):  # the GPU conceals
                    frames += self.context.decode(part)
        else:
            frames = self.context.decode(None)
            self.context.flush_buffers()
        self.library.frames += len(frames)
        if self.library.loses is not None and self.library.frames > self.library.loses:
            frames, self.library.loses = frames[1:], None
        self.given = [Frame(self.time_of(frame), surface(self.scaled(frame))) for frame in frames]
        if not packet.bsl:
            self.times, self.last = [], None
        for frame in self.given if self.spoils else ():
            frame.surface.fill_(170)
        return self.given

    def time_of(self, frame: av.VideoFrame) -> int:
        """The lowest time of all pictures in the decoder. Of those before the first one, FFmpeg gives none."""
        if frame.pts >= UNKNOWN // 2:
            return frame.pts
        before = frame.pts - 1 if self.last is None else self.last
        self.times = sorted(time for time in self.times if time > before)
        self.last = self.times.pop(0)
        return self.last

    def split(self, data: bytes) -> list[av.Packet]:
        """A packet for each picture: FFmpeg's decoders take no more."""
        pictures: list[bytes] = []
        before = b""
        for unit in re.split(b"\0\0\0?\1", data)[1:] if self.context.name in ("h264", "hevc") else ():
            piece = b"\0\0\0\1" + unit
            if self.context.name == "h264":
                is_picture, is_first = unit[0] & 31 in (1, 5), unit[1] & 128
            else:
                is_picture, is_first = unit[0] >> 1 & 63 < 32, unit[2] & 128
            if is_picture and is_first:
                pictures.append(before + piece)
                before = b""
            elif is_picture:
                pictures[-1] += piece
            else:
                before += piece
        return [av.Packet(part) for part in pictures or [data][: self.context.name not in ("h264", "hevc")]]

    def look_at(self, data: bytes) -> None:
        """Note the first sequence parameter set, and whether another one comes."""
        kinds = {"h264": lambda unit: unit[0] & 31 == 7, "hevc": lambda unit: unit[0] >> 1 & 63 == 33}
        is_set = kinds.get(self.context.name, lambda unit: False)
        for unit in re.split(b"\0\0\1", data):
            if unit and is_set(unit):
                self.parameters = self.parameters or unit.rstrip(b"\0")
                self.spoils = self.spoils or unit.rstrip(b"\0") != self.parameters

    def scaled(self, frame: av.VideoFrame) -> av.VideoFrame:
        self.size = self.size or (frame.width, frame.height)
        if (frame.width, frame.height) == self.size:
            return frame
        return frame.reformat(*self.size)


class PacketData:
    """No attributes but those of the library."""

    __slots__ = ("bsl", "bsl_data", "pts")

    def __init__(self) -> None:
        self.bsl = self.bsl_data = self.pts = 0


class Library:
    """A stand-in for the module PyNvVideoCodec."""

    cudaVideoCodec = SimpleNamespace(H264="h264", HEVC="hevc", VP9="vp9", AV1="libdav1d")  # noqa: N815
    PacketData = PacketData

    def __init__(
        self, *, able: dict[str, int] | None = None, breaks_at: int | None = None, loses: int | None = None
    ) -> None:
        self.able, self.breaks_at, self.loses = ABLE | (able or {}), breaks_at, loses
        self.packets = self.frames = self.sessions = 0

    def cudaVideoChromaFormat(self, number: int) -> int:  # noqa: N802
        return number

    def GetDecoderCaps(  # noqa: N802
        self, gpuid: int = 0, codec: str = "h264", chromaformat: int = 1, bitdepth: int = 8
    ) -> dict[str, int]:
        return self.able

    def CreateDecoder(  # noqa: N802
        self,
        gpuid: int = 0,
        codec: str = "h264",
        cudacontext: int = 0,
        cudastream: int = 0,
        usedevicememory: bool = False,
        maxwidth: int = 0,
        maxheight: int = 0,
    ) -> Decoder:
        self.sessions += 1
        return Decoder(self, codec)


def surface(frame: av.VideoFrame) -> torch.Tensor:
    """Luma above interleaved chroma, as a tensor (3/2 H, W)."""
    kind = np.uint8 if BITS[frame.format.name] == 8 else np.uint16
    planes = [np.frombuffer(plane, kind).reshape(plane.height, -1)[:, : plane.width] for plane in frame.planes]
    chroma = np.stack(planes[1:], -1).reshape(len(planes[1]), -1)
    both = np.concatenate([planes[0], chroma])
    if kind is np.uint8:
        return torch.from_numpy(both.copy())
    words = torch.from_numpy(np.concatenate([both << 6, np.zeros_like(both)]).reshape(-1))
    return words.as_strided(both.shape, (both.shape[1], 2))


def stand_in(library: Library | None = None, *, shared: bool = False) -> Nvdec:
    """The decoders of a GPU that there is not."""
    return Nvdec(torch.device("cpu"), shared=shared, library=library or Library())
