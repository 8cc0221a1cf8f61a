"""Measure how many timelines, texts and clips of the nano world are made per second.

python bench/world.py [--device cuda] [--json]
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from allocembed_nano import world


def rate(count: int, action: Callable[[], object], device: torch.device) -> float:
    """How many of `count` things an action makes per second, after one warm-up."""
    action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return count / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--clips", type=int, help="clips to render (default 1000 on a GPU, 16 on a CPU)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    device = torch.device(options.device)
    clips = options.clips or (1000 if device.type == "cuda" else 16)
    batch = world.draw(max(clips, 500), seed=0)
    some, source = batch.select(range(clips)), random.Random(0)
    rates = {
        "timelines": rate(2000, lambda: world.draw(2000, seed=1), device),
        "moments": rate(500, lambda: [world.describe_moment(batch, v, 0, source) for v in range(500)], device),
        "descriptions": rate(500, lambda: [world.describe_video(batch, v, source) for v in range(500)], device),
        "questions": rate(500, lambda: [world.question(batch, v, source) for v in range(500)], device),
        "clips of 24 frames": rate(
            clips, lambda: world.render(some, world.sample_fractions(24), device=device), device
        ),
    }
    if options.json:
        print(json.dumps({"device": options.device, "per_second": rates}))
        return
    table = Table(title=f"the nano world, on {options.device}")
    table.add_column("what")
    table.add_column("per second", justify="right")
    for name, value in rates.items():
        table.add_row(name, f"{value:,.0f}")
    Console().print(table)


if __name__ == "__main__":
    main()
