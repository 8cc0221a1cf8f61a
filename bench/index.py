"""Time searches of large indices of synthetic vectors and lines, with the index's own tables and its own search.

    python bench/index.py [--vectors 100000 1000000] [--dim 512] [--json]
    python bench/index.py --files 1000 --lines 100     # subtitle files read from the disk, and mixed searches

A video is a centre and a dozen windows scattered around it, and has a line per vector. A query is close to one window
of one video, like a good sentence, and has three words of one of its lines. `exact` compares the query with every
vector. `approximate` is what an index of more than `IndexStore.exact_up_to` vectors uses. `found` is how often the
first video is the right one, which all filters leave.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from allocembed.config import EmbedConfig
from allocembed.search import FileEntry, Filters, Hit, IndexSettings, VideoIndex
from allocembed.search.said.reading import SaidReading
from allocembed.search.said.subtitles import Line
from allocembed.search.searching import SearchJob
from allocembed.search.store import INSIDE, TextSource
from allocembed.search.store.lance import LanceStore

PIECES = 13  # a whole video and a dozen windows
SPREAD = 0.8  # distance of windows from their video's centre, relative to the distance between videos
NEAR = 0.5  # distance of a query from its window
VIDEOS_IN_COMMIT = 4000  # videos written in one commit
NEVER, ALWAYS = 2**62, 0  # thresholds on the number of vectors
VOCABULARY = 30_000  # words
LENGTH = 7  # words of a line
EXACT_QUERIES = 20
SELECTED = {0.001: 0, 0.01: 9, 0.5: 499}  # longest length in seconds that leaves this share of the videos

Search = Callable[[np.ndarray, str], list[Hit]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vectors", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--files", type=int, default=0, help="read this many subtitle files instead")
    parser.add_argument("--lines", type=int, default=100, help="lines of each of them")
    parser.add_argument("--folder", type=Path, help="make the index in this folder (default: temporary)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args()
    rows = []
    for count in [options.files * PIECES] if options.files else options.vectors:
        with tempfile.TemporaryDirectory(dir=options.folder) as folder:
            bench = IndexBench(Path(folder), options.dim, options.queries)
            rows += bench.subtitles(options.files, options.lines) if options.files else bench.vectors(count)
    if options.json:
        print(json.dumps({"dim": options.dim, "queries": options.queries, "rows": rows}))
        return
    table = Table(title=f"one search, top 10, {options.dim} dimensions, {options.queries} queries")
    for heading in rows[0]:
        table.add_column(heading.replace("_", " "), justify="left" if heading == "search" else "right")
    for row in rows:
        table.add_row(*(f"{value:,}" if isinstance(value, int | float) else str(value) for value in row.values()))
    Console().print(table)


class IndexBench:
    """An index of synthetic videos, and queries whose answers are known."""

    def __init__(self, place: Path, dim: int, queries: int) -> None:
        self.place, self.dim, self.queries = place, dim, queries
        self.random = np.random.default_rng(0)
        config = EmbedConfig(backbone="synthetic", dim=dim)
        store = LanceStore.create(str(place / "index"), IndexSettings(config, probe=(0.0,) * dim))
        self.index = VideoIndex(store, config)
        self.asked: list[tuple[np.ndarray, str, str]] = []
        """Vector, words and the video that has both."""

    def vectors(self, count: int) -> list[dict[str, Any]]:
        """Time all kinds of search on about `count` vectors and as many lines."""
        self.fill(count // PIECES, with_lines=True)
        index, store = self.index, self.index.store
        with thresholds(lookup=ALWAYS, approximate=NEVER):
            store.tidy()
        plain: Search = lambda vector, text: index.search_vector(vector)  # noqa: E731
        filtered = {f"filter leaves {share:.1%}": self.only(longest) for share, longest in SELECTED.items()}
        rows = [self.timed("exact", plain, most=EXACT_QUERIES)]
        with thresholds(lookup=ALWAYS, approximate=ALWAYS):
            store.tidy()
        index.lines.tidy()
        rows += [self.timed(name, search) for name, search in {"approximate": plain, **filtered}.items()]
        by = Filters(longest=SELECTED[0.01])
        said: Search = lambda vector, text: index.search(text, said=True, filters=by)  # noqa: E731
        rows.append(self.timed("said, filter leaves 1.0%", said))
        return [*rows, *self.by_words()]

    def only(self, longest: float) -> Search:
        """A search among videos up to a length."""
        return lambda vector, text: self.index.search_vector(vector, filters=Filters(longest=longest))

    def subtitles(self, files: int, lines: int) -> list[dict[str, Any]]:
        """Read subtitle files from the disk into the index, and time mixed searches."""
        self.fill(files, with_lines=False)
        self.index.store.tidy()
        folder = self.place / "videos"
        folder.mkdir()
        entries: list[FileEntry] = []
        said: dict[str, list[str]] = {}
        for entry in self.index.files():
            path = folder / f"{entry.video}.mp4"
            path.touch()
            said[entry.video] = self.texts(lines)
            (folder / f"{entry.video}.srt").write_text("".join(map(cue, range(lines), said[entry.video])))
            entries.append(FileEntry(str(path), entry.video))
        some = self.random.integers(lines, size=len(self.asked))
        self.asked = [
            (vector, three_words(said[video][line]), video)
            for (vector, _, video), line in zip(self.asked, some, strict=True)
        ]
        started = time.perf_counter()
        reading = SaidReading(self.index.lines, lambda path, cause: print(path, cause))
        for _ in reading.read(entries):
            pass
        self.index.lines.tidy()
        print(f"{reading.lines:,} lines of {files:,} files read and indexed in {time.perf_counter() - started:.1f} s")
        return self.by_words()

    def by_words(self) -> list[dict[str, Any]]:
        """Time searches by words alone, and by words and a vector together."""
        said = self.timed("said", lambda vector, text: self.index.search(text, said=True))
        return [said, self.timed("said and seen", lambda vector, text: SearchJob(self.index, vector, text).hits())]

    def fill(self, videos: int, with_lines: bool) -> None:
        """Write videos, and choose queries among them."""
        passing = np.flatnonzero(duration(np.arange(videos)) == 0)  # they meet all filters
        chosen = np.bincount(self.random.choice(passing, self.queries), minlength=videos)
        for first in range(0, videos, VIDEOS_IN_COMMIT):
            vectors = make_videos(self.random, min(VIDEOS_IN_COMMIT, videos - first), self.dim)
            names = write(self.index.store, vectors, first)
            said = [self.texts(PIECES) if with_lines else [] for _ in names]
            if with_lines:
                write_lines(self.index, names, said)
            for number in range(len(names)):
                for _ in range(chosen[first + number]):
                    query = near(self.random, vectors[number, 1 + self.random.integers(PIECES - 1)])
                    text = three_words(said[number][self.random.integers(PIECES)]) if with_lines else ""
                    self.asked.append((query, text, names[number]))

    def texts(self, count: int) -> list[str]:
        """Lines of made-up words, some of which are far more frequent than others."""
        ranks = VOCABULARY ** self.random.random((count, LENGTH))
        return [" ".join(f"w{int(rank)}" for rank in line) for line in ranks]

    def timed(self, name: str, search: Search, most: int | None = None) -> dict[str, Any]:
        """A row of the table, after three searches to warm up."""
        asked = self.asked[:most]
        for vector, text, _ in asked[:3]:
            search(vector, text)
        seconds, found = [], []
        busy = time.process_time()
        for vector, text, video in asked:
            started = time.perf_counter()
            hits = search(vector, text)
            seconds.append(time.perf_counter() - started)
            found.append(bool(hits) and hits[0].video == video)
        busy = (time.process_time() - busy) / len(asked)
        row: dict[str, Any] = {"vectors": self.index.store.count(), "lines": self.index.lines.count(), "search": name}
        row |= {f"{share}_%_ms": round(float(np.percentile(seconds, share)) * 1000, 1) for share in (50, 99)}
        return row | {"processor_ms": round(busy * 1000, 1), "found": round(float(np.mean(found)), 3)}


@contextmanager
def thresholds(lookup: int, approximate: int) -> Iterator[None]:
    """Change the number of vectors above which `tidy` builds each index."""
    before = LanceStore.lookup_up_to, LanceStore.exact_up_to
    LanceStore.lookup_up_to, LanceStore.exact_up_to = lookup, approximate
    try:
        yield
    finally:
        LanceStore.lookup_up_to, LanceStore.exact_up_to = before


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


def three_words(line: str) -> str:
    """The rarest words of a line: those with the highest numbers."""
    return " ".join(sorted(line.split(), key=lambda word: -int(word[1:]))[:3])


def cue(number: int, text: str) -> str:
    """A line as it stands in an .srt file."""
    minutes, seconds = divmod(3 * number, 60)
    clock = f"00:{minutes:02}:{seconds:02}"
    return f"{number + 1}\n{clock},000 --> {clock},900\n{text}\n\n"


def write(store: LanceStore, vectors: np.ndarray, first: int) -> list[str]:
    """Add videos, numbered from `first`, and a file for each; return their names."""
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
    durations = {"duration": duration(first + np.arange(count))}
    store.files_table.add(pa.table({**files, **durations, "error": [""] * count}))
    return names


def duration(numbers: np.ndarray) -> np.ndarray:
    """Lengths in seconds: each from 0 to 999 is equally frequent."""
    return (numbers * 7919 % 1000).astype(float)


def write_lines(index: VideoIndex, names: Sequence[str], said: Sequence[Sequence[str]]) -> None:
    """Add lines of videos."""
    read = []
    for name, texts in zip(names, said, strict=True):
        lines = [Line(10.0 * number, 10.0 * number + 5, text) for number, text in enumerate(texts)]
        read.append((TextSource(name, INSIDE, name, name, len(lines)), lines))
    index.lines.add(read, known=())


if __name__ == "__main__":
    main()
