"""Small videos for the tests, encoded on the spot, and the plain way to read them back."""

from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from allocembed.testing.videos import picture

WIDTH, HEIGHT, RATE = 64, 48, 25
LONG_GROUPS = {"g": "60", "bf": "3", "sc_threshold": "0"}


def write_video(
    path: Path,
    frames: int | Sequence[np.ndarray | av.VideoFrame] = 50,
    *,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    pixels: str = "yuv420p",
    stamps: Sequence[int] | None = None,
    time_base: Fraction = Fraction(1, RATE),
    muxing: dict[str, str] | None = None,
    prepare: Callable[[av.VideoStream], None] = lambda stream: None,
    change: Callable[[av.Packet], av.Packet] = lambda packet: packet,
) -> Path:
    """Encode `frames`, a number of moving pictures or given ones, into `path`; `stamps` are in units of `time_base`."""
    if codec not in av.codecs_available:
        pytest.skip(f"this FFmpeg has no {codec}")
    pictures = [picture(index) for index in range(frames)] if isinstance(frames, int) else frames
    pictures = [av.VideoFrame.from_ndarray(each) if isinstance(each, np.ndarray) else each for each in pictures]
    rate = round(1 / time_base) if stamps is None else RATE
    with av.open(str(path), "w", options=muxing or {}) as container:
        stream = container.add_stream(codec, rate=rate, options=options or {})
        stream.height, stream.width, stream.pix_fmt = pictures[0].height, pictures[0].width, pixels
        stream.codec_context.time_base = time_base
        prepare(stream)
        for index, frame in enumerate(pictures):
            frame.pts, frame.time_base = index if stamps is None else stamps[index], time_base
            container.mux([change(packet) for packet in stream.encode(frame)])
        container.mux([change(packet) for packet in stream.encode(None)])
    return path


def time_of_decoding(packet: av.Packet) -> av.Packet:
    """A change for `write_video`: the packet as written by a muxer that does not know when it is shown."""
    packet.dts += 8  # which begin below 0
    packet.pts = packet.dts
    return packet


def write_audio(path: Path, codec: str) -> Path:
    """A tenth of a second of silence."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=44100)
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 4410), np.float32), format="fltp", layout="mono")
        silence.sample_rate, silence.pts = 44100, 0
        resampled = av.AudioResampler(stream.codec_context.format, "mono", 44100).resample(silence)
        for frame in (*resampled, None):
            container.mux(stream.encode(frame))
    return path


def read_all(path: Path) -> tuple[np.ndarray, list[float]]:
    """Every frame (N, H, W, 3) and its time in seconds after the first, by decoding the file from start to end."""
    with av.open(str(path)) as container:
        decoded = [(frame.to_ndarray(format="rgb24"), frame.time or 0.0) for frame in container.decode(video=0)]
    return np.stack([pixels for pixels, _ in decoded]), [time - decoded[0][1] for _, time in decoded]
