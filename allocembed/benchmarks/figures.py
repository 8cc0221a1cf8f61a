"""The paper's figures: lines over frames (2) and budgets (5), bars of gains over Base (4); as PNG, SVG and PDF."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from allocembed.benchmarks.campaign import Point, Sweep
from allocembed.benchmarks.comparison import AVERAGE, Comparison
from allocembed.benchmarks.report import TITLES
from allocembed.output import whole_file

COLOURS = {
    "base": "#6c757d",
    "full": "#d1495b",
    "uniform": "#00798c",
    "content": "#8f6bb3",
    "select": "#b08968",
    "learned": "#e09f3e",
}
OTHERS = ("#3a6ea5", "#2f9e44", "#ad1457", "#5f3dc4")
"""For allocators with names of their own."""
# Text stays text in vector files, and equal numbers give equal files.
STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "svg.fonttype": "none",
    "svg.hashsalt": "bench",
    "pdf.fonttype": 42,
}


def plot_sweeps(sweeps: Sequence[Sweep], benchmark: str, stem: Path) -> list[Path]:
    """One panel a backbone, each with a vertical range of its own."""
    with _figure(len(sweeps), stem) as (panels, paths):
        for panel, found in zip(panels, sweeps, strict=True):
            for number, (method, points) in enumerate(found.curves.items()):
                _line(panel, method, points, number, found)
            panel.set_xticks([point.x for point in next(iter(found.curves.values()))])
            panel.set_xlabel("frames" if found.over == "frames" else "budget, in native frames")
            panel.set_title(found.backbone, fontsize=10, fontweight="bold", loc="left")
            panel.legend(frameon=False, fontsize=8, loc="best")
            panel.margins(y=0.18)
            panel.grid(axis="y", color="#dddddd", linewidth=0.7)
        panels[0].set_ylabel(f"Hit@1 on {benchmark}, mean over tasks (%)")
    return paths


def plot_gains(comparisons: Sequence[Comparison], stem: Path) -> list[Path]:
    """Bars of what each method within the budget gains over Base; a dashed line where it paid more."""
    with _figure(len(comparisons), stem) as (panels, paths):
        for panel, comparison in zip(panels, comparisons, strict=True):
            summaries = {summary.method: summary for summary in comparison.summaries}
            base = summaries.pop("base").averages[AVERAGE]
            within = {m: s.averages[AVERAGE] - base for m, s in summaries.items() if not s.over_budget}
            colours = [_colour(method, number) for number, method in enumerate(within)]
            bars = panel.bar([_title(method) for method in within], list(within.values()), color=colours, width=0.62)
            panel.bar_label(bars, fmt="%+.2f", padding=2, fontsize=8)
            for number, (method, summary) in enumerate(summaries.items()):
                if summary.over_budget:
                    gain = summary.averages[AVERAGE] - base
                    words = f"{_title(method)} {gain:+.2f} at {summary.cost:.2f}×"
                    panel.axhline(gain, color=_colour(method, number), linestyle="--", linewidth=1.2, label=words)
                    panel.legend(frameon=False, fontsize=8, loc="best")
            panel.axhline(0, color="#333333", linewidth=0.8)
            panel.tick_params(axis="x", labelrotation=18, labelsize=8)
            panel.margins(y=0.2)
            panel.set_xlim(-0.7, max(2, len(within) - 1) + 0.7)  # a few bars are no wider than many
            panel.set_title(comparison.title, fontsize=10, fontweight="bold", loc="left")
        panels[0].set_ylabel(f"{comparisons[0].benchmark.name}: points of Hit@1 over Base")
    return paths


@contextmanager
def _figure(panels: int, stem: Path) -> Iterator[tuple[list, list[Path]]]:
    """Panels to draw on, in a row; saved in all three forms when the block ends."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    paths = [stem.with_name(f"{stem.name}{suffix}") for suffix in (".png", ".svg", ".pdf")]
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with rc_context(STYLE):
        figure = Figure(figsize=(0.5 + 3.9 * panels, 3.1), layout="constrained")
        axes = list(figure.subplots(1, panels, squeeze=False)[0])
        yield axes, paths
        for panel in axes:
            panel.set_axisbelow(True)
            panel.spines[["top", "right"]].set_visible(False)
        for path in paths:
            with whole_file(path) as scratch:
                figure.savefig(scratch, format=path.suffix[1:], dpi=200, metadata=dates.get(path.suffix))


def _line(panel, method: str, points: Sequence[Point], number: int, found: Sweep) -> None:
    colour, values = _colour(method, number), [point.hit1 for point in points]
    places = [point.x for point in points]
    panel.plot(places, values, color=colour, marker="o", markersize=4.5, linewidth=1.8, label=_title(method))
    base = found.curves.get("base") if found.over == "budgets" else None
    for place, point in enumerate(points):
        if base and method != "base":
            words = f"{point.hit1 - base[place].hit1:+.2f}"
        elif found.over == "frames" and place == len(points) - 1:
            words = f"{point.hit1 - points[0].hit1:+.2f}"
        else:
            continue
        offset = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center"}
        panel.annotate(words, (point.x, point.hit1), color=colour, fontsize=8, annotation_clip=False, **offset)


def _title(method: str) -> str:
    return TITLES.get(method, method).replace("Content-Aware ", "CA ").replace(" Allocation", " alloc.").rstrip("†")


def _colour(method: str, number: int) -> str:
    return COLOURS.get(method, OTHERS[number % len(OTHERS)])
