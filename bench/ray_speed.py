"""Videos a second with one worker of `index --engine ray` and with two: python bench/ray_speed.py

Each worker has one core and a model that uses one thread. Only the time in which all workers are at work counts: not
that in which Ray and the model are started, and not the end.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from torture_parts.common import QUIET, ROOT, save_videos

OPTIONS = ("--backbone", "nano-qwen3", "--budget", "8f", "--segments", "off", "--readers", "1")


def rate(folder: Path, workers: int) -> tuple[float, float]:
    """Videos a second while all workers are busy, and videos for each second that a worker has a core."""
    with tempfile.TemporaryDirectory() as scratch:
        log = Path(scratch) / "log"
        words = ["index", str(folder), "--to", f"{scratch}/x.index", *OPTIONS, "--engine", "ray"]
        command = [sys.executable, str(ROOT / "bench" / "ray_driver.py"), str(log), *words, "--workers", str(workers)]
        # Ray lowers the priority of its workers, and other work may run on this machine.
        environment = {**os.environ, **QUIET, "PYTHONPATH": f"{ROOT}:{ROOT / 'bench'}", "RAY_worker_niceness": "0"}
        environment["ALLOCEMBED_ONE_CORE"] = "1"
        done = subprocess.run(command, env=environment, cwd=scratch, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr)
        seen: dict[str, list[tuple[float, float]]] = {}
        for line in log.read_text().splitlines():
            worker, moment, cpu, _ = line.split(" ", 3)
            seen.setdefault(worker, []).append((float(moment), float(cpu)))
    begin, end = max(each[0][0] for each in seen.values()), min(each[-1][0] for each in seen.values())
    inside = [[cpu for moment, cpu in each if begin <= moment <= end] for each in seen.values()]
    videos = sum(len(each) - 1 for each in inside)
    return videos / (end - begin), videos / sum(each[-1] - each[0] for each in inside)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--videos", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        save_videos(Path(folder), chosen.videos, frames=30)
        ratios = []
        for number in range(chosen.repeats):
            load = os.getloadavg()[0]
            begun = time.monotonic()
            (one, alone), (two, beside) = rate(Path(folder), 1), rate(Path(folder), 2)
            ratios.append(two / one)
            print(
                f"{number + 1}: {one:.1f} videos/s with one worker, {two:.1f} with two: {two / one:.2f} times; "
                f"for each second of a core {alone:.2f} and {beside:.2f}, so {2 * beside / alone:.2f} times if both "
                f"have one (load before: {load:.1f}; {time.monotonic() - begun:.0f} s)",
                flush=True,
            )
    print(f"median: {statistics.median(ratios):.2f} times")


if __name__ == "__main__":
    main()
