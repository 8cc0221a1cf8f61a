"""Figures: the paper's curves over frames (2) and budgets (5), bars of gains over Base (4), fidelity over cost."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from allocembed.benchmarks.comparison import AVERAGE, Comparison
from allocembed.benchmarks.fidelity import FidelityTable, Setting, estimate
from allocembed.benchmarks.paper import TITLES
from allocembed.benchmarks.sweep import Sweep
from allocembed.output.files import whole_file

COLOURS = dict(zip(TITLES, ("#6c757d", "#d1495b", "#00798c", "#8f6bb3", "#b08968", "#2f9e44", "#e09f3e"), strict=True))
OTHERS = ("#3a6ea5", "#ad1457", "#5f3dc4", "#7a5c00")
"""For allocators with names of their own."""
SUFFIXES = (".png", ".svg", ".pdf")
STYLE = Path(__file__).parent / "templates" / "figure.mplstyle"


def plot_sweeps(sweeps: Sequence[Sweep], benchmark: str, stem: Path) -> list[Path]:
    """One panel per backbone, each with its own vertical range; return the files."""
    with _figure(len(sweeps), stem) as (panels, paths):
        for panel, sweep in zip(panels, sweeps, strict=True):
            for number, method in enumerate(sweep.curves):
                _draw_curve(panel, sweep, method, _colour(method, number))
            panel.set_xticks(sweep.points)
            panel.set_xlabel("frames" if sweep.over == "frames" else "budget, in native frames")
            panel.set_title(sweep.backbone)
            panel.legend()
            panel.margins(y=0.18)
            panel.grid(axis="y", color="#dddddd", linewidth=0.7)
        panels[0].set_ylabel(f"Hit@1 on {benchmark}, mean over tasks (%)")
    return paths


def plot_gains(comparisons: Sequence[Comparison], stem: Path) -> list[Path]:
    """Bars of the gain over Base of each method within the budget, the paper's beside ours; dashed lines for methods
    that cost more, the paper's dotted."""
    with _figure(len(comparisons), stem) as (panels, paths):
        for panel, comparison in zip(panels, comparisons, strict=True):
            summaries = {summary.method: summary for summary in comparison.summaries}
            base = summaries.pop("base").averages[AVERAGE]
            within = {m: s.averages[AVERAGE] - base for m, s in summaries.items() if not s.over_budget}
            paper = {m: gain for m in summaries if (gain := comparison.published_gain(m)) is not None}
            colours = {method: _colour(method, number) for number, method in enumerate(summaries)}
            _draw_gains(panel, within, {m: gain for m, gain in paper.items() if m in within}, colours)
            for method, summary in summaries.items():
                if summary.over_budget:
                    gain = summary.averages[AVERAGE] - base
                    words = f"{_title(method)} {gain:+.2f} at {summary.cost:.2f}×"
                    panel.axhline(gain, color=colours[method], linestyle="--", linewidth=1.2, label=words)
                    if method in paper:
                        words = f"paper: {_title(method)} {paper[method]:+.2f}"
                        panel.axhline(paper[method], color=colours[method], linestyle=":", linewidth=1.2, label=words)
            panel.axhline(0, color="#333333", linewidth=0.8)
            panel.tick_params(axis="x", labelrotation=18, labelsize=8)
            panel.margins(y=0.2)
            if labels := panel.get_legend_handles_labels()[1]:
                bottom, top = panel.get_ylim()  # room for the legend above the bars
                panel.set_ylim(bottom, top + 0.11 * len(labels) * (top - bottom))
                panel.legend(loc="upper left")
            panel.set_xlim(-0.7, max(2, len(within) - 1) + 0.7)  # a few bars are no wider than many
            panel.set_title(comparison.title)
        panels[0].set_ylabel(f"{comparisons[0].benchmark.name}: points of Hit@1 over Base")
    return paths


def plot_fidelity(table: FidelityTable, chosen: Setting, stem: Path) -> list[Path]:
    """Mean cosine to full resolution against tokens and, if it was measured, against time; one line per method.

    Bars are standard errors. A ring marks the chosen setting.
    """
    from matplotlib.ticker import LogLocator

    costs = {"visual tokens per video": table.prices("tokens")}
    if table.timings:
        costs["allocation and embedding, ms per video"] = table.prices("time")
    means = [estimate(table.cosines[:, place]) for place in range(len(table.settings))]
    with _figure(len(costs), stem, SUFFIXES[:2]) as (panels, paths):
        for panel, (label, cost) in zip(panels, costs.items(), strict=True):
            for number, method in enumerate(table.methods):
                places = [place for place, setting in enumerate(table.settings) if setting.method == method]
                places.sort(key=lambda place: table.tokens[:, place].mean())
                colour, shown = _colour(method, number), [means[place] for place in places]
                errors = {"yerr": [each.error for each in shown], "elinewidth": 1, "capsize": 2}
                curve = {"color": colour, "marker": "o", "markersize": 4.5, "linewidth": 1.8, "label": method}
                panel.errorbar([cost[place] for place in places], [each.mean for each in shown], **errors, **curve)
            place = table.settings.index(chosen)
            ring = {"markersize": 12, "fillstyle": "none", "color": "#333333", "linestyle": "none"}
            panel.plot(cost[place], means[place].mean, "o", label=f"{chosen}: recommended", **ring)
            panel.set_xscale("log", base=2, subs=())
            panel.xaxis.set_major_locator(LogLocator(2, (1, 1.5)))
            panel.xaxis.set_major_formatter("{x:,.4g}")
            panel.set_xlabel(label)
            panel.grid(axis="y", color="#dddddd", linewidth=0.7)
        panels[-1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
        panels[0].set_ylabel(f"mean cosine to full resolution, {len(table)} videos")
    return paths


def _draw_gains(panel: Any, ours: Mapping[str, float], paper: Mapping[str, float], colours: Mapping[str, str]) -> None:
    """A bar per method, and a hatched one beside it if the paper has that method."""
    methods = list(ours)
    panel.set_xticks(range(len(methods)), [_title(method) for method in methods])
    for method, gain in ours.items():
        shift = 0.2 if method in paper else 0.0
        width = 0.38 if method in paper else 0.62
        bar = panel.bar(methods.index(method) - shift, gain, color=colours[method], width=width)
        panel.bar_label(bar, fmt="%+.2f", padding=2, fontsize=7 if paper else 8)
    look = {"width": 0.38, "color": "none", "hatch": "////", "linewidth": 1.0}
    for method, gain in paper.items():
        bar = panel.bar(methods.index(method) + 0.2, gain, edgecolor=colours[method], **look)
        panel.bar_label(bar, fmt="%+.2f", padding=2, fontsize=7, color="#555555")
    if paper:
        panel.bar(0, 0, edgecolor="#555555", label="the paper", **look)  # for the legend, in no method's colour


@contextmanager
def _figure(panels: int, stem: Path, suffixes: Sequence[str] = SUFFIXES) -> Iterator[tuple[list[Any], list[Path]]]:
    """Give a row of panels to draw on; save them in all formats when the block ends."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    paths = [stem.with_name(f"{stem.name}{suffix}") for suffix in suffixes]
    dates: dict[str, Any] = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with rc_context(fname=STYLE):
        figure = Figure(figsize=(0.5 + 3.9 * panels, 3.1), layout="constrained")
        yield list(figure.subplots(1, panels, squeeze=False)[0]), paths
        for path in paths:
            with whole_file(path) as scratch:
                figure.savefig(scratch, format=path.suffix[1:], metadata=dates.get(path.suffix))


def _draw_curve(panel: Any, sweep: Sweep, method: str, colour: str) -> None:
    points = sweep.curves[method]
    values = [point.hit1 for point in points]
    panel.plot(sweep.points, values, color=colour, marker="o", markersize=4.5, linewidth=1.8, label=_title(method))
    base = sweep.curves.get("base") if sweep.over == "budgets" else None
    for place, point in enumerate(points):
        if base and method != "base":
            words = f"{point.hit1 - base[place].hit1:+.2f}"
        elif sweep.over == "frames" and place == len(points) - 1:
            words = f"{point.hit1 - points[0].hit1:+.2f} at {point.cost:.2g}×"
        else:
            continue
        offset = {"xytext": (0, 6), "textcoords": "offset points", "ha": "center"}
        panel.annotate(words, (point.x, point.hit1), color=colour, fontsize=8, annotation_clip=False, **offset)


def _title(method: str) -> str:
    return TITLES.get(method, method).replace("Content-Aware ", "CA ").replace(" Allocation", " alloc.").rstrip("†")


def _colour(method: str, number: int) -> str:
    return COLOURS.get(method, OTHERS[number % len(OTHERS)])
