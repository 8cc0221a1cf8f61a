"""Worker processes on this machine, one for each device. Nothing needs to be installed for it.

A process that dies is started again. All end with the process that started them, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from allocembed.errors import ConfigError
from allocembed.threads import core_count
from allocembed.workers.base import Task, WorkerOptions, WorkerShare
from allocembed.workers.hosted import HostedWorker
from allocembed.workers.pool import DeathReport, PooledWorkers, StartFailure, WorkerReport

GPU = "cuda"
END_SECONDS = 10.0  # seconds in which the system ends a process


class ProcessWorkers(PooledWorkers):
    """One process for each device of `--devices`; all GPUs if none are named."""

    def __init__(self, options: WorkerOptions) -> None:
        super().__init__(options)
        options.check("processes", "devices")
        self.devices = parse_devices(options.devices or "all")
        check_devices(self.devices)
        self._processes: dict[int, _Process] = {}

    def connect(self) -> int:
        return len(self.devices)

    def start(self, worker: int, task: Task[Any, Any]) -> None:
        share = WorkerShare(max(1, core_count() // len(self.devices)), len(self.devices), self.separate)
        self._processes[worker] = _Process(worker, environment_for(self.devices[worker]), pickle.dumps((task, share)))

    def give(self, worker: int, items: Sequence[Any], again: bool) -> None:
        with suppress(OSError):  # the process has just died, which `wait` notices
            self._processes[worker].line.send((items, again))

    def wait(self) -> Sequence[WorkerReport]:
        lines: dict[Any, int] = {process.line: worker for worker, process in self._processes.items()}
        return [self._hear(lines[line]) for line in wait(list(lines))]

    def _hear(self, worker: int) -> WorkerReport:
        process = self._processes[worker]
        try:
            report = process.line.recv()
        except (EOFError, OSError):
            report = DeathReport(worker) if process.ready else StartFailure(worker, RuntimeError("the process died"))
            process.end()
        process.ready = True
        return report

    def end(self, worker: int) -> None:
        if process := self._processes.pop(worker, None):
            process.end()


class _Process:
    """A process, and the line to it."""

    def __init__(self, number: int, environment: Mapping[str, str], pickled: bytes) -> None:
        self.ready = False
        """Whether it has ever answered."""
        context = multiprocessing.get_context("spawn")
        self.line, other = context.Pipe()
        given = (other, number, dict(environment), pickled)
        self._process = context.Process(target=serve, args=given, daemon=True)
        self._process.start()
        other.close()

    def end(self) -> None:
        self._process.kill()
        self._process.join(END_SECONDS)
        self.line.close()


def serve(line: Connection, number: int, environment: Mapping[str, str], pickled: bytes) -> None:
    """The process of a worker: begin, then do portions of work until the line is closed."""
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, which ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    worker = HostedWorker(number)
    with suppress(EOFError, OSError):  # the process that started this one is gone
        line.send(worker.begin(pickled))
        while True:
            line.send(worker.work(*line.recv()))


def _end_with_parent() -> None:
    """A process that works on alone would write into an index that another run has locked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def environment_for(device: str) -> dict[str, str]:
    """The environment in which a process sees no other GPU than its own.

    >>> environment_for("cpu")
    {'CUDA_VISIBLE_DEVICES': ''}
    """
    if not device.startswith(GPU):
        return {"CUDA_VISIBLE_DEVICES": ""}
    number, stated = int(device.partition(":")[2] or 0), os.environ.get("CUDA_VISIBLE_DEVICES")
    if stated is None:
        return {"CUDA_VISIBLE_DEVICES": str(number)}
    visible = [name for name in stated.split(",") if name]
    if number >= len(visible):
        raise ConfigError(f"there is no {device} among the GPUs that CUDA_VISIBLE_DEVICES={stated} leaves: name others")
    return {"CUDA_VISIBLE_DEVICES": visible[number]}


def parse_devices(text: str) -> list[str]:
    """The devices of `--devices`: `all` for every GPU, or names separated by commas, which may repeat.

    >>> parse_devices("0,cuda:1"), parse_devices("cpu,cpu")
    (['cuda:0', 'cuda:1'], ['cpu', 'cpu'])
    """
    if text == "all":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("--devices all finds no CUDA device here: use --devices cpu,cpu, or leave it out")
        return [f"{GPU}:{number}" for number in range(torch.cuda.device_count())]
    devices = [f"{GPU}:{name}" if name.isdigit() else name for name in text.replace(" ", "").split(",")]
    for device in devices:
        kind, _, number = device.partition(":")
        if kind not in ("cpu", GPU) or (number and (kind == "cpu" or not number.isdigit())):
            raise ConfigError(
                f"unknown device {device!r} in --devices: use all, or names such as cuda:0,cuda:1 or cpu,cpu"
            )
    return devices


def check_devices(devices: Sequence[str]) -> None:
    """Raise ConfigError if a GPU is named that is not there: its process would compute on the CPU instead."""
    named = [device for device in devices if device.startswith(GPU)]
    if not named:
        return
    import torch

    count = torch.cuda.device_count()
    for device in named:
        if int(device.partition(":")[2] or 0) >= count:
            if not count:
                raise ConfigError(f"there is no {device} here, and no other GPU: use --devices cpu,cpu")
            raise ConfigError(f"there is no {device} here, only {count} GPUs: name others with --devices, or use all")
