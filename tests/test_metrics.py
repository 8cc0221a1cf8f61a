"""Hit@1, mean rank and the tables made of them: ties are honest, averages complete, JSON as promised."""

import json

import numpy as np
import pytest

from allocembed.benchmarks import report
from allocembed.benchmarks.metrics import Row, hits, measure, ranks
from allocembed.benchmarks.nano import LAYOUT, RETRIEVAL, SUBSETS
from allocembed.budget import Allocation, Grid


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


def test_broken_scores_are_refused_rather_than_ranked():
    with pytest.raises(ValueError, match="not finite"):
        hits(np.array([[0.1, np.nan]]), np.array([0]))


def test_a_row_counts_videos_over_their_budget_and_costs_in_units_of_base():
    row = measure("full", "qa", np.eye(2), np.array([0, 0]), [allocation(4), allocation(12)])
    assert row == Row("full", "qa", hit1=50.0, mean_rank=1.5, cost=2.0, over_budget=1, n=2)


@pytest.fixture
def rows() -> list[Row]:
    return [
        Row(method, subset, hit, 3.0, cost, over, 1500)
        for method, hit, cost, over in (("base", 20.0, 1.0, 0), ("full", 90.0, 3.0, 500), ("uniform", 60.5, 0.99, 0))
        for subset in SUBSETS
    ]


def test_json_rows_have_the_promised_keys(rows):
    shown = json.loads(json.dumps(report.as_json(rows)))
    assert all(set(row) == {"method", "subset", "hit@1", "mean_rank", "cost", "over_budget", "n"} for row in shown)
    assert shown[5] == {
        "method": "full",
        "subset": "short-clip",
        "hit@1": 90.0,
        "mean_rank": 3.0,
        "cost": 3.0,
        "over_budget": 500,
        "n": 1500,
    }


def test_videos_that_subsets_share_are_counted_once(rows):
    full = report.summarise(rows, LAYOUT)[1]
    assert full.over_budget == 1500 and full.averages == {"retrieval": 90.0, "all": 90.0}


def test_an_average_stands_only_where_all_its_subsets_do(rows):
    assert set(report.summarise([row for row in rows if row.subset in RETRIEVAL], LAYOUT)[0].averages) == {"retrieval"}
    assert not report.summarise([row for row in rows if row.subset != "short-clip"], LAYOUT)[0].averages


def test_the_table_shows_the_change_from_base_and_marks_the_best_within_the_budget(rows):
    lines = report.markdown(rows, LAYOUT, "a note").splitlines()
    assert lines[2].count("|") == lines[4].count("|") == 12
    assert lines[4].startswith("| Base | 20.0 |") and "(" not in lines[4]
    assert "90.0 (+70.0)" in lines[5] and "**" not in lines[5] and "| 3.000× | 1,500 |" in lines[5]
    assert "**60.5 (+40.5)**" in lines[6]
    assert lines[-1] == "a note"


def test_without_base_there_is_no_change_to_show(rows):
    assert "(" not in report.markdown([row for row in rows if row.method != "base"], LAYOUT)
