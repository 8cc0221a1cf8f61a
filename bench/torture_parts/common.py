"""Tools of all parts: the outcome of a part, processes that run commands, small videos, vectors of an index."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

ROOT = Path(__file__).parents[2]
BAD = ("crashes", "hangs", "lost", "wrong", "over_budget")
WORDS = {"wrong": "wrong vectors", "over_budget": "over budget"}
EXAMPLES = 12  # bad outcomes that are kept word for word
QUIET = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "COLUMNS": "200", "NO_COLOR": "1"}
INDEX_OPTIONS = ("--budget", "64", "--candidates", "4", "--segments", "1", "--commit", "2")


@dataclass(frozen=True)
class Settings:
    """How a part is run."""

    folder: Path
    """Empty folder for its files."""
    seed: int = 0
    scale: float = 1.0

    def count(self, full: int) -> int:
        """The number of attacks at this scale."""
        return max(1, round(full * self.scale))


@dataclass
class Outcome:
    """Attempts of one part, and its faults."""

    part: str
    runs: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def fault(self, kind: str, example: str) -> None:
        """Count a bad outcome, and keep the first ones word for word."""
        self.bad[kind] += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(f"{kind}: {example}")

    @property
    def clean(self) -> bool:
        return not self.bad.total()

    def line(self) -> str:
        counts = ", ".join(f"{self.bad[kind]} {WORDS.get(kind, kind)}" for kind in BAD)
        notes = ", ".join(f"{count:,} {name}" for name, count in sorted(self.notes.items()))
        return f"{self.part}: {self.runs:,} runs in {self.seconds:.0f} s: {counts} ({notes})"

    def as_dict(self) -> dict[str, Any]:
        bad = {kind: self.bad[kind] for kind in BAD}
        return {"part": self.part, "runs": self.runs, "seconds": round(self.seconds, 1), **bad} | {
            "notes": dict(self.notes),
            "examples": self.examples,
        }


def environment() -> dict[str, str]:
    """Variables for processes: one thread, plain output, this checkout."""
    return {**os.environ, **QUIET, "PYTHONPATH": str(ROOT)}


@dataclass(frozen=True)
class Child:
    """A command that the nursery has started, and the file of what it prints."""

    pid: int
    log: Path

    def kill(self) -> None:
        with suppress(ProcessLookupError):  # it may just have ended
            os.kill(self.pid, signal.SIGKILL)

    def runs(self) -> bool:
        """Whether it has not ended yet; an ended child is a zombie until it is waited for."""
        with suppress(OSError):
            return Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
        return False

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


class Nursery:
    """Runs `allocembed` commands in forks of a process that has torch loaded: each starts at once and may be killed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        script = Path(__file__).with_name("nursery.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=folder,
        )
        self._read()

    def start(self, *words: object, gates: Path | None = None, settle: float | None = None) -> Child:
        """Start a command. With `gates`, it waits at each gate of that folder; see nursery.py.

        `settle` is how many seconds --watch waits for a file, instead of the usual two.
        """
        self.started += 1
        log = self.folder / f"{self.started:05}.log"
        request = {"words": list(map(str, words)), "log": str(log), "gates": str(gates) if gates else None}
        request["settle"] = settle
        return Child(int(self._ask(request)), log)

    def wait(self, child: Child, timeout: float = 120.0) -> int | None:
        """The exit status of a child, negative for a signal; None after the timeout, when the child is killed."""
        return self._ask({"wait": child.pid, "timeout": timeout})

    def run(self, *words: object, timeout: float = 120.0) -> tuple[int | None, str]:
        """The exit status of a command, and what it printed."""
        child = self.start(*words)
        return self.wait(child, timeout), child.text()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.stdin:
            self.process.stdin.close()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        return self._read()

    def _read(self) -> Any:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the process that starts the commands has ended")
        return json.loads(line)


def judge(outcome: Outcome, status: int | None, text: str, what: str) -> bool:
    """Count a hang, or a crash: a signal, a traceback or a panic. Whether the command ended as one should."""
    if status is None:
        outcome.fault("hangs", what)
    elif status < 0 or "Traceback" in text or "panicked" in text:
        outcome.fault("crashes", f"{what}: status {status}: {text[-400:]}")
    return status is not None and status >= 0 and "Traceback" not in text


def save_model(folder: Path) -> Path:
    """A tiny random checkpoint."""
    from transformers.utils import logging

    from tests import tiny

    logging.disable_progress_bar()
    folder.mkdir(parents=True)
    return tiny.save_qwen3(folder)


def save_videos(folder: Path, count: int, first: int = 0, frames: int = 10) -> list[Path]:
    """Small videos, each of other pictures; every fourth is long enough for windows."""
    from tests.clips import picture, write_video

    folder.mkdir(parents=True, exist_ok=True)
    made = []
    for number in range(first, first + count):
        length = frames * 6 if number % 4 == 0 else frames
        pictures = [picture(number * 37 + frame) for frame in range(length)]
        made.append(write_video(folder / f"v{number:03}.mp4", pictures))
    return made


def vectors(place: Path) -> dict[tuple[str, int], np.ndarray]:
    """The vectors of an index by file name and number of the segment; a number that occurs twice is an error."""
    from allocembed.search import VideoIndex

    index = VideoIndex.open(str(place))
    found: dict[tuple[str, int], np.ndarray] = {}
    for file in index.files():
        if file.error:
            continue
        for segment in index.segments(file.video, "vector"):
            key = (Path(file.path).name, segment.number)
            if key in found:
                raise ValueError(f"{key} occurs twice")
            found[key] = np.asarray(segment.vector)
    return found


def check_index(outcome: Outcome, place: Path, wanted: dict[tuple[str, int], np.ndarray], what: str) -> None:
    """Count vectors that are absent, surplus or other than wanted, and what `verify` finds."""
    from allocembed.search import VideoIndex
    from allocembed.search.verify import verify

    try:
        found, problems = vectors(place), verify(VideoIndex.open(str(place)))
    except Exception as error:  # whatever it is, the index cannot be read
        outcome.fault("lost", f"{what}: {type(error).__name__}: {error}")
        return
    for problem in problems:
        outcome.fault("lost", f"{what}: verify: {problem}")
    for key in wanted.keys() ^ found.keys():
        outcome.fault("lost", f"{what}: {key} is {'absent' if key in wanted else 'surplus'}")
    for key in wanted.keys() & found.keys():
        # Sums depend on what shares a batch, in the last bits.
        if not np.allclose(found[key], wanted[key], atol=1e-4):
            outcome.fault("wrong", f"{what}: {key}")


def address(log: Path, alive: Any, timeout: float = 60.0) -> tuple[str, int] | None:
    """Host and port that a server has printed; None if it ends or is silent."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline and alive():
        if log.exists() and (found := re.search(r"http://([\d.]+):(\d+)", log.read_text(errors="replace"))):
            return found[1], int(found[2])
        time.sleep(0.02)
    return None
