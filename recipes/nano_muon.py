"""Muon, batched over matrices of one shape.

The algorithm of `torch.optim.Muon` with its "match_rms_adamw" rate: momentum, orthogonalised by five Newton-Schulz
steps. torch processes one matrix at a time; a nano model has about sixty matrices in ten shapes.
"""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import nn

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # the quintic of Keller Jordan's Muon


class Muon(torch.optim.Optimizer):
    """Muon for 2-D weights."""

    def __init__(self, weights: list[nn.Parameter], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        alike: dict[torch.Size, list[nn.Parameter]] = defaultdict(list)
        for weight in weights:
            alike[weight.shape].append(weight)
        groups = [{"params": members} for members in alike.values()]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:
        """Update all weights; each must have a gradient."""
        for group in self.param_groups:
            weights, share = group["params"], group["momentum"]
            gradient = torch.stack([weight.grad for weight in weights])
            state = self.state[weights[0]]
            if "momentum" not in state:
                state["momentum"] = torch.zeros_like(gradient)
            state["momentum"].lerp_(gradient, 1 - share)
            update = orthogonalise(gradient.lerp(state["momentum"], share))
            scale = 0.2 * math.sqrt(max(update.shape[-2:]))  # the size of a typical AdamW update
            torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(weights, list(update.to(gradient.dtype)), alpha=-group["lr"] * scale)


def orthogonalise(stack: torch.Tensor) -> torch.Tensor:
    """Matrices (N, rows, cols) with all singular values moved towards 1.

    >>> singular = torch.linalg.svdvals(orthogonalise(torch.randn(2, 16, 8)).float())
    >>> bool(((singular > 0.5) & (singular < 1.5)).all())
    True
    """
    a, b, c = COEFFICIENTS
    matrices = stack.bfloat16()
    tall = matrices.shape[-2] > matrices.shape[-1]
    if tall:
        matrices = matrices.mT
    matrices = matrices / matrices.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        square = matrices @ matrices.mT
        matrices = a * matrices + (b * square + c * square @ square) @ matrices
    return matrices.mT if tall else matrices
