"""How alike are copies of a video, and how alike are different videos? Where to put the threshold of `--dedupe`.

    python bench/copies.py [--videos 60] [--backbone nano-qwen3]
    python bench/copies.py --synthetic 100000     # how fast `index dups` groups random vectors, and what it misses

Videos of the toy world are encoded again in several ways. For each way: the least and the median cosine of a copy with
its original, and the share of copies at or above some thresholds. For other models, give a folder of real videos.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.search.duplicates import connected
from allocembed.search.ranking import SAME_VIDEO
from allocembed_nano import world

THRESHOLDS = (0.9, 0.95, 0.98)
FRAMES = 160
WAYS: dict[str, dict[str, Any]] = {
    "H.264, crf 35": {"options": {"crf": "35"}},
    "H.264, crf 45": {"options": {"crf": "45"}},
    "MPEG-4, qscale 12": {"codec": "mpeg4", "options": {"qscale": "12"}},
    "twice the size": {"scale": 2.0},
    "half the size": {"scale": 0.5},
    "brighter": {"brighter": 20},
    "3 % cut off": {"skip": 5},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=60)
    parser.add_argument("--backbone", default="nano-qwen3")
    parser.add_argument("--folder", type=Path, help="videos to copy, instead of the toy world's")
    parser.add_argument("--synthetic", type=int, help="group this many random vectors instead")
    given = parser.parse_args()
    if given.synthetic:
        group_random(given.synthetic)
        return
    embedder = AllocEmbed.from_config(EmbedConfig(backbone=given.backbone))
    with tempfile.TemporaryDirectory() as scratch:
        originals = sorted(given.folder.iterdir()) if given.folder else draw(given.videos, Path(scratch))
        vectors = embed(embedder, originals)
        cosines = vectors @ vectors.T - 2 * np.eye(len(vectors))
        pairs = len(vectors) * (len(vectors) - 1) // 2
        above = [f"{int((cosines >= least).sum() / 2)} ≥ {least}" for least in THRESHOLDS]
        print(f"{pairs} pairs of different videos: at most {cosines.max():.3f}; {', '.join(above)}")
        for name, way in WAYS.items():
            copies = [encode_again(path, Path(scratch) / f"copy-{path.stem}.mp4", **way) for path in originals]
            alike = (embed(embedder, copies) * vectors).sum(axis=1)
            above = [f"{(alike >= least).mean():.0%} ≥ {least}" for least in THRESHOLDS]
            print(f"{name:18} least {alike.min():.3f}, median {np.median(alike):.3f}; {', '.join(above)}", flush=True)


def group_random(count: int, copies: int = 2000, dim: int = 512) -> None:
    """Group random vectors, some of which have a copy with a cosine of about 0.98."""
    random = np.random.default_rng(0)
    vectors = random.standard_normal((count, dim), np.float32)
    vectors = np.concatenate([vectors, vectors[:copies] + 0.2 * random.standard_normal((copies, dim), np.float32)])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    started = time.perf_counter()
    groups = [group for group in connected(vectors, SAME_VIDEO) if len(group) > 1]
    seconds = time.perf_counter() - started
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{len(groups)} of {copies} copies among {count:,} vectors found in {seconds:.1f} s with {memory:.1f} GB")


def draw(count: int, folder: Path) -> list[Path]:
    """Videos of the toy world."""
    timelines = world.draw(count, 77, "short", split="test", orientation="mixed")
    paths = [folder / f"{number:03}.mp4" for number in range(count)]
    for number, path in enumerate(paths):
        rate = Fraction(FRAMES, int(timelines.duration[number]))
        world.write_mp4(timelines, number, path, (192, 144) if timelines.portrait[number] else (144, 192), rate)
    return paths


def embed(embedder: AllocEmbed, paths: Iterable[Path]) -> np.ndarray:
    """Vectors (n, dim) of whole videos."""
    return np.stack([embedder.encode_video(path).vector for path in paths])


def encode_again(
    source: Path,
    target: Path,
    codec: str = "libx264",
    options: dict[str, str] | None = None,
    scale: float = 1.0,
    skip: int = 0,
    brighter: int = 0,
) -> Path:
    """Decode a video and encode it in another way, without its first `skip` frames."""
    with av.open(str(source)) as given, av.open(str(target), "w") as made:
        video = given.streams.video[0]
        stream: Any = made.add_stream(codec, rate=video.average_rate, options=options or {})
        stream.width, stream.height = (int(side * scale) // 2 * 2 for side in (video.width, video.height))
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(given.decode(video)):
            if number < skip:
                continue
            pixels = np.minimum(frame.to_ndarray(format="rgb24").astype(np.int32) + brighter, 255).astype(np.uint8)
            copy = av.VideoFrame.from_ndarray(pixels).reformat(stream.width, stream.height, "yuv420p")
            copy.pts, copy.time_base = frame.pts, frame.time_base
            made.mux(stream.encode(copy))
        made.mux(stream.encode(None))
    return target


if __name__ == "__main__":
    main()
