"""Workers on a Ray cluster: one that exists, or one on this machine that nobody else can reach.

Each worker is an actor. Ray is imported when the first worker is started.
"""

from __future__ import annotations

import logging
import os
import pickle
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from allocembed.errors import ConfigError, MissingDependency
from allocembed.workers.base import Task, WorkerOptions, WorkerShare
from allocembed.workers.hosted import HostedWorker
from allocembed.workers.pool import (
    DeathReport,
    ErrorReport,
    LostAnswerReport,
    PooledWorkers,
    StartFailure,
    WorkerReport,
)

logger = logging.getLogger("allocembed")

STORE_BYTES = 128 * 2**20  # Ray's shared memory on this machine: only a few hundred bytes of each video travel
MOST_QUESTIONS = 200  # to an actor that does not answer, before it counts as dead
PAUSE_SECONDS = 1.0  # seconds between them
START_SECONDS = 60.0  # seconds after which a line says what workers may be waiting for


@dataclass(eq=False)
class _Actor:
    handle: Any
    begun_with: bytes
    """The pickled task."""
    answer: Any = None
    """The answer that is waited for; None while the actor has nothing to do."""
    method: str = ""
    """The method called last."""
    questions: int = 0
    """How often it was asked in vain whether it is there."""


class RayWorkers(PooledWorkers):
    """Actors on a Ray cluster, by default one for each GPU, or for each machine without GPUs."""

    def __init__(self, options: WorkerOptions) -> None:
        super().__init__(options)
        options.check("ray", "address", "workers", "gpus_per_worker")
        MissingDependency.check("--engine ray", "ray", "ray")
        self._ray: Any = None
        self._ours = False
        """Whether this object has connected to the cluster, and not the program."""
        self._share = WorkerShare(0, 0, self.separate)
        self._needs: dict[str, float] = {}
        """Resources that each actor needs, in Ray's words."""
        self._actors: dict[int, _Actor] = {}
        self._explain_at: float | None = None

    def connect(self) -> int:
        if self._ray is None:
            address = self.options.address or os.environ.get("RAY_ADDRESS") or "local"
            self._ray = _import_ray(local=address == "local")
            if not self._ray.is_initialized():
                _connect(self._ray, address)
                self._ours = True
            self._share, self._needs = _share_out(self._ray, self.options)
        self._explain_at = time.monotonic() + START_SECONDS
        return self._share.workers

    def close(self) -> None:
        super().close()
        if self._ours:
            self._ray.shutdown()
        self._ray, self._ours = None, False

    def start(self, worker: int, task: Task[Any, Any]) -> None:
        # A dead actor is not started again by Ray: the pool decides what happens next.
        kind = self._ray.remote(HostedWorker).options(**self._needs, max_restarts=0, max_task_retries=0)
        pickled = pickle.dumps((task, self._share))
        self._actors[worker] = _Actor(kind.remote(worker), pickled)
        self._ask(worker, "begin", pickled)

    def give(self, worker: int, items: Sequence[Any], again: bool) -> None:
        self._ask(worker, "work", items, again)

    def _ask(self, worker: int, method: str, *arguments: Any) -> None:
        actor = self._actors[worker]
        actor.method, actor.answer = method, getattr(actor.handle, method).remote(*arguments)

    def wait(self) -> Sequence[WorkerReport]:
        while True:
            answers = {actor.answer: worker for worker, actor in self._actors.items() if actor.answer is not None}
            left = None if self._explain_at is None else max(0.0, self._explain_at - time.monotonic())
            ready = self._ray.wait(list(answers), num_returns=1, timeout=left)[0]
            if not ready:
                self._explain_waiting()
            elif report := self._hear(answers[ready[0]]):
                return [report]

    def _hear(self, worker: int) -> WorkerReport | None:
        """Read the answer of an actor; None if it must be asked again."""
        actor, errors = self._actors[worker], self._ray.exceptions
        answer, actor.answer = actor.answer, None
        try:
            report = self._ray.get(answer)
        except errors.RayActorError as error:
            return self._unanswered(worker, error)
        except errors.RayError as error:  # such as one of its own memory
            return ErrorReport(worker, error) if actor.method == "work" else StartFailure(worker, error)
        actor.questions = 0
        return report or LostAnswerReport(worker)

    def _unanswered(self, worker: int, error: Exception) -> WorkerReport | None:
        """A worker whose connection broke may live: it is asked until Ray knows."""
        actor = self._actors[worker]
        if isinstance(error, self._ray.exceptions.ActorUnavailableError) and actor.questions < MOST_QUESTIONS:
            time.sleep(PAUSE_SECONDS if actor.questions else 0)
            actor.questions += 1
            self._ask(worker, *(["begin", actor.begun_with] if actor.method == "begin" else ["is_there"]))
            return None
        return StartFailure(worker, error) if actor.method == "begin" else DeathReport(worker)

    def end(self, worker: int) -> None:
        self._ray.kill(self._actors.pop(worker).handle)

    def _explain_waiting(self) -> None:
        """Say what actors that are not ready may be waiting for: Ray starts one only where it finds room."""
        self._explain_at = None
        starting = sum(actor.method == "begin" and actor.answer is not None for actor in self._actors.values())
        if starting:
            free = self._ray.available_resources()
            needed = f"{self._needs['num_cpus']:g} CPUs and {self._needs['num_gpus']:g} GPUs"
            left = f"{free.get('CPU', 0.0):g} CPUs and {free.get('GPU', 0.0):g} GPUs"
            logger.warning(
                f"{starting} of {self._share.workers} workers are not ready after {START_SECONDS:g} s: each needs "
                f"{needed}, and {left} of the cluster are free; if no model is being loaded, end other programs there, "
                "or lower --workers or --gpus-per-worker"
            )


def _import_ray(*, local: bool) -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # otherwise Ray reports home
    if local:
        # Ray's name for a cluster that listens on the loopback address only.
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    import ray

    return ray


def _connect(ray: Any, address: str) -> None:
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


def _share_out(ray: Any, options: WorkerOptions) -> tuple[WorkerShare, dict[str, float]]:
    """The share of each worker, in our words and in Ray's, which counts parts of cores."""
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
    needs = {"num_cpus": float(int(share)) if share >= 1 else share, "num_gpus": each}
    return WorkerShare(max(1, int(share)), workers, separate=True), needs
