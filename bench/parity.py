"""Check that the fast paths keep the vectors: trained nano backbones against transformers' own path.

    python bench/parity.py [--videos 16] [--device auto] [--dtype bfloat16]

Print the largest 1 − cos to the library's forward with SDPA attention, on videos of the nano world: for our loops,
compiled loops and packed batches. For comparison, print it for the library's own vectors against its float32 vectors,
the rounding of the dtype. Random weights (bench/latency.py) amplify rounding several times more than trained ones.
"""

from __future__ import annotations

import argparse
import copy

import torch
from latency import full_allocation, mixed_allocation
from measure import PreparedVideo, cosine_gap, forward, plain_forward, plain_inputs, prepare_videos

from allocembed.backbones.base import Backbone, Item, Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.resize import chunk_seconds, to_patches
from allocembed_nano import world

LIMIT = 1e-5
FRAMES = 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=16)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="bfloat16")
    options = parser.parse_args()
    print("| backbone | input | our loops | compiled | packed | the library, to float32 |")
    print("| --- | --- | ---: | ---: | ---: | ---: |")
    worst = 0.0
    for name in ("nano-qwen3", "nano-qwen2"):
        eager = load_backbone(name, device=options.device, dtype=options.dtype)
        fast = load_backbone(name, device=options.device, dtype=options.dtype, compile=True)
        for kind, videos in make_videos(eager, options.videos).items():
            found = compare(eager, fast, videos)
            worst = max(worst, *found[:3])
            print(f"| {name} | {kind} | " + " | ".join(f"{value:.1e}" for value in found) + " |", flush=True)
    print(f"\nlargest: {worst:.1e}, target: at most {LIMIT:.0e}: {'met' if worst <= LIMIT else 'NOT met'}")


def make_videos(backbone: Backbone, count: int) -> dict[str, list[PreparedVideo]]:
    """World videos at full resolution, and with random allocations at Base's budget."""
    timelines = world.draw(count, seed=[31, 4], split="test", orientation="landscape")
    frames = world.render(timelines, torch.linspace(0, 1, FRAMES).numpy()).permute(0, 1, 3, 4, 2).contiguous()
    height, width = frames.shape[2:4]
    geometry, times = backbone.geometry, torch.arange(FRAMES).double().numpy()
    full = [full_allocation(geometry, height, width, FRAMES)] * count
    mixed = [mixed_allocation(geometry, height, width, FRAMES, seed) for seed in range(count)]
    return {
        kind: prepare_videos(
            backbone,
            [
                Item(Prompt(seconds=chunk_seconds(times, allocation.frames)), to_patches(video, allocation, geometry))
                for video, allocation in zip(frames, allocations, strict=True)
            ],
        )
        for kind, allocations in (("full", full), ("allocated", mixed))
    }


def compare(eager: Backbone, fast: Backbone, videos: list[PreparedVideo]) -> tuple[float, float, float, float]:
    """Largest 1 − cos to the library's path: our loops, compiled, packed; and of the library's path to float32."""
    exact = copy.deepcopy(eager.model).float()
    plain, float32 = [], []
    for video in videos:
        inputs = plain_inputs(eager, [video])
        plain.append(plain_forward(eager.model, inputs))
        inputs["pixel_values_videos"] = inputs["pixel_values_videos"].float()
        float32.append(plain_forward(exact, inputs))
    reference = torch.cat(plain).cpu()
    loops, compiled = (torch.cat([forward(each, [video]) for video in videos]).cpu() for each in (eager, fast))
    packed = forward(eager, videos, "pack").cpu()
    found = [cosine_gap(vectors, reference) for vectors in (loops, compiled, packed, torch.cat(float32).cpu())]
    return found[0], found[1], found[2], found[3]


if __name__ == "__main__":
    main()
