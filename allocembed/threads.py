"""Worker threads that run ahead of their consumer, within bounds."""

import os
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import Generic, Self, TypeVar

Job = TypeVar("Job")
Part = TypeVar("Part")
Result = TypeVar("Result")
POLL_SECONDS = 0.2  # how often a blocked thread checks whether it should stop
SETTING_UP = threading.Lock()
"""Held while a decoder of a GPU is created or dropped, and while a CUDA graph is captured: what one does to the device
may break the other."""
_share: int | None = None


def limit_cores(count: int) -> None:
    """Use at most this number of cores from now on, also in torch: this process shares its machine with others."""
    import torch

    global _share
    _share = max(1, count)
    torch.set_num_threads(_share)


def core_count() -> int:
    """Number of cores that this process may use."""
    if _share is not None:
        return _share
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, eq=False)
class Event(Generic[Job, Part]):
    """A part of a job's result, or with `part=None` the end of the job."""

    number: int
    job: Job
    part: Part | None = None


class RunAhead(Generic[Job, Part]):
    """Apply `work` to each job in threads and iterate over the parts it yields, in the order they arrive.

    Yield None when no part is ready, and again after each `patience` seconds without one, if the consumer has set that.
    At most `jobs_ahead` jobs are started and not yet released by the consumer with `release()`; at most `parts_ahead`
    parts wait, plus one in each thread. So memory depends neither on the number of jobs nor on their size. An exception
    in `work` is raised in the consumer. Leaving the `with` block stops the threads.
    """

    def __init__(
        self,
        work: Callable[[Job], Iterable[Part]],
        jobs: Iterable[Job],
        *,
        workers: int,
        jobs_ahead: int,
        parts_ahead: int,
        torch_threads: int | None = None,
    ) -> None:
        self._work, self._jobs = work, enumerate(jobs)
        self._permits = threading.Semaphore(jobs_ahead)
        self._ready: Queue[Event[Job, Part] | BaseException | None] = Queue(parts_ahead)
        self._take, self._stop = threading.Lock(), threading.Event()
        self.patience: float | None = None
        self._torch_threads, self._restore = torch_threads, None
        self._threads = [
            threading.Thread(target=self._run, name=f"allocembed-{number}", daemon=True) for number in range(workers)
        ]

    def __enter__(self) -> Self:
        if self._torch_threads:
            import torch

            self._restore = torch.get_num_threads()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._permits.release(len(self._threads))  # nobody waits for a job or for the consumer any more
        with suppress(Empty):
            while True:
                self._ready.get_nowait()
        for thread in self._threads:
            thread.join()
        if self._restore:
            import torch

            # A worker's setting is also the default of threads that start later.
            torch.set_num_threads(self._restore)

    def __iter__(self) -> Iterator[Event[Job, Part] | None]:
        running = len(self._threads)
        while running:
            if self._ready.empty():
                yield None
            try:
                event = self._ready.get(timeout=self.patience)
            except Empty:
                continue
            if event is None:
                running -= 1
            elif isinstance(event, BaseException):
                raise event
            else:
                yield event

    def release(self, count: int = 1) -> None:
        """Allow more jobs to start."""
        if count:
            self._permits.release(count)

    def _run(self) -> None:
        try:
            if self._torch_threads:
                import torch

                torch.set_num_threads(self._torch_threads)
            while (taken := self._next()) is not None:
                number, job = taken
                for part in self._work(job):
                    self._put(Event(number, job, part))
                    if self._stop.is_set():
                        return
                self._put(Event(number, job))
        except BaseException as error:  # raised again in the consumer, which would otherwise wait forever
            self._put(error)
        finally:
            self._put(None)

    def _next(self) -> tuple[int, Job] | None:
        while not self._permits.acquire(timeout=POLL_SECONDS):
            if self._stop.is_set():
                return None
        with self._take:
            return None if self._stop.is_set() else next(self._jobs, None)

    def _put(self, event: Event[Job, Part] | BaseException | None) -> None:
        while not self._stop.is_set():
            try:
                self._ready.put(event, timeout=POLL_SECONDS)
                return
            except Full:
                continue


def map_ordered(
    work: Callable[[Job], Result], jobs: Iterable[Job], *, workers: int, ahead: int | None = None
) -> Generator[Result, None, None]:
    """Apply `work` to each job in a thread pool; yield the results in the order of the jobs.

    At most `ahead` jobs (by default twice the workers) run before their turn. Close the generator to stop early.

    >>> list(map_ordered(lambda number: number**2, range(5), workers=2))
    [0, 1, 4, 9, 16]
    """
    results: dict[int, Result] = {}
    following, most = 0, ahead or 2 * workers
    with RunAhead(lambda job: [(work(job),)], jobs, workers=workers, jobs_ahead=most, parts_ahead=most) as running:
        for event in running:
            if event is not None and event.part is not None:
                results[event.number] = event.part[0]
            while following in results:
                following += 1
                running.release()
                yield results.pop(following - 1)
