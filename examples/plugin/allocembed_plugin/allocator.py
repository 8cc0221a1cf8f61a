"""`middle`: the middle of a video gets the most tokens, its first and last chunk the fewest."""

from __future__ import annotations

from typing import Self

import numpy as np

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.backbones.base import Backbone
from allocembed.errors import ConfigError
from allocembed.video import Clip

EDGE = 0.25


class MiddleFirst(Allocator):
    """Keeps all frames. Scales fall from 1 in the middle to `edge` at both ends; `middle:0.5` sets the edge."""

    name = "middle"

    def __init__(self, edge: float = EDGE) -> None:
        self.edge = edge

    @classmethod
    def from_options(cls, options: str, backbone: Backbone | None) -> Self:
        try:
            edge = float(options or EDGE)
        except ValueError:
            edge = 0.0
        if not 0 < edge <= 1:
            raise ConfigError(f"{options!r} is no scale of the edges: write a number up to 1, such as middle:0.5")
        return cls(edge)

    def identity(self) -> str:
        return f"{self.name} {self.edge}"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        chunks = len(request.native_scales(len(clip)))
        from_middle = np.abs(np.linspace(-1, 1, chunks)) if chunks > 1 else np.zeros(1)
        return Plan(np.arange(len(clip)), 1 - (1 - self.edge) * from_middle)
