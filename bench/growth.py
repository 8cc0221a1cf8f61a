"""Measure how the cost of a video grows with its length and with the number of candidate frames.

    python bench/growth.py [--lengths 1 10 60] [--candidates 24 48 60 120] [--out FILE.json]
                           [--plot docs/internals/growth.svg]

On a CPU, with files of bench/decode.py: 720p H.264, a keyframe every ten seconds. The first table samples 24 candidates
from each length; the second samples each number of candidates from the middle length. The budget is always 8 native
frames, so the number of tokens is the same everywhere. Peak memory is that of `allocembed embed` in its own process.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from decode import RATE, best_of, write_video
from memory import peak_megabytes
from rich.console import Console
from rich.table import Table

from allocembed import AllocEmbed
from allocembed.budget import project
from allocembed.video import sample

SEEKS = ("exact", "keyframe")
USUAL = 24
COLOURS = {"exact": "#00798c", "keyframe": "#e09f3e", "allocate": "#8f6bb3", "project": "#6c757d"}


def by_length(files: dict[float, Path], embedder: AllocEmbed, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds to sample the candidates, tokens and peak memory, for each length and seek mode."""
    rows = []
    for minutes, file in files.items():
        for seek in SEEKS:
            seconds = best_of(lambda file=file, seek=seek: sample(file, USUAL, seek=seek), options.repeat)
            clip = sample(file, USUAL, seek=seek)
            tokens = embedder.allocate(clip, embedder.plan(clip)).cost
            peak = peak_megabytes(file, options.backbone, seek, options.allocator)
            rows.append({"minutes": minutes, "seek": seek, "decode_s": seconds, "tokens": tokens, "peak_mb": peak})
            print(f"{minutes:g} min, {seek}: {seconds:.2f} s", flush=True)
    return rows


def by_candidates(file: Path, embedder: AllocEmbed, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds to sample, allocate and project each number of candidates, and the tokens."""
    rows = []
    for count in options.candidates:
        decode = {seek: best_of(lambda s=seek, n=count: sample(file, n, seek=s), options.repeat) for seek in SEEKS}
        clip = sample(file, count, seek="keyframe")
        allocation = embedder.allocate(clip, embedder.plan(clip))
        scales = np.random.default_rng(0).uniform(*embedder.scale_range, len(allocation))
        request = (scales, allocation.native, allocation.budget, embedder.scale_range)
        rows.append(
            {
                "candidates": count,
                "decode_s": decode,
                "allocate_s": best_of(lambda clip=clip: embedder.allocate(clip, embedder.plan(clip)), options.repeat),
                "project_s": best_of(lambda request=request: project(*request), 20),
                "tokens": allocation.cost,
            }
        )
        print(f"{count} candidates: {rows[-1]}", flush=True)
    return rows


def print_tables(results: dict[str, Any]) -> None:
    console = Console()
    table = Table(title=f"{USUAL} candidates, by length of the video")
    for heading in ("minutes", "seek", "decode, s", "tokens", "peak, MB"):
        table.add_column(heading, justify="right")
    for row in results["lengths"]:
        cells = (f"{row['decode_s']:.2f}", f"{row['tokens']:,}", f"{row['peak_mb']:.0f}")
        table.add_row(f"{row['minutes']:g}", row["seek"], *cells)
    console.print(table)
    table = Table(title=f"a video of {results['middle']:g} minutes, by number of candidates")
    headings = ("candidates", "exact, s", "keyframe, s", "allocate, ms", "thereof projection, ms", "tokens")
    for heading in headings:
        table.add_column(heading, justify="right")
    for row in results["candidates"]:
        decode = [f"{row['decode_s'][seek]:.2f}" for seek in SEEKS]
        rest = (f"{1e3 * row['allocate_s']:.0f}", f"{1e3 * row['project_s']:.2f}", f"{row['tokens']:,}")
        table.add_row(str(row["candidates"]), *decode, *rest)
    console.print(table)


def draw(results: dict[str, Any], path: Path) -> None:
    """Plot seconds against length, and against candidates, in two panels."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    with rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "growth"}):
        figure = Figure(figsize=(8.2, 3.1), layout="constrained")
        left, right = figure.subplots(1, 2)
        for seek in SEEKS:
            rows = [row for row in results["lengths"] if row["seek"] == seek]
            _line(left, [row["minutes"] for row in rows], [row["decode_s"] for row in rows], f"decode, {seek}", seek)
        counts = [row["candidates"] for row in results["candidates"]]
        for seek in SEEKS:
            _line(right, counts, [row["decode_s"][seek] for row in results["candidates"]], f"decode, {seek}", seek)
        for part in ("allocate", "project"):
            _line(right, counts, [row[f"{part}_s"] for row in results["candidates"]], part, part)
        left.set(xscale="log", xlabel="minutes of 720p", ylabel="seconds", title=f"{USUAL} candidates")
        left.set_xticks(sorted({row["minutes"] for row in results["lengths"]}), minor=False)
        left.xaxis.set_major_formatter("{x:g}")
        left.xaxis.set_minor_locator(NullLocator())
        right.set(xlabel="candidate frames", title=f"a video of {results['middle']:g} minutes")
        right.set_xticks(counts)
        for panel, low, place in ((left, 0.1, "center right"), (right, 5e-4, (0.55, 0.12))):
            panel.set(yscale="log", ylim=(low, 50))
            panel.yaxis.set_major_formatter("{x:g}")
            panel.grid(axis="y", color="#dddddd", linewidth=0.7)
            panel.spines[["top", "right"]].set_visible(False)
            panel.legend(frameon=False, fontsize=8, loc=place)
        figure.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)


def _line(panel: Any, places: list[float], values: list[float], label: str, colour: str) -> None:
    panel.plot(places, values, color=COLOURS[colour], marker="o", markersize=4.5, linewidth=1.8, label=label)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="nano-qwen3", help="a small model, whose weights do not dominate memory")
    parser.add_argument("--allocator", default="auto")
    parser.add_argument("--lengths", type=float, nargs="+", default=[1.0, 10.0, 60.0], help="minutes")
    parser.add_argument("--candidates", type=int, nargs="+", default=[24, 48, 60, 120])
    parser.add_argument("--repeat", type=int, default=3, help="runs of each; the fastest counts (default 3)")
    parser.add_argument("--plot", type=Path, help="write the plot here, .svg or .png")
    parser.add_argument("--out", type=Path, help="write all results here as JSON")
    parser.add_argument("--tiny", action="store_true", help="use small short files, to test the script")
    options = parser.parse_args()
    logging.getLogger("allocembed").setLevel(logging.ERROR)  # nano's notice that it knows only its own world
    size, gop = ((160, 96), 25) if options.tiny else ((1280, 720), 250)
    if options.tiny:
        options.lengths, options.candidates, options.repeat = [0.1, 0.2, 0.5], [24, 48], 1
    embedder = AllocEmbed.from_pretrained(options.backbone, options.allocator, device="cpu")
    middle = sorted(options.lengths)[len(options.lengths) // 2]
    with tempfile.TemporaryDirectory() as folder:
        files = {minutes: Path(folder) / f"{minutes:g}.mp4" for minutes in options.lengths}
        for minutes, file in files.items():
            write_video(file, round(minutes * 60 * RATE), gop, size)
        results = {"middle": middle, "lengths": by_length(files, embedder, options)}
        results["candidates"] = by_candidates(files[middle], embedder, options)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1))
    if options.plot:
        draw(results, options.plot)
    print_tables(results)


if __name__ == "__main__":
    main()
