"""A benchmark's rows as the paper's table: methods down, subsets across, averages with their change from Base.

Three forms of one thing: `rich_table` for the terminal, `markdown` for documents, `as_json` for programs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich.table import Table

from allocembed.benchmarks.metrics import Row

TITLES = {
    "base": "Base",
    "full": "Full Resolution†",
    "uniform": "Uniform Allocation",
    "content": "Content-Aware Allocation",
    "select": "Content-Aware Selection",
    "learned": "AllocEmbed",
}
"""The paper's names of the methods; † is the reference that does not keep the budget."""


@dataclass(frozen=True)
class Layout:
    """What the table of one benchmark needs to know about its subsets."""

    title: str
    averages: Mapping[str, Sequence[str]]
    """A name for each average, and the subsets it is taken over; the mean rank is that of the first one's subsets."""
    videos: Mapping[str, str]
    """The set of videos each subset uses: those of a shared set are counted once."""


@dataclass(frozen=True)
class Summary:
    """One line of the table, in numbers."""

    method: str
    hits: dict[str, float]
    averages: dict[str, float]
    mean_rank: float
    cost: float
    over_budget: int


def as_json(rows: Sequence[Row], **common: object) -> list[dict]:
    """The rows in plain numbers; `common` entries stand first in each.

    >>> as_json([Row("base", "qa", 25.0, 2.5, 1.0, 0, 500)])[0]["hit@1"]
    25.0
    """
    return [
        {
            **common,
            "method": row.method,
            "subset": row.subset,
            "hit@1": round(row.hit1, 4),
            "mean_rank": round(row.mean_rank, 4),
            "cost": round(row.cost, 6),
            "over_budget": row.over_budget,
            "n": row.n,
        }
        for row in rows
    ]


def summarise(rows: Sequence[Row], layout: Layout) -> list[Summary]:
    """A summary of every method; an average is left out unless all rows it needs are there."""
    summaries = []
    for method in dict.fromkeys(row.method for row in rows):
        mine = {row.subset: row for row in rows if row.method == method}
        ranked = [mine[subset] for subset in next(iter(layout.averages.values())) if subset in mine]
        over = {layout.videos[subset]: row.over_budget for subset, row in mine.items()}
        summaries.append(
            Summary(
                method,
                hits={subset: row.hit1 for subset, row in mine.items()},
                averages={
                    name: _mean(mine[subset].hit1 for subset in subsets)
                    for name, subsets in layout.averages.items()
                    if all(subset in mine for subset in subsets)
                },
                mean_rank=_mean(row.mean_rank for row in ranked or mine.values()),
                cost=_mean(row.cost for row in mine.values()),
                over_budget=sum(over.values()),
            )
        )
    return summaries


def rich_table(rows: Sequence[Row], layout: Layout, note: str = "") -> Table:
    """The table for a terminal; the best of the methods within the budget is bold."""
    heads, lines = _cells(rows, layout, bold="[bold]{}[/bold]")
    look = {"box": None, "header_style": "dim", "collapse_padding": True, "pad_edge": False}
    table = Table(title=f"{layout.title}: Hit@1 in percent", caption=note or None, **look)
    for number, head in enumerate(heads):
        average = head.startswith("avg.")  # these may break before their parenthesis where the terminal is narrow
        head = head.replace("-", "\n").replace(" ", "\n")
        table.add_column(head, justify="right" if number else "left", no_wrap=not average, min_width=9 * average)
    for line in lines:
        table.add_row(*line)
    return table


def markdown(rows: Sequence[Row], layout: Layout, note: str = "") -> str:
    """The table for a document, with the paper's names of the methods."""
    heads, lines = _cells(rows, layout, bold="**{}**", titles=TITLES)
    return markdown_table(f"{layout.title}, Hit@1 in percent", [heads, *lines], note)


def markdown_table(title: str, lines: Sequence[Sequence[str]], note: str = "") -> str:
    """Lines of cells, the first of them headings, as a Markdown table between its title and a note."""
    heads, *rest = lines
    table = [heads, ["---", *["---:"] * (len(heads) - 1)], *rest]
    text = "\n".join(f"| {' | '.join(cells)} |" for cells in table)
    return "\n\n".join(filter(None, [title, text, note])) + "\n"


def _cells(
    rows: Sequence[Row], layout: Layout, *, bold: str, titles: Mapping[str, str] | None = None
) -> tuple[list[str], list[list[str]]]:
    """Headings and lines of the table, the best numbers within the budget made bold."""
    summaries = summarise(rows, layout)
    within = [summary for summary in summaries if not summary.over_budget]
    base = next((summary for summary in summaries if summary.method == "base"), None)

    def show(summary: Summary, part: str, name: str) -> str:
        value = getattr(summary, part)[name]
        text = f"{value:.1f}"
        if part == "averages" and base and summary is not base:
            text += f" ({value - base.averages[name]:+.1f})"
        best = len(within) > 1 and value == max(getattr(other, part)[name] for other in within)
        return bold.format(text) if best and summary in within else text

    heads = ["method", *summaries[0].hits, *(f"avg. {name}" for name in summaries[0].averages)]
    lines = [
        [
            (titles or {}).get(summary.method, summary.method),
            *(show(summary, "hits", subset) for subset in summary.hits),
            *(show(summary, "averages", name) for name in summary.averages),
            f"{summary.mean_rank:.1f}",
            f"{summary.cost:.3f}×",
            f"{summary.over_budget:,}",
        ]
        for summary in summaries
    ]
    return [*heads, "mean rank", "cost", "over budget"], lines


def _mean(values: Iterable[float]) -> float:
    values = list(values)
    return sum(values) / len(values)
