"""Video files to vectors: AllocEmbed's `stream` against the straightforward loop, in one run, taking turns.

    python bench/pipeline.py                                             nano on this machine, videos of its own world
    python bench/pipeline.py --shape qwen2-vl-2b --videos 64 --minutes 6     exact shape, random weights, 720p, a GPU
    python bench/pipeline.py --shape qwen2-vl-2b --tiny                      in miniature on a CPU, to try the script

The loop is what a user would write with AllocEmbed's pieces: decode a video, allocate, resize, embed it, then the next.
Both read the same files with the same allocator and budget. The parts of `stream` are seconds of all its threads, so
they add up to more than the time it took; waiting for a turn on the GPU counts as part of `make ready`.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch
from decode import RATE, write_video
from rich.console import Console
from rich.table import Table
from shapes import SHAPES, make_allocator, make_backbone

from allocembed import AllocEmbed, world
from allocembed.backbones import Item
from allocembed.pipeline import core_count
from allocembed.policy.preview import BackbonePreview
from allocembed.resize import to_patches

DISTINCT = 4  # different videos; the others are further names of them
WORLD_FRAMES = 160


class Parts:
    """Seconds that threads spent in each part, and a GPU's milliseconds in the backbone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._lock = threading.Lock()

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.perf_counter()
        try:
            yield
        finally:
            with self._lock:
                self.seconds[part] += time.perf_counter() - started


class Watched(AllocEmbed):
    """An embedder that says where its time went."""

    parts = Parts()

    def _read(self, *given):
        with self.parts("decode"):
            return super()._read(*given)

    def _allocate(self, *given):
        with self.parts("allocate"):
            return super()._allocate(*given)

    def cut(self, *given):
        with self.parts("make ready"):
            return super().cut(*given)

    def _embed_all(self, *given):
        with self.parts("backbone"):
            made = list(super()._embed_all(*given))
        return iter(made)


def straightforward(embedder: Watched, files: Sequence[Path]) -> np.ndarray:
    """One video after the other, one step after the other: vectors (N, dim)."""
    vectors, backbone = [], embedder.backbone
    for file in files:
        clip = embedder.read(file)
        allocation = embedder.allocate(clip)
        with embedder.parts("resize"):
            patches = to_patches(clip.frames, clip.times, allocation, backbone.geometry)
        with embedder.parts("backbone"):
            vectors.append(backbone.embed([Item(patches=patches)])[0].numpy())
    return np.stack(vectors)


def streamed(embedder: Watched, files: Sequence[Path], options: argparse.Namespace) -> np.ndarray:
    """The same by `stream`."""
    results = embedder.stream(files, batch=options.batch, workers=options.workers)
    return np.stack([result.vector for result in results])


def make_embedder(options: argparse.Namespace) -> Watched:
    if not options.shape:
        return Watched.from_pretrained(options.backbone, options.allocator, compile=options.compile)
    device = "cuda" if torch.cuda.is_available() and not options.tiny else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    backbone = make_backbone(options.shape, device, dtype, tiny=options.tiny, compile=options.compile)
    if options.allocator in ("auto", "learned"):
        return Watched(backbone, make_allocator(BackbonePreview(backbone), tiny=options.tiny))
    return Watched(backbone, options.allocator)


def make_files(folder: Path, options: argparse.Namespace) -> list[Path]:
    """`--videos` files, most of them further names of a few different ones."""
    count = min(DISTINCT, options.videos)
    originals = [folder / f"original-{number}.mp4" for number in range(count)]
    if options.shape:
        frames, gop = round(options.seconds * RATE), options.gop
        size = tuple(int(side) for side in options.size.split("x"))
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(lambda n: write_video(originals[n], frames, gop, size, n, groups=2), range(count)))
    else:
        timelines = world.draw(count, 7, "short", split="test", orientation="mixed")
        for number, path in enumerate(originals):
            size = (192, 144) if timelines.portrait[number] else (144, 192)
            rate = Fraction(WORLD_FRAMES, int(timelines.duration[number]))
            world.write_mp4(timelines, number, path, size, rate)
    files = [folder / f"{number:04}.mp4" for number in range(options.videos)]
    for number, file in enumerate(files):
        os.link(originals[number % count], file)
    return files


def timed(embedder: Watched, way: Callable[[], np.ndarray]) -> tuple[np.ndarray, dict]:
    """Vectors, and what it took to make them."""
    embedder.parts.seconds.clear()
    cuda = embedder.backbone.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    started, used = time.perf_counter(), time.process_time()
    vectors = way()
    seconds, used = time.perf_counter() - started, time.process_time() - used
    parts = dict(embedder.parts.seconds)
    if "make ready" in parts:
        parts["upload, resize"] = parts.pop("make ready") - parts["allocate"]
    about = {"seconds": seconds, "videos_per_second": len(vectors) / seconds, "cores_busy": used / seconds}
    return vectors, about | {"parts_ms_per_video": {name: 1e3 * value / len(vectors) for name, value in parts.items()}}


def busy_share(spans: Sequence[tuple[float, float]], total: float) -> float:
    """Share of `total` that is covered by spans, of which several may cover the same.

    >>> busy_share([(0, 2), (1, 3), (5, 6)], 8)
    0.5
    """
    covered, end = 0.0, float("-inf")
    for first, last in sorted(spans):
        covered += max(0.0, last - max(first, end))
        end = max(end, last)
    return covered / total


def gpu_busy(way: Callable[[], object]) -> float | None:
    """Share of the time in which the GPU computed or copied anything, by its own trace; None where there is none."""
    if not torch.cuda.is_available():
        return None
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            started = time.perf_counter()
            way()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - started
        # As the tracer gives them: made into torch's own events they take longer than what they are about.
        events = [event for event in profile.profiler.kineto_results.events() if event.device_type().name == "CUDA"]
        return busy_share([(event.start_ns(), event.end_ns()) for event in events], 1e9 * seconds)
    except Exception as error:
        print(f"the GPU's trace can't be had: {type(error).__name__}: {error}")
        return None


def compare(embedder: Watched, files: list[Path], seek: str, options: argparse.Namespace) -> dict:
    """Both ways in turns, until the rounds or the minutes are over."""
    embedder.seek = seek
    loop = lambda some=files: straightforward(embedder, some)  # noqa: E731
    ours = lambda some=files: streamed(embedder, some, options)  # noqa: E731
    loop(files[:2]), ours(files[: 2 * options.batch])  # graphs, kernels and memory are made at first use
    taken: dict[str, list[dict]] = {"loop": [], "stream": []}
    difference = 0.0
    for number in range(options.rounds):
        plain, about = timed(embedder, loop)
        taken["loop"].append(about)
        fast, about = timed(embedder, ours)
        taken["stream"].append(about)
        difference = max(difference, float((1 - (plain * fast).sum(1)).max()))
        rates = ", ".join(f"{name} {rounds[-1]['videos_per_second']:.2f}" for name, rounds in taken.items())
        print(f"{seek}, round {number + 1}: {rates} videos/s", flush=True)
        if time.monotonic() > options.deadline:
            break
    ratios = [a["seconds"] / b["seconds"] for a, b in zip(taken["loop"], taken["stream"], strict=True)]
    some = files[: 4 * options.batch]
    busy = {name: gpu_busy(lambda way=way: way(some)) for name, way in (("loop", loop), ("stream", ours))}
    return {
        "seek": seek,
        "allocator": embedder.allocator.name,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "largest_1_minus_cos": difference,
        "gpu_busy": busy,
        "rounds": taken,
    }


def print_tables(results: dict) -> None:
    console = Console(width=120)
    for one in results["runs"]:
        table = Table(title=f"{results['videos']} videos, {results['model']}, seek {one['seek']}, {one['allocator']}")
        for heading in ("way", "videos/s", "cores busy", "GPU busy", "milliseconds a video"):
            table.add_column(heading, justify="left" if heading in ("way", "milliseconds a video") else "right")
        for name, rounds in one["rounds"].items():
            middle = sorted(rounds, key=lambda about: about["seconds"])[len(rounds) // 2]
            parts = ", ".join(f"{part} {value:.0f}" for part, value in middle["parts_ms_per_video"].items())
            busy = "–" if one["gpu_busy"][name] is None else f"{one['gpu_busy'][name]:.0%}"
            rate = statistics.median(about["videos_per_second"] for about in rounds)
            table.add_row(name, f"{rate:.2f}", f"{middle['cores_busy']:.1f}", busy, parts)
        console.print(table)
        spread = f"{min(one['ratios']):.2f} to {max(one['ratios']):.2f} in {len(one['ratios'])} rounds"
        console.print(f"ratio {one['ratio']:.2f} ({spread}), largest 1 - cos {one['largest_1_minus_cos']:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="nano-qwen3", help="short name, hub id or folder")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this model's shape, instead of --backbone")
    parser.add_argument("--allocator", default="auto", help="as everywhere; untrained for a --shape")
    parser.add_argument("--videos", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of a video for a --shape")
    parser.add_argument("--size", default="1280x720", help="of a video for a --shape")
    parser.add_argument("--gop", type=int, default=250, help="frames from keyframe to keyframe for a --shape")
    parser.add_argument("--seek", nargs="+", default=["exact"], choices=["exact", "keyframe"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, help="threads (default one for every core)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=6.0, help="no new round is begun after these")
    parser.add_argument("--compile", action="store_true", help="the backbone's blocks compiled, in both ways")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, small files and one round, on a CPU")
    parser.add_argument("--out", type=Path, help="write all figures here as JSON")
    options = parser.parse_args()
    options.deadline = time.monotonic() + 60 * options.minutes
    if options.tiny:
        options.videos, options.rounds = min(options.videos, 6), 1
        options.seconds, options.size, options.gop = 4.0, "160x96", 20
    logging.getLogger("allocembed").setLevel(logging.ERROR)  # nano's notice about its world
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and not options.tiny else "no GPU"
    results = {"model": options.shape or options.backbone, "videos": options.videos, "device": device}
    named = ("seconds", "size", "gop", "batch", "workers", "compile")
    results |= {"cores": core_count(), **{name: getattr(options, name) for name in named}, "runs": []}
    with tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        files = make_files(Path(folder), options)
        print(f"files made in {time.monotonic() - started:.0f} s", flush=True)
        embedder = make_embedder(options)
        for seek in options.seek:
            results["runs"].append(compare(embedder, files, seek, options))
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))
            if time.monotonic() > options.deadline:
                break
    print_tables(results)


if __name__ == "__main__":
    main()
