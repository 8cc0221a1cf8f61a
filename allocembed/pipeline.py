"""How videos are made ready while others are embedded: threads that work ahead, and a lane of their own on a GPU."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from typing import TypeVar

import torch

Job = TypeVar("Job")
Result = TypeVar("Result")


def core_count() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    work: Callable[[Job], Result],
    jobs: Iterable[Job],
    *,
    workers: int,
    ahead: int,
    torch_threads: int | None = None,
) -> Iterator[Result]:
    """`work` done on every job by so many threads, its results in the order of the jobs.

    At most `ahead` of them are under way or wait to be taken. `torch_threads` are those of each worker, where given;
    the caller keeps its own.

    >>> list(in_order(lambda number: number**2, range(5), workers=2, ahead=3))
    [0, 1, 4, 9, 16]
    """
    before = torch.get_num_threads()
    # In torch a number of threads belongs to the thread that sets it, and is what threads started later begin with.
    setting = (torch.set_num_threads, (torch_threads,)) if torch_threads else (None, ())
    pool = ThreadPoolExecutor(workers, "allocembed", *setting)
    under_way: deque[Future[Result]] = deque()
    try:
        for job in jobs:
            if len(under_way) == ahead:
                yield under_way.popleft().result()
            under_way.append(pool.submit(work, job))
        while under_way:
            yield under_way.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
        if torch_threads:
            torch.set_num_threads(before)


class DeviceLane:
    """Where a GPU makes videos ready, beside the stream in which its backbone works: one at a time.

    Their kernels are short and go first, so that the backbone never waits for a plan. One at a time, because each
    further stream would keep memory of its own. What was made in the lane is complete when the lane is left.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1)
        self._stream.wait_stream(torch.cuda.current_stream(device))  # the weights may be on their way
        self._lock = Lock()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock, torch.cuda.stream(self._stream):
            yield
            self._stream.synchronize()
