"""Time searches of large indices of synthetic vectors, with the index's own tables and its own search.

    python bench/index.py [--vectors 100000 1000000] [--dim 512] [--json]

A video is a centre and a dozen windows scattered around it. A query is close to one window of one video, like a good
sentence. `exact` compares the query with every vector. `approximate` is what an index of more than `store.EXACT_UP_TO`
vectors uses; `found` is how often its first video is the one of the exact search.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from allocembed.config import EmbedConfig
from allocembed.search import IndexSettings, VideoIndex
from allocembed.search import store as tables
from allocembed.search.store import IndexStore

PIECES = 13  # a whole video and a dozen windows
SPREAD = 0.8  # distance of windows from their video's centre, relative to the distance between videos
NEAR = 0.5  # distance of a query from its window
AT_ONCE = 4000  # videos written in one commit
NEVER, ALWAYS = 2**62, 0  # thresholds on the number of vectors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=50)
    parser.add_argument("--folder", type=Path, help="make the index in this folder (default: temporary)")
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
        table.add_column(heading.replace("_", " "), justify="left" if heading == "search" else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values()))
    Console().print(table)


def measure(place: Path, count: int, dim: int, queries: int) -> list[dict[str, Any]]:
    """Time both kinds of search on an index of about `count` vectors."""
    random = np.random.default_rng(0)
    config = EmbedConfig(backbone="synthetic", dim=dim)
    store = IndexStore.create(str(place), IndexSettings(config, probe=(0.0,) * dim))
    index = VideoIndex(store, config)
    asked = []
    for first in range(0, count // PIECES, AT_ONCE):
        vectors = make_videos(random, min(AT_ONCE, count // PIECES - first), dim)
        asked += [near(random, vectors[0, 1 + random.integers(PIECES - 1)])]
        write(store, vectors, first)
    asked += [near(random, vectors[number, 1]) for number in range(1, queries + 1 - len(asked))]
    with thresholds(lookup=ALWAYS, approximate=NEVER):
        store.tidy()
    seconds, busy, exact = timed(index, asked)
    rows = [describe("exact", count, seconds, busy, 1.0, 0.0)]
    started = time.perf_counter()
    with thresholds(lookup=ALWAYS, approximate=ALWAYS):
        store.tidy()
    built = time.perf_counter() - started
    seconds, busy, found = timed(index, asked)
    share = float(np.mean([one == other for one, other in zip(exact, found, strict=True)]))
    return [*rows, describe("approximate", count, seconds, busy, share, built)]


@contextmanager
def thresholds(lookup: int, approximate: int) -> Iterator[None]:
    """Change the number of vectors above which `tidy` builds each index."""
    before = tables.LOOKUP_UP_TO, tables.EXACT_UP_TO
    tables.LOOKUP_UP_TO, tables.EXACT_UP_TO = lookup, approximate
    try:
        yield
    finally:
        tables.LOOKUP_UP_TO, tables.EXACT_UP_TO = before


def make_videos(random: np.random.Generator, count: int, dim: int) -> np.ndarray:
    """Unit vectors (count, PIECES, dim); the first of each video is the whole video's."""
    centres = random.standard_normal((count, 1, dim), np.float32)
    vectors = centres + SPREAD * random.standard_normal((count, PIECES, dim), np.float32)
    vectors[:, :1] = centres
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


def near(random: np.random.Generator, vector: np.ndarray) -> np.ndarray:
    """A unit vector close to another."""
    moved = vector + NEAR * random.standard_normal(len(vector), np.float32) / np.sqrt(len(vector))
    return moved / np.linalg.norm(moved)


def write(store: IndexStore, vectors: np.ndarray, first: int) -> None:
    """Add videos, numbered from `first`, and a file for each."""
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
    store.files_table.add(pa.table({**files, "duration": np.full(count, 130.0), "error": [""] * count}))


def timed(index: VideoIndex, asked: list[np.ndarray]) -> tuple[np.ndarray, float, list[str]]:
    """Seconds of each search after one warm-up, processor seconds per search, and the first video each found."""
    index.search_vector(asked[0])
    seconds, found = [], []
    busy = time.process_time()
    for query in asked:
        started = time.perf_counter()
        found.append(index.search_vector(query)[0].video)
        seconds.append(time.perf_counter() - started)
    return np.array(seconds), (time.process_time() - busy) / len(asked), found


def describe(search: str, count: int, seconds: np.ndarray, busy: float, found: float, built: float) -> dict[str, Any]:
    """One row of the table."""
    taken = {f"{share}_%_ms": round(float(np.percentile(seconds, share)) * 1000, 1) for share in (50, 95)}
    taken["processor_ms"] = round(busy * 1000, 1)
    return {"vectors": count, "search": search, **taken, "found": round(found, 3), "build_s": round(built, 1)}


if __name__ == "__main__":
    main()
