"""The contract of an engine, whatever happens to its workers.

A subclass gives a fixture with two workers:

    class TestMyEngine(WorkersContract):
        @pytest.fixture
        def workers(self) -> Iterator[Workers]:
            with MyWorkers(WorkerOptions()) as workers:
                yield workers
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from allocembed.errors import SearchError
from allocembed.workers import Workers, WorkerShare

END_SECONDS = 30.0  # seconds in which an ended worker must be gone
KILLS, KILLS_ONCE, FAILS, ENDS = 77, 78, 99, 55
"""Numbers that kill their worker always or once, that fail, and that end the run."""

Result = tuple[int, Any]


class UnpicklableError(Exception):
    """An error that cannot be sent to another process."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


@dataclass(frozen=True)
class DoublingTask:
    """Makes a worker that doubles numbers, and leaves a file for each process in a folder."""

    folder: Path
    problem: str = ""
    """The trouble when it starts."""

    def __call__(self, share: WorkerShare) -> DoublingWorker:
        if self.problem == "ours":
            raise SearchError("there is no such index: make one")
        if self.problem:
            raise RuntimeError(self.problem)
        (self.folder / str(os.getpid())).touch()
        return DoublingWorker(self.folder, share)


@dataclass(frozen=True)
class DoublingWorker:
    """Doubles numbers, and repeats other values."""

    folder: Path
    share: WorkerShare

    def work(self, items: Sequence[Any], again: bool) -> Iterator[Result]:
        """The item, and its double."""
        time.sleep(0.01)  # so that another worker gets some, too
        for item in items:
            if item == KILLS or (item == KILLS_ONCE and not again):
                os.kill(os.getpid(), signal.SIGKILL)
            if item == FAILS:
                raise UnpicklableError("a number that nobody", "can double")
            if item == ENDS:
                raise SearchError("this index cannot be used: make another")
            yield item, 2 * item

    @staticmethod
    def give_up(item: Any, cause: str) -> Result:
        """The cause in place of the double."""
        return item, cause


class WorkersContract:
    """The tests. `workers` are two, unless an engine has one."""

    survives = True
    """Whether the run survives the death of a worker. In this process it does not."""
    same_machine = True
    """Whether the processes of the workers can be seen from here."""

    @pytest.fixture
    def workers(self) -> Iterator[Workers]:
        """Workers that have not been used."""
        raise NotImplementedError

    @pytest.fixture
    def task(self, tmp_path: Path) -> DoublingTask:
        """A task that leaves a file for each of its processes."""
        return DoublingTask(tmp_path)

    def test_every_item_gets_one_result(self, workers: Workers, task: DoublingTask) -> None:
        results = list(workers.run(task, iter(range(100, 400)), DoublingWorker.give_up))
        assert sorted(results) == [(number, 2 * number) for number in range(100, 400)]
        assert (str(os.getpid()) in _processes(task)) != workers.separate

    def test_without_items_nothing_is_started(self, workers: Workers, task: DoublingTask) -> None:
        assert list(workers.run(task, iter([]), DoublingWorker.give_up)) == []
        assert not _processes(task)

    def test_one_item_starts_one_worker(self, workers: Workers, task: DoublingTask) -> None:
        assert list(workers.run(task, iter([1]), DoublingWorker.give_up)) == [(1, 2)]
        assert len(_processes(task)) == 1

    def test_large_items_and_results_pass(self, workers: Workers, task: DoublingTask) -> None:
        large = ["x" * 1_000_000, "y" * 1_000_000, "z" * 1_000_000]
        results = dict(workers.run(task, iter(large), DoublingWorker.give_up))
        assert results == {text: 2 * text for text in large}

    def test_an_error_about_one_item_costs_that_item_alone(self, workers: Workers, task: DoublingTask) -> None:
        if not self.survives:
            with pytest.raises(UnpicklableError, match="nobody can double"):
                list(workers.run(task, iter([1, FAILS, 2]), DoublingWorker.give_up))
            return
        results = dict(workers.run(task, iter([1, 2, FAILS, *range(200, 230)]), DoublingWorker.give_up))
        assert "cannot be read" in results[FAILS] and "nobody can double" in results.pop(FAILS)
        assert results == {number: 2 * number for number in (1, 2, *range(200, 230))}

    def test_a_worker_that_dies_once_loses_nothing(self, workers: Workers, task: DoublingTask) -> None:
        if not self.survives:
            pytest.skip("nothing outlives this process")
        results = list(workers.run(task, iter([1, KILLS_ONCE, *range(200, 330)]), DoublingWorker.give_up))
        assert sorted(results) == [(number, 2 * number) for number in (1, KILLS_ONCE, *range(200, 330))]

    def test_an_item_that_always_kills_its_worker_is_given_up_alone(self, workers: Workers, task: DoublingTask) -> None:
        if not self.survives:
            pytest.skip("nothing outlives this process")
        numbers = [1, 2, KILLS, 3, 4, *range(200, 230)]
        results = list(workers.run(task, iter(numbers), DoublingWorker.give_up))
        found = dict(results)
        assert len(results) == len(found) == len(numbers)
        assert "died 3 times" in found.pop(KILLS)
        assert found == {number: 2 * number for number in numbers if number != KILLS}

    def test_an_error_of_ours_ends_the_run_as_itself(self, workers: Workers, task: DoublingTask) -> None:
        with pytest.raises(SearchError, match=r"^this index cannot be used: make another$"):
            list(workers.run(task, iter([1, 2, ENDS, 3]), DoublingWorker.give_up))
        assert list(workers.run(task, iter([4]), DoublingWorker.give_up)) == [(4, 8)], "they can be used again"

    @pytest.mark.parametrize("problem", ["ours", "the memory of the GPU is full"])
    def test_workers_that_cannot_start_say_why(self, workers: Workers, tmp_path: Path, problem: str) -> None:
        said = "there is no such index: make one" if problem == "ours" else problem
        with pytest.raises((SearchError, RuntimeError), match=said):
            list(workers.run(DoublingTask(tmp_path, problem), iter([1, 2]), DoublingWorker.give_up))

    def test_a_run_that_is_left_says_nothing_to_the_next(self, workers: Workers, task: DoublingTask) -> None:
        begun = workers.run(task, iter(range(100, 400)), DoublingWorker.give_up)
        next(begun)
        begun.close()
        assert sorted(workers.run(task, iter([1, 2]), DoublingWorker.give_up)) == [(1, 2), (2, 4)]

    def test_items_are_taken_as_they_are_needed(self, workers: Workers, task: DoublingTask) -> None:
        taken = iter(range(100, 100_000))
        begun = workers.run(task, taken, DoublingWorker.give_up)
        next(begun)
        begun.close()
        assert next(taken) < 5_000, "memory must not grow with their number"

    def test_workers_stay_up_for_an_equal_task(self, workers: Workers, task: DoublingTask, tmp_path: Path) -> None:
        for number in range(3):
            list(workers.run(DoublingTask(task.folder), iter([number]), DoublingWorker.give_up))
        assert len(_processes(task)) == 1
        (tmp_path / "other").mkdir()
        other = DoublingTask(tmp_path / "other")
        list(workers.run(other, iter([1]), DoublingWorker.give_up))
        assert _processes(other), "another task needs another worker"

    def test_leaving_the_block_ends_the_workers(self, workers: Workers, task: DoublingTask) -> None:
        with workers:
            list(workers.run(task, iter(range(100, 130)), DoublingWorker.give_up))
        if workers.separate and self.same_machine:
            deadline = time.monotonic() + END_SECONDS
            while alive := [name for name in _processes(task) if _is_alive(int(name))]:
                assert time.monotonic() < deadline, f"{alive} are still there"
                time.sleep(0.05)

    def test_the_work_is_shared_out(self, workers: Workers, task: DoublingTask) -> None:
        share = pickle.loads(pickle.dumps(WorkerShare(2, 3, True)))
        assert share == WorkerShare(2, 3, True)
        made = list(workers.run(_ShareTask(), iter([0]), DoublingWorker.give_up))
        assert made[0][1].cores >= 1 and made[0][1].workers >= 1 and made[0][1].separate == workers.separate


@dataclass(frozen=True)
class _ShareTask:
    """Makes a worker that tells its share."""

    share: WorkerShare | None = None

    def __call__(self, share: WorkerShare) -> _ShareTask:
        return _ShareTask(share)

    def work(self, items: Sequence[Any], again: bool) -> list[Result]:
        return [(item, self.share) for item in items]


def _processes(task: DoublingTask) -> list[str]:
    """Processes that have worked on a task."""
    return [path.name for path in task.folder.iterdir() if path.name.isdigit()]


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
