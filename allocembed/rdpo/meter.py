"""Means of what a step measured, over all its examples on all processes."""

from __future__ import annotations

import torch
from torch import Tensor

from allocembed.rdpo.processes import Processes
from allocembed.rdpo.rollouts import Allocations, concentration

NAMES = (
    *("hit1", "gap", "reward", "incentive", "undecided", "cost", "scale", "concentration", "sharpness"),
    *("clipped", "ratio", "gradient"),
)  # what a meter knows, in the order in which processes exchange it


class Meter:
    """Means over all examples of all processes, asked for once a step: every question makes the host wait."""

    def __init__(self) -> None:
        self.sums: dict[str, list[Tensor]] = {}
        self.counts: dict[str, int] = {}

    def add(self, name: str, values: Tensor, weight: int = 1) -> None:
        """Counts every value, `weight` times."""
        self.sums.setdefault(name, []).append(values.detach().double().sum() * weight)
        self.counts[name] = self.counts.get(name, 0) + values.numel() * weight

    def add_allocations(self, found: Allocations) -> None:
        self.add("cost", torch.from_numpy(found.relative))
        self.add("scale", torch.from_numpy(found.scales))
        self.add("concentration", torch.from_numpy(concentration(found.tokens)))

    def means(self, processes: Processes) -> dict[str, float]:
        """What was counted anywhere; a name that no process has added is left out."""
        totals = torch.zeros((len(NAMES), 2), dtype=torch.float64)
        for row, name in enumerate(NAMES):
            if name in self.sums:
                totals[row, 0] = sum(part.cpu() for part in self.sums[name])
                totals[row, 1] = self.counts[name]
        totals = processes.sum(totals)
        return {name: (total / count).item() for name, (total, count) in zip(NAMES, totals, strict=True) if count}
