"""`allocembed compare`: which method and which budget for your model and your videos, without captions."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from allocembed.allocators.registry import check_allocator
from allocembed.budget import Budget
from allocembed.cli.options import UNSET, AsJson, Command, Config, Paths, UsageError, at_least
from allocembed.config import DType
from allocembed.errors import DataError, MissingDependency
from allocembed.output.console import complain, progress, say
from allocembed.output.files import make_room

if TYPE_CHECKING:
    from rich.table import Table

    from allocembed.benchmarks.fidelity import FidelityTable, Recommendation


@partial(Command, hidden=("budget", "allocator", "decoder"))
def compare(
    config: Config,
    folders: Paths = (),
    methods: Annotated[Sequence[str], UNSET] = (),
    budgets: Annotated[Sequence[str], UNSET] = (),
    allocator: Annotated[str | None, UNSET] = None,
    videos: int = 64,
    seed: int = 0,
    within: float = 0.02,
    by: Literal["time", "tokens"] = "time",
    reference_dtype: Annotated[DType | None, UNSET] = None,
    plot: Annotated[Path | None, UNSET] = None,
    as_json: AsJson = False,
) -> int:
    """Find the method and the budget for your model and your videos. No captions are needed.

    Each video is embedded at full resolution, and by each method under each budget. The table shows how near the
    vectors come to the full ones, how often a video finds its own full vector among all of them, tokens and time.
    A video that cannot be read is left out and named at the end; the exit status is then 1.

      allocembed compare ~/Videos --plot compare.png
      allocembed compare ~/Videos --methods base,uniform,sensitivity --budgets 4f,8f --videos 200

    Args:
        folders: Folders, which are searched with their subfolders, or video files.
        methods: Methods to compare. Default: base, uniform, content, sensitivity, and learned if one is bundled.
        budgets: Budgets to compare. Default: 2f, 4f, 8f and 16f, as far as they are below the candidates.
        allocator: Folder or hub id of a learned allocator to compare as well.
        videos: Measure at most this many of the videos, drawn at random.
        seed: Seed of that draw.
        within: What the recommended setting may lose against the best one, as a share of the distance between videos.
        by: What cheap means: time, for allocation and embedding as measured here, or visual tokens.
        reference_dtype: Number format of the full-resolution vectors that all are compared with, such as float32 to see
            what int8 or float8 costs. Default: that of --dtype.
        plot: Plot fidelity against cost, as this file with the suffixes .png and .svg.
        as_json: Print the results as JSON.
    """
    at_least(2, videos=videos)
    at_least(0, seed=seed)
    if not 0 <= within < 1:
        raise UsageError(f"--within must be from 0 up to 1, not {within:g}")
    for name in (*methods, *([allocator] if allocator else [])):
        check_allocator(name)
    for budget in budgets:
        Budget.parse(budget)
    stem = plot.with_suffix("") if plot and plot.suffix in (".png", ".svg") else plot
    if stem:
        MissingDependency.check("--plot", "matplotlib", "plot")
        make_room(stem.with_name(f"{stem.name}.png"))
    config.check()
    sources, failures = _find(folders, videos, seed)
    from allocembed.benchmarks import compare, fidelity

    with progress("comparing") as line:
        table = compare.compare_files(
            config,
            sources,
            methods=methods,
            budgets=budgets,
            allocator=allocator,
            reference_dtype=reference_dtype,
            progress=line.update,
        )
    advice = fidelity.recommend(table, within=within, by=by, seed=seed)
    if as_json:
        shown = fidelity.as_json(table, advice)
        print(json.dumps({**shown, "left_out": [*shown["left_out"], *failures]}))
    else:
        _print(table, advice)
    if stem:
        from allocembed.benchmarks.figures import plot_fidelity

        for path in plot_fidelity(table, advice.setting, stem):
            say(f"→ {path}")
    for left in (*table.left_out, *table.failures, *failures):
        complain("left out", left)
    return 1 if table.failures or failures else 0


def _find(folders: Sequence[Path], wanted: int, seed: int) -> tuple[list[Path], list[str]]:
    """The videos to measure, and those that can never be opened."""
    from allocembed.files import find_videos

    if not folders:
        raise UsageError("give a folder of videos; see allocembed compare --help")
    found, unread = find_videos(folders)
    failures = [f"{path}: {cause}" for path, cause in unread.items()]
    failures += [f"{entry.path}: {entry.error}" for entry in found if entry.error]
    paths = [Path(entry.path) for entry in found if not entry.error]
    if len(paths) < 2:
        named = f"; cannot read {failures[0]}" if failures else ""
        places = ", ".join(map(str, folders))
        raise DataError(f"cannot compare with {len(paths)} videos in {places}: give at least two, better 64{named}")
    chosen = sorted(random.Random(seed).sample(range(len(paths)), min(wanted, len(paths))))
    say(f"{len(chosen)} of {len(paths)} videos")
    return [paths[place] for place in chosen], failures


def _print(table: FidelityTable, advice: Recommendation) -> None:
    from rich.console import Console

    console = Console(highlight=False)
    console.print(_table(table, advice))
    sure = f"Of 1,000 resamples of the videos, {100 * advice.share:.0f} % lead to the same choice."
    notes = [f"Note: {warning}." for warning in advice.warnings]
    for line in ("", *_legend(table), "", f"Recommended: {advice.sentence}.", sure, *notes):
        console.print(line, markup=False)


def _legend(table: FidelityTable) -> list[str]:
    """A legend of the columns."""
    from allocembed.benchmarks.fidelity import decode_ms

    lines = [
        f"cosine: to the full-resolution vector, mean of {len(table)} videos ± standard error; "
        f"{table.between:.3f} between two different videos",
        f"minus {table.reference}: difference on the same videos ± half of its 95 % interval",
        f"Hit@1: videos whose nearest full vector, of {len(table)}, is their own",
    ]
    if table.look_tokens.any():
        lines.append("looks: tokens read to find the allocation, besides the tokens of the vector")
    if table.timings:
        decoding = decode_ms(table)
        besides = "" if decoding is None else f"; decoding takes {_milliseconds(decoding)} ms besides"
        lines.append(f"ms: to allocate and embed one video, median of {len(table.timings.full)}{besides}")
    return lines


def _table(table: FidelityTable, advice: Recommendation) -> Table:
    from rich.table import Table

    from allocembed.benchmarks.fidelity import estimate

    looks, reference = bool(table.look_tokens.any()), table.reference
    shown = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 1, 0, 0))
    heads = ["budget", "cosine", f"minus {reference}", "Hit@1, %", "tokens", *["looks"] * looks, "ms"]
    shown.add_column("method")
    for head in heads:
        shown.add_column(head, justify="right")
    times = table.prices("time")
    for place, setting in enumerate(table.settings):
        cosine, hit = estimate(table.cosines[:, place]), estimate(100 * table.found[:, place])
        against = table.against_reference(setting)
        cells = [
            *setting,
            f"{cosine.mean:.3f} ± {cosine.error:.3f}",
            f"{against.mean:+.3f} ± {against.high - against.mean:.3f}" if against else "",
            f"{hit.mean:.1f} ± {hit.error:.1f}",
            f"{table.tokens[:, place].mean():,.0f}",
            *[f"{table.look_tokens[:, place].mean():,.0f}"] * looks,
            _milliseconds(times[place]) if table.timings else "",
        ]
        shown.add_row(*cells, style="bold" if setting == advice.setting else None)
    timing = _milliseconds(table.timings.full_total) if table.timings else ""
    shown.add_row("full", "", "1.000", "", "100.0", f"{table.full_tokens.mean():,.0f}", *["0"] * looks, timing)
    return shown


def _milliseconds(value: float) -> str:
    return f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
