"""Embed frames that you chose yourself: a folder of images, or an array from a camera or another decoder.

python examples/own_frames.py --backbone nano-qwen3
"""

from __future__ import annotations

import argparse

import numpy as np

from allocembed import AllocEmbed


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Embed frames in memory.")
    parser.add_argument("--backbone", default="qwen3-vl-embedding-2b")
    given = parser.parse_args(arguments)

    # 40 frames, (T, H, W, 3) uint8; a path of an image folder works in the same place.
    frames = np.random.default_rng(0).integers(0, 255, (40, 144, 192, 3), np.uint8)
    frames[:20] //= 16  # the first half is nearly black, so `content` gives it few tokens
    embedder = AllocEmbed.from_pretrained(given.backbone, "content", budget="8f", candidates=16)
    video = embedder.encode_video(frames)
    for chunk, scale, grid in zip(
        video.allocation.frames, video.allocation.scales, video.allocation.grids, strict=True
    ):
        print(f"frames {chunk}: scale {scale:.2f}, {grid.rows} × {grid.cols} = {grid.tokens} tokens")
    print(f"{video.cost} of {video.allocation.budget} tokens")


if __name__ == "__main__":
    main()
