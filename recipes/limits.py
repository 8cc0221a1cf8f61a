"""How far allocation can go in the nano world, and what the question is worth to it.

    python recipes/limits.py [--backbone nano-qwen3] [--limit 100] [--seed 1] [--json]

- `oracle` knows which chunks show an event: they share the budget, the others get the smallest scale. No allocator can
  know this. It is a reference, not an upper bound: it does not know which events are hard to read.
- `oracle, given the question` knows, on `qa`, which event the question is about.
- `learned, question hidden` is the bundled allocator that never sees the question; the backbone still does.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

import numpy as np

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.allocators.registry import load_allocator
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import report
from allocembed.budget import chunk_frames
from allocembed.video import Clip
from allocembed_nano import nanoret, world
from allocembed_nano.nanoret import NOMINAL_FRAMES


class Oracle(Allocator):
    """Looks the events up in the timelines of the test videos."""

    def __init__(self, limit: int | None, seed: int | None, *, given_question: bool) -> None:
        self.name = "oracle, given the question" if given_question else "oracle"
        self.videos = {name: nanoret.draw_videos(name, limit, seed) for name in ("short", "long", "qa")}
        questions = nanoret.questions(self.videos["qa"]) if given_question else []
        self.asked = [question.event for question in questions]

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        _, name, number = clip.source.split("/")
        timelines = self.videos[name].timelines.select(np.array([int(number)]))
        events = world.events_at(timelines, clip.indices / (NOMINAL_FRAMES - 1))[0]
        wanted = events == self.asked[int(number)] if self.asked and name == "qa" else events >= 0
        kept = np.arange(len(clip))
        shown = np.array([wanted[list(chunk)].any() for chunk in chunk_frames(kept, request.geometry.frames_per_chunk)])
        low, high = request.scale_range
        return Plan(kept, np.where(shown | ~shown.any(), high, low))


class QuestionBlind(Allocator):
    """Another allocator that never sees the question."""

    def __init__(self, inner: Allocator) -> None:
        self.inner, self.name, self.scale_range = inner, f"{inner.name}, question hidden", inner.scale_range

    def identity(self) -> str:
        return f"{self.inner.identity()}, question hidden"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        return self.inner.plan(clip, replace(request, question=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="nano-qwen3")
    parser.add_argument("--limit", type=int, help="use only the first N of every 500 videos")
    parser.add_argument("--seed", type=int, help="fresh test videos instead of the shipped ones")
    parser.add_argument("--subsets", default=",".join(nanoret.SUBSETS))
    parser.add_argument("--methods", default="", help="further methods, separated by commas")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    backbone = load_backbone(options.backbone, dtype=options.dtype)
    subsets = options.subsets.split(",")
    methods: list[str | Allocator] = [name for name in options.methods.split(",") if name]
    methods.append(Oracle(options.limit, options.seed, given_question=False))
    if "qa" in subsets:
        methods.append(Oracle(options.limit, options.seed, given_question=True))
        methods.append(QuestionBlind(load_allocator("learned", backbone)))
    scores = nanoret.evaluate(backbone, methods, subsets=subsets, limit=options.limit, seed=options.seed)
    if options.json:
        print(json.dumps({"rows": report.as_json(scores)}))
    else:
        note = f"first {options.limit or nanoret.VIDEOS} of every {nanoret.VIDEOS} videos"
        print(report.markdown(scores, nanoret.LAYOUT, note))


if __name__ == "__main__":
    main()
