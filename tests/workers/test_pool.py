"""Who is blamed for the death of a worker: never an item that has done nothing."""

import os
import random
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from allocembed.workers import WorkerOptions, Workers, WorkerShare
from allocembed.workers import pool as pooled
from allocembed.workers.pool import (
    DeathReport,
    LostAnswerReport,
    PooledWorkers,
    ReadyReport,
    ResultReport,
    WorkerReport,
)
from allocembed.workers.processes import ProcessWorkers

BROKEN, HUNGRY = 5, 13


@dataclass(frozen=True)
class Neighbours:
    """A task that doubles numbers. At 13 all processes die whose ids are in the folder."""

    folder: Path

    def __call__(self, share: WorkerShare) -> "Neighbours":
        (self.folder / str(os.getpid())).touch()
        return self

    def work(self, items: Sequence[int], again: bool) -> list[tuple[int, int]]:
        if HUNGRY in items:
            others = [int(path.name) for path in self.folder.iterdir() if path.name != str(os.getpid())]
            for process in (*others, os.getpid()):
                (self.folder / str(process)).unlink(missing_ok=True)
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        return [(number, 2 * number) for number in items]


class BreakingLines(ProcessWorkers):
    """The answer about one number alone is lost a few times, as when a connection breaks; the process lives."""

    losses = 2

    def wait(self) -> Sequence[WorkerReport]:
        return [self._broken(report) for report in super().wait()]

    def _broken(self, report: WorkerReport) -> WorkerReport:
        if (
            not isinstance(report, ResultReport)
            or [number for number, _ in report.results] != [BROKEN]
            or not self.losses
        ):
            return report
        self.losses -= 1
        return LostAnswerReport(report.worker)


class Crowd(PooledWorkers):
    """Workers in one process, on one machine whose memory some items use up.

    Another worker may then be ended than that which works on them. What happens next is drawn at random.
    """

    def __init__(self, workers: int, hungry: set[int], dies: str, seed: int) -> None:
        super().__init__(WorkerOptions())
        self.workers, self.hungry, self.dies, self.random = workers, hungry, dies, random.Random(seed)
        self.given: dict[int, Sequence[int]] = {}
        self.starting = set[int]()

    def connect(self) -> int:
        return self.workers

    def start(self, worker: int, task: Any) -> None:
        self.starting.add(worker)

    def give(self, worker: int, items: Sequence[int], again: bool) -> None:
        self.given[worker] = items

    def end(self, worker: int) -> None:
        self.given.pop(worker, None)

    def wait(self) -> Sequence[WorkerReport]:
        worker = self.random.choice(sorted({*self.starting, *self.given}))
        if worker in self.starting:
            self.starting.remove(worker)
            return [ReadyReport(worker)]
        if not self.hungry & set(self.given[worker]):
            return [ResultReport(worker, [(number, 2 * number) for number in self.given.pop(worker)])]
        others = [each for each in self.given if each != worker]
        dead = {"all": [worker, *others], "random": [self.random.choice([worker, *others])]}
        dead["another"] = [self.random.choice(others)] if others else [worker]
        for each in dead[self.dies]:
            del self.given[each]
        return [DeathReport(each) for each in dead[self.dies]]


def run(workers: Workers, numbers: Sequence[int], folder: Path) -> Iterator[tuple[int, Any]]:
    with workers:
        yield from workers.run(Neighbours(folder), iter(numbers), lambda number, cause: (number, cause))


@pytest.mark.parametrize("dies", ["all", "random", "another"])
@pytest.mark.parametrize("hungry", [1, 3, 10])
def test_no_file_is_given_up_for_another_one_whichever_process_the_system_ends(hungry: int, dies: str) -> None:
    for seed in range(40):
        greedy = set(random.Random(seed).sample(range(400), hungry))
        results = list(run(Crowd(4, greedy, dies, seed), range(400), Path()))
        found = dict(results)
        assert len(results) == len(found) == 400
        assert all(found[number] == 2 * number for number in range(400) if number not in greedy), seed


@pytest.fixture
def two_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooled, "ATTEMPTS", 2)


def test_a_lost_answer_of_a_process_that_lives_costs_nothing(tmp_path: Path, two_attempts: None) -> None:
    workers = BreakingLines(WorkerOptions(devices="cpu"))
    assert sorted(run(workers, range(7), tmp_path)) == [(number, 2 * number) for number in range(7)]
    assert not workers.losses, "both answers were lost"


def test_an_answer_that_is_always_lost_does_not_hold_up_the_run(tmp_path: Path, two_attempts: None) -> None:
    workers = BreakingLines(WorkerOptions(devices="cpu"))
    workers.losses = 100
    assert dict(run(workers, range(7), tmp_path))[BROKEN] == pooled.DIED.format(2)


@pytest.mark.slow
def test_a_file_is_not_given_up_because_its_neighbour_takes_all_memory(tmp_path: Path, two_attempts: None) -> None:
    """The system then ends any process of the machine."""
    found = dict(run(ProcessWorkers(WorkerOptions(devices="cpu,cpu")), range(40), tmp_path))
    assert found.pop(HUNGRY) == pooled.DIED.format(2)
    assert found == {number: 2 * number for number in range(40) if number != HUNGRY}
