"""Engines for the work: this process, several, or a Ray cluster. Each is imported only when it is used."""

from allocembed.errors import ConfigError, did_you_mean
from allocembed.plugins import Names
from allocembed.workers.base import Worker, WorkerOptions, Workers, WorkerShare

__all__ = ["WORKERS", "Worker", "WorkerOptions", "WorkerShare", "Workers", "find_workers"]

WORKERS = Names[type[Workers]](
    "allocembed.workers",
    {
        "inline": "allocembed.workers.inline:InlineWorkers",
        "processes": "allocembed.workers.processes:ProcessWorkers",
        "ray": "allocembed.workers.ray:RayWorkers",
    },
)


def find_workers(engine: str = "inline", options: WorkerOptions = WorkerOptions()) -> Workers:  # noqa: B008 (frozen)
    """The workers of an engine, by name. Options that name devices mean processes.

    >>> find_workers().separate, find_workers("inline", WorkerOptions(devices="cpu,cpu")).separate
    (False, True)
    """
    if engine == "inline" and options.devices is not None:
        engine = "processes"
    if engine not in WORKERS:
        raise ConfigError(f"unknown engine {engine!r}{did_you_mean(engine, WORKERS)}: use {', '.join(WORKERS)}")
    return WORKERS[engine](options)
