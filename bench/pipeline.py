"""Compare `AllocEmbed.stream` with a plain loop, from video files to vectors, in alternating rounds.

    python bench/pipeline.py                                             nano on this machine, videos of its own world
    python bench/pipeline.py --shape qwen2-vl-2b --videos 64 --minutes 6     exact shape, random weights, 720p, a GPU
    python bench/pipeline.py --shape qwen2-vl-2b --decoder auto nvdec pyav --gop 50 250 --stream-only     who decodes
    python bench/pipeline.py --shape qwen2-vl-2b --tiny                      in miniature on a CPU, to test the script

The loop is what a user would write with the stages of AllocEmbed: decode a video, allocate, resize, embed, then the
next. Both use the same files, allocator and budget. The parts of `stream` are summed over its threads, so together they
exceed its duration. Waiting for a turn on the GPU counts as "upload, resize".
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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from files import DISTINCT, Kind, write_all
from rich.console import Console
from rich.table import Table
from shapes import SHAPES, make_allocator, make_backbone

from allocembed.allocators.base import Allocator, Plan
from allocembed.backbones.base import Backbone, Item
from allocembed.backbones.batches import PendingVectors
from allocembed.budget import Allocation
from allocembed.config import Seek
from allocembed.embedder import AllocEmbed, Failure
from allocembed.execution.device import DeviceLane
from allocembed.planner import Source
from allocembed.policy.preview import BackbonePreview
from allocembed.threads import core_count
from allocembed.video import Clip, Decoders
from allocembed.video.decoders.base import Tally
from allocembed.video.decoders.registry import forget_decoders
from allocembed_nano import world

WORLD_FRAMES = 160
PARTS = 20  # of a run, to see when the GPU is busy


class Parts:
    """Seconds that all threads spent in each part."""

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


class TimedEmbedder(AllocEmbed):
    """An embedder that measures its stages."""

    parts = Parts()

    def read(self, source: Source, *, decoder_threads: int = 0, on_device: bool = False) -> Clip:
        if isinstance(source, Clip):
            return source
        with self.parts("decode"):
            return super().read(source, decoder_threads=decoder_threads, on_device=on_device)

    def plan(self, clip: Clip, question: str | None = None) -> Plan:
        with self.parts("allocate"):
            return super().plan(clip, question)

    def allocate(self, clip: Clip, plan: Plan) -> Allocation:
        with self.parts("allocate"):
            return super().allocate(clip, plan)


def time_backbone(backbone: Backbone) -> None:
    """Measure every call of the backbone, by the loop and by `stream`: to begin, and to wait for the vectors."""
    begin, wait = backbone.begin, PendingVectors.vectors

    def timed_begin(items: Sequence[Item], **options: Any) -> PendingVectors:
        with TimedEmbedder.parts("backbone"):
            return begin(items, **options)

    def timed_wait(begun: PendingVectors) -> torch.Tensor:
        with TimedEmbedder.parts("backbone"):
            return wait(begun)

    backbone.begin, PendingVectors.vectors = timed_begin, timed_wait


@contextmanager
def timed_lanes() -> Iterator[None]:
    """Measure the lanes in which `stream` prepares videos, including the wait for a turn and for the GPU."""
    enter = DeviceLane.__call__

    @contextmanager
    def timed(lane: DeviceLane) -> Iterator[None]:
        with TimedEmbedder.parts("prepare"), enter(lane):
            yield

    DeviceLane.__call__ = timed
    try:
        yield
    finally:
        DeviceLane.__call__ = enter


def plain_loop(embedder: TimedEmbedder, files: Sequence[Path]) -> np.ndarray:
    """One video after the other, one stage after the other: vectors (N, dim)."""
    vectors = []
    for file in files:
        clip = embedder.read(file)
        allocation = embedder.allocate(clip, embedder.plan(clip))
        with embedder.parts("resize"):
            patches = embedder.patch(clip, allocation)
        vectors.append(embedder.embed([embedder.item(clip, allocation, patches)])[0])
    return np.stack(vectors)


def streamed(embedder: TimedEmbedder, files: Sequence[Path], options: argparse.Namespace) -> np.ndarray:
    """Embed the files with `stream`."""
    vectors = []
    with timed_lanes():
        for result in embedder.stream(files, batch=options.batch, workers=options.workers):
            if isinstance(result, Failure):
                raise result.error
            vectors.append(result.vector)
    return np.stack(vectors)


def make_embedder(options: argparse.Namespace) -> TimedEmbedder:
    """Load or create the model, and measure it from then on."""
    if not options.shape:
        embedder = TimedEmbedder.from_pretrained(options.backbone, options.allocator, compile=options.compile)
        assert isinstance(embedder, TimedEmbedder)
    else:
        device = "cuda" if torch.cuda.is_available() and not options.tiny else "cpu"
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        backbone = make_backbone(options.shape, device, dtype, tiny=options.tiny, compile=options.compile)
        allocator: str | Allocator = options.allocator
        if allocator in ("auto", "learned"):
            allocator = make_allocator(BackbonePreview(backbone), tiny=options.tiny)
        embedder = TimedEmbedder(backbone, allocator)
    time_backbone(embedder.backbone)
    return embedder


def make_files(folder: Path, options: argparse.Namespace) -> dict[int | None, list[Path]]:
    """Write `--videos` files for each distance of keyframes, most of them hard links to a few different ones."""
    if options.shape:
        size = tuple(int(side) for side in options.size.split("x"))
        kinds = {gop: Kind(options.seconds, size, gop) for gop in options.gop}
        write_all(folder, list(kinds.values()), min(DISTINCT, options.videos))
        return {gop: kind.files(folder, options.videos) for gop, kind in kinds.items()}
    count = min(DISTINCT, options.videos)
    originals = [folder / f"original-{number}.mp4" for number in range(count)]
    timelines = world.draw(count, 7, "short", split="test", orientation="mixed")
    for number, path in enumerate(originals):
        size = (192, 144) if timelines.portrait[number] else (144, 192)
        world.write_mp4(timelines, number, path, size, Fraction(WORLD_FRAMES, int(timelines.duration[number])))
    files = [folder / f"{number:04}.mp4" for number in range(options.videos)]
    for number, file in enumerate(files):
        if not file.exists():
            os.link(originals[number % count], file)
    return {None: files}


def timed_run(embedder: TimedEmbedder, run: Callable[[], np.ndarray]) -> tuple[np.ndarray, dict[str, Any]]:
    """The vectors of a run, and its times."""
    embedder.parts.seconds.clear()
    cuda = embedder.backbone.device.type == "cuda"
    if cuda:
        torch.cuda.synchronize()
    started, used = time.perf_counter(), time.process_time()
    vectors = run()
    seconds, used = time.perf_counter() - started, time.process_time() - used
    parts = dict(embedder.parts.seconds)
    if "prepare" in parts:
        parts["upload, resize"] = parts.pop("prepare") - parts["allocate"]
    times = {"seconds": seconds, "videos_per_second": len(vectors) / seconds, "cores_busy": used / seconds}
    return vectors, times | {"parts_ms_per_video": {name: 1e3 * value / len(vectors) for name, value in parts.items()}}


def waits(spans: Sequence[tuple[float, float]], start: float, end: float) -> list[tuple[float, float]]:
    """Start and length of each wait: what spans, which may overlap, leave of the time from `start` to `end`.

    >>> waits([(1, 2), (1.5, 3), (5, 6)], 0, 8)
    [(0, 1), (3, 2), (6, 2)]
    """
    found, until = [], start
    for first, last in sorted([*spans, (end, end)]):
        if first > until:
            found.append((until, first - until))
        until = max(until, last)
    return found


def overlap(spans: Sequence[tuple[float, float]], start: float, length: float) -> float:
    """How much of a time is covered by spans, which do not overlap each other; each is given by start and length.

    >>> overlap([(0, 1), (3, 2), (6, 2)], 2, 5)
    3
    """
    return sum(max(0, min(at + long, start + length) - max(at, start)) for at, long in spans)


def gpu_use(run: Callable[[], object]) -> dict[str, Any] | None:
    """How much of a run the GPU computes or copies, in all and in equal parts of it; None without a trace of it."""
    if not torch.cuda.is_available():
        return None
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            started = time.perf_counter_ns()
            run()
            torch.cuda.synchronize()
            taken = time.perf_counter_ns() - started
        # The tracer's own events: converting them to torch's takes longer than the run.
        events = [event for event in profile.profiler.kineto_results.events() if event.device_type().name == "CUDA"]
        spans = [(event.start_ns(), event.end_ns()) for event in events]
        # The tracer has a clock of its own; the run ends with the GPU's last work.
        start = max(end for _, end in spans) - taken
        found = waits(spans, start, start + taken)
    except Exception as error:
        print(f"cannot trace the GPU: {type(error).__name__}: {error}")
        return None
    part = taken / PARTS
    shares = [1 - overlap(found, start + part * number, part) / part for number in range(PARTS)]
    return {"seconds": taken / 1e9, "busy": sum(shares) / PARTS, "busy_by_part": [round(share, 3) for share in shares]}


def busy_share(use: dict[str, Any] | None) -> float | None:
    """Share of the time in which the GPU works."""
    return use["busy"] if use else None


def tally_of(decoders: Decoders) -> Tally:
    """Who has decoded how many files so far."""
    return decoders.tally() or Tally(0, Counter())


def compare(
    embedder: TimedEmbedder, files: list[Path], seek: Seek, decoder: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Run both in turns, until the rounds or the minutes are over."""
    config = replace(embedder.config, seek=seek, decoder=decoder)
    forget_decoders()  # what was learned from other files
    embedder = TimedEmbedder(embedder.backbone, embedder.allocator, config)
    if options.stream_only:
        return stream_alone(embedder, files, options)

    def loop(some: list[Path]) -> np.ndarray:
        return plain_loop(embedder, some)

    def ours(some: list[Path]) -> np.ndarray:
        return streamed(embedder, some, options)

    # Graphs, kernels and memory are created on first use.
    loop(files[:2])
    ours(files[: 2 * options.batch])
    taken: dict[str, list[dict[str, Any]]] = {"loop": [], "stream": []}
    difference = 0.0
    for number in range(options.rounds):
        plain, times = timed_run(embedder, lambda: loop(files))
        taken["loop"].append(times)
        fast, times = timed_run(embedder, lambda: ours(files))
        taken["stream"].append(times)
        difference = max(difference, float((1 - (plain * fast).sum(1)).max()))
        rates = ", ".join(f"{name} {rounds[-1]['videos_per_second']:.2f}" for name, rounds in taken.items())
        print(f"{seek}, round {number + 1}: {rates} videos/s", flush=True)
        if time.monotonic() > options.deadline:
            break
    pairs = zip(taken["loop"], taken["stream"], strict=True)
    ratios = [slow["seconds"] / quick["seconds"] for slow, quick in pairs]
    some = files[: 4 * options.batch]
    busy = {name: busy_share(gpu_use(lambda run=run: run(some))) for name, run in (("loop", loop), ("stream", ours))}
    return {
        "seek": seek,
        "allocator": embedder.allocator.name,
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "largest_1_minus_cos": difference,
        "gpu_busy": busy,
        "rounds": taken,
    }


def stream_alone(embedder: TimedEmbedder, files: list[Path], options: argparse.Namespace) -> dict[str, Any]:
    """The best of the rounds of `stream`, and how busy the GPU is with the first files in one more."""
    # Without the GPU's decoders there is nothing to set up for all threads.
    streamed(embedder, files[: (2 if embedder.decoders.places else 1) * options.batch], options)
    before = tally_of(embedder.decoders)
    rounds = [timed_run(embedder, lambda: streamed(embedder, files, options))[1] for _ in range(options.rounds)]
    decoded = tally_of(embedder.decoders).since(before)
    use = gpu_use(lambda: streamed(embedder, files[: options.trace], options)) if options.trace else None
    found = {
        "seek": embedder.config.seek,
        "decoder": embedder.config.decoder,
        "allocator": embedder.allocator.name,
        "rounds": rounds,
        "videos_per_second": max(times["videos_per_second"] for times in rounds),
        "files_by_the_gpu": decoded.files / options.rounds,
        "declined": dict(decoded.declined),
        "gpu_busy": busy_share(use),
        "gpu_use": use,
        "gpu_memory_gb": torch.cuda.max_memory_allocated() / 1e9 if torch.cuda.is_available() else None,
    }
    print({name: value for name, value in found.items() if name != "rounds"}, rounds[-1], flush=True)
    return found


def print_tables(results: dict[str, Any]) -> None:
    console = Console(width=120)
    for one in results["runs"]:
        if "ratio" not in one:
            busy = "–" if one["gpu_busy"] is None else f"{one['gpu_busy']:.0%}"
            rate, cores = one["videos_per_second"], one["rounds"][-1]["cores_busy"]
            where = f"{results['model']}, every {one['gop']} frames, {one['seek']}, {one['decoder']}"
            shares = f"{one['files_by_the_gpu']:.0f} files by the GPU, {cores:.1f} cores"
            console.print(f"{where}: {rate:.2f} videos/s, {shares}, GPU busy {busy}")
            continue
        table = Table(title=f"{results['videos']} videos, {results['model']}, seek {one['seek']}, {one['allocator']}")
        for heading in ("method", "videos/s", "cores busy", "GPU busy", "milliseconds per video"):
            table.add_column(heading, justify="left" if heading in ("method", "milliseconds per video") else "right")
        for name, rounds in one["rounds"].items():
            middle = sorted(rounds, key=lambda times: times["seconds"])[len(rounds) // 2]
            parts = ", ".join(f"{part} {value:.0f}" for part, value in middle["parts_ms_per_video"].items())
            busy = "–" if one["gpu_busy"][name] is None else f"{one['gpu_busy'][name]:.0%}"
            rate = statistics.median(times["videos_per_second"] for times in rounds)
            table.add_row(name, f"{rate:.2f}", f"{middle['cores_busy']:.1f}", busy, parts)
        console.print(table)
        spread = f"{min(one['ratios']):.2f} to {max(one['ratios']):.2f} in {len(one['ratios'])} rounds"
        console.print(f"ratio {one['ratio']:.2f} ({spread}), largest 1 - cos {one['largest_1_minus_cos']:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="nano-qwen3", help="short name, hub id or folder")
    parser.add_argument("--shape", choices=SHAPES, help="random weights of this model's shape, instead of --backbone")
    parser.add_argument("--allocator", default="auto", help="allocator; with --shape, a learned one is untrained")
    parser.add_argument("--videos", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each video, with --shape")
    parser.add_argument("--size", default="1280x720", help="size of each video, with --shape")
    parser.add_argument("--gop", type=int, nargs="+", default=[250], help="frames between keyframes, with --shape")
    parser.add_argument("--files", type=Path, help="keep the videos in this folder, or take them from there")
    parser.add_argument("--seek", nargs="+", default=["exact"], choices=["exact", "keyframe"])
    parser.add_argument("--decoder", nargs="+", default=["auto"], choices=["auto", "pyav", "nvdec"])
    parser.add_argument("--stream-only", action="store_true", help="do not run the loop")
    parser.add_argument("--trace", type=int, default=32, help="videos to see how busy the GPU is, with --stream-only")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int, help="threads of stream (default: as it chooses)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=6.0, help="start no new round after this time")
    parser.add_argument("--compile", action="store_true", help="compile the backbone's layers, for both methods")
    parser.add_argument("--tiny", action="store_true", help="use a tiny model, small files and one round, on a CPU")
    parser.add_argument("--out", type=Path, help="write all results here as JSON")
    options = parser.parse_args()
    options.deadline = time.monotonic() + 60 * options.minutes
    if options.tiny:
        options.videos, options.rounds = min(options.videos, 6), 1
        options.seconds, options.size, options.gop = 4.0, "160x96", [20, 50][: len(options.gop)]
    logging.getLogger("allocembed").setLevel(logging.ERROR)  # nano's notice that it knows only its own world
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and not options.tiny else "no GPU"
    results = {"model": options.shape or options.backbone, "videos": options.videos, "device": device}
    named = ("seconds", "size", "batch", "workers", "compile")
    results |= {"cores": core_count(), **{name: getattr(options, name) for name in named}, "runs": []}
    with nullcontext(options.files) if options.files else tempfile.TemporaryDirectory() as folder:
        started = time.monotonic()
        files = make_files(Path(folder), options)
        print(f"files written in {time.monotonic() - started:.0f} s", flush=True)
        embedder = make_embedder(options)
        print(f"model after {time.monotonic() - started:.0f} s", flush=True)
        for decoder, seek, gop in product(options.decoder, options.seek, files):
            if time.monotonic() < options.deadline:
                results["runs"].append({"gop": gop} | compare(embedder, files[gop], seek, decoder, options))
                if options.out:
                    options.out.write_text(json.dumps(results, indent=1))
    print_tables(results)


if __name__ == "__main__":
    main()
