"""Memory of the driver of `index --engine ray` against the number of files: python bench/ray_memory.py

The workers embed nothing: they report at once that each file has vectors. Everything that the driver does is real: it
finds the files, looks them up, hands them out, and writes their rows.
"""

import argparse
import gc
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from allocembed.files import FileEntry
from allocembed.search import index as indexes
from allocembed.search import worker
from allocembed.workers import WorkerShare


@dataclass(frozen=True)
class IdleTask(worker.IndexTask):
    """Its workers report files as embedded without opening them."""

    def __call__(self, share: WorkerShare) -> "IdleTask":  # pyright: ignore[reportIncompatibleMethodOverride]
        return self

    def work(self, items: Sequence[FileEntry], again: bool) -> list[worker.FileOutcome]:
        return [worker.FileOutcome(_seen(file), "embedded", 512) for file in items]


def _seen(file: FileEntry) -> FileEntry:
    content = hashlib.md5(file.path.encode()).hexdigest()
    return replace(file, video=content, duration=60.0, width=640, height=480)


def resident() -> float:
    """MB of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def run(count: int) -> None:
    """Index this number of empty files, and print memory at the beginning, at most and at the end."""
    from ray_memory import IdleTask as Task  # by its module, so that workers can import it

    from allocembed.config import EmbedConfig
    from allocembed.search.indexing import IndexReport
    from allocembed.search.settings import IndexSettings
    from allocembed.search.store.lance.store import LanceStore
    from allocembed.workers import WorkerOptions, find_workers

    indexes.IndexTask = Task
    with tempfile.TemporaryDirectory() as folder:
        for number in range(count):
            place = Path(folder) / "videos" / f"{number // 1000:04}"
            if number % 1000 == 0:
                place.mkdir(parents=True)
            (place / f"{number:08}.mp4").touch()
        config = EmbedConfig(backbone="nano-qwen3", allocator="uniform")
        settings = IndexSettings(config, probe=(1.0,) * 64, inputs="simulated")
        LanceStore.create(f"{folder}/videos.index", settings)
        seen: list[float] = []

        def show(report: IndexReport) -> None:
            if report.done % 500 == 0:
                seen.append(resident())

        begun = time.monotonic()
        index = indexes.VideoIndex.open(f"{folder}/videos.index")
        with find_workers("ray", WorkerOptions(workers=2)) as workers:
            report = index.add([Path(folder) / "videos"], progress=show, workers=workers)
        took = time.monotonic() - begun
    assert report.embedded == count, report
    *during, after = seen  # the last one comes when small files were merged and lookup indices built
    print(f"{count:,} files: {during[0]:.0f} MB at first, {max(during):.0f} at most while they are embedded,", end=" ")
    print(f"{after:.0f} after merging and indexing the tables; {took:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("counts", nargs="*", type=int, default=[1_000, 10_000, 100_000])
    chosen = parser.parse_args()
    if len(chosen.counts) == 1:
        run(chosen.counts[0])
        return
    for count in chosen.counts:  # each in a process of its own
        subprocess.run([sys.executable, __file__, str(count)], check=True)


if __name__ == "__main__":
    main()
