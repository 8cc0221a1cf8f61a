"""Random and extreme requests through `budget.project`: the cost never exceeds the budget."""

import numpy as np

from allocembed.budget import LARGEST_BUDGET, grids_at, project
from torture_parts.common import Outcome, Settings

FULL = 1_000_000
BATCH = 10_000
RANGES = ((0.2, 1.8), (0.05, 1.0), (1.0, 1.0), (0.2, 4.0))
NATIVE = ((6, 8), (22, 40), (1, 1), (1, 500), (500, 1), (2, 3), (64, 64), (17, 31), (1, 2))


def run(settings: Settings) -> Outcome:
    outcome, random = Outcome("allocations"), np.random.default_rng(settings.seed)
    total = settings.count(FULL)
    while outcome.runs < total:
        attack(outcome, random, min(BATCH, total - outcome.runs))
    return outcome


def attack(outcome: Outcome, random: np.random.Generator, rows: int) -> None:
    """Project one batch and count requests above the budget, and chunks in the wrong order."""
    kind = str(random.choice(("usual", "tiny", "huge", "equal", "single", "mixed", "powers")))
    low, high = RANGES[random.integers(len(RANGES))]
    scales = _scales(kind, random, rows)
    native = np.array(NATIVE)[random.integers(len(NATIVE), size=rows)]
    valid = ~np.isnan(scales)
    smallest = np.where(valid, grids_at(np.full(scales.shape, low), native).prod(-1), 0).sum(-1)
    largest = np.where(valid, grids_at(np.full(scales.shape, high), native).prod(-1), 0).sum(-1)
    between = smallest + (random.random(rows) * (largest - smallest)).astype(np.int64)
    choices = np.stack([smallest, smallest + 1, between, between, np.full(rows, LARGEST_BUDGET)])
    budget = choices[random.integers(len(choices), size=rows), np.arange(rows)]
    grow = bool(random.integers(2))
    outcome.runs += rows
    outcome.notes[kind] += rows
    try:
        realised, grids = project(scales, native, budget, (low, high), grow=grow)
    except Exception as error:
        outcome.fault("crashes", f"{kind}: {type(error).__name__}: {error}")
        return
    cost = grids.astype(object).prod(-1).sum(-1).astype(np.float64) if kind == "huge" else grids.prod(-1).sum(-1)
    for row in np.flatnonzero(cost > budget):
        outcome.fault("over_budget", f"{kind}: {scales[row].tolist()} {native[row]} {budget[row]} costs {cost[row]}")
    tokens = np.where(valid, grids.prod(-1), 0)
    order = np.argsort(np.where(valid, -scales, np.inf), 1)
    falling = np.take_along_axis(tokens, order, 1)
    ranked = np.take_along_axis(np.where(valid, scales, 0), order, 1)
    for row in np.flatnonzero(((np.diff(falling) > 0) & (np.diff(ranked) < 0)).any(1)):
        outcome.fault(
            "wrong", f"{kind}: {scales[row].tolist()} {native[row]} {budget[row]}: order {grids[row].tolist()}"
        )
    if not (np.isfinite(realised).all() and (grids[valid] >= 1).all()):
        outcome.fault("wrong", f"{kind}: a grid without tokens, or a scale that is no number")


def _scales(kind: str, random: np.random.Generator, rows: int) -> np.ndarray:
    """Requested scales (rows, chunks), NaN where a video has fewer chunks."""
    chunks = 1 if kind == "single" else int(random.integers(2, 17))
    shape = (rows, chunks)
    exponents = {
        "usual": random.uniform(-1, 0.3, shape),
        "tiny": random.uniform(-323, -5, shape),
        "huge": random.uniform(5, 308, shape),
        "equal": np.repeat(random.uniform(-320, 300, (rows, 1)), chunks, 1),
        "single": random.uniform(-323, 308, shape),
        "mixed": random.uniform(-323, 308, shape),
        "powers": random.integers(-9, 10, shape).astype(np.float64),
    }[kind]
    scales = np.maximum(10.0**exponents, 5e-324)
    scales[:, 1:][random.random((rows, chunks - 1)) < 0.2 * random.integers(2)] = np.nan
    return scales
