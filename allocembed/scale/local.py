"""Worker processes on this machine, one for each device, behind the few calls of Ray that `WorkerPool` makes.

Nothing needs to be installed for it. A process that dies is started again. All end with the process that started them,
however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import cycle
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any

from allocembed.errors import ConfigError

CARD = "cuda"


class ActorDied(Exception):  # noqa: N818 (stands for an error of Ray)
    """The process ended before it answered. `cause` is what its start raised, if that was it."""

    def __init__(self, cause: Exception | None = None) -> None:
        super().__init__(str(cause or "the process died"))
        self.cause = cause


class TaskFailed(Exception):  # noqa: N818
    """The call raised `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


class Unavailable(ActorDied):
    """Never raised here: a process either starts or fails."""


class PendingAnswer:
    """What a call will return."""

    def __init__(self) -> None:
        self.done = False
        self.value: Any = None
        self.error: Exception | None = None


class Actor:
    """An object in a process of its own. `actor.method.remote(…)` calls a method of it."""

    def __init__(self, kind: type, arguments: tuple[Any, ...], environment: Mapping[str, str]) -> None:
        self.kind, self.arguments, self.environment = kind, arguments, environment
        self.waiting: list[PendingAnswer] = []
        self.unsent: list[tuple[str, tuple[Any, ...]]] = []
        self.start()

    def start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, other = context.Pipe()
        given = (other, self.kind, self.arguments, dict(self.environment))
        self.process = context.Process(target=serve, args=given, daemon=True)
        self.process.start()
        other.close()
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return SimpleNamespace(remote=lambda *arguments: self.call(name, arguments))

    def call(self, name: str, arguments: tuple[Any, ...]) -> PendingAnswer:
        if self.dead:
            self.start()
        answer = PendingAnswer()
        self.waiting.append(answer)
        self.unsent.append((name, arguments))
        if len(self.waiting) == 1:
            self.send_next()
        return answer

    def send_next(self) -> None:
        """Send the oldest call. One at a time: two processes that both send more than a line holds would block."""
        if self.unsent:
            with suppress(OSError):  # the process has just died, which `hear` notices
                self.line.send(self.unsent.pop(0))

    def hear(self) -> None:
        """Take the next answer, or notice that there will be none. Calls are answered in order."""
        try:
            kind, value = self.line.recv()
        except (EOFError, OSError):
            self.process.join(10)
            self.fail(ActorDied())
            return
        if kind == "unable":
            self.process.join(10)
            self.fail(ActorDied(value))
        else:
            answer = self.waiting.pop(0)
            answer.done, answer.value = True, value
            answer.error = TaskFailed(value) if kind == "raised" else None
            self.send_next()

    def fail(self, error: ActorDied) -> None:
        """The process is gone: no call will be answered any more."""
        self.dead = True
        for answer in self.waiting:
            answer.done, answer.error = True, error
        self.waiting, self.unsent = [], []

    def end(self) -> None:
        self.process.kill()
        self.process.join(10)


class Call:
    """A function as an actor."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.run = function


class LocalProcesses:
    """What `WorkerPool` takes for Ray. The n-th actor gets the n-th device."""

    exceptions = SimpleNamespace(RayActorError=ActorDied, ActorUnavailableError=Unavailable, RayTaskError=TaskFailed)

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices, self.actors = list(devices), list[Actor]()
        self._next = cycle(self.devices)

    def remote(self, kind: type | Callable[..., Any]) -> Any:
        """A class whose `options(…).remote(…)` makes an actor, or a function that is called in a process of its own."""

        def make(*arguments: Any) -> Any:
            if isinstance(kind, type):
                self.actors.append(Actor(kind, arguments, environment_for(next(self._next))))
                return self.actors[-1]
            self.actors.append(Actor(Call, (kind,), environment_for(self.devices[0])))
            return self.actors[-1].run.remote(*arguments)

        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=make))

    def wait(
        self, answers: Sequence[PendingAnswer], *, num_returns: int = 1
    ) -> tuple[list[PendingAnswer], list[PendingAnswer]]:
        """Wait for the number of answers that is asked for; they come first."""
        while sum(answer.done for answer in answers) < num_returns:
            lines: dict[Any, Actor] = {actor.line: actor for actor in self.actors if actor.waiting}
            for line in wait(list(lines)):
                lines[line].hear()
        done = [answer for answer in answers if answer.done][:num_returns]
        return done, [answer for answer in answers if answer not in done]

    def get(self, answer: PendingAnswer) -> Any:
        """The value of an answer that is there, or what the call raised."""
        self.wait([answer])
        for actor in [actor for actor in self.actors if actor.kind is Call and not actor.waiting]:
            actor.end()  # a function is called once, and its process may hold a model
            self.actors.remove(actor)
        if answer.error is not None:
            raise answer.error
        return answer.value

    def kill(self, actor: Actor) -> None:
        actor.end()

    def close(self) -> None:
        for actor in self.actors:
            actor.end()


def environment_for(device: str) -> dict[str, str]:
    """The environment in which a process sees no other card than its own.

    >>> environment_for("cpu")
    {'CUDA_VISIBLE_DEVICES': ''}
    """
    if not device.startswith(CARD):
        return {"CUDA_VISIBLE_DEVICES": ""}
    number, stated = int(device.partition(":")[2] or 0), os.environ.get("CUDA_VISIBLE_DEVICES")
    if stated is None:
        return {"CUDA_VISIBLE_DEVICES": str(number)}
    visible = [name for name in stated.split(",") if name]
    if number >= len(visible):
        raise ConfigError(f"there is no {device} among the GPUs that CUDA_VISIBLE_DEVICES={stated} leaves: name others")
    return {"CUDA_VISIBLE_DEVICES": visible[number]}


def parse_devices(text: str) -> list[str]:
    """The devices of `--devices`: `all` for every card, or names separated by commas, which may repeat.

    >>> parse_devices("0,cuda:1"), parse_devices("cpu,cpu")
    (['cuda:0', 'cuda:1'], ['cpu', 'cpu'])
    """
    if text == "all":
        import torch

        if not torch.cuda.is_available():
            raise ConfigError("--devices all finds no CUDA device here: use --devices cpu,cpu, or leave it out")
        return [f"{CARD}:{number}" for number in range(torch.cuda.device_count())]
    devices = [f"{CARD}:{name}" if name.isdigit() else name for name in text.replace(" ", "").split(",")]
    for device in devices:
        kind, _, number = device.partition(":")
        if kind not in ("cpu", CARD) or (number and (kind == "cpu" or not number.isdigit())):
            raise ConfigError(
                f"unknown device {device!r} in --devices: use all, or names such as cuda:0,cuda:1 or cpu,cpu"
            )
    return devices


def check_cards(devices: Sequence[str]) -> None:
    """Raise ConfigError if a card is named that is not there: its process would compute on the CPU instead."""
    cards = [device for device in devices if device.startswith(CARD)]
    if not cards:
        return
    import torch

    count = torch.cuda.device_count()
    for device in cards:
        if int(device.partition(":")[2] or 0) >= count:
            if not count:
                raise ConfigError(f"there is no {device} here, and no other GPU: use --devices cpu,cpu")
            raise ConfigError(f"there is no {device} here, only {count} GPUs: name others with --devices, or use all")


def serve(line: Connection, kind: type, arguments: tuple[Any, ...], environment: Mapping[str, str]) -> None:
    """The process of an actor: make the object, then answer calls until the line is closed."""
    os.environ.update(environment)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that started this one, which ends it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        made = kind(*arguments)
    except Exception as error:
        line.send(("unable", _portable(error)))
        return
    while True:
        try:
            name, given = line.recv()
        except (EOFError, OSError):
            return
        try:
            line.send(("returned", getattr(made, name)(*given)))
        except (BrokenPipeError, ConnectionResetError):
            return
        except Exception as error:
            line.send(("raised", _portable(error)))


def _end_with_parent() -> None:
    """A process that works on alone would write into an index that another run has locked."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _portable(error: Exception) -> Exception:
    """The error, or its text if it cannot be sent."""
    import pickle

    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a class of errors does when it is pickled
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
