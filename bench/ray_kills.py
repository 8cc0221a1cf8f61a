"""kill -9 of workers and drivers of `index --engine ray` at random moments: every vector is there once, bit for bit.

    python bench/ray_kills.py                # a folder of videos, an index in a folder
    python bench/ray_kills.py --remote       # both on object storage: moto's server on this machine

Each round starts a driver with two workers, kills a worker after some videos, and the driver after some more; then the
same command runs again. After 20 kills it may end. Its index is compared with that of a run in one process.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np
from torture_parts.common import QUIET, ROOT, save_videos

OPTIONS = ("--backbone", "nano-qwen3", "--budget", "2f", "--candidates", "4", "--segments", "1")
COMMIT = 8
DRIVER_SECONDS = 300.0


class Trial:
    """One folder with videos, the index of an undisturbed run, and a log of what was embedded."""

    def __init__(self, folder: Path, videos: int, bad: int, remote: bool, stack: ExitStack) -> None:
        self.folder, self.remote, self.good = folder, remote, videos - bad
        self.log = folder / "embedded.log"
        self.environment = {**os.environ, **QUIET, "PYTHONPATH": f"{ROOT}:{ROOT / 'bench'}"}
        save_videos(folder / "videos", self.good)
        for number in range(bad):
            (folder / "videos" / f"bad{number}.mp4").write_bytes(os.urandom(2000))
        self.source, self.place = str(folder / "videos"), str(folder / "killed.index")
        if remote:
            from tests.object_storage import ObjectServer, upload

            server = stack.enter_context(ObjectServer())
            server.make_bucket("videos")
            upload(server.port, folder / "videos", "videos/all")
            self.environment |= server.variables
            os.environ.update(server.variables)
            self.source, self.place = "s3://videos/all", "s3://videos/killed.index"
        self.number = 0
        self.whole = str(folder / "whole.index")
        words = [sys.executable, "-m", "allocembed", "index", self.source, "--to", self.whole, *OPTIONS]
        subprocess.run(words, env=self.environment, cwd=folder, capture_output=True, check=False)

    def start(self) -> subprocess.Popen[bytes]:
        self.number += 1
        words = ["--to", self.place, *OPTIONS, "--engine", "ray", "--workers", "2", "--commit", str(COMMIT)]
        driver = [sys.executable, str(ROOT / "bench" / "ray_driver.py"), str(self.log), "index", self.source, *words]
        with (self.folder / f"driver{self.number}.log").open("wb") as output:
            return subprocess.Popen(driver, env=self.environment, cwd=self.folder, stdout=output, stderr=output)

    def lines(self) -> list[list[str]]:
        return [line.split(" ", 1) for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def wait_for(self, driver: subprocess.Popen[bytes], more: int) -> bool:
        """Wait until this number of further videos is embedded; False if the driver has ended before."""
        wanted, deadline = len(self.lines()) + more, time.monotonic() + DRIVER_SECONDS
        while len(self.lines()) < wanted:
            if driver.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise TimeoutError(f"no progress; see {self.folder}/driver{self.number}.log")
            time.sleep(0.01)
        return True


def descendants(root: int) -> set[int]:
    """All processes below one."""
    children: dict[int, set[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, set()).add(int(entry.name))
    found, due = set[int](), [root]
    while due:
        for child in children.get(due.pop(), ()):
            found.add(child)
            due.append(child)
    return found


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--videos", type=int, default=200)
    parser.add_argument("--bad", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--remote", action="store_true")
    chosen = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-kills-")))
        trial = Trial(folder, chosen.videos, chosen.bad, chosen.remote, stack)
        print("reference made", flush=True)
        counts = attack(trial, chosen.kills, random.Random(chosen.seed))
        sys.exit(report(trial, counts))


def attack(trial: Trial, kills: int, source: random.Random) -> Counter[str]:
    """Kill workers and drivers in turn, until there were enough; then let the driver end."""
    counts: Counter[str] = Counter()
    most = max(2, (trial.good - 20) // kills)  # so that there is something left to do at the last kill
    while counts.total() < kills:
        driver = trial.start()
        if not trial.wait_for(driver, source.randint(1, most)):
            break
        ours = descendants(driver.pid)
        workers = sorted({int(pid) for pid, _ in trial.lines() if int(pid) in ours and is_alive(int(pid))})
        os.kill(source.choice(workers), signal.SIGKILL)
        counts["workers"] += 1
        print(f"{counts.total()}: killed a worker after {len(trial.lines())} videos", flush=True)
        if counts.total() == kills or not trial.wait_for(driver, source.randint(1, most)):
            driver.wait(DRIVER_SECONDS)
            break
        ours = descendants(driver.pid)
        driver.kill()
        driver.wait()
        counts["drivers"] += 1
        print(f"{counts.total()}: killed the driver after {len(trial.lines())} videos", flush=True)
        deadline = time.monotonic() + 10
        while any(map(is_alive, ours)) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in filter(is_alive, ours):  # Ray's own processes end with their driver, at the latest now
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    driver = trial.start()
    driver.wait(DRIVER_SECONDS)
    print((trial.folder / f"driver{trial.number}.log").read_text()[-600:], flush=True)
    return counts


def report(trial: Trial, kills: Counter[str]) -> int:
    from allocembed.search import VideoIndex
    from allocembed.search.verify import verify

    def vectors(place: str) -> dict[tuple[str, int], list[np.ndarray]]:
        index = VideoIndex.open(place)
        found: dict[tuple[str, int], list[np.ndarray]] = {}
        for file in index.files():
            for segment in index.segments(file.video, "vector") if not file.error else ():
                found.setdefault((file.path, segment.number), []).append(segment.vector)
        return found

    wanted, found = vectors(trial.whole), vectors(trial.place)
    twice = sum(len(each) > 1 for each in found.values())
    wrong = sum(not np.array_equal(wanted[key][0], each[0]) for key, each in found.items() if key in wanted)
    index = VideoIndex.open(trial.place)
    stated, problems = index.info(), verify(index)
    again = len(trial.lines()) - trial.good
    most = COMMIT * (kills["workers"] + 2 * kills["drivers"])
    lines = [
        f"{kills['workers']} kills of workers, {kills['drivers']} of drivers, {trial.number} drivers",
        f"{stated['videos']} videos (of {trial.good}), {stated['failed']} failed, {stated['vectors']} vectors",
        f"{len(wanted.keys() - found.keys())} lost, {len(found.keys() - wanted.keys())} surplus, {twice} twice, "
        f"{wrong} with other bits, {len(problems)} problems by verify",
        f"{again} embedded again, {again / max(1, kills.total()):.1f} per kill; allowed: {most} "
        f"({COMMIT} for each worker that died)",
    ]
    print("\n".join(lines), *problems[:5], sep="\n")
    sound = wanted.keys() == found.keys() and not (twice or wrong or problems) and again <= most
    return 0 if sound and stated["videos"] == trial.good else 1


if __name__ == "__main__":
    main()
