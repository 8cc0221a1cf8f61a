"""The interface of an engine, which works in this process, in several, or on a cluster.

The caller hands over a *task* and items, and gets one result for each item, in any order:

    with find_workers("processes", WorkerOptions(devices="cpu,cpu")) as workers:
        for result in workers.run(task, items, give_up):
            ...

A task is sent to each worker and called there once. What it returns has a method `work`, which turns portions of items
into results. An engine for another kind of cluster is a subclass of `PooledWorkers` (in `workers.pool`), which says how
to start a worker, how to give it a portion, and how to hear of it. It is registered under the entry point
`allocembed.workers` and chosen with `--engine NAME`. `allocembed.testing.workers` tests it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, Protocol, Self, TypeVar

from allocembed.errors import ConfigError
from allocembed.threads import limit_cores

COMMIT_SECONDS = 5.0  # the most work of all workers together that a kill undoes
MOST_COMMIT_SECONDS = 60.0  # of one worker

Item = TypeVar("Item")
Result = TypeVar("Result")
Item_contra = TypeVar("Item_contra", contravariant=True)
Result_co = TypeVar("Result_co", covariant=True)


@dataclass(frozen=True)
class WorkerOptions:
    """The number of workers, and their places."""

    devices: str | None = None
    """Run one process per device on this machine: all for every GPU, or names such as cuda:0,cuda:1 or cpu,cpu."""
    address: str | None = None
    """Address of a Ray cluster, for --engine ray. Default: RAY_ADDRESS, or a cluster on this machine alone."""
    workers: int | None = None
    """Workers of --engine ray, each with its own copy of the model. Default: one per GPU, or one per machine."""
    gpus_per_worker: float | None = None
    """GPUs of each worker of --engine ray; 0 for none, 0.5 if two share one. Default: 1 if there are any."""
    commit: int = 16
    """Videos that a worker commits at once: at most this many are embedded again after a kill."""

    def check(self, engine: str, *used: str) -> None:
        """Raise ConfigError for impossible numbers, and for options other than `used` and `commit`."""
        for name, least in (("workers", 1), ("gpus_per_worker", 0), ("commit", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, not {value:g}")
        unused = [item.name for item in fields(self) if item.name not in ("commit", *used)]
        given = [f"--{name.replace('_', '-')}" for name in unused if getattr(self, name) is not None]
        if given:
            raise ConfigError(f"--engine {engine} has no use for {', '.join(given)}: leave it out, or name another one")


@dataclass(frozen=True)
class WorkerShare:
    """The share of a machine that one worker may use."""

    cores: int
    workers: int
    """The number of workers."""
    separate: bool
    """Whether the worker has a process of its own. It then loads its model at once: no item may be blamed for a model
    that does not fit."""

    def take(self) -> None:
        """Limit a process of its own to its cores."""
        if self.separate:
            limit_cores(self.cores)

    @property
    def commit_seconds(self) -> float:
        """Seconds after which a worker commits what is finished. All share one table."""
        return min(MOST_COMMIT_SECONDS, COMMIT_SECONDS * self.workers)


class Worker(Protocol[Item_contra, Result_co]):
    """The object that a task makes in each worker."""

    def work(self, items: Sequence[Item_contra], again: bool) -> Iterable[Result_co]:
        """One result for each item, in any order. Some of them may have been done before if they come `again`.

        An AllocEmbedError ends the run of all workers. Another exception counts like the death of the worker.
        """
        ...


Task = Callable[[WorkerShare], Worker[Item, Result]]
"""Makes the worker where it works. It must be possible to pickle a task."""
GiveUp = Callable[[Item, str], Result]
"""Makes the result of an item that no worker survives, from the item and the cause."""


class Workers(ABC):
    """Some workers. Leaving the `with` block ends them. They stay up between runs of an equal task."""

    separate: ClassVar[bool] = True
    """Whether the workers are other processes, so that this one needs no model."""

    def __init__(self, options: WorkerOptions) -> None:
        """Check the options, and that what the engine needs is installed. Nothing is started before the first run."""
        self.options = options

    @abstractmethod
    def run(
        self, task: Task[Item, Result], items: Iterator[Item], give_up: GiveUp[Item, Result]
    ) -> Generator[Result, None, None]:
        """Yield one result for each item, in any order. Items are taken as they are needed.

        An item that kills its worker again and again is given up, alone. In this process, where nothing outlives the
        death of the worker, an exception that is not an AllocEmbedError ends the run instead.
        """

    def close(self) -> None:  # noqa: B027 (an engine may have nothing to end)
        """End the workers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
