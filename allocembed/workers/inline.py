"""One worker: this process."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from itertools import islice
from typing import Any

from allocembed.threads import core_count
from allocembed.workers.base import GiveUp, Item, Result, Task, WorkerOptions, Workers, WorkerShare

PORTION_ITEMS = 1024  # items at once: rarely enough that the pipeline of the worker hardly ever runs empty


class InlineWorkers(Workers):
    """Does the work in the thread of the caller. Results come as soon as the worker yields them."""

    separate = False

    def __init__(self, options: WorkerOptions) -> None:
        super().__init__(options)
        options.check("inline")

    def run(
        self, task: Task[Item, Result], items: Iterator[Item], give_up: GiveUp[Item, Result]
    ) -> Generator[Result, None, None]:
        worker: Any = None
        while portion := list(islice(items, PORTION_ITEMS)):
            worker = worker or task(WorkerShare(core_count(), 1, self.separate))
            yield from worker.work(portion, again=False)
