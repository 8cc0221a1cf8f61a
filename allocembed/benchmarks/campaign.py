"""What to run for the paper's figures and tables: variants of methods with their settings, and what came of them.

A sweep over frames (figure 2) keeps the budget of 8 native frames and looks at more and more of the video; Full
Resolution pays for each frame. A sweep over budgets (figure 5) gives Base 8, 16 and 20 frames and the others three
times as many candidates for the same tokens. A transfer (table 3) runs one allocator on several backbones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from allocembed.allocators import Allocator
from allocembed.backbones import Backbone
from allocembed.backbones.loading import same
from allocembed.benchmarks import report
from allocembed.benchmarks.comparison import AVERAGE, Comparison
from allocembed.benchmarks.paper import TRANSFER
from allocembed.benchmarks.report import TITLES, Layout, summarise
from allocembed.benchmarks.runner import Outcome, Progress, Results, evaluate
from allocembed.benchmarks.tasks import Task
from allocembed.budget import Budget
from allocembed.embedder import AllocEmbed
from allocembed.rdpo.processes import Processes

FRAMES = (8, 16, 24, 32, 48)
BUDGETS = {8: 24, 16: 48, 20: 60}
"""Native frames' worth of tokens, and the candidates that share them."""


@dataclass(frozen=True)
class Point:
    """A method at one place of a sweep: mean Hit@1 over the tasks and its cost in units of Base's."""

    x: int
    hit1: float
    cost: float
    over_budget: int


@dataclass(frozen=True, eq=False)
class Sweep:
    """One backbone's curves, by method."""

    over: str
    backbone: str
    curves: dict[str, list[Point]]
    outcomes: list[Outcome]
    failures: list[str]
    unit: str
    """What a cost of 1.000× is."""


def sweep(
    over: str,
    backbone: Backbone,
    allocators: Mapping[str, Allocator],
    tasks: Sequence[Task],
    cache: Path,
    *,
    title: str,
    settings: Mapping[str, object],
    **running,
) -> Sweep:
    """Runs every method at every place of a sweep; `settings` are those of `AllocEmbed`, less what is varied."""
    fixed = {name: value for name, value in settings.items() if name not in ("budget", "candidates")}
    places: dict[str, tuple[str, int]] = {}
    embedders = {}
    for x in FRAMES if over == "frames" else BUDGETS:
        varied = {"budget": settings.get("budget", "8f"), "candidates": x}
        if over == "budgets":
            varied = {"budget": f"{x}f", "candidates": BUDGETS[x]}
        for label, allocator in allocators.items():
            places[f"{label}@{x}"] = label, x
            embedders[f"{label}@{x}"] = AllocEmbed(backbone, allocator, **varied, **fixed)
    results = evaluate(embedders, tasks, cache, **running)
    names = [task.name for task in tasks]
    curves: dict[str, list[Point]] = {label: [] for label in allocators}
    for summary in summarise(results.rows, Layout("", {AVERAGE: names}, {name: name for name in names})):
        label, x = places[summary.method]
        curves[label].append(Point(x, summary.averages[AVERAGE], summary.cost, summary.over_budget))
    unit = "1.000× = as many frames at native size as the budget says"
    if over == "frames":
        unit = Budget.parse(settings.get("budget", "8f")).unit
    return Sweep(over, title, curves, results.outcomes, results.failures, unit)


def run(
    backbone: Backbone,
    allocators: Mapping[str, Allocator],
    tasks: Sequence[Task],
    cache: Path,
    *,
    settings: Mapping[str, object],
    processes: Processes | None = None,
    batch: int = 4,
    progress: Progress | None = None,
) -> tuple[dict[str, AllocEmbed], Results]:
    """Every method once: the embedders by label, and what they did."""
    embedders = {label: AllocEmbed(backbone, allocator, **settings) for label, allocator in allocators.items()}
    return embedders, evaluate(embedders, tasks, cache, processes=processes, batch=batch, progress=progress)


def sweep_json(found: Sweep) -> dict:
    """A sweep in plain numbers: the curves, and every task's row."""
    rows = report.as_json([outcome.row for outcome in found.outcomes], backbone=found.backbone)
    curves = {method: [vars(point) for point in points] for method, points in found.curves.items()}
    return {"sweep": found.over, "backbone": found.backbone, "curves": curves, "rows": rows, "left_out": found.failures}


def sweep_markdown(found: Sweep, benchmark: str) -> str:
    """Mean Hit@1 and cost by frames or budgets."""
    points = next(iter(found.curves.values()))
    heads = [f"{point.x} frames" if found.over == "frames" else f"{point.x}f budget" for point in points]
    lines = [["method", *heads]]
    for method, curve in found.curves.items():
        lines.append([TITLES.get(method, method), *(f"{point.hit1:.2f}" for point in curve)])
        lines.append(["its cost", *(f"{point.cost:.3f}×" for point in curve)])
    notes = [found.unit, *(f"{o.task.name}: {note}" for o in found.outcomes for note in o.task.notes)]
    listed = "\n".join(f"- {note}" for note in dict.fromkeys(notes))
    return report.markdown_table(f"{benchmark}, {found.backbone}: mean Hit@1 in percent", lines, listed)


def transfer_lines(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """The transfer table: every learned method's gain over Base and its cost, by backbone, beside the paper's."""
    name = comparisons[0].benchmark.name
    lines = [["model", "method", "Base", "gain", "cost", "paper's gain", "paper's cost"]]
    for comparison in comparisons:
        summaries = comparison.summaries
        base = next((summary for summary in summaries if summary.method == "base"), None)
        paper = next((TRANSFER[key][name] for key in TRANSFER if same(key, comparison.backbone)), None)
        for summary in summaries:
            if base is None or summary is base:
                continue
            gain = summary.averages[AVERAGE] - base.averages[AVERAGE]
            ours = [f"{base.averages[AVERAGE]:.2f}", f"{gain:+.2f}", f"{summary.cost:.3f}×"]
            theirs = [f"{paper[0]:+.2f}", f"{paper[1]:.3f}×"] if paper else ["", ""]
            lines.append([comparison.title, TITLES.get(summary.method, summary.method), *ours, *theirs])
    return lines
