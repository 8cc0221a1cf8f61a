"""Full Resolution: every candidate at native size. The costly reference, and the only method above the budget."""

import numpy as np

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.video.clip import Clip


class Full(Allocator):
    """All candidate frames at scale 1, whatever the budget is."""

    name = "full"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        return Plan(np.arange(len(clip)), request.native_scales(len(clip)), bounded=False)
