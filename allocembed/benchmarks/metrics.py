"""Hit@1 and mean rank. Ties count as breaking them at random would count on average.

A model that gives everything the same vector is right once in N, not always and not never.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from allocembed.errors import BackboneError

if TYPE_CHECKING:
    from allocembed.benchmarks.cache import CachedEmbedding
    from allocembed.budget import Allocation

TIE = 1e-6  # cosines of fp32 vectors that differ by less differ by rounding only


@dataclass(frozen=True)
class Score:
    """Result and cost of one method on one subset."""

    method: str
    subset: str
    hit1: float
    """Percent of queries whose target is ranked first."""
    mean_rank: float
    """1 is best."""
    cost: float
    """Mean over videos of the realised cost, in units of Base's cost for the same video."""
    over_budget: int
    """Videos that cost more than the budget."""
    n: int
    """Queries."""


def measure(
    method: str,
    subset: str,
    scores: np.ndarray,
    targets: np.ndarray,
    costs: Sequence[Allocation] | Sequence[CachedEmbedding],
) -> Score:
    """Score a method, from the cosines (Q, N) of N candidates, the target of each query (Q,) and the videos' costs."""
    return Score(
        method,
        subset,
        hit1=100 * float(hits(scores, targets).mean()),
        mean_rank=float(ranks(scores, targets).mean()),
        cost=float(np.mean([video.relative_cost for video in costs])),
        over_budget=sum(video.cost > video.budget for video in costs),
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
    """Number of candidates that score better than the target of each query, and of others that score the same."""
    scores = np.asarray(scores, np.float64)
    if not np.isfinite(scores).all():
        raise BackboneError("some scores are not finite: the backbone returned a broken vector; try --dtype float32")
    margin = scores - np.take_along_axis(scores, np.asarray(targets)[:, None], axis=1)
    return (margin > TIE).sum(axis=1), (np.abs(margin) <= TIE).sum(axis=1) - 1
