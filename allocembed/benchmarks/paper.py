"""The paper's own numbers, to compare with ours: tables 1, 3, 5 and 7 of "Allocate Before You Embed"."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STATED: dict[str, Any] = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
STATISTICS = ("mean", "min", "P25", "median", "P75", "P95", "max")
BINS = {"<10": (0, 10), "10–15": (10, 15), "15–20": (15, 20), "20–30": (20, 30), "≥30": (30, float("inf"))}
"""Minutes; the lower bound is included, the upper one is not."""


@dataclass(frozen=True)
class PublishedScores:
    """A line of a table: Hit@1 in percent by task, their mean as printed, and the cost in units of Base's."""

    hits: dict[str, float]
    average: float
    cost: float


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of several tasks in named groups, and the paper's results on it, by backbone and method."""

    name: str
    groups: Mapping[str, Sequence[str]]
    published: Mapping[str, Mapping[str, PublishedScores]]

    @property
    def tasks(self) -> list[str]:
        return [task for group in self.groups.values() for task in group]


@dataclass(frozen=True)
class Durations:
    """A corpus of LongRet: number of videos, total hours, statistics in minutes, and number of videos by duration."""

    videos: int
    hours: float
    minutes: dict[str, float]
    bins: dict[str, int]


def _benchmark(stated: dict[str, Any]) -> Benchmark:
    tasks = [task for group in stated["groups"].values() for task in group]
    published = {
        backbone: {m: PublishedScores(dict(zip(tasks, hits, strict=True)), *rest) for m, (hits, *rest) in lines.items()}
        for backbone, lines in stated["results"].items()
    }
    return Benchmark(stated["name"], stated["groups"], published)


BENCHMARKS = {name: _benchmark(_STATED[name]) for name in ("mmeb-v2", "longret")}
"""Table 1, and the complete LongRet results, last table of the appendix."""
TRANSFER: dict[str, dict[str, tuple[float, float]]] = _STATED["transfer"]
"""Table 3: gain of AllocEmbed over Base in Hit@1, and its cost, by embedding model."""
TITLES: dict[str, str] = _STATED["methods"]
"""Names of the methods, the paper's and `sensitivity`; † marks the reference that ignores the budget."""
HEADINGS: dict[str, str] = _STATED["headings"]
"""Short names of tasks for narrow columns."""
QUERIES: dict[str, int] = _STATED["longret"]["queries"]
CORPORA = {
    name: Durations(videos, hours, dict(zip(STATISTICS, minutes, strict=True)), dict(zip(BINS, bins, strict=True)))
    for name, (videos, hours, minutes, bins) in _STATED["longret"]["corpora"].items()
}
"""LongRet's composition, tables (a) to (c)."""
