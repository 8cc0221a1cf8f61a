"""Videos per second from files to vectors, by the videos' length and by their size.

    python bench/growth_files.py --shape qwen2-vl-2b --compile --out growth.json     measure, on a GPU
    python bench/growth_files.py --from growth.json --plot growth_files.svg          plot what was measured
    python bench/growth_files.py --tiny --out growth.json                            in miniature on a CPU

One vector a file. Lengths of 1, 10 and 60 minutes in 720p, and sizes from 360p to 4K at one minute; a keyframe every
two seconds. Larger and longer videos are fewer. No point is begun after `--minutes`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import torch
from files import GROWTH, LENGTHS, SIZES, Kind, growth_kinds, write_all
from rich.console import Console
from rich.table import Table

from allocembed.threads import core_count

COLOURS = {"auto": "#00798c", "nvdec": "#8f6bb3", "pyav": "#e09f3e"}
NAMES = {"auto": "the GPU's decoders and the cores", "nvdec": "the GPU's decoders", "pyav": "the cores"}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Embed files of every kind with every decoder."""
    from pipeline import TimedEmbedder, make_embedder, streamed, tally_of, timed_run

    deadline = time.monotonic() + 60 * options.minutes
    sizes, lengths = (["360p"], [0.05, 0.1]) if options.tiny else (list(SIZES), list(LENGTHS))
    kinds = growth_kinds(options.gop, sizes, lengths)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() and not options.tiny else "no GPU"
    results = {"device": device, "cores": core_count(), "model": options.shape, "gop": options.gop, "points": []}
    made = make_embedder(options)
    with nullcontext(options.files) if options.files else tempfile.TemporaryDirectory() as folder:
        write_all(Path(folder), kinds, GROWTH)
        for decoder, kind in product(options.decoder, kinds):
            if time.monotonic() > deadline:
                return results
            files = kind.files(Path(folder), how_many(kind, options.videos), GROWTH)
            quick, real = (
                TimedEmbedder(made.backbone, made.allocator, replace(made.config, seek=seek, decoder=decoder))
                for seek in ("keyframe", options.seek)
            )
            # Decoders of the GPU are set up for a kind of file when the first one comes.
            streamed(quick, files[: 2 * options.batch], options)
            before = tally_of(real.decoders)
            _, times = timed_run(real, lambda real=real, files=files: streamed(real, files, options))
            by_gpu = tally_of(real.decoders).since(before).files
            point = {"minutes": kind.seconds / 60, "size": name_of(kind), "decoder": decoder, "videos": len(files)}
            results["points"].append(point | {"seek": options.seek, "files_by_the_gpu": by_gpu} | times)
            print(results["points"][-1], flush=True)
            if options.out:
                options.out.write_text(json.dumps(results, indent=1))
    return results


def how_many(kind: Kind, usual: int) -> int:
    """Fewer videos of a kind that takes longer, but not fewer than a third."""
    larger = max(1.0, kind.size[0] * kind.size[1] / (1280 * 720))
    return max(usual // 3, round(usual / larger / (2 if kind.seconds > 1200 else 1)), 1)


def name_of(kind: Kind) -> str:
    return next(name for name, size in SIZES.items() if size == kind.size)


def print_table(results: dict[str, Any]) -> None:
    table = Table(title=f"{results['model']}, {results['device']}, {results['cores']} cores")
    for heading in ("minutes", "size", "decoder", "videos", "videos/s", "by the GPU", "cores busy"):
        table.add_column(heading, justify="right")
    for one in results["points"]:
        cells = (f"{one['minutes']:g}", one["size"], one["decoder"], str(one["videos"]))
        rates = (f"{one['videos_per_second']:.2f}", str(one["files_by_the_gpu"]), f"{one['cores_busy']:.1f}")
        table.add_row(*cells, *rates)
    Console(width=110).print(table)


def draw(results: dict[str, Any], path: Path) -> None:
    """Plot videos per second against length, and against size, in two panels."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullLocator

    points = results["points"]
    shortest, sizes = min(one["minutes"] for one in points), [size for size in SIZES if _of(points, size=size)]
    with rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "growth"}):
        figure = Figure(figsize=(8.2, 3.1), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        for decoder in dict.fromkeys(one["decoder"] for one in points):
            style = {"color": COLOURS[decoder], "marker": "o", "markersize": 4.5, "linewidth": 1.8}
            rows = _of(points, decoder=decoder, size="720p") or _of(points, decoder=decoder)
            left.plot(
                [one["minutes"] for one in rows],
                [one["videos_per_second"] for one in rows],
                label=NAMES[decoder],
                **style,
            )
            rows = [_of(points, decoder=decoder, size=size, minutes=shortest) for size in sizes]
            places = [place for place, found in enumerate(rows) if found]
            right.plot(places, [found[0]["videos_per_second"] for found in rows if found], **style)
        left.set(xscale="log", xlabel="minutes of 720p", ylabel="videos per second")
        left.set_xticks(sorted({one["minutes"] for one in points}), minor=False)
        left.xaxis.set_major_formatter("{x:g}")
        left.xaxis.set_minor_locator(NullLocator())
        right.set(xlabel=f"size, {shortest:g} min")
        right.set_xticks(range(len(sizes)), sizes)
        for panel in (left, right):
            panel.set_ylim(bottom=0)
            panel.grid(axis="y", color="#dddddd", linewidth=0.7)
            panel.spines[["top", "right"]].set_visible(False)
        left.legend(frameon=False, fontsize=8)
        figure.savefig(path, dpi=200, metadata={"Date": None} if path.suffix == ".svg" else None)


def _of(points: list[dict[str, Any]], **wanted: object) -> list[dict[str, Any]]:
    return [one for one in points if all(one[name] == value for name, value in wanted.items())]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen2-vl-2b", help="random weights of this model's shape")
    parser.add_argument("--allocator", default="auto")
    parser.add_argument("--decoder", nargs="+", default=["auto", "pyav"], choices=["auto", "pyav", "nvdec"])
    parser.add_argument("--seek", default="exact", choices=["exact", "keyframe"])
    parser.add_argument("--gop", type=int, default=50, help="frames between keyframes")
    parser.add_argument("--videos", type=int, default=24, help="videos of 720p and a minute; of larger ones fewer")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--compile", action="store_true", help="compile the backbone's layers")
    parser.add_argument("--minutes", type=float, default=2.5, help="start no new point after this time")
    parser.add_argument("--files", type=Path, help="keep the videos in this folder, or take them from there")
    parser.add_argument("--tiny", action="store_true", help="use a tiny model and small files, on a CPU")
    parser.add_argument("--out", type=Path, help="write all results here as JSON")
    parser.add_argument("--from", dest="given", type=Path, help="do not measure; take these results")
    parser.add_argument("--plot", type=Path, help="write the plot here, .svg or .png")
    options = parser.parse_args()
    if options.tiny:
        options.videos = min(options.videos, 4)
    results = json.loads(options.given.read_text()) if options.given else measure(options)
    print_table(results)
    if options.plot:
        draw(results, options.plot)


if __name__ == "__main__":
    main()
