"""A Ray cluster: one that exists, or one on this machine that nobody else can reach."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from allocembed.errors import ConfigError, MissingDependency
from allocembed.scale.local import LocalProcesses, check_cards, parse_devices
from allocembed.threads import core_count

STORE_BYTES = 128 * 2**20  # Ray's shared memory on this machine: only a few hundred bytes of each video travel


@dataclass(frozen=True)
class ClusterOptions:
    """Where Ray runs, and how many workers it gets."""

    devices: str | None = None
    """Run one process per device on this machine, without Ray: all for every GPU, or names such as cuda:0,cuda:1 or
    cpu,cpu."""
    address: str | None = None
    """Address of a Ray cluster, for --engine ray. Default: RAY_ADDRESS, or a cluster on this machine alone."""
    workers: int | None = None
    """Workers of --engine ray, each with its own copy of the model. Default: one per GPU, or one per machine."""
    gpus_per_worker: float | None = None
    """GPUs of each worker of --engine ray; 0 for none, 0.5 if two share one. Default: 1 if there are any."""
    commit: int = 16
    """Videos that a worker of --devices or --engine ray commits at once: at most this many are embedded again after a
    kill."""

    def check(self) -> None:
        """Raise ConfigError for impossible numbers."""
        for name, least in (("workers", 1), ("gpus_per_worker", 0), ("commit", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, not {value:g}")
        if self.devices is not None:
            parse_devices(self.devices)
            if (self.address, self.workers, self.gpus_per_worker) != (None, None, None):
                raise ConfigError("--address, --workers and --gpus-per-worker belong to --engine ray: leave them out")

    def check_unused(self) -> None:
        """Raise ConfigError if options are given that one process has no use for."""
        if self != ClusterOptions():
            raise ConfigError("--address, --workers, --gpus-per-worker and --commit need --engine ray or --devices")


@dataclass(frozen=True)
class Cluster:
    """A connection to Ray, and the share of each worker."""

    ray: Any
    workers: int
    gpus: float
    """GPUs of a worker."""
    cores: int
    """Cores of a worker."""
    share: float
    """The same as Ray counts them: less than one if there are more workers than cores."""

    def resources(self) -> dict[str, float]:
        return {"num_cpus": self.share, "num_gpus": self.gpus}


@contextmanager
def connected(options: ClusterOptions) -> Iterator[Cluster]:
    """Connect to a cluster, or start one for the length of the block. A program that uses Ray keeps its own."""
    options.check()
    if options.devices is not None:
        processes = LocalProcesses(parse_devices(options.devices))
        check_cards(processes.devices)
        count, cores = len(processes.devices), core_count()
        try:
            yield Cluster(processes, count, 0, max(1, cores // count), cores / count)
        finally:
            processes.close()
        return
    address = options.address or os.environ.get("RAY_ADDRESS") or "local"
    ray = _import_ray(local=address == "local")
    if ray.is_initialized():
        yield _share_out(ray, options)
        return
    named: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
    if address == "local":
        named |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
    try:
        with warnings.catch_warnings():
            # LanceDB warns of forks, but Ray only starts other programs.
            warnings.filterwarnings("ignore", message="lancedb fork support")
            ray.init(address=address, **named)
    except (ConnectionError, ValueError, RuntimeError) as error:
        cause = " ".join(str(error).split())[:200]
        raise ConfigError(f"cannot use the Ray cluster at {address} ({cause}): check --address") from error
    try:
        yield _share_out(ray, options)
    finally:
        ray.shutdown()


def _import_ray(*, local: bool) -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # Ray reports home unless it is told not to
    if local:
        # Ray's name for a cluster that listens on the loopback address only.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
    except ImportError as error:
        raise MissingDependency("--engine ray", "Ray", "ray") from error
    return ray


def _share_out(ray: Any, options: ClusterOptions) -> Cluster:
    there = ray.cluster_resources()
    cores, gpus = there.get("CPU", 1.0), there.get("GPU", 0.0)
    each = options.gpus_per_worker if options.gpus_per_worker is not None else float(gpus > 0)
    machines = sum(1 for node in ray.nodes() if node["Alive"])
    workers = options.workers or (int(gpus / each) if each else machines)
    if workers * each > gpus or not workers:
        raise ConfigError(
            f"{workers or 1} workers with {each:g} GPUs each need more than the {gpus:g} GPUs of the cluster: lower "
            "--workers or --gpus-per-worker"
        )
    share = cores / workers
    if each:  # a machine without GPUs has no worker, and its cores help nobody
        named = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        rich = [node for node in named if node.get("GPU", 0.0) >= each]
        share = min([share, *(node.get("CPU", 1.0) / int(node["GPU"] / each) for node in rich)])
    return Cluster(ray, workers, each, max(1, int(share)), float(int(share)) if share >= 1 else share)
