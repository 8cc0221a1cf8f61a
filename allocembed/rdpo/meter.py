"""Means of what a step measures, over all its examples on all processes."""

import torch
from torch import Tensor

from allocembed.execution.distributed import Processes
from allocembed.rdpo.rollouts import Allocations, concentration

NAMES = (
    *("hit1", "gap", "reward", "incentive", "undecided", "searched", "cost", "scale", "concentration", "sharpness"),
    *("clipped", "ratio", "gradient"),
)  # in the order in which processes exchange them


class Meter:
    """Running sums, read once per step: every read makes the host wait for the device."""

    def __init__(self) -> None:
        self.sums: dict[str, list[Tensor]] = {}
        self.counts: dict[str, int] = {}

    def add(self, name: str, values: Tensor, weight: int = 1) -> None:
        """Count every value `weight` times."""
        self.sums.setdefault(name, []).append(values.detach().double().sum() * weight)
        self.counts[name] = self.counts.get(name, 0) + values.numel() * weight

    def add_allocations(self, found: Allocations) -> None:
        self.add("cost", torch.from_numpy(found.relative))
        self.add("scale", torch.from_numpy(found.scales))
        self.add("concentration", torch.from_numpy(concentration(found.tokens)))

    def means(self, processes: Processes) -> dict[str, float]:
        """The mean of everything that any process has added."""
        totals = torch.zeros((len(NAMES), 2), dtype=torch.float64)
        for row, name in enumerate(NAMES):
            if name in self.sums:
                totals[row, 0] = sum(part.cpu() for part in self.sums[name])
                totals[row, 1] = self.counts[name]
        totals = processes.sum(totals)
        return {name: (total / count).item() for name, (total, count) in zip(NAMES, totals, strict=True) if count}
