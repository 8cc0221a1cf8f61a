"""A stand-in for PyNvVideoCodec: the same interface, decoding with FFmpeg on the CPU.

It has the library's habits that matter: it takes addresses of packets behind start codes, needs their headers again
after a sequence ends, overwrites a picture when the next packet comes, and states a wrong step between 16-bit words.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import av
import numpy as np
import torch

BITS = {"yuv420p": 8, "yuvj420p": 8, "yuv420p10le": 10}
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

    def Decode(self, packet: SimpleNamespace) -> list[Frame]:  # noqa: N802
        for frame in self.given:
            frame.surface.fill_(85)
        self.library.packets += 1
        if self.library.breaks_at is not None and self.library.packets >= self.library.breaks_at:
            raise RuntimeError("HandlePictureDecode : the card is gone")
        if packet.bsl:
            part = av.Packet(ctypes.string_at(packet.bsl_data, packet.bsl))
            part.pts = packet.pts
            try:
                frames = self.context.decode(part)
            except av.error.FFmpegError:
                frames = []  # the card conceals
        else:
            assert packet.decode_flag == Library.VideoPacketFlag.ENDOFSTREAM
            frames = self.context.decode(None)
            self.context.flush_buffers()
        self.given = [Frame(frame.pts, surface(frame)) for frame in frames]
        self.library.frames += len(frames)
        return self.given


class Library:
    """What `import PyNvVideoCodec` gives."""

    cudaVideoCodec = SimpleNamespace(H264="h264", HEVC="hevc", VP9="vp9", AV1="libdav1d")  # noqa: N815
    VideoPacketFlag = SimpleNamespace(ENDOFSTREAM=1)

    def __init__(self, *, able: dict[str, int] | None = None, breaks_at: int | None = None) -> None:
        self.able, self.breaks_at = ABLE | (able or {}), breaks_at
        self.packets = self.frames = self.sessions = 0

    def cudaVideoChromaFormat(self, number: int) -> int:  # noqa: N802
        return number

    def PacketData(self) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(bsl=0, bsl_data=0, pts=0, decode_flag=0)

    def GetDecoderCaps(self, **_: object) -> dict[str, int]:  # noqa: N802
        return self.able

    def CreateDecoder(self, *, codec: str, **_: object) -> Decoder:  # noqa: N802
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
