"""A learned allocator times sensitivity: what kind of picture matters, and what this backbone does with this video.

The two err differently, so their product is better than either. It costs what both cost.
"""

from dataclasses import replace
from typing import Self

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.allocators.learned import Learned
from allocembed.allocators.sensitivity import Sensitivity, scales_from
from allocembed.errors import PolicyError
from allocembed.policy.preview import asks
from allocembed.video.clip import Clip

POWERS = (0.7, 0.5)
"""Exponents of the learned scales and of sensitivity's. Both are noisy, so neither counts in full."""


class ScaleProduct(Allocator):
    """Keeps all candidates and multiplies the scales of two allocators. With a question the learned allocator decides
    alone, because sensitivity gains nothing there."""

    name = "learned+sensitivity"
    takes_tensors = True
    needs_backbone = True

    def __init__(self, learned: Learned, sensitivity: Sensitivity) -> None:
        self.learned, self.sensitivity = learned, sensitivity
        self.scale_range = learned.scale_range

    @classmethod
    def of(cls, first: Allocator, second: Allocator, named: str) -> Self:
        """Multiply two loaded allocators. Raise PolicyError if they are others than these two."""
        if not isinstance(first, Learned) or not isinstance(second, Sensitivity):
            raise PolicyError(
                f"cannot multiply {named} by sensitivity: write learned+sensitivity, or the folder of an allocator "
                "made by allocembed train with +sensitivity after it"
            )
        return cls(first, second)

    def identity(self) -> str:
        return f"{self.learned.identity()} to {POWERS[0]} times {self.sensitivity.identity()} to {POWERS[1]}"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        plan = self.learned.plan(clip, request)
        if asks(request.question):
            return plan
        looks = self.sensitivity.look(clip, request)
        scales = plan.scales ** POWERS[0] * scales_from(looks.moves, self.sensitivity.exponent) ** POWERS[1]
        return replace(
            plan,
            scales=scales,
            look_tokens=plan.look_tokens + looks.tokens,
            look_tower_tokens=plan.look_tower_tokens + looks.tower_tokens,
        )
