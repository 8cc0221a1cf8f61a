"""Hand items out to Ray actors in portions, and get one result for each item, whatever happens to the actors.

An actor that dies is started again by Ray, and what it had not finished is handed out again. An item that kills its
actor again and again is given up, alone: it gets a result that says so. Another one must not be given up in its place,
so two causes are ruled out: a connection that broke, which is known once the actor answers again, and a neighbour that
used up the memory of the machine: an item has its last chance while nothing else is under way.

Memory of the driver does not grow with the number of items.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Generic, TypeVar

from allocembed.errors import AllocEmbedError, SearchError
from allocembed.scale.cluster import Cluster
from allocembed.scale.local import LocalProcesses

logger = logging.getLogger("allocembed")

PORTION = 64  # items that are handed out at once, if there are many
ATTEMPTS = 3  # deaths or failures with one item before it is given up
STARTS = 200  # requests to an actor that is being started, before it is given up
PAUSE = 1.0  # seconds between them
PATIENCE = 60.0  # seconds after which a line says what workers may be waiting for
DIED = "the worker died {} times while it read this file; the file may be damaged, or memory too small"

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(eq=False)
class _Portion(Generic[Item]):
    items: Sequence[Item]
    attempts: int = 0
    """Deaths or failures so far."""
    again: bool = False
    """Whether an actor has had it before: it may have done a part of it, or have died of it."""
    unanswered: int = 0
    """How often its answer was lost though the actor was alive."""

    @property
    def last_chance(self) -> bool:
        """Whether the item is given up if it fails once more."""
        return len(self.items) == 1 and self.attempts == ATTEMPTS - 1


@dataclass
class _Slot(Generic[Item]):
    """One actor: starting as long as `starting` is set, else with what it works on, the oldest first."""

    actor: Any
    starting: Any = None
    failed_starts: int = 0
    process: Any = None
    """What `ready` returned."""
    suspect: _Portion[Item] | None = None
    """What the actor may have died of, until it is known whether it died."""
    work: dict[Any, _Portion[Item]] = field(default_factory=dict)


class WorkerPool(Generic[Item, Result]):
    """Actors of one class, which has the methods `work(items, again) -> results` and `ready() -> process`: a value
    that no other process returns."""

    def __init__(self, cluster: Cluster, kind: type, *arguments: Any, portion: int = PORTION) -> None:
        """Start actors with these arguments. At most `portion` items, or 64 if that is more, are handed out at once."""
        self.ray, self.count, self.portion = cluster.ray, cluster.workers, max(portion, PORTION)
        self.needs = cluster.resources()
        self.may_lack_room = not isinstance(cluster.ray, LocalProcesses)
        actor = cluster.ray.remote(kind).options(**self.needs, max_restarts=-1, max_task_retries=0)
        self.slots: list[_Slot[Item]] = [_Slot(actor.remote(*arguments)) for _ in range(cluster.workers)]
        self.again: deque[_Portion[Item]] = deque()
        self.last: deque[_Portion[Item]] = deque()
        """Items that have their last chance when all others are done."""
        self.restarts = 0
        """How often an actor has not answered, nearly always because it died."""

    def run(self, items: Iterator[Item], give_up: Callable[[Item, str], Result]) -> Iterator[Result]:
        """Yield a result for each item, in any order. `give_up` makes that of an item that no actor survives.

        An AllocEmbedError of an actor ends the run; any other exception counts like a death.
        """
        backlog: deque[Item] = deque()
        for slot in self.slots:
            slot.starting = slot.actor.ready.remote()
        deadline = time.monotonic() + PATIENCE if self.may_lack_room else None
        while True:
            backlog.extend(islice(items, max(0, 2 * self.count * self.portion - len(backlog))))
            self._hand_out(backlog)
            waiting = [ref for slot in self.slots for ref in ([slot.starting] if slot.starting else slot.work)]
            under_way = any(slot.work or slot.suspect for slot in self.slots)
            if not (under_way or backlog or self.again or self.last):
                return
            if deadline is None:
                ready = self.ray.wait(waiting, num_returns=1)[0]
            else:
                left = max(0.0, deadline - time.monotonic())
                ready = self.ray.wait(waiting, num_returns=1, timeout=left)[0]
            for ref in ready:
                slot = next(slot for slot in self.slots if ref == slot.starting or ref in slot.work)
                if ref == slot.starting:
                    yield from self._started(slot, give_up)
                else:
                    yield from self._finished(slot, ref, give_up)
            if deadline is not None and time.monotonic() >= deadline:
                deadline = None
                self._explain_waiting()

    def _explain_waiting(self) -> None:
        """Say what actors that are not ready may be waiting for: Ray starts one only where it finds room."""
        starting = sum(bool(slot.starting) for slot in self.slots)
        if starting:
            free = self.ray.available_resources()
            needed = f"{self.needs['num_cpus']:g} CPUs and {self.needs['num_gpus']:g} GPUs"
            left = f"{free.get('CPU', 0.0):g} CPUs and {free.get('GPU', 0.0):g} GPUs"
            logger.warning(
                f"{starting} of {self.count} workers are not ready after {PATIENCE:g} s: each needs {needed}, and "
                f"{left} of the cluster are free; if no model is being loaded, end other programs there, or lower "
                "--workers or --gpus-per-worker"
            )

    def close(self) -> None:
        """End the actors."""
        for slot in self.slots:
            self.ray.kill(slot.actor)

    def _hand_out(self, backlog: deque[Item]) -> None:
        """Give each actor two portions: one to work on, one to begin with at once.

        What is handed out again is the only work of its actor: if that dies, no other portion of it can be the cause.
        """
        for depth in (1, 2):
            for slot in self.slots:
                if slot.starting or len(slot.work) >= depth:
                    continue
                if slot.work and (self.again or any(portion.again for portion in slot.work.values())):
                    continue
                portion = self.again.popleft() if self.again else None
                if portion is None and backlog:
                    # Towards the end portions shrink, so that all actors end at about the same time.
                    size = max(1, min(self.portion, len(backlog) // (2 * self.count)))
                    portion = _Portion([backlog.popleft() for _ in range(size)])
                if portion is not None:
                    self._give(slot, portion)
        # Alone: of processes on one machine, the system may end another one than that which uses up the memory.
        ready = [slot for slot in self.slots if not slot.starting]
        if self.last and ready and not any(slot.work or slot.suspect for slot in self.slots):
            self._give(ready[0], self.last.popleft())

    def _give(self, slot: _Slot[Item], portion: _Portion[Item]) -> None:
        slot.work[slot.actor.work.remote(portion.items, portion.again)] = portion

    def _started(self, slot: _Slot[Item], give_up: Callable[[Item, str], Result]) -> Iterator[Result]:
        suspect = slot.suspect
        try:
            process = self.ray.get(slot.starting)
        except self.ray.exceptions.RayActorError as error:
            slot.failed_starts += 1
            cause = getattr(error, "cause", None) or error
            if isinstance(error, self.ray.exceptions.ActorUnavailableError) and slot.failed_starts < STARTS:
                time.sleep(PAUSE)
                slot.starting = slot.actor.ready.remote()
                return
        else:
            alive = process == slot.process
            slot.starting, slot.failed_starts, slot.process, slot.suspect = None, 0, process, None
            if suspect is not None and alive and suspect.unanswered < ATTEMPTS:
                suspect.unanswered, suspect.again = suspect.unanswered + 1, True  # only the connection broke
                self._queue(suspect)
            elif suspect is not None:
                yield from self._blame(suspect, DIED.format(ATTEMPTS), give_up)
            return
        failure = _own_error(cause)
        if failure is not None:
            raise failure
        self.slots.remove(slot)
        if not self.slots:
            raise SearchError(
                f"no worker could be started ({_brief(cause)}): check the memory and the GPUs of the machines"
            )
        if suspect is not None:
            yield from self._blame(suspect, DIED.format(ATTEMPTS), give_up)

    def _finished(self, slot: _Slot[Item], ref: Any, give_up: Callable[[Item, str], Result]) -> Iterator[Result]:
        errors = self.ray.exceptions
        try:
            results = self.ray.get(ref)
        except errors.RayActorError:
            self.restarts += 1
            left: list[_Portion[Item]] = []
            for other, portion in slot.work.items():
                try:  # one before it may be done, and must not be blamed
                    yield from [] if other == ref else self.ray.get(other)
                except (errors.RayActorError, errors.RayTaskError):
                    left.append(portion)
                else:
                    left += [portion] if other == ref else []
            first, *others = left
            slot.work, slot.suspect = {}, first
            slot.starting = slot.actor.ready.remote()
            for portion in others:  # if an answer was lost, the actor had begun with them
                portion.again = True
                self._queue(portion)
        except errors.RayTaskError as error:
            failure = _own_error(error.cause)
            if failure is not None:
                raise failure from error
            yield from self._blame(slot.work.pop(ref), f"it cannot be read ({_brief(error.cause)})", give_up)
        else:
            del slot.work[ref]
            yield from results

    def _blame(self, portion: _Portion[Item], cause: str, give_up: Callable[[Item, str], Result]) -> Iterator[Result]:
        """Hand a portion out again: first as it is, then item by item, and in the end not at all."""
        if portion.last_chance:
            yield give_up(portion.items[0], cause)
            return
        portion.attempts, portion.again = portion.attempts + 1, True
        if len(portion.items) > 1 and portion.attempts >= 2:
            for item in portion.items:
                self._queue(_Portion([item], again=True))
        else:
            self._queue(portion)

    def _queue(self, portion: _Portion[Item]) -> None:
        (self.last if portion.last_chance else self.again).append(portion)


def _own_error(cause: Any) -> AllocEmbedError | None:
    """The error of ours that an actor has raised, as itself: Ray wraps it."""
    while cause is not None:
        if isinstance(cause, AllocEmbedError):
            return cause
        cause = getattr(cause, "cause", None)
    return None


def _brief(error: Any) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
