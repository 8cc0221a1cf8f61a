"""Where the tokens go: how many tokens each method gives a chunk, by what it shows.

    python recipes/tokens.py [--methods uniform,content,learned] [--videos 100] [--seed 1] [--json]

Test videos of NanoRet, short and long. A chunk counts as an event if any of its frames shows one, else as what its
first frame shows. Small events are those whose sign is in the smaller half.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict

import numpy as np

from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import report
from allocembed.embedder import AllocEmbed
from allocembed_nano import nanoret, world
from allocembed_nano.world.timeline import Scene, slots_at

NAMES = {
    "event, small": "an event with a small sign",
    "event, large": "an event with a large sign",
    Scene.DECOY: "a decoy: things that no text mentions",
    Scene.BUSY: "a busy texture",
    Scene.CARD: "a title shared by many videos",
    Scene.PLACE: "a place and nothing else",
    Scene.BLUR: "a blurred transition",
    Scene.BLACK: "black",
}


def chunk_kinds(timelines: world.Timelines, fractions: np.ndarray, frames_per_chunk: int) -> np.ndarray:
    """(B, C) keys of NAMES."""
    slots = slots_at(timelines, fractions)
    scene = np.take_along_axis(timelines.scene, slots, 1).reshape(len(timelines), -1, frames_per_chunk)
    size = np.take_along_axis(timelines.word_size, slots, 1).reshape(scene.shape)
    event = scene == Scene.EVENT
    smallest = np.where(event, size, np.inf).min(-1)
    middle = np.median(smallest[event.any(-1)])
    kinds = np.array([[Scene(value) for value in row] for row in scene[..., 0]], dtype=object)
    kinds[event.any(-1)] = "event, large"
    kinds[event.any(-1) & (smallest < middle)] = "event, small"
    return kinds


def measure(methods: list[str], count: int, seed: int | None, backbone_name: str) -> dict[str, dict[str, float]]:
    """Mean tokens of a chunk, by what it shows and by method, and the share of each kind."""
    backbone = load_backbone(backbone_name)
    embedders = {name: AllocEmbed(backbone, name) for name in methods}
    tokens: dict[str, dict[str, list[int]]] = {name: defaultdict(list) for name in methods}
    for which in ("short", "long"):
        videos = nanoret.draw_videos(which, count, seed)
        for start in range(0, count, nanoret.VIDEOS_IN_MEMORY):
            chosen = range(start, min(start + nanoret.VIDEOS_IN_MEMORY, count))
            clips = nanoret.clips_of(videos, chosen, [24], backbone.device)[24]
            fractions = clips[0].indices / (nanoret.NOMINAL_FRAMES - 1)
            per_chunk = backbone.geometry.frames_per_chunk
            kinds = chunk_kinds(videos.timelines.select(np.array(chosen)), fractions, per_chunk)
            for clip, row in zip(clips, kinds, strict=True):
                for name, embedder in embedders.items():
                    for kind, grid in zip(row, embedder.allocate(clip, embedder.plan(clip)).grids, strict=True):
                        tokens[name][kind].append(grid.tokens)
    total = sum(len(values) for values in tokens[methods[0]].values())
    return {
        title: {
            "share": len(tokens[methods[0]][kind]) / total,
            **{name: float(np.mean(tokens[name][kind])) for name in methods},
        }
        for kind, title in NAMES.items()
        if tokens[methods[0]][kind]
    }


def table(found: dict[str, dict[str, float]]) -> str:
    """The measurement as Markdown."""
    methods = [name for name in next(iter(found.values())) if name != "share"]
    lines = [["the chunk shows", "share of chunks", *(report.TITLES.get(name, name) for name in methods)]]
    lines += [[title, f"{row['share']:.0%}", *(f"{row[name]:.1f}" for name in methods)] for title, row in found.items()]
    return report.markdown_table("Mean tokens of a chunk; native are 48, and 16 is an equal share of the budget", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", default="uniform,content,learned")
    parser.add_argument("--videos", type=int, default=100, help="of each kind")
    parser.add_argument("--seed", type=int, help="fresh test videos instead of the shipped ones")
    parser.add_argument("--backbone", default="nano-qwen3")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.methods.split(","), options.videos, options.seed, options.backbone)
    print(json.dumps(found) if options.json else table(found))


if __name__ == "__main__":
    main()
