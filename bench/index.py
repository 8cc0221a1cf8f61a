"""Times searches of a large index, and how they grow: synthetic vectors, the index's own tables and its own search.

    python bench/index.py [--vectors 100000 1000000] [--dim 512] [--json]

A video is a centre with a dozen windows scattered around it, and a query lies near one window of one video, as a good
sentence does. `exact` compares the query with every vector; `approximate` is what an index of more than
`store.EXACT_UP_TO` vectors uses, and `found` how often its first video is the exact one.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from allocembed.search import Settings, VideoIndex
from allocembed.search.store import Store

PIECES = 13  # a whole video and a dozen windows
SPREAD = 0.8  # how far windows lie from their video's centre, relative to the distance between videos
NEAR = 0.5  # how far a query lies from its window
AT_ONCE = 4000  # videos written in one commit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="where the index is made (default: temporary)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    rows = []
    for count in options.vectors:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            rows += measure(Path(folder) / "index", count, options.dim, options.queries)
    if options.json:
        print(json.dumps({"dim": options.dim, "queries": options.queries, "rows": rows}))
        return
    table = Table(title=f"one search, top 10, {options.dim} dimensions")
    for heading in rows[0]:
        table.add_column(heading.replace("_", " "), justify="left" if heading == "way" else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values()))
    Console().print(table)


def measure(place: Path, count: int, dim: int, queries: int) -> list[dict]:
    """Both ways on an index of about `count` vectors."""
    random = np.random.default_rng(0)
    store = Store.create(str(place), Settings("synthetic", dim=dim, probe=(0.0,) * dim))
    index = VideoIndex(store)
    asked = []
    for first in range(0, count // PIECES, AT_ONCE):
        vectors = make_videos(random, min(AT_ONCE, count // PIECES - first), dim)
        asked += [near(random, vectors[0, 1 + random.integers(PIECES - 1)])]
        write(store, vectors, first)
    asked += [near(random, vectors[number, 1]) for number in range(1, queries + 1 - len(asked))]
    store.vectors.optimize()
    store.make_lookup()
    seconds, busy, exact = timed(index, asked)
    rows = [describe("exact", count, seconds, busy, 1.0, 0.0)]
    started = time.perf_counter()
    store.make_approximate()
    built = time.perf_counter() - started
    seconds, busy, found = timed(index, asked)
    share = float(np.mean([one == other for one, other in zip(exact, found, strict=True)]))
    return [*rows, describe("approximate", count, seconds, busy, share, built)]


def make_videos(random: np.random.Generator, count: int, dim: int) -> np.ndarray:
    """Unit vectors (count, PIECES, dim); the first of each video is its whole."""
    centres = random.standard_normal((count, 1, dim), np.float32)
    vectors = centres + SPREAD * random.standard_normal((count, PIECES, dim), np.float32)
    vectors[:, :1] = centres
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def near(random: np.random.Generator, vector: np.ndarray) -> np.ndarray:
    """A unit vector near another."""
    moved = vector + NEAR * random.standard_normal(len(vector), np.float32) / np.sqrt(len(vector))
    return moved / np.linalg.norm(moved)


def write(store: Store, vectors: np.ndarray, first: int) -> None:
    """Adds videos with numbers from `first` on, and a file for each."""
    count, pieces, dim = vectors.shape
    names = [f"{first + number:032x}" for number in range(count)]
    numbers = np.tile(np.arange(pieces), count)
    columns = {
        "video": np.repeat(names, pieces),
        "number": numbers,
        "start": numbers * 10.0,
        "end": numbers * 10.0 + 10,
        **{name: np.full(count * pieces, 1024) for name in ("cost", "budget", "base_cost")},
        "film": [""] * (count * pieces),
        "picture": pa.array([b""] * (count * pieces), pa.binary()),
        "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), dim),
    }
    store.vectors.add(pa.table(columns))
    files = {"path": [f"/videos/{name}.mp4" for name in names], "video": names}
    files |= {name: np.ones(count, np.int64) for name in ("size", "changed", "width", "height")}
    store.files.add(pa.table({**files, "duration": np.full(count, 130.0), "error": [""] * count}))


def timed(index: VideoIndex, asked: list[np.ndarray]) -> tuple[np.ndarray, float, list[str]]:
    """Seconds of each search after one to warm up, seconds of processor time a search, and what each found first."""
    index.search_vector(asked[0])
    seconds, found = [], []
    busy = time.process_time()
    for query in asked:
        started = time.perf_counter()
        found.append(index.search_vector(query)[0].video)
        seconds.append(time.perf_counter() - started)
    return np.array(seconds), (time.process_time() - busy) / len(asked), found


def describe(way: str, count: int, seconds: np.ndarray, busy: float, found: float, built: float) -> dict:
    """One line of the table."""
    taken = {f"{share}_%_ms": round(float(np.percentile(seconds, share)) * 1000, 1) for share in (50, 95)}
    taken["processor_ms"] = round(busy * 1000, 1)
    return {"vectors": count, "way": way, **taken, "found": round(found, 3), "build_s": round(built, 1)}


if __name__ == "__main__":
    main()
