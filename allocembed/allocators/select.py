"""Content-Aware Selection: only the best-scoring frames, at native size."""

from __future__ import annotations

import numpy as np

from allocembed.allocators.base import Allocator, Plan, native_scales
from allocembed.allocators.content import frame_scores
from allocembed.budget import Budget
from allocembed.frames import Clip


class ContentSelect(Allocator):
    """The 8 highest-scoring candidates (or the budget's own number) in temporal order; the rest are dropped."""

    name = "select"

    def plan(self, clip: Clip, text: str | None, budget: Budget, scale_range: tuple[float, float]) -> Plan:
        best = np.argsort(-frame_scores(clip.frames), kind="stable")[: budget.base_frames]
        return Plan(np.sort(best), native_scales(len(best)), grow=False)
