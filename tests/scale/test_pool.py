"""Who is blamed for the death of a worker: never an item that has done nothing."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from allocembed.scale import pool
from allocembed.scale.local import LocalProcesses, PendingAnswer, Unavailable

BROKEN, HUNGRY = 5, 13


class Neighbour:
    """Doubles numbers. At 13 all processes die whose ids are in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def ready(self) -> int:
        (self.folder / str(os.getpid())).touch()
        return os.getpid()

    def work(self, numbers: Sequence[int], again: bool) -> list[tuple[int, int]]:
        if HUNGRY in numbers:
            others = [int(path.name) for path in self.folder.iterdir() if path.name != str(os.getpid())]
            for process in (*others, os.getpid()):
                (self.folder / str(process)).unlink(missing_ok=True)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        time.sleep(0.02)
        return [(number, 2 * number) for number in numbers]


class BreakingLines(LocalProcesses):
    """Each answer about one number alone is lost a few times, as when a connection breaks; the process lives."""

    losses = 2

    def get(self, answer: PendingAnswer) -> Any:
        value = super().get(answer)
        if isinstance(value, list) and [number for number, _ in value] == [BROKEN] and self.losses:
            self.losses -= 1
            raise Unavailable
        return value


def run(processes: LocalProcesses, numbers: Sequence[int], folder: Path) -> Iterator[tuple[int, int | str]]:
    cluster: Any = SimpleNamespace(ray=processes, workers=len(processes.devices), resources=dict)
    try:
        workers = pool.WorkerPool[int, tuple[int, int | str]](cluster, Neighbour, folder)
        yield from workers.run(iter(numbers), lambda number, cause: (number, cause))
    finally:
        processes.close()


@pytest.fixture(autouse=True)
def two_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "ATTEMPTS", 2)


def test_a_lost_answer_of_a_process_that_lives_costs_nothing(tmp_path: Path) -> None:
    numbers = range(7)  # the last ones are handed out one by one
    processes = BreakingLines(["cpu"])
    assert sorted(run(processes, numbers, tmp_path)) == [(number, 2 * number) for number in numbers]
    assert not processes.losses, "both answers were lost"


def test_an_answer_that_is_always_lost_does_not_hold_up_the_run(tmp_path: Path) -> None:
    processes = BreakingLines(["cpu"])
    processes.losses = 100
    assert dict(run(processes, range(7), tmp_path))[BROKEN] == pool.DIED.format(2)


@pytest.mark.slow
def test_a_file_is_not_given_up_because_its_neighbour_takes_all_memory(tmp_path: Path) -> None:
    """The system then ends any process of the machine."""
    found = dict(run(LocalProcesses(["cpu", "cpu"]), range(40), tmp_path))
    assert found.pop(HUNGRY) == pool.DIED.format(2)
    assert found == {number: 2 * number for number in range(40) if number != HUNGRY}
