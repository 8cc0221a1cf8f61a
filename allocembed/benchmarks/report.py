"""Scores as the paper's table: methods down, subsets across, averages with their change from Base.

`rich_table` is for the terminal, `markdown` for documents, `as_json` for programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from allocembed.benchmarks.metrics import Score
from allocembed.benchmarks.paper import TITLES

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class TableLayout:
    """Subsets of a benchmark, as its table shows them."""

    title: str
    averages: Mapping[str, Sequence[str]]
    """Each average and the subsets it is taken over. The mean rank is taken over the subsets of the first one."""
    videos: Mapping[str, str] = field(default_factory=dict)
    """The set of videos of subsets that share one. Videos of a shared set are counted once."""


@dataclass(frozen=True)
class Summary:
    """One line of the table."""

    method: str
    hits: dict[str, float]
    averages: dict[str, float]
    mean_rank: float
    cost: float
    over_budget: int


def as_json(scores: Sequence[Score], **common: object) -> list[dict[str, Any]]:
    """The scores as plain JSON values, each beginning with the `common` entries.

    >>> as_json([Score("base", "qa", 25.0, 2.5, 1.0, 0, 500)])[0]["hit@1"]
    25.0
    """
    return [
        {
            **common,
            "method": score.method,
            "subset": score.subset,
            "hit@1": round(score.hit1, 4),
            "mean_rank": round(score.mean_rank, 4),
            "cost": round(score.cost, 6),
            "over_budget": score.over_budget,
            "n": score.n,
        }
        for score in scores
    ]


def summarise(scores: Sequence[Score], layout: TableLayout) -> list[Summary]:
    """A summary of each method; an average is left out unless all its subsets are there."""
    summaries = []
    for method in dict.fromkeys(score.method for score in scores):
        mine = {score.subset: score for score in scores if score.method == method}
        ranked = [mine[subset] for subset in next(iter(layout.averages.values())) if subset in mine]
        over = {layout.videos.get(subset, subset): score.over_budget for subset, score in mine.items()}
        summaries.append(
            Summary(
                method,
                hits={subset: score.hit1 for subset, score in mine.items()},
                averages={
                    name: _mean(mine[subset].hit1 for subset in subsets)
                    for name, subsets in layout.averages.items()
                    if all(subset in mine for subset in subsets)
                },
                mean_rank=_mean(score.mean_rank for score in ranked or mine.values()),
                cost=_mean(score.cost for score in mine.values()),
                over_budget=sum(over.values()),
            )
        )
    return summaries


def rich_table(scores: Sequence[Score], layout: TableLayout, note: str = "") -> Table:
    """The table for a terminal; the best method within the budget is bold."""
    from rich.table import Table  # here, so that scores can be computed without rich

    heads, *lines = _lines(scores, layout, "[bold]{}[/bold]")
    table = Table(
        title=f"{layout.title}: Hit@1 in percent",
        caption=note or None,
        box=None,
        header_style="dim",
        collapse_padding=True,
        pad_edge=False,
    )
    for number, head in enumerate(heads):
        average = head.startswith("avg.")  # may break before its parenthesis in a narrow terminal
        head = head.replace("-", "\n").replace(" ", "\n")
        table.add_column(head, justify="right" if number else "left", no_wrap=not average, min_width=9 * average)
    for line in lines:
        table.add_row(*line)
    return table


def markdown(scores: Sequence[Score], layout: TableLayout, note: str = "") -> str:
    """The table for a document, with the paper's names of the methods."""
    lines = _lines(scores, layout, "**{}**", TITLES)
    return markdown_table(f"{layout.title}, Hit@1 in percent", lines, note)


def markdown_table(title: str, lines: Sequence[Sequence[str]], note: str = "") -> str:
    """A Markdown table of lines of cells, the first of them headings, between a title and a note."""
    heads, *rest = lines
    table = [heads, ["---", *["---:"] * (len(heads) - 1)], *rest]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    return "\n\n".join(filter(None, [title, text, note])) + "\n"


def markdown_list(lines: Iterable[str]) -> str:
    """A Markdown list; equal lines appear once."""
    return "\n".join(f"- {line}" for line in dict.fromkeys(lines))


def render(template: str, **values: object) -> str:
    """Fill in a template of this package; values are escaped if it makes HTML."""
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    templates = Environment(
        loader=PackageLoader("allocembed.benchmarks"),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    return templates.get_template(template).render(values)


def show_hits(summaries: Sequence[Summary], bold: str, digits: int) -> list[list[str]]:
    """Cells of each summary: Hit@1 per subset, then averages with their change from Base.

    The best within the budget of each column is put into `bold`, a format string.
    """
    within = [summary for summary in summaries if not summary.over_budget]
    base = next((summary for summary in summaries if summary.method == "base"), None)

    def show(summary: Summary, part: str, name: str) -> str:
        value = getattr(summary, part)[name]
        text = f"{value:.{digits}f}"
        if part == "averages" and base and summary is not base:
            text += f" ({value - base.averages[name]:+.{digits}f})"
        best = len(within) > 1 and value == max(getattr(other, part)[name] for other in within)
        return bold.format(text) if best and summary in within else text

    return [
        [show(summary, part, name) for part in ("hits", "averages") for name in getattr(summary, part)]
        for summary in summaries
    ]


def _lines(
    scores: Sequence[Score], layout: TableLayout, bold: str, titles: Mapping[str, str] | None = None
) -> list[list[str]]:
    """Headings, then the lines of the table."""
    summaries = summarise(scores, layout)
    averages = [f"avg. {name}" for name in summaries[0].averages]
    lines = [["method", *summaries[0].hits, *averages, "mean rank", "cost", "over budget"]]
    for summary, cells in zip(summaries, show_hits(summaries, bold, digits=1), strict=True):
        title = (titles or {}).get(summary.method, summary.method)
        costs = [f"{summary.mean_rank:.1f}", f"{summary.cost:.3f}×", f"{summary.over_budget:,}"]
        lines.append([title, *cells, *costs])
    return lines


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)
