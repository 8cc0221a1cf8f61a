"""Messages for people, on stderr: notes, complaints and progress."""

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import IO, Any, cast

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from allocembed.words import printable, without_passwords

LINE_SECONDS = 30.0  # seconds between progress lines where stderr is no terminal
RATE_SECONDS = 60.0  # seconds over which the rate is measured
STREAM_ERRORS = OSError, ValueError, AttributeError  # of a stream that is full, closed, or not there at all


class _BestEffort:
    """stderr as it is at the moment. What cannot be written is lost, and does not cost the result."""

    def write(self, text: str) -> int:
        with suppress(*STREAM_ERRORS):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(*STREAM_ERRORS):
            sys.stderr.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


stderr = Console(file=cast(IO[str], _BestEffort()), highlight=False)
"""For notes and progress; `set_quiet` silences it."""
_complaints = Console(file=cast(IO[str], _BestEffort()), highlight=False)


def set_quiet(quiet: bool) -> None:
    """Silence notes and progress; complaints remain."""
    stderr.quiet = quiet


def say(text: str) -> None:
    """Print a note as it is: brackets are no markup, long lines are not broken."""
    stderr.print(printable(without_passwords(text), "\n"), soft_wrap=True, markup=False)


def complain(label: str, text: str = "") -> None:
    """Print what went wrong, also with --quiet."""
    text = printable(without_passwords(text), "\n")
    _complaints.print(Text.assemble((label, "red"), f" {text}" if text else ""), soft_wrap=True)


class ProgressLine:
    """Progress of a task: done, total, rate and the time left, which is the remainder divided by the shown rate."""

    def __init__(self, description: str, total: int | None) -> None:
        self.description, self.total, self.done, self.note = description, total, 0, ""
        self._history = deque([(time.monotonic(), 0)])

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Set how much is done, and the total and a note if they are known."""
        self.done, self.total, self.note = done, self.total if total is None else total, note
        now = time.monotonic()
        while len(self._history) > 1 and self._history[1][0] < now - RATE_SECONDS:
            self._history.popleft()
        self._history.append((now, done))

    def advance(self, note: str = "") -> None:
        """Count one more as done."""
        self.update(self.done + 1, note=note)

    def pace(self) -> str:
        """Count, rate, time left and note."""
        begin, before = self._history[0]
        rate = (self.done - before) / max(time.monotonic() - begin, 1e-9)
        count = f"{self.done:,}" if self.total is None else f"{self.done:,}/{self.total:,}"
        return ", ".join(filter(None, [count, *describe_rate(rate, (self.total or 0) - self.done), self.note]))

    def __rich__(self) -> Table:
        line = Table.grid(padding=(0, 1))
        line.add_row(Text(self.description), ProgressBar(self.total, self.done, width=40), Text(self.pace()))
        return line


def describe_rate(rate: float, remaining: int) -> list[str]:
    """A rate per second in a unit that suits it, and the time left at the rate as shown.

    >>> describe_rate(2.04, 60), describe_rate(0.01, 3), describe_rate(0.0, 3)
    (['2.0/s', '0:30 left'], ['36.0/h', '5:00 left'], [])
    """
    for unit, seconds in (("s", 1), ("min", 60), ("h", 3600)):
        shown = round(rate * seconds, 1)
        if shown >= 1:
            left = max(remaining, 0) * seconds / shown
            minutes, rest = divmod(round(left), 60)
            clock = f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
            return [f"{shown:,.1f}/{unit}", f"{clock} left"] if remaining > 0 else [f"{shown:,.1f}/{unit}"]
    return []


@contextmanager
def progress(description: str, total: int | None = None) -> Iterator[ProgressLine]:
    """Show progress while the block runs: a bar in a terminal, else a line every 30 seconds."""
    with showing(ProgressLine(description, total)) as line:
        yield line


@contextmanager
def showing(line: ProgressLine) -> Iterator[ProgressLine]:
    """Show a given line while the block runs. It may be shown again later and continues where it was."""
    if stderr.is_terminal and not stderr.quiet:
        with Live(line, console=stderr, transient=True, refresh_per_second=10):
            yield line
        return
    stopped = Event()

    def report() -> None:
        while not stopped.wait(LINE_SECONDS):
            say(f"{line.description}: {line.pace()}")

    thread = Thread(target=report, daemon=True)
    thread.start()
    try:
        yield line
    finally:
        stopped.set()
        thread.join()
