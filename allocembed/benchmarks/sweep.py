"""Sweeps: methods at several numbers of frames (figure 2 of the paper) or budgets (figure 5).

A sweep over frames keeps the budget and samples more and more of the video; Full Resolution pays for each frame, the
others shrink them. A sweep over budgets gives Base 8, 16 and 20 frames and the others three times as many candidates
for the same tokens. Any benchmark that scores embedders by label can be swept.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from allocembed.allocators.base import Allocator
from allocembed.backbones.base import Backbone
from allocembed.benchmarks.metrics import Score
from allocembed.benchmarks.paper import TITLES
from allocembed.benchmarks.report import TableLayout, as_json, markdown_list, markdown_table, summarise
from allocembed.benchmarks.request import SweepOver
from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed

FRAMES = (8, 16, 24, 32, 48)
BUDGETS = {8: 24, 16: 48, 20: 60}
"""Budgets in native frames, and the candidates that share each."""


@dataclass(frozen=True)
class SweepPoint:
    """A method at one point: mean Hit@1 over the tasks, and its cost in units of Base's."""

    x: int
    """Frames, or native frames of the budget."""
    hit1: float
    cost: float
    over_budget: int


@dataclass(frozen=True, eq=False)
class Sweep:
    """The scores of one backbone at each point."""

    over: SweepOver
    backbone: str
    scores: Sequence[Score]
    """Scores of each subset, labelled method@point."""
    notes: Sequence[str] = ()
    """Notes for readers, such as the meaning of a cost of 1.000×."""
    failures: Sequence[str] = ()
    videos: Mapping[str, str] = field(default_factory=dict)
    """The set of videos of subsets that share one."""

    @cached_property
    def curves(self) -> dict[str, list[SweepPoint]]:
        """The points of each method."""
        subsets = list(dict.fromkeys(score.subset for score in self.scores))
        curves: dict[str, list[SweepPoint]] = {}
        for summary in summarise(self.scores, TableLayout("", {"mean": subsets}, self.videos)):
            method, x = summary.method.rsplit("@", 1)
            point = SweepPoint(int(x), summary.averages["mean"], summary.cost, summary.over_budget)
            curves.setdefault(method, []).append(point)
        return curves

    @property
    def points(self) -> list[int]:
        return [point.x for point in next(iter(self.curves.values()))]


def make_embedders(
    over: SweepOver | None, backbone: Backbone, allocators: Mapping[str, Allocator], config: EmbedConfig
) -> dict[str, AllocEmbed]:
    """Each method, or each method at each point of a sweep, labelled method@point."""
    if over is None:
        return {method: AllocEmbed(backbone, allocator, config) for method, allocator in allocators.items()}
    configs = {x: replace(config, candidates=x) for x in FRAMES}
    if over == "budgets":
        configs = {x: replace(config, budget=f"{x}f", candidates=count) for x, count in BUDGETS.items()}
    return {
        f"{method}@{x}": AllocEmbed(backbone, allocator, varied)
        for x, varied in configs.items()
        for method, allocator in allocators.items()
    }


def sweep_json(sweeps: Sequence[Sweep]) -> dict[str, Any]:
    """Sweeps of several backbones as plain JSON values: the curves, and the scores of each subset."""
    return {
        "results": [
            {
                "sweep": sweep.over,
                "backbone": sweep.backbone,
                "curves": {method: [vars(point) for point in points] for method, points in sweep.curves.items()},
                "rows": as_json(sweep.scores, backbone=sweep.backbone),
                "notes": list(sweep.notes),
                "left_out": list(sweep.failures),
            }
            for sweep in sweeps
        ]
    }


def sweep_markdown(sweeps: Sequence[Sweep], benchmark: str) -> str:
    """Tables of mean Hit@1 and cost at each point."""
    tables = []
    for sweep in sweeps:
        lines = [["method", *(f"{x} frames" if sweep.over == "frames" else f"{x}f budget" for x in sweep.points)]]
        for method, points in sweep.curves.items():
            lines.append([TITLES.get(method, method), *(f"{point.hit1:.2f}" for point in points)])
            lines.append(["its cost", *(f"{point.cost:.3f}×" for point in points)])
        title = f"{benchmark}, {sweep.backbone}: mean Hit@1 in percent"
        tables.append(markdown_table(title, lines, markdown_list(sweep.notes)))
    return "\n".join(tables)
