"""Reports of a run: progress on stderr, train.jsonl, TensorBoard if it is installed, and where the time went."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch

from allocembed.jsonlines import parse_json, read_lines
from allocembed.output.console import progress, say
from allocembed.output.files import write_text

FILE = "train.jsonl"
SHOWN = {
    "hit1": "Hit@1 {:.1%}",
    "search1": "search Hit@1 {:.1%}",
    "cosine": "cosine {:.4f}",
    "searched": "after the search {:.4f}",
    "cost": "cost {:.3f}×",
    "scale": "scale {:.2f}",
    "concentration": "top quarter {:.0%}",
}
COUNTED = ("skipped", "broken")  # shown if they are not 0


class StepTimer:
    """Seconds spent in each part of a step. A GPU runs asynchronously, so times are exact only if the timer waits."""

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
    """Writes the reports of a run; only the first process has one that is not quiet."""

    def __init__(self, folder: Path = Path(), steps: int = 0, *, done: int = 0, quiet: bool = False) -> None:
        self.quiet, self.resources = quiet, ExitStack()
        if quiet:
            return
        keep_until(folder / FILE, done)
        self.file = self.resources.enter_context((folder / FILE).open("a", encoding="utf-8"))
        self.board = _tensorboard(folder, done)
        if self.board is not None:
            self.resources.callback(self.board.close)
        self.progress = self.resources.enter_context(progress("training", steps))
        self.progress.update(done)

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Add a line to train.jsonl: its kind ("step", "validation", "uniform"), the step, and the measures."""
        if self.quiet:
            return
        rounded = {name: _rounded(value) for name, value in values.items()}
        self.file.write(json.dumps({"kind": kind, "step": step, **rounded}, allow_nan=False) + "\n")
        self.file.flush()
        for name, value in values.items():
            if self.board is not None and isinstance(value, int | float):
                self.board.add_scalar(f"{kind}/{name}", value, step)
        if kind == "step":
            self.progress.update(step, note=describe(values))
        else:
            self.say(f"{'uniform allocation' if kind == 'uniform' else f'{kind} {step}'}: {describe(values)}")

    def within(self, part: str) -> None:
        """Show how far the current step is."""
        if not self.quiet:
            self.progress.update(self.progress.done, note=part)

    def say(self, text: str) -> None:
        """Print a line above the progress."""
        if not self.quiet:
            say(text)

    def close(self) -> None:
        self.resources.close()


def describe(values: Mapping[str, Any]) -> str:
    """The measures shown in a line of progress.

    >>> describe({"hit1": 0.5, "cost": 0.998, "scale": 0.61, "concentration": 0.4, "skipped": 2, "lr": 1e-4})
    'Hit@1 50.0%, cost 0.998×, scale 0.61, top quarter 40%, skipped 2'
    """
    shown = [form.format(values[name]) for name, form in SHOWN.items() if name in values]
    return ", ".join([*shown, *(f"{name} {values[name]}" for name in COUNTED if values.get(name))])


def keep_until(path: Path, step: int) -> None:
    """Drop the lines after the step from which a run resumes, so that no step is in the file twice."""
    if not path.exists():
        return
    kept = []
    for _, line in read_lines(path):
        try:
            if parse_json(line)["step"] <= step:
                kept.append(line.decode())
        except (ValueError, KeyError, TypeError):
            continue  # the last line of a run that was killed while writing
    write_text(path, "".join(line + "\n" for line in kept))


def _rounded(value: Any) -> Any:
    """The value as JSON can hold it: numbers that are not finite become null."""
    if not isinstance(value, float):
        return value
    return round(value, 6) if math.isfinite(value) else None


def _tensorboard(folder: Path, done: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        say("TensorBoard is not installed; for its curves: pip install 'allocembed[train]'")
        return None
    return SummaryWriter(str(folder / "tensorboard"), purge_step=done + 1 if done else None)
