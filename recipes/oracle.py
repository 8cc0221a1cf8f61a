"""How far allocation alone can go in the nano world: an oracle that knows which chunks show an event.

    python recipes/oracle.py [--backbone nano-qwen3] [--limit 100] [--seed 1]

No learned allocator can know this; it is the mark to measure one against. Chunks with an event share the budget, the
others get the smallest scale. `--question` lets the oracle know, on `qa`, which event is asked about.
"""

from __future__ import annotations

import argparse

import numpy as np

from allocembed import world
from allocembed.allocators import Allocator, Plan
from allocembed.backbones import load_backbone
from allocembed.benchmarks import nano, report
from allocembed.benchmarks.nano import NOMINAL_FRAMES
from allocembed.budget import SCALE_RANGE, Budget, chunk_frames
from allocembed.embedder import AllocEmbed
from allocembed.frames import Clip


class Oracle(Allocator):
    """Looks the events up in the timelines of the test videos."""

    name = "oracle"

    def __init__(self, limit: int | None, seed: int | None, *, question: bool) -> None:
        self.videos = {name: nano.draw_videos(name, limit, seed) for name in ("short", "long", "qa")}
        self.asked = [question.event for question in nano.questions(self.videos["qa"])] if question else None

    def plan(
        self, clip: Clip, text: str | None, budget: Budget, scale_range: tuple[float, float] = SCALE_RANGE
    ) -> Plan:
        _, name, number = clip.source.split("/")
        timelines = self.videos[name].timelines.select(np.array([int(number)]))
        events = world.events_at(timelines, clip.indices / (NOMINAL_FRAMES - 1))[0]
        wanted = events == self.asked[int(number)] if self.asked and name == "qa" else events >= 0
        shown = np.array([wanted[list(pair)].any() for pair in chunk_frames(np.arange(len(clip)))])
        low, high = scale_range
        return Plan(np.arange(len(clip)), np.where(shown | ~shown.any(), high, low))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="nano-qwen3")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--methods", default="base,uniform,full")
    parser.add_argument("--budget", default="8f")
    parser.add_argument("--candidates", type=int, default=24)
    options = parser.parse_args()
    backbone = nano.at_home(load_backbone(options.backbone))
    settings = {"budget": options.budget, "candidates": options.candidates}
    embedders = {name: AllocEmbed(backbone, name, **settings) for name in options.methods.split(",") if name}
    for label, question in (("oracle", False), ("oracle, told the question", True)):
        oracle = Oracle(options.limit, options.seed, question=question)
        embedders[label] = AllocEmbed(backbone, oracle, **settings)
    rows = nano.evaluate_embedders(embedders, limit=options.limit, seed=options.seed)
    print(report.markdown(rows, nano.LAYOUT, f"first {options.limit or nano.VIDEOS} of every {nano.VIDEOS} videos"))


if __name__ == "__main__":
    main()
