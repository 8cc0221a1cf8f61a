"""Base: a few native frames, uniformly sampled. What everybody does today."""

from __future__ import annotations

from allocembed.allocators.base import Allocator, Plan, native_scales
from allocembed.budget import Budget
from allocembed.frames import Clip, candidate_indices


class BaseFrames(Allocator):
    """8 uniform frames at native size (or the budget's own number), shrunk only where a token budget demands it."""

    name = "base"

    def frames_wanted(self, budget: Budget, candidates: int) -> int:
        return budget.base_frames

    def plan(self, clip: Clip, text: str | None, budget: Budget, scale_range: tuple[float, float]) -> Plan:
        # A clip may have been sampled more densely for others to look at.
        kept = candidate_indices(len(clip), budget.base_frames)
        return Plan(kept, native_scales(len(kept)), grow=False)
