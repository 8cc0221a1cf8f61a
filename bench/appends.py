"""Many processes append to one index at the same moment: python bench/appends.py [--writers 40]

Each appends five videos, one by one, as fast as it can: first to a folder, then to moto's server on this machine.
"""

import argparse
import subprocess
import sys
import tempfile
import time

import numpy as np

from allocembed.config import EmbedConfig
from allocembed.search.settings import IndexSettings
from allocembed.search.store import EmbeddedSegment
from allocembed.search.store.lance import LanceStore
from tests.object_storage import ObjectServer, environment

TURNS, DIM = 5, 64


def write(uri: str, number: int) -> None:
    """Run one process: begin on a signal, and print the longest time of an append."""
    store, vector, worst = LanceStore.open(uri), np.full(DIM, DIM**-0.5, np.float32), 0.0
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(TURNS):
        begun = time.monotonic()
        store.add_videos([(f"{number:016x}{turn:016x}", [EmbeddedSegment(0, 0.0, 1.0, 1, 1, 1, vector=vector)])])
        worst = max(worst, time.monotonic() - begun)
    print(worst, flush=True)


def race(uri: str, writers: int) -> None:
    LanceStore.create(uri, IndexSettings(EmbedConfig(backbone="nano-qwen3"), probe=(0.0,) * DIM))
    words = [sys.executable, __file__, "--uri", uri, "--number"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    processes = [subprocess.Popen([*words, str(number)], **pipes) for number in range(writers)]
    for process in processes:
        assert process.stdout and process.stdout.readline()
    begun = time.monotonic()
    answers = [process.communicate("\n")[0] for process in _started(processes)]
    took, worst = time.monotonic() - begun, max((float(answer) for answer in answers if answer), default=0.0)
    failed = sum(not answer for answer in answers)
    print(
        f"{uri.partition(':')[0] if '://' in uri else 'a folder'}: {writers} writers, "
        f"{LanceStore.open(uri).count()} of {writers * TURNS} rows, {failed} writers failed; {took:.1f} s in all, "
        f"at most {worst:.1f} s for one append",
        flush=True,
    )


def _started(processes: list) -> list:
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    return processes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=40)
    parser.add_argument("--uri", help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.uri:
        write(chosen.uri, chosen.number)
        return
    with tempfile.TemporaryDirectory() as folder, ObjectServer() as server, environment(server.variables):
        race(f"{folder}/x.index", chosen.writers)
        race(f"{server.make_bucket('appends')}/x.index", chosen.writers)


if __name__ == "__main__":
    main()
