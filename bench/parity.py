"""Do fast paths change the vectors? The trained nano backbones on videos of their world, against transformers' path.

    python bench/parity.py [--videos 16] [--device auto] [--dtype bfloat16]

Prints the largest 1 − cos to the library's forward with its SDPA attention: of our loops, of them compiled, and of
packed batches; and, as a measure of what bfloat16 leaves open, how far the library's own vectors are from its float32
ones. Models with random weights (bench/latency.py) magnify rounding several times more than trained ones.
"""

from __future__ import annotations

import argparse
import copy

import torch
from latency import apart, full_allocation, mixed_allocation
from measure import plain_forward, plain_inputs

from allocembed import world
from allocembed.backbones import Backbone, Item, load_backbone
from allocembed.backbones.base import Row
from allocembed.resize import to_patches

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
        for kind, rows in inputs(eager, options.videos).items():
            found = compare(eager, fast, rows)
            worst = max(worst, *found[:3])
            print(f"| {name} | {kind} | " + " | ".join(f"{value:.1e}" for value in found) + " |", flush=True)
    print(f"\nlargest: {worst:.1e}, wanted: at most {LIMIT:.0e}: {'met' if worst <= LIMIT else 'NOT met'}")


def inputs(backbone: Backbone, videos: int) -> dict[str, list[Row]]:
    """Rows of world videos at full resolution, and under random allocations at Base's budget."""
    timelines = world.draw(videos, seed=[31, 4], split="test", orientation="landscape")
    frames = world.render(timelines, torch.linspace(0, 1, FRAMES).numpy()).permute(0, 1, 3, 4, 2).contiguous()
    height, width = frames.shape[2:4]
    geometry, times = backbone.geometry, torch.arange(FRAMES).double().numpy()
    full = [full_allocation(geometry, height, width, FRAMES)] * videos
    mixed = [mixed_allocation(geometry, height, width, FRAMES, seed) for seed in range(videos)]
    return {
        kind: backbone.rows(
            [Item(patches=to_patches(video, times, one, geometry)) for video, one in zip(frames, each, strict=True)]
        )
        for kind, each in (("full", full), ("allocated", mixed))
    }


def compare(eager: Backbone, fast: Backbone, rows: list[Row]) -> tuple[float, float, float, float]:
    """Largest 1 − cos to the library's path: of ours, of it compiled, of it packed; and of the library's to float32."""
    exact = copy.deepcopy(eager.model).float()
    plain, float32 = [], []
    for row in rows:
        given = plain_inputs(eager, [row])
        plain.append(plain_forward(eager.model, given))
        given["pixel_values_videos"] = given["pixel_values_videos"].float()
        float32.append(plain_forward(exact, given))
    wanted = torch.cat(plain).cpu()
    with torch.inference_mode():
        ours, compiled = (torch.cat([backbone.forward([row]) for row in rows]).cpu() for backbone in (eager, fast))
        packed = eager.forward(rows, "pack").cpu()
    return apart(ours, wanted), apart(compiled, wanted), apart(packed, wanted), apart(torch.cat(float32).cpu(), wanted)


if __name__ == "__main__":
    main()
