"""Our numbers beside the paper's, in the paper's own table: methods down, tasks across, average and cost at the end.

Three forms of one thing: `markdown` for documents, `latex` for papers, `as_json` for programs. Where the paper has a
line for the backbone and method, it stands beneath ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from allocembed.backbones.loading import same
from allocembed.benchmarks import report
from allocembed.benchmarks.paper import LONGRET, LONGRET_RESULTS, MMEB_V2, RESULTS, Published
from allocembed.benchmarks.report import TITLES, Layout, Summary, summarise
from allocembed.benchmarks.runner import Outcome

SHORT = {
    "MSR-VTT": "VTT",
    "YouCook2": "YC2",
    "Video-MME": "V-MME",
    "NExTQA": "NExT",
    "EgoSchema": "EgoSch.",
    "MVBench": "MVB",
    "ActivityNetQA": "ANetQA",
    "LoVR-Clip": "Clip",
    "LoVR-Video": "Video",
    "Vript-Clip": "Clip",
    "Vript-Video": "Video",
}
"""The paper's headings of narrow columns."""
AVERAGE = "tasks"


@dataclass(frozen=True)
class Benchmark:
    """A benchmark of several tasks in named groups, and what the paper says of it."""

    name: str
    groups: Mapping[str, Sequence[str]]
    published: Mapping[str, Mapping[str, Published]]

    @property
    def tasks(self) -> list[str]:
        return [task for group in self.groups.values() for task in group]

    def published_for(self, backbone: str) -> Mapping[str, Published]:
        """The paper's lines for a backbone, by whichever of its names; none where the paper has none."""
        return next((lines for name, lines in self.published.items() if same(name, backbone)), {})


MMEB = Benchmark("MMEB-V2", {"V-RET": MMEB_V2[:5], "V-QA": MMEB_V2[5:]}, RESULTS)
LONG = Benchmark("LongRet", {"LoVR": LONGRET[:2], "Vript": LONGRET[2:]}, LONGRET_RESULTS)


@dataclass(frozen=True, eq=False)
class Comparison:
    """What one backbone did on a benchmark, ready to be written down."""

    benchmark: Benchmark
    backbone: str
    title: str
    outcomes: Sequence[Outcome]
    failures: Sequence[str] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def tasks(self) -> list[str]:
        ran = {outcome.row.subset for outcome in self.outcomes}
        return [task for task in self.benchmark.tasks if task in ran]

    @property
    def summaries(self) -> list[Summary]:
        layout = Layout(self.benchmark.name, {AVERAGE: tuple(self.tasks)}, {task: task for task in self.tasks})
        return summarise([outcome.row for outcome in self.outcomes], layout)

    def published(self, method: str) -> Published | None:
        return self.benchmark.published_for(self.backbone).get(method)

    def all_notes(self) -> list[str]:
        """What a reader of the numbers must know, each thing once."""
        of_tasks = [f"{o.task.name}: {note}" for o in self.outcomes for note in o.task.notes]
        return list(dict.fromkeys([*self.notes, *of_tasks]))


def as_json(comparison: Comparison) -> dict:
    """Everything in plain numbers, the paper's under `paper`."""
    rows = report.as_json([outcome.row for outcome in comparison.outcomes], backbone=comparison.backbone)
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
            "over_budget": summary.over_budget,
            "paper": _published_average(comparison, published),
        }
    return {
        "benchmark": comparison.benchmark.name,
        "backbone": comparison.backbone,
        "rows": rows,
        "methods": lines,
        "notes": comparison.all_notes(),
        "left_out": list(comparison.failures),
    }


def markdown(comparison: Comparison) -> str:
    """The table for a document."""
    heads = ["method", *comparison.tasks, "avg.", "cost", "over budget"]
    lines = [heads]
    for summary, cells in zip(comparison.summaries, _cells(comparison, "**{}**".format), strict=True):
        lines.append([TITLES.get(summary.method, summary.method), *cells, f"{summary.over_budget:,}"])
        if published := comparison.published(summary.method):
            lines.append([f"*{part}*" if part else "" for part in ("paper", *_paper(comparison, published), "")])
    notes = comparison.all_notes()
    if comparison.failures:
        notes += [f"{len(comparison.failures):,} videos could not be read: {'; '.join(comparison.failures[:5])}"]
    title = f"{comparison.benchmark.name}, {comparison.title}: Hit@1 in percent"
    return report.markdown_table(title, lines, "\n".join(f"- {note}" for note in notes))


def latex(comparisons: Sequence[Comparison]) -> str:
    """One `table*` for all backbones, as the paper sets it; it needs booktabs."""
    first = comparisons[0]
    groups = {name: [t for t in tasks if t in first.tasks] for name, tasks in first.benchmark.groups.items()}
    groups = {name: tasks for name, tasks in groups.items() if tasks}
    width = len(first.tasks) + 3
    spans, rules, column = [], [], 2
    for name, tasks in groups.items():
        spans.append(rf"\multicolumn{{{len(tasks)}}}{{c}}{{{_escape(name)}}}")
        rules.append(rf"\cmidrule(lr){{{column}-{column + len(tasks) - 1}}}")
        column += len(tasks)
    lines = [
        r"\begin{table*}[t]",
        r"\centering\footnotesize",
        r"\setlength{\tabcolsep}{2pt}",
        rf"\begin{{tabular}}{{@{{}}l{'c' * (width - 1)}@{{}}}}",
        r"\toprule",
        _row(["Method", *spans, "Avg.", "Cost"]),
        "".join(rules),
        _row(["", *(_escape(SHORT.get(task, task)) for task in first.tasks), "", ""]),
    ]
    for comparison in comparisons:
        lines += [r"\midrule", _row([rf"\multicolumn{{{width}}}{{@{{}}l}}{{\textbf{{{_escape(comparison.title)}}}}}"])]
        for summary, cells in zip(comparison.summaries, _cells(comparison, r"\textbf{{{}}}".format), strict=True):
            name = _escape(TITLES.get(summary.method, summary.method)).replace("†", r"$^\dagger$")
            lines.append(_row([name, *(cell.replace("×", r"$\times$") for cell in cells)]))
            if published := comparison.published(summary.method):
                said = [cell.replace("×", r"$\times$") for cell in _paper(comparison, published)]
                lines.append(_row([r"\quad\textit{paper}", *(rf"\textit{{{cell}}}" for cell in said)]))
    caption = (
        f"{first.benchmark.name} Hit@1 (\\%). Avg. is the mean over tasks, with its change from Base in parentheses; "
        "Cost is normalised to Base. Bold marks the best budget-matched result of a column. "
        "$^\\dagger$ not budget matched."
    )
    notes = " ".join(f"{_escape(note)}." for note in dict.fromkeys(n for c in comparisons for n in c.all_notes()))
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{f'{caption} {notes}'.strip()}}}", r"\end{table*}"]
    return "\n".join(lines) + "\n"


def _cells(comparison: Comparison, bold: Callable[[str], str]) -> list[list[str]]:
    """Hit@1 of the tasks, average with its change from Base, and cost, the best within the budget made bold."""
    summaries = comparison.summaries
    within = [summary for summary in summaries if not summary.over_budget]
    base = next((summary for summary in summaries if summary.method == "base"), None)

    def show(summary: Summary, value: Callable[[Summary], float], tail: str = "") -> str:
        text = f"{value(summary):.2f}{tail}"
        best = len(within) > 1 and summary in within and value(summary) == max(map(value, within))
        return bold(text) if best else text

    lines = []
    for summary in summaries:
        change = ""
        if base and summary is not base:
            change = f" ({summary.averages[AVERAGE] - base.averages[AVERAGE]:+.2f})"
        hits = [show(summary, lambda s, task=task: s.hits[task]) for task in comparison.tasks]
        lines.append([*hits, show(summary, lambda s: s.averages[AVERAGE], change), f"{summary.cost:.3f}×"])
    return lines


def _paper(comparison: Comparison, published: Published) -> list[str]:
    average = _published_average(comparison, published)
    base = comparison.published("base")
    change = ""
    if base and base is not published and average is not None:
        change = f" ({average - (_published_average(comparison, base) or 0):+.2f})"
    # The paper's cost is over all tasks, so beside a few of them it would say nothing.
    cost = f"{published.cost:.3f}×" if len(comparison.tasks) == len(comparison.benchmark.tasks) else ""
    return [*(f"{published.hits[task]:.2f}" for task in comparison.tasks), f"{average:.2f}{change}", cost]


def _published_average(comparison: Comparison, published: Published | None) -> float | None:
    """The paper's average as printed, or that of the tasks that ran where they are not all."""
    if published is None:
        return None
    if len(comparison.tasks) == len(comparison.benchmark.tasks):
        return published.average
    return round(sum(published.hits[task] for task in comparison.tasks) / len(comparison.tasks), 2)


def _row(cells: Sequence[str]) -> str:
    return " & ".join(cells) + r" \\"


def _escape(text: str) -> str:
    """Text that LaTeX prints as it is.

    >>> print(_escape("100 % of a_b {c}"))
    100 \\% of a\\_b \\{c\\}
    """
    signs = {sign: f"\\{sign}" for sign in "&%$#_{}"}
    signs |= {"\\": r"\textbackslash{}", "…": r"\dots{}", "×": r"$\times$"}
    return text.translate(str.maketrans(signs))
