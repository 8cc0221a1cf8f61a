"""The paper's two observations (section 3) on NanoRet: more frames help, and under a fixed budget they still do.

Full Resolution reads 8, 16, 24, 32 and 48 native frames and pays for each; Uniform Allocation looks at as many, shrunk
to the tokens of 8. Both are Base at 8 frames, so the lines part from one point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.table import Table

from allocembed.backbones import Backbone
from allocembed.benchmarks import report
from allocembed.benchmarks.metrics import Row
from allocembed.benchmarks.nano import LAYOUT, RETRIEVAL, Progress, at_home, evaluate_embedders
from allocembed.benchmarks.report import Summary, summarise
from allocembed.embedder import AllocEmbed
from allocembed.output import whole_file

FRAME_COUNTS = (8, 16, 24, 32, 48)
METHODS = {"full": "full resolution", "uniform": "fixed budget"}
WHAT = "Hit@1 in percent, average of the four retrieval subsets"
COLOURS = {"full": "#d1495b", "uniform": "#00798c"}

Sweep = Mapping[int, Sequence[Row]]
"""Rows of both methods on the four retrieval subsets, by the number of frames."""


def sweep_frames(
    backbone: Backbone,
    *,
    limit: int | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    **settings,
) -> dict[int, list[Row]]:
    """Runs both methods at every frame count, on one rendering of the videos; `settings` are those of `AllocEmbed`."""
    home = at_home(backbone)
    labels = {f"{method}@{count}": (method, count) for count in FRAME_COUNTS for method in METHODS}
    embedders = {
        label: AllocEmbed(home, method, candidates=count, **settings) for label, (method, count) in labels.items()
    }
    sweep: dict[int, list[Row]] = {count: [] for count in FRAME_COUNTS}
    for row in evaluate_embedders(embedders, subsets=RETRIEVAL, limit=limit, seed=seed, progress=progress):
        method, count = labels[row.method]
        sweep[count].append(replace(row, method=method))
    return sweep


def as_json(sweep: Sweep, **common: object) -> list[dict]:
    """The sweep in plain numbers: rows as `report.as_json` has them, each with its number of frames."""
    return [line for count, rows in sweep.items() for line in report.as_json(rows, **common, frames=count)]


def rich_table(sweep: Sweep, title: str, note: str = "") -> Table:
    """Average Hit@1 and cost by frame count, for a terminal."""
    table = Table(title=f"{title}: {WHAT}", caption=note or None, box=None, header_style="dim")
    heads, *lines = _lines(sweep)
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    for line in lines:
        table.add_row(*line)
    return table


def markdown(sweep: Sweep, title: str, note: str = "") -> str:
    """The same for a document."""
    return report.markdown_table(f"{title}: {WHAT}", _lines(sweep), note)


def plot(sweeps: Mapping[str, Sweep], stem: Path) -> list[Path]:
    """Draws one panel a backbone into `stem`.png and `stem`.svg: average Hit@1 over frames, costs at the line ends."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text stays text in the SVG, and equal numbers give equal files.
    with rc_context({"font.family": "DejaVu Sans", "font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "sweep"}):
        figure = Figure(figsize=(0.4 + 3.9 * len(sweeps), 2.9), layout="constrained")
        panels = figure.subplots(1, len(sweeps), sharey=True, squeeze=False)[0]
        for panel, (title, sweep) in zip(panels, sweeps.items(), strict=True):
            _draw(panel, sweep)
            panel.set_title(title, fontsize=10, fontweight="bold", loc="left")
        panels[0].set_ylabel("Hit@1, average of four subsets (%)")
        paths = [stem.with_suffix(suffix) for suffix in (".png", ".svg")]
        for path in paths:
            dates = {"Date": None} if path.suffix == ".svg" else None
            with whole_file(path) as scratch:
                figure.savefig(scratch, format=path.suffix[1:], dpi=200, metadata=dates)
    return paths


def _draw(panel, sweep: Sweep) -> None:
    by_method = _by_method(sweep)
    highest = max(by_method, key=lambda method: by_method[method][-1].averages["retrieval"])
    for method, summaries in by_method.items():
        values = [summary.averages["retrieval"] for summary in summaries]
        panel.plot(list(sweep), values, color=COLOURS[method], marker="o", markersize=4.5, linewidth=1.8)
        panel.annotate(
            f"{METHODS[method]}\n{values[-1]:.1f} at {summaries[-1].cost:.2g}× tokens",
            (max(sweep), values[-1]),
            # One above, one below, so that the lines may end close to each other.
            xytext=(7, 0),
            textcoords="offset points",
            va="bottom" if method == highest else "top",
            color=COLOURS[method],
            annotation_clip=False,
        )
    panel.set_xticks(list(sweep))
    panel.set_xlabel("frames")
    panel.set_ylim(bottom=0)
    panel.grid(axis="y", color="#dddddd", linewidth=0.7)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)


def _by_method(sweep: Sweep) -> dict[str, list[Summary]]:
    columns = [{summary.method: summary for summary in summarise(rows, LAYOUT)} for rows in sweep.values()]
    return {method: [column[method] for column in columns] for method in METHODS}


def _lines(sweep: Sweep) -> list[list[str]]:
    lines = [["frames", *map(str, sweep)]]
    for method, summaries in _by_method(sweep).items():
        lines.append([f"{method}, {METHODS[method]}", *(f"{s.averages['retrieval']:.1f}" for s in summaries)])
        lines.append(["its cost", *(f"{s.cost:.3f}×" for s in summaries)])
    return lines
