"""Call the stages of the path one by one: read, plan, allocate, patch, embed. Each can be replaced by your own.

python examples/stages.py talk.mp4 --backbone nano-qwen3
"""

from __future__ import annotations

import argparse

from allocembed import AllocEmbed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Walk through the stages of the path.")
    parser.add_argument("video")
    parser.add_argument("--backbone", default="qwen3-vl-embedding-2b")
    given = parser.parse_args(arguments)

    embedder = AllocEmbed.from_pretrained(given.backbone, "uniform")
    clip = embedder.read(given.video)  # candidate frames and their times
    plan = embedder.plan(clip)  # one requested scale per chunk
    allocation = embedder.allocate(clip, plan)  # one grid per chunk, within the budget
    patches = embedder.patch(clip, allocation)  # mixed-resolution pixels
    print(f"read      {len(clip)} of {clip.total} frames, {clip.width} × {clip.height}")
    print(f"plan      scales {plan.scales.min():.2f} to {plan.scales.max():.2f}")
    print(f"allocate  {allocation.cost} of {allocation.budget} tokens in {len(allocation)} chunks")
    print(f"patch     {tuple(patches.pixels.shape)} {patches.pixels.dtype}")
    item = embedder.item(clip, allocation, patches)  # the patches with the prompt around them
    print(f"embed     {embedder.embed([item]).shape}")


if __name__ == "__main__":
    main()
