"""Measure the paper's latency table on random weights of exact shape: allocator, backbone, total; full and allocated.

    python bench/latency.py [--models qwen2-vl-2b,qwen3-vl-2b,qwen3-vl-8b] [--parts …] [--samples 50] [--minutes 8]
                            [--out FILE.json] [--profile FILE.md] [--tiny]

24 candidates of 1280×720, the budget of Base (8 native frames), batch 1, bfloat16. "Plain" is transformers' own forward
with its own SDPA attention; its positions are given, and its inputs are normalised and on the device before the timer
starts. Ours starts from uint8 patches on the device and tokens on the host. Preprocessing is measured separately. After
`--minutes` no new measurement starts, and the results so far are printed. `--tiny` runs everything in miniature on a
CPU, to test the script.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from latency_tables import print_tables
from measure import (
    PreparedVideo,
    Times,
    cosine_gap,
    count_operations,
    forward,
    host_waits,
    kernel_table,
    matmul_rate,
    measure,
    plain_forward,
    plain_inputs,
    prepare_videos,
    without_cudnn_attention,
)
from shapes import make_allocator, make_backbone, make_smol
from torch._dynamo.utils import counters

from allocembed.allocators.base import AllocationRequest
from allocembed.allocators.learned import Learned
from allocembed.allocators.sensitivity import Sensitivity
from allocembed.backbones.attention import rows as attention
from allocembed.backbones.base import Backbone, Item, Prompt
from allocembed.backbones.qwen_vl.backbone import QwenVLBackbone
from allocembed.budget import SCALE_RANGE, Allocation, Budget, Grid, base_cost, chunk_frames, grids_at, project
from allocembed.geometry import Geometry
from allocembed.policy.preview import BackbonePreview, preview_grid
from allocembed.resize import as_chunks, chunk_seconds, send, to_patches
from allocembed.video import Clip

PARTS = ("backbone", "allocators", "sensitivity", "closeness", "preprocessing", "growth")
LOOKS = ((6, 12), (24, 48))


class LatencyBench:
    """Measures one model; saves the results after every part."""

    def __init__(
        self, name: str, options: argparse.Namespace, results: dict[str, Any], save: Callable[[], None]
    ) -> None:
        self.name, self.options, self.save = name, options, save
        self.device = torch.device("cpu" if options.tiny else "cuda")
        dtype = torch.float32 if options.tiny else torch.bfloat16
        self.out = results.setdefault(name, {})
        self.eager = make_backbone(name, self.device, dtype, tiny=options.tiny)
        self.fast = make_backbone(name, self.device, dtype, tiny=options.tiny, compile=True, model=self.eager.model)
        self.size = (64, 96) if options.tiny else (720, 1280)
        self.frames = make_frames(options.candidates, *self.size)
        self.on_device = send(self.frames, self.device)
        self.full = self.prepare(full_allocation(self.geometry, *self.size, options.candidates))
        self.mixed = [
            self.prepare(mixed_allocation(self.geometry, *self.size, options.candidates, seed)) for seed in range(12)
        ]

    @property
    def geometry(self) -> Geometry:
        return self.eager.geometry

    def prepare(self, allocation: Allocation, frames: torch.Tensor | None = None) -> list[PreparedVideo]:
        """One video: patches on the device of the frames, tokens on the host."""
        frames = self.on_device if frames is None else frames
        patches = to_patches(frames, allocation, self.geometry)
        seconds = chunk_seconds(np.arange(len(frames), dtype=float), allocation.frames)
        return prepare_videos(self.eager, [Item(Prompt(seconds=seconds), patches)])

    def time(
        self,
        part: str,
        action: Callable[[int], object],
        *,
        samples: int | None = None,
        warm: int = 3,
        seconds: float = 60.0,
    ) -> Times | None:
        """Measure a part and save its times. A part that fails is reported and left out."""
        if time.monotonic() > self.options.deadline:
            return None
        try:
            times = measure(action, samples or self.options.samples, self.device, warm=warm, seconds=seconds)
        except Exception as error:
            print(f"{self.name}: {part} failed: {type(error).__name__}: {str(error)[:300]}")
            return None
        self.out.setdefault("times", {})[part] = times.as_dict()
        self.save()
        print(f"{self.name}: {part}: {times.median:.2f} ms (p95 {times.p95:.2f}, n {len(times.samples)})", flush=True)
        return times

    def backbone_parts(self) -> None:
        plain = self.eager.model
        full = plain_inputs(self.eager, self.full)
        inputs = [plain_inputs(self.eager, videos) for videos in self.mixed]
        # cuDNN makes a new plan for every chunk size, so plain runs with and without it, on one allocation repeatedly.
        self.time("plain full", lambda _: plain_forward(plain, full), seconds=40)
        self.time("plain allocated", lambda _: plain_forward(plain, inputs[0]), seconds=20)
        with without_cudnn_attention():
            self.time("plain allocated, cuDNN off", lambda _: plain_forward(plain, inputs[0]), seconds=20)
            self.time("plain, new allocations, cuDNN off", lambda n: plain_forward(plain, inputs[n % 12]), samples=12)
        self.time("our full, eager", lambda _: forward(self.eager, self.full), seconds=30)
        self.time("our allocated, eager", lambda _: forward(self.eager, self.mixed[0]), seconds=20)
        began = time.perf_counter()
        counters.clear()
        self.time("our full", lambda _: forward(self.fast, self.full), seconds=30)
        self.time("our allocated", lambda _: forward(self.fast, self.mixed[0]), seconds=20)
        self.out["compile_s"] = time.perf_counter() - began - sum(self.spent("our full", "our allocated"))
        graphs = counters["stats"]["unique_graphs"]
        self.time("our, new allocations", lambda n: forward(self.fast, self.mixed[n % 12]), warm=0, samples=24)
        with other_setting("CHUNKS_FOR_CUDNN", 10**9):
            self.time("our full, chunks never by cuDNN", lambda _: forward(self.fast, self.full), samples=20)
        self.out["graphs"] = {"first": graphs, "after_new_allocations": counters["stats"]["unique_graphs"]}
        self.out["host_waits"] = {
            kind: host_waits(lambda b=backbone, v=videos: forward(b, v), self.device)
            for kind, backbone, videos in (
                ("full, eager", self.eager, self.full),
                ("full", self.fast, self.full),
                ("allocated, eager", self.eager, self.mixed[1]),
                ("allocated", self.fast, self.mixed[1]),
            )
        }
        self.out["tokens"] = {"full": len(self.full[0]), "allocated": len(self.mixed[0][0])}
        self.save()

    def spent(self, *parts: str) -> list[float]:
        """Seconds of all samples of each part."""
        found = [self.out.get("times", {}).get(part) for part in parts]
        return [one["median_ms"] * one["samples"] / 1e3 for one in found if one]

    def rate_part(self, peak: float) -> None:
        self.out["matmul_tflops"] = peak / 1e12
        for part, videos in (("our full", self.full), ("our allocated", self.mixed[0]), ("plain full", self.full)):
            if times := self.out["times"].get(part):
                operations = count_operations(self.eager, videos)
                rate = operations / (times["median_ms"] / 1e3)
                found = {"tflop": operations / 1e12, "tflops": rate / 1e12, "share": rate / peak}
                self.out.setdefault("rates", {})[part] = found
        self.save()

    def closeness_part(self) -> None:
        """1 − cos to the plain path, and between two attention kernels of the library for comparison."""
        if time.monotonic() > self.options.deadline:
            return
        found, model = {}, self.eager.model
        for kind, videos in (("full", self.full), ("allocated", self.mixed[0])):
            inputs = plain_inputs(self.eager, videos)
            plain = plain_forward(model, inputs)
            with without_cudnn_attention():
                found[f"{kind}: plain, the other kernel"] = cosine_gap(plain_forward(model, inputs), plain)
            found[f"{kind}: eager"] = cosine_gap(forward(self.eager, videos), plain)
            found[f"{kind}: compiled"] = cosine_gap(forward(self.fast, videos), plain)
        together = [videos[0] for videos in self.mixed[:4]]
        alone = torch.cat([forward(self.fast, [video]) for video in together])
        plain = torch.cat([plain_forward(model, plain_inputs(self.eager, [video])) for video in together])
        packed = forward(self.fast, together, "pack")
        found["packed, 4 videos: compiled, to one by one"] = cosine_gap(packed, alone)
        found["packed, 4 videos: compiled, to plain"] = cosine_gap(packed, plain)
        if self.name == self.options.models[0]:
            try:
                exact = copy.deepcopy(model).float()
                inputs = plain_inputs(self.eager, self.mixed[0])
                inputs["pixel_values_videos"] = inputs["pixel_values_videos"].float()
                truth = plain_forward(exact, inputs)
                found["allocated: plain bf16, to float32"] = cosine_gap(plain[:1], truth)
                found["allocated: compiled, to float32"] = cosine_gap(alone[:1], truth)
                del exact
            except RuntimeError as error:
                print(f"no float32 reference: {error}")
        self.out["apart"] = found  # the key of the files in docs/internals/measured
        self.save()

    def preprocessing_parts(self) -> None:
        frames = self.frames.numpy()
        for kind, allocation in (
            ("full", full_allocation(self.geometry, *self.size, len(frames))),
            ("allocated", mixed_allocation(self.geometry, *self.size, len(frames), 0)),
        ):
            how = (allocation, self.geometry)
            self.time(f"CPU patches, {kind}", lambda _, h=how: to_patches(frames, *h), samples=5, warm=1)
            self.time(f"GPU patches, {kind}", lambda _, h=how: to_patches(self.on_device, *h), samples=20)
            levels = to_patches(self.on_device, *how).pixels.cpu().int() - to_patches(frames, *how).pixels.int()
            self.out.setdefault("levels", {})[kind] = {
                "largest": int(levels.abs().max()),
                "share_different": float((levels != 0).double().mean()),
            }
        native = self.geometry.native(*self.size)
        scales = np.random.default_rng(0).uniform(*SCALE_RANGE, len(frames) // 2)
        self.time("projection onto the budget, host", lambda _: as_allocation(scales, native, len(frames)), samples=20)
        item = self.mixed[0][0].item
        self.time("tokens and positions, host", lambda _: prepare_videos(self.eager, [item]), samples=20)
        self.time("upload of the frames, pinned", lambda _: send(self.frames, self.device), samples=20)

    def allocator_parts(self, kind: str, allocator: Learned) -> None:
        chunks = as_chunks(self.frames)
        small = allocator.previewer.shrink(send(chunks, self.device)).cpu()
        small = small.pin_memory() if self.device.type == "cuda" else small
        self.time(f"{kind}: previews to scales", lambda _: allocator.weigh(small))
        question = "What happens here?"
        self.time(f"{kind}: previews and a question to scales", lambda _: allocator.weigh(small, question), samples=20)
        self.time(f"{kind}: frames on the device to scales", lambda _: allocator.actions(self.on_device))
        self.time(f"{kind}: frames on the host to scales", lambda _: allocator.actions(self.frames))
        if replay := getattr(allocator, "_replay", None):
            self.out.setdefault("graph", {})[kind] = replay.works
            given = allocator.weigh(small)
            replay.works = False
            gap = np.abs(allocator.weigh(small) - given).max()
            self.out["graph"][f"{kind}, largest difference to eager"] = float(gap)
            self.time(f"{kind}: previews to scales, eager", lambda _: allocator.weigh(small), samples=20)
            replay.works = self.out["graph"][kind]
        self.time(f"{kind}: frames on the device to vector", lambda _: self.frames_to_vector(allocator))

    def frames_to_vector(self, allocator: Learned) -> torch.Tensor:
        low, high = SCALE_RANGE
        scales = low + allocator.actions(self.on_device) * (high - low)
        allocation = as_allocation(scales, self.geometry.native(*self.size), len(self.frames))
        return forward(self.fast, self.prepare(allocation)).cpu()

    def sensitivity_parts(self) -> None:
        """Looks of several sizes: as one graph, eagerly, and with whole rows."""
        count = len(self.frames)
        frames = cast(np.ndarray, self.on_device)
        clip = Clip(frames, np.arange(count) * 2.5, np.arange(count), count, 2.5 * count, "bench")
        request = AllocationRequest(self.geometry, Budget())
        allocated = self.mixed[0]
        self.time("allocated, beside the looks", lambda _: forward(self.fast, allocated), samples=20)
        default = Sensitivity(self.fast)
        self.time("sensitivity, its two looks: frames on the device to scales", lambda _: default.plan(clip, request))
        for look in LOOKS:
            allocator, name = Sensitivity(self.fast, [look]), f"sensitivity {look[0]} and {look[1]} tokens"
            self.time(f"{name}: frames on the device to scales", lambda _, a=allocator: a.plan(clip, request))
            found, replay = allocator.look(clip, request), allocator._replay
            self.out.setdefault("graph", {})[name] = replay.works
            replay.works = False
            self.time(f"{name}: eager", lambda _, a=allocator: a.plan(clip, request), samples=10)
            eager = allocator.look(clip, request)
            with other_setting("prepare_variants", Backbone.prepare_variants, QwenVLBackbone):
                whole = allocator.look(clip, request)
                self.time(f"{name}: eager, whole rows", lambda _, a=allocator: a.plan(clip, request), samples=10)
            self.out.setdefault("looks", {})[name] = {
                "tokens": found.tokens,
                "tokens of whole rows": whole.tokens,
                "difference to eager": float(np.abs(found.moves - eager.moves).max()),
                "correlation with whole rows": float(np.corrcoef(found.moves[0], whole.moves[0])[0, 1]),
                "mean move": float(found.moves.mean()),
            }
            print(name, self.out["looks"][name], flush=True)
            self.look_parts(name, allocator, look)

    def look_parts(self, name: str, allocator: Sensitivity, look: tuple[int, int]) -> None:
        """Time the host's work before a look, and the resizing."""
        grids = [preview_grid(self.geometry.native(*self.size), tokens) for tokens in look]
        chunks = as_chunks(self.on_device, self.geometry.frames_per_chunk)
        prompt = Prompt(seconds=np.arange(len(chunks)) * 5.0)
        (ids,) = self.eager.tokenise([prompt])
        self.time(f"{name}: tokenising", lambda _: self.eager.tokenise([prompt]))
        self.time(f"{name}: rows", lambda _: self.eager.prepare_variants(ids, [(grids[0], grids[1])], len(chunks)))
        self.time(f"{name}: resizing", lambda _: allocator.shrink(chunks, grids))

    def growth_parts(self, allocator: Learned) -> None:
        for count in (4, 6) if self.options.tiny else (24, 48, 60, 120):
            frames = send(make_frames(count, *self.size), self.device)
            allocated = self.prepare(mixed_allocation(self.geometry, *self.size, count, 0), frames)
            self.time(f"T {count}: our allocated", lambda _, v=allocated: forward(self.fast, v), samples=10)
            self.time(f"T {count}: allocator", lambda _, f=frames: allocator.actions(f), samples=10)
            full = self.prepare(full_allocation(self.geometry, *self.size, count), frames)
            self.time(f"T {count}: our full", lambda _, v=full: forward(self.fast, v), samples=5, warm=1)
            self.out.setdefault("growth", {})[count] = [len(allocated[0]), len(full[0])]
            del frames, allocated, full
        for batch in (1, 2, 4, 8):
            videos = [self.mixed[number][0] for number in range(batch)]
            self.time(f"batch {batch}: packed", lambda _, v=videos: forward(self.fast, v, "pack"), samples=10)
            self.time(f"batch {batch}: one by one", lambda _, v=videos: self.one_by_one(v), samples=10)

    def one_by_one(self, videos: Sequence[PreparedVideo]) -> None:
        for video in videos:
            forward(self.fast, [video])

    def profiles(self) -> str:
        parts = [("our full, compiled", self.fast, self.full), ("our allocated, compiled", self.fast, self.mixed[0])]
        parts += [("our full, eager", self.eager, self.full)]
        tables = [
            kernel_table(f"{self.name}: {title}", lambda b=backbone, v=videos: forward(b, v), self.device)
            for title, backbone, videos in parts
        ]
        full, model = plain_inputs(self.eager, self.full), self.eager.model
        tables.append(kernel_table(f"{self.name}: plain full", lambda: plain_forward(model, full), self.device))
        return "\n".join(tables)


def make_frames(count: int, height: int, width: int) -> torch.Tensor:
    """Random frames (T, H, W, 3), pinned if there is a GPU."""
    source = torch.Generator().manual_seed(0)
    frames = torch.randint(0, 256, (count, height, width, 3), dtype=torch.uint8, generator=source)
    return frames.pin_memory() if torch.cuda.is_available() else frames


def as_allocation(requested: np.ndarray, native: Grid, frames: int, *, full: bool = False) -> Allocation:
    """Project requested scales (C,) onto Base's budget; `full` keeps them as they are."""
    budget = Budget().tokens(native, frames)
    if full:
        scales, grids = requested, grids_at(requested, np.array([native.rows, native.cols]))
    else:
        scales, grids = project(requested, native, budget, SCALE_RANGE)
    sizes = tuple(Grid(int(rows), int(cols)) for rows, cols in grids)
    pairs = chunk_frames(np.arange(frames))
    return Allocation(pairs, tuple(map(float, scales)), sizes, native, budget, base_cost(native, 8, frames))


def full_allocation(geometry: Geometry, height: int, width: int, frames: int) -> Allocation:
    """Every frame at native size."""
    return as_allocation(np.ones(frames // 2), geometry.native(height, width), frames, full=True)


def mixed_allocation(geometry: Geometry, height: int, width: int, frames: int, seed: int) -> Allocation:
    """Random scales from the whole range, projected onto Base's budget."""
    requested = np.random.default_rng(seed).uniform(*SCALE_RANGE, frames // 2)
    return as_allocation(requested, geometry.native(height, width), frames)


@contextmanager
def other_setting(name: str, value: object, owner: Any = attention) -> Iterator[None]:
    """Change a constant of the attention module, or a method of a class, temporarily, to see what it is worth."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def make_parser(description: str | None, models: str, samples: int) -> argparse.ArgumentParser:
    """The options of a script that measures models, with these defaults."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=models)
    parser.add_argument("--samples", type=int, default=samples)
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--minutes", type=float, default=8.0, help="start no new measurement after this time")
    parser.add_argument("--out", type=Path, help="write all results here as JSON")
    parser.add_argument("--profile", type=Path, metavar="FILE.md", help="also write a profile by kernel")
    parser.add_argument("--tiny", action="store_true", help="run in miniature on a CPU")
    return parser


def main() -> None:
    parser = make_parser(__doc__, "qwen2-vl-2b,qwen3-vl-2b,qwen3-vl-8b", 50)
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts to measure; growth: the first model only")
    options = parser.parse_args()
    options.models, options.parts = options.models.split(","), options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        raise SystemExit(f"unknown part {min(unknown)!r}: use some of {', '.join(PARTS)}")
    options.deadline = time.monotonic() + 60 * options.minutes
    if options.tiny:
        options.samples = 2
    results: dict[str, Any] = {"candidates": options.candidates, "torch": torch.__version__}

    def save() -> None:
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")

    device = torch.device("cpu" if options.tiny else "cuda")
    results["device"] = "CPU" if options.tiny else torch.cuda.get_device_name(device)
    peak = matmul_rate(device, 256 if options.tiny else 8192)
    smol, profiles = None, []
    for name in options.models:
        if time.monotonic() > options.deadline:
            print(f"{name}: not measured, the time is over")
            continue
        bench = LatencyBench(name, options, results.setdefault("models", {}), save)
        if "backbone" in options.parts:
            bench.backbone_parts()
            bench.rate_part(peak)
        preview = make_allocator(BackbonePreview(bench.fast, summary=True), tiny=options.tiny)
        if "allocators" in options.parts:
            smol = smol or make_allocator(make_smol(device, bench.eager.dtype, tiny=options.tiny), tiny=options.tiny)
            for kind, allocator in (("self-preview", preview), ("smolvlm2", smol)):
                bench.allocator_parts(kind, allocator)
        if "sensitivity" in options.parts:
            bench.sensitivity_parts()
        if "closeness" in options.parts:
            bench.closeness_part()
        if "preprocessing" in options.parts:
            bench.preprocessing_parts()
        if "growth" in options.parts and name == options.models[0]:
            bench.growth_parts(preview)
        if options.profile:
            profiles.append(bench.profiles())
            options.profile.write_text("\n".join(profiles))
        del bench, preview
        if device.type == "cuda":
            torch.cuda.empty_cache()
    save()
    print_tables(results)


if __name__ == "__main__":
    main()
