"""Base: a few native frames, uniformly sampled. What everybody does today."""

from __future__ import annotations

import numpy as np

from allocembed.allocators.base import Allocator, Plan, native_scales
from allocembed.budget import Budget
from allocembed.video import Clip


class BaseFrames(Allocator):
    """8 uniform frames at native size (or the budget's own number), shrunk only where a token budget demands it."""

    name = "base"

    def frames_wanted(self, budget: Budget, candidates: int) -> int:
        return budget.base_frames

    def plan(self, clip: Clip, text: str | None, budget: Budget) -> Plan:
        return Plan(np.arange(len(clip)), native_scales(len(clip)), grow=False)
