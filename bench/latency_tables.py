"""Print the tables of bench/latency.py from its results, and plot the growth.

    python bench/latency_tables.py FILE.json [--markdown] [--plot FILE.svg]

Parts without measurements are left out.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

PAPER = {"full": 754.77, "allocator": 149.59, "backbone": 239.22}  # ms on an H100, from the paper
ALLOCATORS = {"self-preview": 8.0, "smolvlm2": 15.0}  # target: at most this many ms
RATIOS = {"full": 0.70, "allocated": 0.70}  # target: at most this share of the plain path's time
SPEEDUPS = {"our full": 2.8, "plain full": 4.0}  # target: at least this speed-up, allocator included
COLOURS = {"our full": "#6c757d", "our allocated": "#00798c", "allocator": "#e09f3e"}
COLOURS |= {"one by one": "#6c757d", "packed": "#00798c"}

Rows = list[tuple[str, ...]]


def tables(results: dict) -> list[tuple[str, tuple[str, ...], Rows]]:
    """Title, headings and rows of every table that is not empty."""
    found = []
    for name, about in results.get("models", {}).items():
        times = about.get("times", {})
        title = f"{name}, {results['candidates']} candidates, {results['device']}, torch {results['torch']}"
        found.append((title, ("input", "allocator, ms", "backbone, ms", "total, ms", "p95"), _paper_rows(times)))
        found.append((f"{name}: targets", ("what", "found", "target", "met"), _target_rows(times)))
        found.append((f"{name}: all times", ("part", "median, ms", "p95, ms", "samples"), _time_rows(times)))
        found.append((f"{name}: other results", ("what", "found"), _fact_rows(about)))
        found.append((f"{name}: growth", ("what", "ms", "", ""), _growth_rows(times, about)))
    return [table for table in found if table[2]]


def _median(times: dict, part: str) -> float | None:
    return times[part]["median_ms"] if part in times else None


def plain_allocated(times: dict) -> float | None:
    """Milliseconds of the plain path in its faster setting."""
    parts = ("plain allocated", "plain allocated, cuDNN off")
    return min((found for part in parts if (found := _median(times, part)) is not None), default=None)


def _paper_rows(times: dict) -> Rows:
    rows: Rows = []
    for part in ("plain full", "our full, eager", "our full"):
        if part in times:
            rows.append((part, "–", *[f"{times[part]['median_ms']:.1f}"] * 2, f"{times[part]['p95_ms']:.1f}"))
    for part in ("plain allocated", "plain allocated, cuDNN off", "our allocated, eager", "our allocated"):
        for kind in ALLOCATORS:
            allocator = _median(times, f"{kind}: previews to scales")
            if part in times and allocator is not None:
                backbone = times[part]["median_ms"]
                cells = (f"{allocator:.1f}", f"{backbone:.1f}", f"{allocator + backbone:.1f}")
                rows.append((f"{part}, {kind}", *cells, f"{times[part]['p95_ms']:.1f}"))
    for kind in ALLOCATORS:
        part = f"{kind}: frames on the device to vector"
        if part in times:
            rows.append((part, "", "", f"{times[part]['median_ms']:.1f}", f"{times[part]['p95_ms']:.1f}"))
    both = PAPER["allocator"] + PAPER["backbone"]
    rows.append(("the paper, full (H100)", "–", f"{PAPER['full']:.1f}", f"{PAPER['full']:.1f}", ""))
    cells = (f"{PAPER['allocator']:.1f}", f"{PAPER['backbone']:.1f}", f"{both:.1f}")
    rows.append(("the paper, allocated (H100)", *cells, ""))
    return rows


def _target_rows(times: dict) -> Rows:
    rows: Rows = []

    def add(what: str, found: float, target: float, unit: str, *, most: bool) -> None:
        met = found <= target if most else found >= target
        rows.append((what, f"{found:.2f}{unit}", f"{'≤' if most else '≥'} {target:g}{unit}", "yes" if met else "NO"))

    for kind, plain in (("full", _median(times, "plain full")), ("allocated", plain_allocated(times))):
        for ours in (f"our {kind}", f"our {kind}, eager"):
            if plain and ours in times:
                add(f"{ours} / plain {kind}", times[ours]["median_ms"] / plain, RATIOS[kind], "×", most=True)
    for kind, target in ALLOCATORS.items():
        allocator = _median(times, f"{kind}: previews to scales")
        if allocator is None:
            continue
        add(f"allocator, {kind}", allocator, target, " ms", most=True)
        if "our allocated" in times:
            total = allocator + times["our allocated"]["median_ms"]
            for full, least in SPEEDUPS.items():
                if full in times:
                    add(f"{full} / total, {kind}", times[full]["median_ms"] / total, least, "×", most=False)
    return rows


def _time_rows(times: dict) -> Rows:
    return [
        (part, f"{one['median_ms']:.2f}", f"{one['p95_ms']:.2f}", str(one["samples"]))
        for part, one in times.items()
        if not part.startswith(("T ", "batch "))
    ]


def _fact_rows(about: dict) -> Rows:
    rows: Rows = []
    for kind, waits in about.get("host_waits", {}).items():
        rows.append((f"host waits, {kind}", str(waits)))
    for kind, graphs in about.get("graphs", {}).items():
        rows.append((f"compiled graphs, {kind}", str(graphs)))
    if "compile_s" in about:
        rows.append(("compilation and warm-up, s", f"{about['compile_s']:.1f}"))
    for part, rate in about.get("rates", {}).items():
        cells = (
            f"{rate['tflop']:.1f} TFLOP, {rate['tflops']:.0f} TFLOP/s, {rate['share']:.0%} of a matrix product's rate"
        )
        rows.append((part, cells))
    rows += [(f"tokens, {kind}", str(count)) for kind, count in about.get("tokens", {}).items()]
    rows += [(f"1 − cos, {kind}", f"{found:.1e}") for kind, found in about.get("apart", {}).items()]
    rows += [(f"CUDA graph, {kind}", str(found)) for kind, found in about.get("graph", {}).items()]
    for kind, levels in about.get("levels", {}).items():
        cells = f"≤ {levels['largest']} grey levels, {levels['share_different']:.2%} differ"
        rows.append((f"GPU patches against CPU patches, {kind}", cells))
    return rows


def _growth_rows(times: dict, about: dict) -> Rows:
    rows: Rows = []
    for count, (allocated, full) in about.get("growth", {}).items():
        cells = [_median(times, f"T {count}: {part}") for part in ("our allocated", "allocator", "our full")]
        kinds = (f"allocated ({allocated} tokens)", "allocator", f"full ({full} tokens)")
        written = [f"{kind} {value:.1f}" for kind, value in zip(kinds, cells, strict=True) if value is not None]
        rows.append((f"T = {count}", *(written + [""] * 3)[:3]))
    for batch in (1, 2, 4, 8):
        packed, alone = (_median(times, f"batch {batch}: {how}") for how in ("packed", "one by one"))
        if packed and alone:
            cells = (f"packed {packed:.1f}", f"one by one {alone:.1f}", f"{alone / packed:.2f}×")
            rows.append((f"batch {batch}", *cells))
    return rows


def print_tables(results: dict, *, markdown: bool = False) -> None:
    """Print every table, for a terminal or as markdown."""
    console = Console(width=140)
    for title, headings, rows in tables(results):
        if markdown:
            lines = [f"**{title}**", "", f"| {' | '.join(headings)} |", "|---" + "|---:" * (len(headings) - 1) + "|"]
            print("\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows), ""]))
            continue
        table = Table(title=title)
        for place, heading in enumerate(headings):
            table.add_column(heading, justify="right" if place else "left")
        for row in rows:
            table.add_row(*map(escape, row))
        console.print(table)


def draw_growth(results: dict, path: Path) -> None:
    """Plot milliseconds against candidates, and milliseconds per video against batch size, of the first such model."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    times = next(about["times"] for about in results["models"].values() if "growth" in about)
    with rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "growth"}):
        figure = Figure(figsize=(8.2, 3.1), layout="constrained")
        left, right = figure.subplots(1, 2)
        for part in ("our full", "our allocated", "allocator"):
            _line(left, {int(key.split()[1][:-1]): key for key in times if key.endswith(f": {part}")}, times, part)
        for part in ("one by one", "packed"):
            _line(right, {int(key.split()[1][:-1]): key for key in times if key.endswith(f": {part}")}, times, part)
        left.set(xlabel="candidate frames of 720p", ylabel="milliseconds", yscale="log", title="one budget")
        left.yaxis.set_major_formatter("{x:g}")
        right.set(xlabel="videos at a time", ylabel="milliseconds per video", title="allocated")
        right.set_ylim(0, 1.2 * right.get_ylim()[1])
        for panel, place in ((left, (0.62, 0.53)), (right, "lower right")):
            panel.set_xticks(panel.lines[0].get_xdata())
            panel.grid(axis="y", color="#dddddd", linewidth=0.7)
            panel.spines[["top", "right"]].set_visible(False)
            panel.legend(frameon=False, fontsize=8, loc=place)
        figure.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)


def _line(panel: Any, keys: dict[int, str], times: dict, part: str) -> None:
    """Plot the medians under `keys`; those of batches per video."""
    values = [times[key]["median_ms"] / (place if key.startswith("batch") else 1) for place, key in keys.items()]
    label = part.removeprefix("our ")
    panel.plot(list(keys), values, color=COLOURS[part], marker="o", markersize=4.5, linewidth=1.8, label=label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="results of bench/latency.py")
    parser.add_argument("--markdown", action="store_true", help="print markdown")
    parser.add_argument("--plot", type=Path, help="plot the growth here, .svg or .png")
    options = parser.parse_args()
    results = json.loads(options.file.read_text())
    print_tables(results, markdown=options.markdown)
    if options.plot:
        draw_growth(results, options.plot)


if __name__ == "__main__":
    main()
