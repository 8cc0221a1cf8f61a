"""Content-Aware Selection: only the highest-scoring frames, at native size."""

import numpy as np

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.allocators.content import frame_scores
from allocembed.video.clip import Clip


class ContentSelect(Allocator):
    """The 8 highest-scoring candidates (or as many as the budget says) in temporal order; the rest are dropped."""

    name = "select"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        best = np.argsort(-frame_scores(clip.pixels), kind="stable")[: request.budget.base_frames]
        return Plan(np.sort(best), request.native_scales(len(best)), grow=False)
