"""Uniform Allocation: every candidate kept, all shrunk alike until they fit."""

from __future__ import annotations

import numpy as np

from allocembed.allocators.base import Allocator, Plan, native_scales
from allocembed.budget import Budget
from allocembed.frames import Clip


class Uniform(Allocator):
    """One scale for all chunks; the tokens that rounding leaves over lift single chunks, spread over time."""

    name = "uniform"

    def plan(self, clip: Clip, text: str | None, budget: Budget, scale_range: tuple[float, float]) -> Plan:
        return Plan(np.arange(len(clip)), native_scales(len(clip)))
