"""Base: a few native frames, uniformly sampled: common practice today."""

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.budget import Budget
from allocembed.video.clip import Clip, candidate_indices


class BaseFrames(Allocator):
    """8 uniform frames at native size (or as many as the budget says), shrunk only if a token budget demands it."""

    name = "base"

    def frames_wanted(self, budget: Budget, candidates: int) -> int:
        return budget.base_frames

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        # The clip may have been sampled more densely for other methods.
        kept = candidate_indices(len(clip), request.budget.base_frames)
        return Plan(kept, request.native_scales(len(kept)), grow=False)
