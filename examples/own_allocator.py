"""Write your own allocation policy: here, more tokens for the middle of the video.

python examples/own_allocator.py talk.mp4 --backbone nano-qwen3
"""

from __future__ import annotations

import argparse

import numpy as np

from allocembed import AllocEmbed, Clip, EmbedConfig, load_backbone
from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.budget import chunk_count


class MiddleFirst(Allocator):
    """Requests large scales in the middle and small ones at both ends. The budget is applied afterwards."""

    name = "middle"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        chunks = chunk_count(len(clip), request.geometry.frames_per_chunk)
        return Plan(np.arange(len(clip)), np.hanning(chunks + 2)[1:-1])


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Embed a video with an allocator of your own.")
    parser.add_argument("video")
    parser.add_argument("--backbone", default="qwen3-vl-embedding-2b")
    given = parser.parse_args(arguments)

    embedder = AllocEmbed(load_backbone(given.backbone), MiddleFirst(), EmbedConfig(budget="8f"))
    video = embedder.encode_video(given.video)
    print([grid.tokens for grid in video.allocation.grids], f"= {video.cost} of {video.allocation.budget} tokens")


if __name__ == "__main__":
    main()
