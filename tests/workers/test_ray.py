"""Ray on this machine: what only a cluster can do wrong."""

import logging
import os
import subprocess
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

from allocembed.errors import ConfigError
from allocembed.testing.workers import DoublingTask, DoublingWorker
from allocembed.workers import WorkerOptions, find_workers
from allocembed.workers import ray as engine
from allocembed.workers.hosted import HostedWorker
from allocembed.workers.ray import RayWorkers

pytestmark = [
    pytest.mark.slow,  # starts Ray
    pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed: pip install -e '.[ray]'"),
]


def test_workers_without_a_free_place_say_so_and_work_once_there_is_one(ray_cluster, tmp_path, monkeypatch):
    import ray

    monkeypatch.setattr(engine, "START_SECONDS", 0.5)
    other = ray.remote(HostedWorker).options(num_cpus=ray.cluster_resources()["CPU"]).remote(0)
    ray.get(other.is_there.remote())
    said = []

    class Free(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            ray.kill(other)

    handler = Free()
    engine.logger.addHandler(handler)
    in_any_case = threading.Timer(60, ray.kill, (other,))
    in_any_case.start()
    try:
        with find_workers("ray", WorkerOptions(workers=2)) as workers:
            results = list(workers.run(DoublingTask(tmp_path), iter(range(4)), DoublingWorker.give_up))
        assert sorted(results) == [(number, 2 * number) for number in range(4)]
    finally:
        in_any_case.cancel()
        engine.logger.removeHandler(handler)
    (line,) = [each for each in said if "not ready" in each]
    assert "2 of 2 workers are not ready after 0.5 s" in line and "0 CPUs and 0 GPUs of the cluster are free" in line
    assert "lower --workers" in line


class BreakingRay(RayWorkers):
    """The first answers look like those of actors whose connection has just broken."""

    losses = 2

    def connect(self) -> int:
        most = super().connect()
        if not isinstance(self._ray, _BreakingGet):
            self._ray = _BreakingGet(self._ray, self)
        return most


class _BreakingGet:
    def __init__(self, ray, owner: BreakingRay) -> None:
        self._real, self._owner = ray, owner

    def __getattr__(self, name: str):
        return getattr(self._real, name)

    def get(self, answer):
        value = self._real.get(answer)
        if getattr(value, "results", None) and self._owner.losses:
            self._owner.losses -= 1
            raise self._real.exceptions.ActorUnavailableError("the connection broke", None)
        return value


def test_a_broken_connection_is_not_a_death(ray_cluster, tmp_path):
    with BreakingRay(WorkerOptions(workers=1)) as workers:
        results = list(workers.run(DoublingTask(tmp_path), iter(range(3)), DoublingWorker.give_up))
    assert sorted(results) == [(number, 2 * number) for number in range(3)] and not workers.losses
    assert len(list(Path(tmp_path).iterdir())) == 1, "the worker was not started again"


def test_a_local_cluster_cannot_be_reached_from_other_machines(ray_cluster):
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [line.split()[3] for line in listening if "ray" in line or f"pid={os.getpid()}," in line or "gcs" in line]
    assert len(ours) > 3
    assert all("127.0.0.1" in address or "[::1]" in address for address in ours), ours


def test_more_gpus_than_there_are_is_an_error(ray_cluster, tmp_path):
    with (
        find_workers("ray", WorkerOptions(gpus_per_worker=1)) as workers,
        pytest.raises(ConfigError, match="need more than the 0 GPUs"),
    ):
        list(workers.run(DoublingTask(tmp_path), iter([1]), DoublingWorker.give_up))
