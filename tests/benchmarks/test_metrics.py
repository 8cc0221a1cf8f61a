"""Hit@1 and mean rank: ties are honest, broken vectors are refused."""

import numpy as np
import pytest

from allocembed.benchmarks.metrics import Score, hits, measure, ranks
from allocembed.budget import Allocation, Grid
from allocembed.errors import BackboneError


def allocation(chunks: int, budget: int = 16) -> Allocation:
    native = Grid(2, 2)
    return Allocation(((0, 1),) * chunks, (1.0,) * chunks, (native,) * chunks, native, budget, base_cost=16)


@pytest.mark.parametrize("count", [1, 2, 7, 500])
def test_a_constant_embedding_is_right_once_in_n(count):
    vectors = np.tile(np.random.default_rng(0).normal(size=(1, 64)), (count, 1)).astype(np.float32)
    vectors /= np.linalg.norm(vectors[0])
    scores, targets = vectors @ vectors.T, np.arange(count)
    assert hits(scores, targets).sum() == pytest.approx(1)
    assert ranks(scores, targets).mean() == pytest.approx((count + 1) / 2)


def test_ties_give_what_breaking_them_at_random_gives_on_average():
    rng = np.random.default_rng(1)
    scores, targets = rng.integers(0, 4, (50, 6)) / 10, rng.integers(0, 6, 50)
    broken = [scores + rng.uniform(0, 1e-3, scores.shape) for _ in range(4000)]
    assert np.allclose(hits(scores, targets), np.mean([hits(s, targets) for s in broken], 0), atol=0.05)
    assert np.allclose(ranks(scores, targets), np.mean([ranks(s, targets) for s in broken], 0), atol=0.1)


def test_a_target_tied_below_the_best_is_no_hit():
    scores = np.array([[0.9, 0.5, 0.5, 0.5]])
    assert hits(scores, np.array([2])).item() == 0
    assert ranks(scores, np.array([2])).item() == 3


def test_broken_scores_are_refused_instead_of_ranked():
    with pytest.raises(BackboneError, match="not finite"):
        hits(np.array([[0.1, np.nan]]), np.array([0]))


def test_a_score_counts_videos_over_their_budget_and_costs_in_units_of_base():
    score = measure("full", "qa", np.eye(2), np.array([0, 0]), [allocation(4), allocation(12)])
    assert score == Score("full", "qa", hit1=50.0, mean_rank=1.5, cost=2.0, over_budget=1, n=2)
