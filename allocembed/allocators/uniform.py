"""Uniform Allocation: every candidate kept, all shrunk by one scale until they fit."""

import numpy as np

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.video.clip import Clip


class Uniform(Allocator):
    """One scale for all chunks. Tokens left over by rounding enlarge single chunks, spread over time."""

    name = "uniform"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        return Plan(np.arange(len(clip)), request.native_scales(len(clip)))
