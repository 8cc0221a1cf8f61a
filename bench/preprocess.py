"""Compare our preprocessing of 24 frames (resize, patchify, normalise) with the PIL path.

    python bench/preprocess.py [--json]

The PIL path does what the stock PIL processors do for each frame: bicubic `Image.resize`, rescale and normalise in
numpy, the same transposes. Both use the same allocation.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from allocembed.backbones.registry import FAMILIES
from allocembed.budget import Allocation, Budget, Grid, base_cost, chunk_frames, project
from allocembed.geometry import Geometry
from allocembed.resize import normalise, to_patches

GEOMETRIES = {"qwen2-vl": FAMILIES["qwen2_vl"].geometry, "qwen3-vl": FAMILIES["qwen3_vl"].geometry}


def make_allocation(geometry: Geometry, height: int, width: int, frames: int) -> Allocation:
    """A mixed allocation at Base's budget, from fixed random scales."""
    native = geometry.native(height, width)
    budget = Budget().tokens(native, frames)
    scales, grids = project(np.random.default_rng(0).uniform(0.2, 1.8, frames // 2), native, budget)
    return Allocation(
        frames=chunk_frames(np.arange(frames)),
        scales=tuple(scales),
        grids=tuple(Grid(int(rows), int(cols)) for rows, cols in grids),
        native=native,
        budget=budget,
        base_cost=base_cost(native, 8, frames),
    )


def pil_path(frames: np.ndarray, allocation: Allocation, geometry: Geometry) -> np.ndarray:
    """Make the same patches with PIL and numpy, chunk by chunk."""
    mean, std = (np.array(values, np.float32) for values in (geometry.mean, geometry.std))
    pieces = []
    for (first, second), grid in zip(allocation.frames, allocation.grids, strict=True):
        size = (grid.cols * geometry.factor, grid.rows * geometry.factor)
        pair = [Image.fromarray(frames[i]).resize(size, Image.Resampling.BICUBIC) for i in (first, second)]
        pixels = np.stack([(np.asarray(frame).astype(np.float32) * (1 / 255) - mean) / std for frame in pair])
        blocks = pixels.transpose(0, 3, 1, 2).reshape(
            2, 3, grid.rows, geometry.merge, geometry.patch, grid.cols, geometry.merge, geometry.patch
        )
        pieces.append(blocks.transpose(2, 5, 3, 6, 1, 0, 4, 7).reshape(-1, 6 * geometry.patch**2))
    return np.concatenate(pieces)


def our_path(frames: np.ndarray, allocation: Allocation, geometry: Geometry) -> torch.Tensor:
    """Make them with our own code."""
    return normalise(to_patches(frames, allocation, geometry).pixels, geometry, torch.float32)


def median_ms(action: Callable[[], object], repeat: int) -> float:
    """Median milliseconds of an action after one warm-up."""
    action()
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=24)
    parser.add_argument("--size", type=int, nargs=2, default=(720, 1280), metavar=("HEIGHT", "WIDTH"))
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    height, width = options.size
    frames = np.random.default_rng(1).integers(0, 255, (options.frames, height, width, 3), np.uint8)

    rows = []
    for name, geometry in GEOMETRIES.items():
        allocation = make_allocation(geometry, height, width, options.frames)
        theirs = pil_path(frames, allocation, geometry)
        ours = our_path(frames, allocation, geometry).numpy()
        pil = median_ms(lambda a=allocation, g=geometry: pil_path(frames, a, g), options.repeat)
        own = median_ms(lambda a=allocation, g=geometry: our_path(frames, a, g), options.repeat)
        level = 1 / (255 * min(geometry.std))
        gap = float(np.abs(ours - theirs).max() / level)
        rows.append(
            {
                "family": name,
                "tokens": allocation.cost,
                "pil_ms": pil,
                "ours_ms": own,
                "ratio": pil / own,
                "levels": gap,
            }
        )
    if options.json:
        print(json.dumps({"frames": options.frames, "size": [height, width], "rows": rows}))
        return
    table = Table(title=f"{options.frames} frames of {width}×{height}, {options.threads} threads")
    for heading in ("family", "tokens", "PIL path, ms", "ours, ms", "speed-up", "largest difference, grey levels"):
        table.add_column(heading, justify="right")
    for row in rows:
        cells = (f"{row['pil_ms']:.0f}", f"{row['ours_ms']:.0f}", f"{row['ratio']:.1f}", f"{row['levels']:.1f}")
        table.add_row(row["family"], str(row["tokens"]), *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
