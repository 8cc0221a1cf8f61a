"""Time the ways to sample a long video: exact frames, nearest keyframes, and decoding all of it.

The video is synthetic: 720p H.264 with B-frames, 25 frames and 2.5 Mbit a second as is usual for that size, a keyframe
every `--gop` frames and nowhere else. To make ten minutes of it quickly, four groups of pictures are encoded and their
packets repeated; each group starts with an IDR picture and refers to nothing before it, so a decoder has the same work
as on any other video.

    python bench/decode.py --minutes 10 --gop 250 --candidates 24 [--threads 1]

Exact frames are sampled twice: as usual, and with every frame on the way decoded, including unneeded B-frames.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from itertools import chain
from pathlib import Path

import av
import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table

from allocembed.video import DecodeLimits, sample
from allocembed.video.decoders.pyav import PyAVDecoder

WIDTH, HEIGHT, RATE, BITS = 1280, 720, 25, 2_500_000
GROUPS = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="length of the video (default 10)")
    parser.add_argument("--gop", type=int, default=250, help="frames between keyframes (default 250)")
    parser.add_argument("--candidates", type=int, default=24, help="frames to sample (default 24)")
    parser.add_argument("--repeat", type=int, default=3, help="runs; the fastest counts (default 3)")
    parser.add_argument("--threads", type=int, default=0, help="decoder threads (default one per core)")
    parser.add_argument("--video", type=Path, help="keep the video here and reuse it (default: temporary)")
    parser.add_argument("--json", action="store_true", help="print one line of JSON after the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.video or Path(folder) / "bench.mp4"
        if not path.exists():
            write_video(path, round(arguments.minutes * 60 * RATE), arguments.gop)
        count, limits = arguments.candidates, DecodeLimits(threads=arguments.threads)
        seconds = {
            seek: best_of(lambda seek=seek: sample(path, count, seek=seek, limits=limits), arguments.repeat)
            for seek in ("keyframe", "exact")
        }
        with sparing_nothing():
            seconds["exact, no frame spared"] = best_of(lambda: sample(path, count, limits=limits), arguments.repeat)
        seconds["read through"] = best_of(lambda: read_through(path), 1)
        size = path.stat().st_size
    speedup = seconds["exact"] / seconds["keyframe"]
    table = Table(title=f"{arguments.candidates} candidates of a {size / 1e6:.0f} MB video")
    for heading in ("way", "seconds", "speed against exact"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for name, taken in seconds.items():
        table.add_row(name, f"{taken:.3f}", f"{seconds['exact'] / taken:.2f}x")
    Console().print(table)
    if arguments.json:
        settings = {"minutes": arguments.minutes, "gop": arguments.gop, "candidates": arguments.candidates}
        print(json.dumps({**settings, "bytes": size, "seconds": seconds, "keyframe_speedup": speedup}))


def write_video(
    path: Path, frames: int, gop: int, size: tuple[int, int] = (WIDTH, HEIGHT), seed: int = 0, groups: int = GROUPS
) -> None:
    """Write about `frames` frames, rounded to whole groups of `gop`, and put the file in place when it is whole."""
    width, height = size
    partial = path.with_suffix(".part.mp4")
    with av.open(str(partial), "w") as container:
        stream = container.add_stream("libx264", rate=RATE)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.bit_rate = BITS * width * height // (WIDTH * HEIGHT)
        stream.options = {"preset": "veryfast", "g": str(gop), "keyint_min": str(gop), "sc_threshold": "0"}
        pictures = chain(moving_texture(groups * gop, width, height, seed), [None])
        encoded = [packet for picture in pictures for packet in stream.encode(picture)]
        for group in range(max(1, round(frames / gop))):
            start = group % groups
            for packet in encoded[start * gop : (start + 1) * gop]:
                copy = av.Packet(bytes(packet))
                copy.stream, copy.time_base, copy.is_keyframe = stream, packet.time_base, packet.is_keyframe
                later = round((group - start) * gop / RATE / packet.time_base)
                copy.pts, copy.dts, copy.duration = packet.pts + later, packet.dts + later, packet.duration
                container.mux(copy)
    partial.rename(path)


def moving_texture(frames: int, width: int, height: int, seed: int) -> Iterator[av.VideoFrame]:
    """A soft texture sliding under a faster square, with film grain: no block is a mere copy of the last frame's."""
    random = np.random.default_rng(seed)
    blots = random.integers(32, 224, (height // 16, width // 8, 3), np.uint8)
    texture = np.asarray(Image.fromarray(blots).resize((2 * width, height), Image.Resampling.BICUBIC))
    grain = random.integers(0, 20, (height, 2 * width, 1), np.uint8)
    top = side = 5 * height // 18
    for index in range(frames):
        picture = texture[:, index % width : index % width + width].copy()
        left = index * 7 % (width - side)
        square = picture[top : top + side, left : left + side]
        square[:] = 255 - square
        picture += grain[:, index * 379 % width :][:, :width]
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        frame.pts, frame.time_base = index, Fraction(1, RATE)
        yield frame


@contextmanager
def sparing_nothing() -> Iterator[None]:
    """Decode every packet on the way to a frame."""
    decode = PyAVDecoder.decode
    PyAVDecoder.decode = lambda decoder, packet, wanted=True: decode(decoder, packet)
    try:
        yield
    finally:
        PyAVDecoder.decode = decode


def read_through(path: Path) -> int:
    """Decode every frame and convert none: the lower bound for reading the whole file."""
    with av.open(str(path)) as container:
        container.streams.video[0].thread_type = "AUTO"
        return sum(1 for _ in container.decode(video=0))


def best_of(way: Callable[[], object], repeat: int) -> float:
    """Seconds of the fastest of `repeat` runs, the one least disturbed by others."""
    seconds = []
    for _ in range(repeat):
        started = time.perf_counter()
        way()
        seconds.append(time.perf_counter() - started)
    return min(seconds)


if __name__ == "__main__":
    main()
