"""Hand items out to workers in portions, and get one result for each item, whatever happens to the workers.

A worker that dies is started again, and what it had not finished is handed out again. An item that kills its worker
again and again is given up, alone: it gets a result that says so. Another one must not be given up in its place, so two
causes are ruled out. The engine distinguishes a broken connection from a death. And an item has its last chance while
nothing else runs, because a neighbour may have used up the memory of the machine.

Memory of this process does not grow with the number of items.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, Generic

from allocembed.errors import AllocEmbedError, SearchError
from allocembed.workers.base import GiveUp, Item, Result, Task, WorkerOptions, Workers

PORTION = 64  # items that are handed out at once, if there are many
ATTEMPTS = 3  # deaths or failures with one item before it is given up
DIED = "the worker died {} times while it read this file; the file may be damaged, or memory too small"


@dataclass(frozen=True)
class WorkerReport:
    """News from an engine about one of its workers."""

    worker: int


class ReadyReport(WorkerReport):
    """It has been started, and waits for work."""


@dataclass(frozen=True)
class StartFailure(WorkerReport):
    """It could not be started, and will not be."""

    error: Exception


@dataclass(frozen=True)
class ResultReport(WorkerReport):
    """It has done its portion."""

    results: Sequence[Any]


@dataclass(frozen=True)
class ErrorReport(WorkerReport):
    """Its portion raised an error; it waits for work."""

    error: Exception


class DeathReport(WorkerReport):
    """It died with its portion, and must be started again."""


class LostAnswerReport(WorkerReport):
    """The answer to its portion was lost, as when a connection breaks; it lives, and waits for work."""


@dataclass(eq=False)
class _Portion(Generic[Item]):
    items: Sequence[Item]
    attempts: int = 0
    """Deaths or failures so far."""
    again: bool = False
    """Whether a worker has had it before: it may have done a part of it, or have died of it."""
    unanswered: int = 0
    """How often its answer was lost though the worker was alive."""

    @property
    def last_chance(self) -> bool:
        """Whether the item is given up if it fails once more."""
        return len(self.items) == 1 and self.attempts == ATTEMPTS - 1


@dataclass(eq=False)
class _WorkerState:
    ready: bool = False
    portion: _Portion[Any] | None = None
    """The portion it works on."""


class PooledWorkers(Workers):
    """Workers that may die. An engine says how to start one, how to give it work, and what is heard of them."""

    def __init__(self, options: WorkerOptions) -> None:
        super().__init__(options)
        self.portion = max(options.commit, PORTION)
        self._task: Any = None
        self._states: dict[int, _WorkerState] = {}
        self._useless = set[int]()
        """Workers that cannot be started."""
        self._backlog = deque[Any]()
        self._again = deque[_Portion[Any]]()
        self._last = deque[_Portion[Any]]()
        """Items that have their last chance when all others are done."""

    @abstractmethod
    def connect(self) -> int:
        """Return how many workers there may be: 0, 1, … Called before each run; at first, connect to where they are."""

    @abstractmethod
    def start(self, worker: int, task: Task[Any, Any]) -> None:
        """Begin to start the worker of this number. There may have been one before, which died."""

    @abstractmethod
    def give(self, worker: int, items: Sequence[Any], again: bool) -> None:
        """Give a portion to a worker that waits for work."""

    @abstractmethod
    def wait(self) -> Sequence[WorkerReport]:
        """Wait until there is anything to report."""

    @abstractmethod
    def end(self, worker: int) -> None:
        """End a worker, whatever it does."""

    def close(self) -> None:
        self._stop()

    def run(
        self, task: Task[Item, Result], items: Iterator[Item], give_up: GiveUp[Item, Result]
    ) -> Generator[Result, None, None]:
        if task != self._task:
            self._stop()
        self._task = task
        try:
            for first in items:
                yield from self._results(chain([first], items), self.connect(), give_up)
        except BaseException:
            self._stop()  # the next run must not hear of this one
            raise

    def _stop(self) -> None:
        for worker in self._states:
            self.end(worker)
        for left in (self._states, self._useless, self._backlog, self._again, self._last):
            left.clear()
        self._task = None

    def _results(self, items: Iterator[Item], most: int, give_up: GiveUp[Item, Result]) -> Iterator[Result]:
        finished: list[Result] = []
        while True:
            self._backlog.extend(islice(items, max(0, 2 * most * self.portion - len(self._backlog))))
            self._start_workers(most)
            self._hand_out(most)
            yield from finished  # meanwhile the workers work
            if not (self._backlog or self._again or self._last or self._under_way()):
                return
            finished = [result for report in self.wait() for result in self._take(report, give_up)]

    def _under_way(self) -> bool:
        return any(state.portion for state in self._states.values())

    def _start_workers(self, most: int) -> None:
        """Start a worker for each item that waits, up to the number that is allowed."""
        free = sum(not state.portion for state in self._states.values())
        others = [worker for worker in range(most) if worker not in self._states and worker not in self._useless]
        for worker in others[: max(0, len(self._backlog) - free)]:
            self._states[worker] = _WorkerState()
            self.start(worker, self._task)

    def _hand_out(self, most: int) -> None:
        free = [worker for worker, state in self._states.items() if state.ready and not state.portion]
        for worker in free:
            if self._again:
                self._give(worker, self._again.popleft())
            elif self._backlog:
                # Towards the end portions shrink, so that all workers end at about the same time.
                size = max(1, min(self.portion, len(self._backlog) // (2 * most)))
                self._give(worker, _Portion([self._backlog.popleft() for _ in range(size)]))
        # Alone: of processes on one machine, the system may end another one than that which uses up the memory.
        if self._last and free and not self._under_way():
            self._give(free[0], self._last.popleft())

    def _give(self, worker: int, portion: _Portion[Any]) -> None:
        self._states[worker].portion = portion
        self.give(worker, portion.items, portion.again)

    def _take(self, report: WorkerReport, give_up: GiveUp[Any, Result]) -> Sequence[Result]:
        """Take a report; return the results of items that it completes."""
        state = self._states[report.worker]
        portion, state.portion = state.portion, None
        match report:
            case ReadyReport():
                state.ready = True
            case StartFailure():
                self._without(report.worker, report.error)
            case ResultReport():
                return report.results
            case ErrorReport():
                if isinstance(report.error, AllocEmbedError):
                    raise report.error
                return self._blame(portion, f"it cannot be read ({_brief(report.error)})", give_up)
            case DeathReport():
                state.ready = False
                self.start(report.worker, self._task)
                return self._blame(portion, DIED.format(ATTEMPTS), give_up)
            case LostAnswerReport():
                return self._lost(portion, give_up)
        return ()

    def _without(self, worker: int, error: Exception) -> None:
        """Continue without a worker that could not be started."""
        if isinstance(error, AllocEmbedError):
            raise error
        self.end(worker)
        del self._states[worker]
        self._useless.add(worker)
        if not self._states:
            raise SearchError(
                f"no worker could be started ({_brief(error)}): check the memory and the GPUs of the machines"
            ) from error

    def _lost(self, portion: _Portion[Any] | None, give_up: GiveUp[Any, Result]) -> Sequence[Result]:
        """Hand out again what nobody can be blamed for, but not for ever."""
        if portion is None or portion.unanswered >= ATTEMPTS:
            return self._blame(portion, DIED.format(ATTEMPTS), give_up)
        portion.unanswered, portion.again = portion.unanswered + 1, True
        self._queue(portion)
        return ()

    def _blame(self, portion: _Portion[Any] | None, cause: str, give_up: GiveUp[Any, Result]) -> Sequence[Result]:
        """Hand a portion out again: first as it is, then item by item, and in the end not at all."""
        if portion is None:
            return ()
        if portion.last_chance:
            return [give_up(portion.items[0], cause)]
        portion.attempts, portion.again = portion.attempts + 1, True
        if len(portion.items) > 1 and portion.attempts >= 2:
            for item in portion.items:
                self._queue(_Portion([item], again=True))
        else:
            self._queue(portion)
        return ()

    def _queue(self, portion: _Portion[Any]) -> None:
        (self._last if portion.last_chance else self._again).append(portion)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
