"""Measure the time saved, and the change of vectors, if frames of segments may be keyframes nearby.

    python bench/segments.py [--videos 12] [--groups 2,10] [--backbone nano-qwen3]

Long videos of the nano world are written at 8 frames a second with a keyframe every few seconds, and cut into their
usual segments: once with exact frames, once with keyframes at most a second away. Printed are the seconds of decoding,
how many frames moved, and 1 − cos between the two vectors of a segment, beside that between neighbouring segments.
Before that, CPU seconds to decode the 20 segments of ten minutes of 640 × 360 at 25 frames a second, on one core.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import av
import decode
import numpy as np
from decode import write_video

from allocembed import AllocEmbed
from allocembed.search.segments import window_config, window_count
from allocembed.search.settings import NEAR
from allocembed.video import Clip, DecodeLimits, open_video
from allocembed_nano import world

RATE = 8


def write(timelines: world.Timelines, number: int, path: Path, seconds: int) -> None:
    """One video of the world, with a keyframe every `seconds`."""
    plain = path.with_suffix(".plain.mp4")
    world.write_mp4(timelines, number, plain, (144, 192), Fraction(RATE))
    with av.open(str(plain)) as source, av.open(str(path), "w") as target:
        options = {"g": str(seconds * RATE), "sc_threshold": "0", "crf": "18", "bf": "2"}
        stream = target.add_stream("libx264", rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = 192, 144, "yuv420p"
        for frame in source.decode(video=0):
            frame.pict_type = 0
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    plain.unlink()


def cut(embedder: AllocEmbed, path: Path, within: float) -> tuple[list[Clip], float]:
    """The segments of a file, and the seconds to decode them."""
    started = time.perf_counter()
    with embedder.open(path) as video:
        number = window_count(video.probe().duration, "auto")
        clips = list(video.windows(number, embedder.frames_wanted, within=within))
    return clips, time.perf_counter() - started


def decode_long(folder: Path, seconds: int) -> None:
    """Ten minutes at the usual rate, with B-frames."""
    path = folder / "long.mp4"
    write_video(path, 10 * 60 * decode.RATE, seconds * decode.RATE, (640, 360), groups=2)
    for within in (0.0, NEAR):
        started = time.process_time()
        with open_video(path, limits=DecodeLimits(threads=1)) as video:
            count = sum(len(clip) for clip in video.windows(20, 6, within=within))
        used = time.process_time() - started
        print(f"keyframes every {seconds} s, within {within:g} s: {count} frames in {used:.2f} CPU seconds", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=12)
    parser.add_argument("--groups", default="2,10", help="seconds between keyframes, separated by commas")
    parser.add_argument("--backbone", default="nano-qwen3")
    options = parser.parse_args()
    whole = AllocEmbed.from_pretrained(options.backbone)
    embedder = whole.with_config(window_config(whole.config, whole.backbone.geometry.frames_per_chunk))
    timelines = world.draw(options.videos, 501, "long", split="test", orientation="landscape")
    for seconds in map(int, options.groups.split(",")):
        taken: dict[float, float] = {0.0: 0.0, NEAR: 0.0}
        apart, neighbours, moved = [], [], []
        with tempfile.TemporaryDirectory() as folder:
            decode_long(Path(folder), seconds)
            for number in range(options.videos):
                path = Path(folder) / "video.mp4"
                write(timelines, number, path, seconds)
                clips = {}
                for within in taken:
                    clips[within], spent = cut(embedder, path, within)
                    taken[within] += spent
                vectors = {
                    within: np.stack([each.vector for each in embedder.encode_videos(own)])
                    for within, own in clips.items()
                }
                apart += (1 - (vectors[0.0] * vectors[NEAR]).sum(-1)).tolist()
                neighbours += (1 - (vectors[0.0][1:] * vectors[0.0][:-1]).sum(-1)).tolist()
                for one, other in zip(clips[0.0], clips[NEAR], strict=True):
                    kept = np.isin(other.indices, one.indices)
                    moved.append(1 - kept.mean())
        print(f"keyframes every {seconds} s: decoding {taken[0.0]:.1f} s exact, {taken[NEAR]:.1f} s near", flush=True)
        print(
            f"{100 * statistics.mean(moved):.0f} % of the frames moved; 1 − cos {statistics.mean(apart):.4f}, "
            f"{np.quantile(apart, 0.95):.4f} at most in 95 % of {len(apart)} segments; "
            f"between neighbours {statistics.mean(neighbours):.4f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
