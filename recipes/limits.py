"""How far allocation can go in the nano world, and what the question is worth to it.

    python recipes/limits.py [--backbone nano-qwen3] [--limit 100] [--seed 1] [--json]

- `oracle` knows which chunks show an event: they share the budget, the others get the smallest scale. No allocator can
  know this. It is a mark to measure one against, not the best there could be: what is hard to read it does not know.
- `oracle, told the question` knows, on `qa`, which event is asked about.
- `learned, question hidden` is the shipped allocator that never sees the question; the backbone still does.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from allocembed import world
from allocembed.allocators import Allocator, Plan, load_allocator
from allocembed.backbones import load_backbone
from allocembed.benchmarks import nano, report
from allocembed.benchmarks.nano import NOMINAL_FRAMES
from allocembed.budget import Budget, chunk_frames
from allocembed.frames import Clip


class Oracle(Allocator):
    """Looks the events up in the timelines of the test videos."""

    def __init__(self, limit: int | None, seed: int | None, *, told: bool) -> None:
        self.name = "oracle, told the question" if told else "oracle"
        self.videos = {name: nano.draw_videos(name, limit, seed) for name in ("short", "long", "qa")}
        self.asked = [question.event for question in nano.questions(self.videos["qa"])] if told else None

    def plan(self, clip: Clip, text: str | None, budget: Budget, scale_range: tuple[float, float]) -> Plan:
        _, name, number = clip.source.split("/")
        timelines = self.videos[name].timelines.select(np.array([int(number)]))
        events = world.events_at(timelines, clip.indices / (NOMINAL_FRAMES - 1))[0]
        wanted = events == self.asked[int(number)] if self.asked and name == "qa" else events >= 0
        shown = np.array([wanted[list(pair)].any() for pair in chunk_frames(np.arange(len(clip)))])
        low, high = scale_range
        return Plan(np.arange(len(clip)), np.where(shown | ~shown.any(), high, low))


class Blindfolded(Allocator):
    """Another allocator that is never shown the task text."""

    def __init__(self, inner: Allocator) -> None:
        self.inner, self.name, self.scale_range = inner, f"{inner.name}, question hidden", inner.scale_range

    def plan(self, clip: Clip, text: str | None, budget: Budget, scale_range: tuple[float, float]) -> Plan:
        return self.inner.plan(clip, None, budget, scale_range)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="nano-qwen3")
    parser.add_argument("--limit", type=int, help="only the first so many of every 500 videos")
    parser.add_argument("--seed", type=int, help="fresh test videos instead of the shipped ones")
    parser.add_argument("--subsets", default=",".join(nano.SUBSETS))
    parser.add_argument("--methods", default="", help="further methods, separated by commas")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    backbone = load_backbone(options.backbone, dtype=options.dtype)
    subsets = options.subsets.split(",")
    methods: list[str | Allocator] = [name for name in options.methods.split(",") if name]
    methods.append(Oracle(options.limit, options.seed, told=False))
    if "qa" in subsets:
        methods.append(Oracle(options.limit, options.seed, told=True))
        methods.append(Blindfolded(load_allocator("learned", backbone)))
    rows = nano.evaluate(backbone, methods, subsets=subsets, limit=options.limit, seed=options.seed)
    if options.json:
        print(json.dumps({"rows": report.as_json(rows)}))
    else:
        print(report.markdown(rows, nano.LAYOUT, f"first {options.limit or nano.VIDEOS} of every {nano.VIDEOS} videos"))


if __name__ == "__main__":
    main()
