"""Tables of scores: averages are complete, shared videos are counted once, JSON has the promised keys."""

import json

import pytest

from allocembed.benchmarks import report
from allocembed.benchmarks.metrics import Score
from allocembed_nano.nanoret import LAYOUT, RETRIEVAL, SUBSETS


@pytest.fixture
def scores() -> list[Score]:
    return [
        Score(method, subset, hit, 3.0, cost, over, 1500)
        for method, hit, cost, over in (("base", 20.0, 1.0, 0), ("full", 90.0, 3.0, 500), ("uniform", 60.5, 0.99, 0))
        for subset in SUBSETS
    ]


def test_json_rows_have_the_promised_keys(scores):
    shown = json.loads(json.dumps(report.as_json(scores)))
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


def test_videos_that_subsets_share_are_counted_once(scores):
    full = report.summarise(scores, LAYOUT)[1]
    assert full.over_budget == 1500 and full.averages == {"retrieval": 90.0, "all": 90.0}


def test_an_average_appears_only_if_all_its_subsets_do(scores):
    retrieval = [score for score in scores if score.subset in RETRIEVAL]
    assert set(report.summarise(retrieval, LAYOUT)[0].averages) == {"retrieval"}
    assert not report.summarise([score for score in scores if score.subset != "short-clip"], LAYOUT)[0].averages


def test_the_table_shows_the_change_from_base_and_marks_the_best_within_the_budget(scores):
    lines = report.markdown(scores, LAYOUT, "a note").splitlines()
    assert lines[2].count("|") == lines[4].count("|") == 12
    assert lines[4].startswith("| Base | 20.0 |") and "(" not in lines[4]
    assert "90.0 (+70.0)" in lines[5] and "**" not in lines[5] and "| 3.000× | 1,500 |" in lines[5]
    assert "**60.5 (+40.5)**" in lines[6]
    assert lines[-1] == "a note"


def test_without_base_there_is_no_change_to_show(scores):
    assert "(" not in report.markdown([score for score in scores if score.method != "base"], LAYOUT)
