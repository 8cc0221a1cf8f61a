"""Full Resolution: every candidate at native size. The costly reference, the only method above the budget."""

from __future__ import annotations

import numpy as np

from allocembed.allocators.base import Allocator, Plan, native_scales
from allocembed.budget import Budget
from allocembed.frames import Clip


class Full(Allocator):
    """All candidate frames at scale 1, whatever the budget says."""

    name = "full"

    def plan(self, clip: Clip, text: str | None, budget: Budget, scale_range: tuple[float, float]) -> Plan:
        return Plan(np.arange(len(clip)), native_scales(len(clip)), bounded=False)
