"""Hit@1 and mean rank under honest ties: what breaking them at random would give on average.

A model that gives everything one vector is right once in N, not always and not never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from allocembed.budget import Allocation

TIE = 1e-6  # cosines of fp32 vectors that differ by less are equal but for rounding


@dataclass(frozen=True)
class Row:
    """How one method does on one subset, and what it paid."""

    method: str
    subset: str
    hit1: float
    """Percent of queries whose target is ranked first."""
    mean_rank: float
    """1 is best."""
    cost: float
    """Mean over videos of the realised cost in units of Base's for that same video."""
    over_budget: int
    """Videos that cost more than the budget."""
    n: int
    """Queries."""


def measure(
    method: str, subset: str, scores: np.ndarray, targets: np.ndarray, allocations: Sequence[Allocation]
) -> Row:
    """Scores (Q, N) of N candidates for each query, the target's index (Q,), and where the videos' tokens went."""
    return Row(
        method,
        subset,
        hit1=100 * float(hits(scores, targets).mean()),
        mean_rank=float(ranks(scores, targets).mean()),
        cost=float(np.mean([allocation.relative_cost for allocation in allocations])),
        over_budget=sum(allocation.cost > allocation.budget for allocation in allocations),
        n=len(targets),
    )


def hits(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(Q,) probability that the target of each query comes first when ties are broken at random.

    >>> hits(np.array([[0.1, 0.9, 0.3], [0.8, 0.9, 0.3], [0.5, 0.5, 0.2]]), np.array([1, 0, 1])).tolist()
    [1.0, 0.0, 0.5]
    >>> hits(np.ones((1, 4)), np.array([2])).item()
    0.25
    """
    better, equal = _compare(scores, targets)
    return (better == 0) / (1 + equal)


def ranks(scores: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """(Q,) expected rank of the target of each query, 1 for the best, when ties are broken at random.

    >>> ranks(np.array([[0.1, 0.9, 0.3], [0.8, 0.9, 0.3], [0.5, 0.5, 0.2]]), np.array([1, 0, 1])).tolist()
    [1.0, 2.0, 1.5]
    >>> ranks(np.ones((1, 4)), np.array([2])).item()
    2.5
    """
    better, equal = _compare(scores, targets)
    return 1 + better + equal / 2


def _compare(scores: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """How many candidates score better than the target of each query, and how many others as well as it."""
    scores = np.asarray(scores, np.float64)
    if not np.isfinite(scores).all():
        raise ValueError("some scores are not finite: the backbone gave a broken vector; try --dtype float32")
    margin = scores - np.take_along_axis(scores, np.asarray(targets)[:, None], axis=1)
    return (margin > TIE).sum(axis=1), (np.abs(margin) <= TIE).sum(axis=1) - 1
