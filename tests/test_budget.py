"""The budget is hard: no projection ever costs more, whatever is asked of it."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocembed.budget import Budget, Grid, base_cost, chunk_frames, grids_at, project
from allocembed.errors import BudgetError
from allocembed.geometry import Geometry

FACTORS = {"qwen2": (14, 2), "qwen3": (16, 2)}


@st.composite
def problems(draw):
    patch, merge = FACTORS[draw(st.sampled_from(sorted(FACTORS)))]
    geometry = Geometry(patch, merge, (0.5,) * 3, (0.5,) * 3, 4 * (patch * merge) ** 2, 1280 * (patch * merge) ** 2)
    native = geometry.native(draw(st.integers(16, 2200)), draw(st.integers(16, 4000)))
    low = draw(st.floats(0.05, 1.0))
    high = draw(st.floats(low, 3.0))
    count = draw(st.integers(1, 30))
    scales = np.array(draw(st.lists(st.floats(low, high), min_size=count, max_size=count)))
    frames = draw(st.integers(1, 24))
    return scales, native, base_cost(native, frames, 10**6), (low, high)


def smallest_cost(count: int, native: Grid, low: float) -> int:
    return count * int(grids_at(np.array([low]), np.array([native.rows, native.cols])).prod())


@settings(max_examples=400, deadline=None)
@given(problems())
def test_projection_keeps_all_its_promises(problem):
    scales, native, budget, (low, high) = problem
    least = smallest_cost(len(scales), native, low)
    if least > budget:
        with pytest.raises(BudgetError, match=f"at least {least}"):
            project(scales, native, budget, (low, high))
        return
    realised, grids = project(scales, native, budget, (low, high))
    cost = grids.prod(-1).sum()
    assert cost <= budget
    assert np.all(realised >= low) and np.all(realised <= high)
    exact = realised[:, None] * np.array([native.rows, native.cols])
    assert np.all((np.abs(grids - exact) <= 0.5 + 1e-6) | (grids == 1)), "aspect kept to within one token"
    order = np.argsort(scales)
    for lower, higher in itertools.pairwise(order):
        if scales[lower] < scales[higher]:
            assert np.all(grids[lower] <= grids[higher]), "a larger scale never gets a smaller grid"
    assert cost >= 0.97 * budget or not could_lift(scales, realised, grids, native, budget - cost, high)


def could_lift(scales, realised, grids, native, rest, high) -> bool:
    """Whether some chunk could go one grid up within range, order and what is left."""
    sides = np.array([native.rows, native.cols])
    for i in range(len(scales)):
        following = ((grids[i] + 0.5) / sides).min() * (1 + 1e-9)
        larger = np.maximum(np.floor(following * sides + 0.5), 1).astype(int)
        ordered = all(np.all(larger <= grids[j]) for j in range(len(scales)) if scales[j] > scales[i])
        if following <= high and ordered and larger.prod() - grids[i].prod() <= rest:
            return True
    return False


@pytest.mark.parametrize("low_high", [(0.2, 1e9), (1e-9, 1e9), (1e8, 1e9), (0.2, float("inf"))])
def test_a_range_whose_tokens_cannot_be_counted_is_refused(low_high):
    with pytest.raises(BudgetError, match="s_max ≤ 1000"):
        project(np.ones(12), Grid(20, 36), 48, low_high)
    _, grids = project(np.ones(12), Grid(20, 36), 48, (1e-9, 1000.0))
    assert grids.prod(-1).sum() <= 48


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(st.lists(problems(), min_size=2, max_size=5))
def test_a_batch_is_projected_as_each_video_alone(batch):
    low, high = 0.2, 1.8
    batch = [p for p in batch if smallest_cost(len(p[0]), p[1], low) <= p[2]]
    if not batch:
        return
    width = max(len(scales) for scales, *_ in batch)
    padded = np.stack([np.pad(scales, (0, width - len(scales)), constant_values=np.nan) for scales, *_ in batch])
    native = np.array([[grid.rows, grid.cols] for _, grid, *_ in batch])
    budgets = np.array([budget for _, _, budget, _ in batch])
    _, grids = project(padded, native, budgets, (low, high))
    assert np.all(grids.prod(-1).sum(-1) <= budgets)
    for i, (scales, grid, budget, _) in enumerate(batch):
        _, alone = project(scales, grid, budget, (low, high))
        assert alone.prod(-1).sum() <= budget
        assert sorted(map(tuple, alone)) == sorted(map(tuple, grids[i, : len(scales)]))
        assert not grids[i, len(scales) :].any()


def test_scale_one_at_the_exact_budget_is_native():
    realised, grids = project(np.ones(4), Grid(22, 40), base_cost(Grid(22, 40), 8, 100))
    assert np.all(grids == [22, 40]) and np.allclose(realised, 1, atol=1e-6)


def test_leftover_tokens_are_spread_over_time():
    _, grids = project(np.ones(12), Grid(6, 8), 192)
    lifted = np.flatnonzero(grids.prod(-1) > grids.prod(-1).min())
    assert grids.prod(-1).sum() >= 0.97 * 192
    assert len(lifted) == 2 and lifted[1] - lifted[0] >= 4


def test_without_growth_no_chunk_gets_more_than_it_asked_for():
    _, grids = project(np.array([1.0, 0.5]), Grid(6, 8), 10**6, grow=False)
    assert grids.tolist() == [[6, 8], [3, 4]]
    _, grids = project(np.array([1.0, 1.0]), Grid(6, 8), 60, grow=False)
    assert grids.prod(-1).sum() <= 60


def test_a_large_budget_stops_at_the_range():
    _, grids = project(np.array([0.3, 1.0]), Grid(10, 10), 10**6, (0.2, 1.8))
    assert grids.tolist() == [[18, 18], [18, 18]]


def test_a_thousand_videos_take_less_than_a_tenth_of_a_second():
    rng = np.random.default_rng(0)
    scales = rng.uniform(0.2, 1.8, (1000, 12))  # 24 frames
    native = np.stack([rng.integers(4, 30, 1000), rng.integers(4, 50, 1000)], 1)
    budget = native.prod(1) * 4
    best = min(_seconds(lambda: project(scales, native, budget)) for _ in range(5))
    assert best < 0.1


def _seconds(action) -> float:
    """Seconds of one core: what the work takes, not what else the machine does meanwhile."""
    start = time.process_time()
    action()
    return time.process_time() - start


@pytest.mark.parametrize("scales", [[0.0, 1.0], [-1.0], [np.inf], [np.nan]])
def test_meaningless_scales_are_refused(scales):
    with pytest.raises(BudgetError, match="positive and finite"):
        project(np.array(scales), Grid(6, 8), 100)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(5e-324, 1.7e308), min_size=1, max_size=24), st.integers(1, 40), st.integers(1, 40))
def test_extreme_scales_never_exceed_the_budget(scales, rows, cols):
    native = Grid(rows, cols)
    budget = max(base_cost(native, 8, 100), smallest_cost(len(scales), native, 0.2))
    for grow in (True, False):
        _, grids = project(np.array(scales), native, budget, grow=grow)
        assert grids.prod(-1).sum() <= budget


def test_the_smallest_numbers_there_are_keep_the_budget():
    _, grids = project(np.array([1e-320] * 3), Grid(6, 8), 20)
    assert grids.prod(-1).sum() <= 20


@pytest.mark.parametrize("budget", [float("inf"), float("nan"), 10**10, 1e300])
def test_an_impossible_budget_is_refused(budget):
    with pytest.raises(BudgetError, match="whole number"):
        project(np.ones(2), Grid(6, 8), budget)


@pytest.mark.parametrize("bounds", [(0, 1), (1.8, 0.2), (-1, 1), (0.2, np.inf), (np.nan, 1)])
def test_a_meaningless_range_is_refused(bounds):
    with pytest.raises(BudgetError, match="s_min"):
        project(np.ones(2), Grid(6, 8), 100, bounds)


@pytest.mark.parametrize("text", ["", "0", "0f", "-3", "8g", "f8", "1.5f", "8 f f", "eight", "9" * 5000, "inf"])
def test_a_budget_that_can_not_be_read_says_how_to_write_one(text):
    with pytest.raises(BudgetError, match="budget"):
        Budget.parse(text)


@pytest.mark.parametrize(("text", "tokens"), [("8f", 192), ("16 frames", 384), ("1f", 48), ("777", 777)])
def test_budgets_are_frames_or_tokens(text, tokens):
    assert Budget.parse(text).tokens(Grid(6, 8), available=1000) == tokens


def test_a_short_video_has_a_smaller_budget():
    assert Budget(8).tokens(Grid(6, 8), available=3) == 2 * 48


def test_an_odd_last_frame_is_paired_with_itself():
    assert chunk_frames(np.arange(5)) == ((0, 1), (2, 3), (4, 4))
    assert chunk_frames(np.array([7])) == ((7, 7),)


def test_scales_on_a_ladder_hold_the_budget_and_have_few_sizes():
    chance = np.random.default_rng(0)
    requested, native = chance.uniform(0.05, 2, (200, 12)), np.array([6, 8])
    scales, grids = project(requested, native, 192, rungs=8)
    free, _ = project(requested, native, 192)
    ladder = np.geomspace(0.2, 1.8, 8)
    assert grids.prod(-1).sum(-1).max() <= 192
    assert np.abs(scales[..., None] - ladder).min(-1).max() < 1e-9
    assert grids.prod(-1).sum(-1).mean() > 0.85 * 192, "little of the budget is lost"
    assert np.abs(np.log(scales) - np.log(free)).mean() < np.log(1.8 / 0.2) / 7
    order = np.argsort(requested, 1)
    assert (np.diff(np.take_along_axis(grids.prod(-1), order, 1), axis=1) >= 0).all()


def test_extreme_requests_are_not_enlarged_unless_they_may_grow():
    for request in ([1e-10, 1e-10], [1e-10, 1.0], [1e10, 0.01]):
        wanted = np.clip(request, 0.001, 1.8)
        scales, grids = project(np.array(request), Grid(200, 200), 10**6, (0.001, 1.8), grow=False)
        assert (grids <= np.ceil(wanted[:, None] * 200 + 0.5)).all(), (request, scales)
