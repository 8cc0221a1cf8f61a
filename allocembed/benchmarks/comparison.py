"""Our numbers beside the paper's, in the paper's own table: methods down, tasks across, average and cost at the end.

`markdown` is for documents, `latex` for papers, `as_json` for programs. If the paper has a line for the backbone and
method, it stands beneath ours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean
from typing import TYPE_CHECKING, Any

from allocembed.backbones.checkpoint import same_model, split_inputs
from allocembed.benchmarks import report
from allocembed.benchmarks.metrics import Score
from allocembed.benchmarks.paper import HEADINGS, TITLES, TRANSFER, Benchmark, PublishedScores
from allocembed.benchmarks.report import Summary, TableLayout, markdown_list, show_hits, summarise

if TYPE_CHECKING:
    from allocembed.benchmarks.runner import TaskOutcome

AVERAGE = "tasks"


@dataclass(frozen=True, eq=False)
class Comparison:
    """Results of one backbone on a benchmark, ready to be written."""

    benchmark: Benchmark
    backbone: str
    title: str
    outcomes: Sequence[TaskOutcome]
    failures: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def model(self) -> str:
        """The backbone's name without its inputs."""
        return split_inputs(self.backbone)[0]

    @property
    def tasks(self) -> list[str]:
        ran = {outcome.score.subset for outcome in self.outcomes}
        return [task for task in self.benchmark.tasks if task in ran]

    @property
    def is_complete(self) -> bool:
        """Whether all tasks of the benchmark ran."""
        return len(self.tasks) == len(self.benchmark.tasks)

    @property
    def summaries(self) -> list[Summary]:
        layout = TableLayout(self.benchmark.name, {AVERAGE: self.tasks})
        return summarise(sorted(self.scores, key=lambda score: self.tasks.index(score.subset)), layout)

    @property
    def base(self) -> Summary | None:
        return next((summary for summary in self.summaries if summary.method == "base"), None)

    @property
    def scores(self) -> list[Score]:
        return [outcome.score for outcome in self.outcomes]

    def tokens(self, method: str) -> float:
        """Mean visual tokens of a video, averaged over the tasks."""
        return fmean(outcome.tokens for outcome in self.outcomes if outcome.score.method == method)

    @property
    def all_notes(self) -> list[str]:
        """Notes for readers of the numbers, each once; those of tasks begin with the task's name."""
        notes = (f"{outcome.task.name}: {note}" for outcome in self.outcomes for note in outcome.task.notes)
        return list(dict.fromkeys([*self.notes, *notes]))

    def published(self, method: str) -> PublishedScores | None:
        """The paper's line for this backbone, under any of its names, and a method."""
        lines = next((lines for name, lines in self.benchmark.published.items() if same_model(name, self.model)), {})
        return lines.get(method)

    def published_average(self, published: PublishedScores) -> float:
        """The paper's average as printed, or the average of the tasks that ran if they are not all."""
        if self.is_complete:
            return published.average
        return round(sum(published.hits[task] for task in self.tasks) / len(self.tasks), 2)

    def published_gain(self, method: str) -> float | None:
        """The paper's gain of a method over its Base, on the tasks that ran; None if the paper has no such line."""
        published, base = self.published(method), self.published("base")
        if published is None or base is None:
            return None
        return self.published_average(published) - self.published_average(base)


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Everything as plain JSON values, the paper's numbers under `paper`."""
    rows = report.as_json(comparison.scores, backbone=comparison.backbone)
    for row, outcome in zip(rows, comparison.outcomes, strict=True):
        row["tokens"] = round(outcome.tokens, 2)
        published = comparison.published(row["method"])
        row["paper"] = published.hits.get(row["subset"]) if published else None
    lines = {}
    for summary in comparison.summaries:
        published = comparison.published(summary.method)
        lines[summary.method] = {
            "average": round(summary.averages[AVERAGE], 4),
            "cost": round(summary.cost, 6),
            "tokens": round(comparison.tokens(summary.method), 2),
            "over_budget": summary.over_budget,
            "paper": comparison.published_average(published) if published else None,
        }
    return {
        "benchmark": comparison.benchmark.name,
        "backbone": comparison.backbone,
        "rows": rows,
        "methods": lines,
        "notes": comparison.all_notes,
        "left_out": list(comparison.failures),
    }


def markdown(comparison: Comparison) -> str:
    """The table for a document."""
    heads = ["method", *comparison.tasks, "avg.", "cost", "tokens", "over budget"]
    notes = comparison.all_notes
    if comparison.failures:
        notes += [f"cannot read {len(comparison.failures):,} videos: {'; '.join(comparison.failures[:5])}"]
    title = f"{comparison.benchmark.name}, {comparison.title}: Hit@1 in percent"
    return report.markdown_table(title, [heads, *_lines(comparison, "**{}**", "*{}*")], markdown_list(notes))


def latex(comparisons: Sequence[Comparison]) -> str:
    """One `table*` for all backbones, laid out as in the paper; it needs booktabs."""
    first = comparisons[0]
    ran = [len([task for task in tasks if task in first.tasks]) for tasks in first.benchmark.groups.values()]
    groups = zip(first.benchmark.groups, ran, accumulate(ran, initial=2), strict=False)
    return report.render(
        "results.tex.j2",
        benchmark=first.benchmark.name,
        width=len(first.tasks) + 3,
        groups=[(_escape(name), count, begin) for name, count, begin in groups if count],
        heads=[_escape(HEADINGS.get(task, task)) for task in first.tasks],
        backbones=[(_escape(each.title), _latex_lines(each)) for each in comparisons],
        notes=[_escape(note) for note in dict.fromkeys(note for each in comparisons for note in each.all_notes)],
    )


def transfer_lines(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """The transfer table: gain over Base and cost of each other method, by backbone, beside the paper's."""
    name = comparisons[0].benchmark.name
    lines = [["model", "method", "Base", "gain", "cost", "paper's gain", "paper's cost"]]
    for comparison in comparisons:
        paper = next((TRANSFER[key][name] for key in TRANSFER if same_model(key, comparison.model)), None)
        if (base := comparison.base) is None:
            continue
        for summary in comparison.summaries:
            if summary.method != "base":
                gain = summary.averages[AVERAGE] - base.averages[AVERAGE]
                ours = [f"{base.averages[AVERAGE]:.2f}", f"{gain:+.2f}", f"{summary.cost:.3f}×"]
                theirs = [f"{paper[0]:+.2f}", f"{paper[1]:.3f}×"] if paper else ["", ""]
                lines.append([comparison.title, TITLES.get(summary.method, summary.method), *ours, *theirs])
    return lines


def _lines(comparison: Comparison, bold: str, italic: str) -> Iterator[list[str]]:
    """Cells of each method: Hit@1 per task, average, cost, tokens, videos over budget; beneath it the paper's line."""
    summaries = comparison.summaries
    for summary, cells in zip(summaries, show_hits(summaries, bold, digits=2), strict=True):
        title = TITLES.get(summary.method, summary.method)
        tokens = f"{comparison.tokens(summary.method):,.0f}"
        yield [title, *cells, f"{summary.cost:.3f}×", tokens, f"{summary.over_budget:,}"]
        if published := comparison.published(summary.method):
            average = comparison.published_average(published)
            gain = comparison.published_gain(summary.method)
            change = "" if gain is None or summary.method == "base" else f" ({gain:+.2f})"
            hits = [f"{published.hits[task]:.2f}" for task in comparison.tasks]
            # The paper's cost is over all tasks, so beside some of them it would mislead.
            cost = f"{published.cost:.3f}×" if comparison.is_complete else ""
            cells = ["paper", *hits, f"{average:.2f}{change}", cost, "", ""]
            yield [italic.format(cell) if cell else "" for cell in cells]


def _latex_lines(comparison: Comparison) -> Iterator[list[str]]:
    paper = r"\textit{paper}"
    for title, *cells, _, _ in _lines(comparison, r"\textbf{{{}}}", r"\textit{{{}}}"):
        name = rf"\quad{paper}" if title == paper else _escape(title)
        yield [name, *(cell.replace("×", r"$\times$") for cell in cells)]


def _escape(text: str) -> str:
    """Text that LaTeX prints as it is.

    >>> print(_escape("100 % of a_b {c}"))
    100 \\% of a\\_b \\{c\\}
    """
    signs = {sign: f"\\{sign}" for sign in "&%$#_{}"}
    signs |= {"\\": r"\textbackslash{}", "…": r"\dots{}", "×": r"$\times$", "†": r"$^\dagger$"}
    return text.translate(str.maketrans(signs))
