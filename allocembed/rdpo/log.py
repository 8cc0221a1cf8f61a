"""What a run tells: a line on the terminal, train.jsonl, TensorBoard where it is installed, and where the time went."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from allocembed.options import stderr
from allocembed.output import whole_file

FILE = "train.jsonl"
SHOWN = {"hit1": "Hit@1 {:.1%}", "cost": "cost {:.3f}×", "scale": "scale {:.2f}", "concentration": "top quarter {:.0%}"}


class Clock:
    """Seconds spent in each part of a step. A GPU works on after its commands were given, so the parts' own times are
    exact only if the clock waits for it."""

    def __init__(self, device: torch.device, *, exact: bool = False) -> None:
        self.wait = exact and device.type == "cuda"
        self.seconds: dict[str, float] = defaultdict(float)

    @contextmanager
    def __call__(self, part: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            if self.wait:
                torch.cuda.synchronize()
            self.seconds[part] += time.monotonic() - started

    def __str__(self) -> str:
        parts = sorted(self.seconds.items(), key=lambda item: -item[1])
        return ", ".join(f"{part} {seconds:.1f} s" for part, seconds in parts)


class Log:
    """Writes what a run reports; only the first process has one that is not quiet."""

    def __init__(self, folder: Path = Path(), steps: int = 0, *, done: int = 0, quiet: bool = False) -> None:
        self.quiet = quiet
        self.board = None
        self.progress: Progress | None = None
        if quiet:
            return
        self.path = folder / FILE
        keep_until(self.path, done)
        self.file = self.path.open("a", encoding="utf-8")
        self.board = _tensorboard(folder, done)
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=16),
            MofNCompleteColumn(),
            TextColumn("{task.fields[line]}"),
            TimeRemainingColumn(),
            console=stderr,
            transient=True,
            disable=not stderr.is_terminal,
        )
        self.task = self.progress.add_task("training", total=steps, completed=done, line="")
        self.progress.start()

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """One line of train.jsonl: its kind ("step", "validation", "uniform"), the step, and what was measured."""
        if self.quiet:
            return
        rounded = {name: round(value, 6) if isinstance(value, float) else value for name, value in values.items()}
        self.file.write(json.dumps({"kind": kind, "step": step, **rounded}) + "\n")
        self.file.flush()
        for name, value in values.items():
            if self.board is not None and isinstance(value, int | float):
                self.board.add_scalar(f"{kind}/{name}", value, step)
        line = describe(values)
        if kind == "step":
            self.progress.update(self.task, completed=step, line=line)
        if kind != "step" or (not stderr.is_terminal and (step % 20 == 0 or step == 1)):
            self.say(f"{kind} {step}: {line}" if kind != "uniform" else f"uniform allocation: {line}")

    def say(self, text: str) -> None:
        """A line for the reader; it stays above the progress line."""
        if not self.quiet:
            self.progress.console.print(escape(text), soft_wrap=True)

    def close(self) -> None:
        if self.quiet:
            return
        self.progress.stop()
        self.file.close()
        if self.board is not None:
            self.board.close()


def describe(values: Mapping[str, Any]) -> str:
    """The measures that a line of progress shows.

    >>> describe({"hit1": 0.5, "cost": 0.998, "scale": 0.61, "concentration": 0.4, "skipped": 2, "lr": 1e-4})
    'Hit@1 50.0%, cost 0.998×, scale 0.61, top quarter 40%, skipped 2'
    """
    shown = [form.format(values[name]) for name, form in SHOWN.items() if name in values]
    return ", ".join([*shown, *([f"skipped {values['skipped']}"] if values.get("skipped") else [])])


def keep_until(path: Path, step: int) -> None:
    """Drops what a run wrote after the step it goes on from, so that no step stands in the file twice."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (json.JSONDecodeError, KeyError, TypeError):
            continue  # the last line of a run that was killed while it wrote
    with whole_file(path) as scratch:
        scratch.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def _tensorboard(folder: Path, done: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        stderr.print(r"[dim]no TensorBoard here: pip install -e '.\[train]' for its curves[/dim]")
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1 if done else None)
