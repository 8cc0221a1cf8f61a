"""Who is blamed for the death of a worker: never an item that has done nothing."""

import itertools
import os
import random
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


class Crowd:
    """Actors in one process, in place of Ray, on one machine whose memory some items use up.

    Another process may then be ended than that which works on them. What happens next is drawn at random.
    """

    exceptions = LocalProcesses.exceptions

    def __init__(self, actors: int, hungry: set[int], dies: str, seed: int) -> None:
        self.workers, self.hungry, self.dies, self.random = actors, hungry, dies, random.Random(seed)
        self.actors: list[SimpleNamespace] = []
        self.answers: dict[int, Any] = {}
        self.calls = itertools.count()

    def remote(self, kind: type) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._start))

    def _start(self, *_: Any) -> SimpleNamespace:
        actor = SimpleNamespace(process=next(self.calls), queue=[])
        actor.work = SimpleNamespace(remote=lambda items, again: self._call(actor, items))
        actor.ready = SimpleNamespace(remote=lambda: self._call(actor, None))
        self.actors.append(actor)
        return actor

    def _call(self, actor: SimpleNamespace, items: Sequence[int] | None) -> int:
        actor.queue.append((number := next(self.calls), items))
        return number

    def wait(self, refs: Sequence[int], **_: Any) -> tuple[list[int], list[int]]:
        while not (ready := [ref for ref in refs if ref in self.answers]):
            actor = self.random.choice([each for each in self.actors if each.queue])
            ref, items = actor.queue[0]
            if items is not None and self.hungry & set(items):
                others = [each for each in self.actors if each is not actor and any(what for _, what in each.queue)]
                dead = {"all": [actor, *others], "random": [self.random.choice([actor, *others])]}
                dead["another"] = [self.random.choice(others)] if others else [actor]
                for each in dead[self.dies]:
                    each.process = next(self.calls)
                    self.answers |= {lost: Unavailable() for lost, _ in each.queue}
                    each.queue.clear()
            if actor.queue:  # it lives
                actor.queue.pop(0)
                self.answers[ref] = actor.process if items is None else [(number, 2 * number) for number in items]
        return ready[:1], []

    def get(self, ref: int) -> Any:
        self.wait([ref])
        if isinstance(answer := self.answers[ref], Exception):
            raise answer
        return answer

    def kill(self, actor: SimpleNamespace) -> None:
        actor.queue.clear()


@pytest.mark.parametrize("dies", ["all", "random", "another"])
@pytest.mark.parametrize("hungry", [1, 3, 10])
def test_no_file_is_given_up_for_another_one_whichever_process_the_system_ends(hungry: int, dies: str) -> None:
    for seed in range(40):
        greedy = set(random.Random(seed).sample(range(400), hungry))
        crowd: Any = Crowd(4, greedy, dies, seed)
        cluster: Any = SimpleNamespace(ray=crowd, workers=4, resources=lambda: {"num_cpus": 1, "num_gpus": 0})
        workers = pool.WorkerPool[int, tuple[int, int | str]](cluster, Neighbour)
        results = list(workers.run(iter(range(400)), lambda number, cause: (number, cause)))
        found = dict(results)
        assert len(results) == len(found) == 400
        assert all(found[number] == 2 * number for number in range(400) if number not in greedy), seed


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
