"""Write the videos of bench/pipeline.py and bench/growth_files.py, which share them if they are given the same folder.

    python bench/files.py FOLDER [--gop 50 250] [--growth]

The files are those of bench/decode.py: few seconds are encoded and repeated. Most are hard links to others.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from decode import RATE, write_video

from allocembed.threads import core_count

DISTINCT = 4  # different videos; the other files are hard links to them
GROWTH = 2  # different videos of each kind, where there are many kinds
SIZES = {"360p": (640, 360), "720p": (1280, 720), "1080p": (1920, 1080), "4K": (3840, 2160)}
LENGTHS = (1, 10, 60)  # minutes


@dataclass(frozen=True)
class Kind:
    """Videos that differ only in their pictures."""

    seconds: float = 60.0
    size: tuple[int, int] = SIZES["720p"]
    gop: int = 250

    def original(self, folder: Path, number: int) -> Path:
        width, height = self.size
        return folder / f"{width}x{height}-{self.seconds:g}s-{self.gop}-{number}.mp4"

    def write(self, folder: Path, number: int) -> None:
        """Encode an original, unless it is there."""
        path = self.original(folder, number)
        if not path.exists():
            groups = 2 if self.size[0] < SIZES["4K"][0] else 1  # in 4K, even a few seconds take long
            write_video(path, round(self.seconds * RATE), self.gop, self.size, number, groups=groups)

    def files(self, folder: Path, count: int, distinct: int = DISTINCT) -> list[Path]:
        """`count` files in a folder of their own. The originals must be there."""
        distinct = min(distinct, count)
        own = folder / self.original(folder, 0).stem
        own.mkdir(exist_ok=True)
        files = [own / f"{number:04}.mp4" for number in range(count)]
        for number, file in enumerate(files):
            if not file.exists():
                os.link(self.original(folder, number % distinct), file)
        return files


def growth_kinds(gop: int, sizes: Sequence[str] = tuple(SIZES), lengths: Sequence[float] = LENGTHS) -> list[Kind]:
    """All lengths in 720p, and all sizes at the shortest length; none twice."""
    by_length = [Kind(60 * minutes, SIZES["720p"], gop) for minutes in lengths]
    return list(dict.fromkeys([*by_length, *(Kind(60 * lengths[0], SIZES[size], gop) for size in sizes)]))


def write_all(
    folder: Path, kinds: Sequence[Kind], distinct: int = DISTINCT, pool: type[Executor] = ThreadPoolExecutor
) -> None:
    """Encode the originals of all kinds, those that take longest first."""
    folder.mkdir(parents=True, exist_ok=True)
    ordered = sorted(kinds, key=lambda kind: kind.size[0] * kind.size[1] * kind.gop, reverse=True)
    with pool(core_count()) as running:  # pyright: ignore[reportCallIssue] (both kinds take a number)
        jobs = [running.submit(kind.write, folder, number) for kind in ordered for number in range(distinct)]
        for job in jobs:
            job.result()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--gop", type=int, nargs="*", default=[50, 250], help="frames between keyframes")
    parser.add_argument("--growth", action="store_true", help="also the files of bench/growth_files.py")
    options = parser.parse_args()
    started = time.monotonic()
    write_all(options.folder, [Kind(gop=gop) for gop in options.gop], pool=ProcessPoolExecutor)
    print(f"{DISTINCT * len(options.gop)} files of a minute in {time.monotonic() - started:.0f} s", flush=True)
    if options.growth:
        write_all(options.folder, growth_kinds(50), GROWTH, ProcessPoolExecutor)
        print(f"all files in {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
