"""A disk that fails the n-th operation, for n = 1, 2, … until all succeed: files are old or new, never half.

The operations are those of allocembed.output.files: making a scratch file, opening it, each write to it, waiting for
the disk, and giving it its name. A write that fails has written half of its bytes.
"""

import builtins
import errno
import io
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import numpy as np
import torch

from allocembed.errors import AllocEmbedError
from allocembed.output.files import write_text
from allocembed.output.vectors import vector_file
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from torture_parts.common import Outcome, Settings

ERRORS = (errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.EROFS)
MOST_OPERATIONS = 10_000  # operations that a task may have


class FailingDisk:
    """Counts operations, and fails one of them."""

    def __init__(self, fails_at: int, code: int) -> None:
        self.fails_at, self.code, self.done = fails_at, code, 0

    def step(self) -> None:
        self.done += 1
        if self.done == self.fails_at:
            raise OSError(self.code, os.strerror(self.code))

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*args: Any, **named: Any) -> Any:
            self.step()
            return call(*args, **named)

        return checked

    def open(self, file: Any, mode: str = "r", *rest: Any, **named: Any) -> Any:
        if not str(file).endswith(".partial") or "r" in mode:
            return REAL_OPEN(file, mode, *rest, **named)
        self.step()
        raw = io.BufferedWriter(_FailingFile(str(file), self))
        return raw if "b" in mode else io.TextIOWrapper(raw, encoding="utf-8", errors=named.get("errors"))

    @contextmanager
    def mounted(self) -> Iterator[None]:
        with (
            mock.patch.object(os, "fsync", self.wrap(os.fsync)),
            mock.patch.object(os, "replace", self.wrap(os.replace)),
            mock.patch.object(tempfile, "mkstemp", self.wrap(tempfile.mkstemp)),
            mock.patch.object(io, "open", self.open),
            mock.patch.object(builtins, "open", self.open),
        ):
            yield


class _FailingFile(io.FileIO):
    def __init__(self, path: str, disk: FailingDisk) -> None:
        super().__init__(path, "w")
        self.disk = disk

    def write(self, data: Any) -> int:
        try:
            self.disk.step()
        except OSError:
            super().write(memoryview(data).cast("B")[: len(data) // 2])
            raise
        return super().write(data)


REAL_OPEN = io.open
Task = Callable[[Path, int], None]


def write_words(folder: Path, version: int) -> None:
    write_text(folder / "table.md", f"version {version}\n" * 5_000)


def save_policy(folder: Path, version: int) -> None:
    torch.manual_seed(version)
    module = FrameModuleConfig(visual_width=16, text_width=16, width=16, heads=2, layers=1)
    ScalePolicy(PolicyConfig(module, "backbone", "nano-qwen3", trained={"steps": version})).save_pretrained(folder)


def write_vectors(suffix: str) -> Task:
    def write(folder: Path, version: int) -> None:
        allocation = SimpleNamespace(cost=1, budget=2, base_cost=3, look_tokens=4)
        with vector_file(folder / f"vectors{suffix}") as writer:
            for number in range(20):
                vector = np.full(64, version + number, np.float32)
                writer.add(cast("Any", SimpleNamespace(source=f"{number}.mp4", vector=vector, allocation=allocation)))

    return write


def save_training(folder: Path, version: int) -> None:
    from allocembed.rdpo.checkpoint import TrainedParts, TrainingProgress, save_state
    from allocembed.rdpo.config import make_config
    from allocembed.rdpo.negatives import VectorQueue

    torch.manual_seed(version)
    policy = torch.nn.Linear(32, 32)
    optimiser = torch.optim.AdamW(policy.parameters())
    policy(torch.ones(1, 32)).sum().backward()
    optimiser.step()
    config = make_config({"backbone": "nano-qwen3", "out": "run"}, preset="nano")
    save_state(
        folder / "state",
        TrainedParts(policy, None, optimiser, VectorQueue(0, 4)),
        TrainingProgress(step=version),
        config,
    )


TASKS: dict[str, Task] = {
    "write_text": write_words,
    "save_pretrained": save_policy,
    "vectors .npz": write_vectors(".npz"),
    "vectors .jsonl": write_vectors(".jsonl"),
    "vectors .parquet": write_vectors(".parquet"),
    "state of a training": save_training,
}


def run(settings: Settings) -> Outcome:
    outcome = Outcome("disk")
    for name, task in TASKS.items():
        for fresh in (True, False):
            for place, code in enumerate(ERRORS[: max(1, round(len(ERRORS) * settings.scale))]):
                attack(outcome, settings.folder / f"{name}-{fresh}-{place}", name, task, fresh, code)
    return outcome


def attack(outcome: Outcome, folder: Path, name: str, task: Task, fresh: bool, code: int) -> None:
    """Fail the first operation, then the second, and so on, over no file or over an old one."""
    new = _written(folder / "new", task, 2)
    old = {} if fresh else _written(folder / "old", task, 1)
    for number in range(1, MOST_OPERATIONS):
        place = folder / str(number)
        if not fresh:
            task(place, 1)
        disk, what = FailingDisk(number, code), f"{name}, {errno.errorcode[code]} at operation {number}"
        failed = False
        try:
            with disk.mounted():
                task(place, 2)
        except AllocEmbedError as error:
            failed = True
            if os.strerror(code) not in str(error):
                outcome.fault("crashes", f"{what}: the message does not give the cause: {error}")
        except Exception as error:
            failed = True
            outcome.fault("crashes", f"{what}: {type(error).__name__}: {error}")
        outcome.runs += 1
        outcome.notes["failures" if failed else "successes"] += 1
        found = _read(place)
        for path in found.keys() | old.keys():
            if found.get(path) not in (old.get(path), new.get(path)):
                outcome.fault("lost", f"{what}: {path} is neither the old file nor the new one")
        if disk.done < number:
            if not failed and found != new:
                outcome.fault("lost", f"{what}: a run without failures wrote something else")
            return
        if not failed:
            outcome.fault("lost", f"{what}: the failure was not reported")
        task(place, 2)
        if _read(place) != new:
            outcome.fault("lost", f"{what}: the next run does not repair it")
    outcome.fault("hangs", f"{name}: no end after {MOST_OPERATIONS} operations")


def _written(folder: Path, task: Task, version: int) -> dict[str, bytes]:
    task(folder, version)
    return _read(folder)


def _read(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): _content(path) for path in sorted(folder.rglob("*")) if path.is_file()}


def _content(path: Path) -> bytes:
    """The bytes of a file; of an .npz file those of its arrays, because it also holds the time of writing."""
    if path.suffix != ".npz":
        return path.read_bytes()
    try:
        with np.load(path) as arrays:
            return b"".join(name.encode() + arrays[name].tobytes() for name in sorted(arrays))
    except Exception as error:
        return f"damaged: {error}".encode()
