"""Progress of an evaluation in a file beside its results, for runs that nobody watches."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from allocembed.errors import OutputError
from allocembed.output.console import ProgressLine

LOG_SECONDS = 10.0  # seconds between two lines


class ProgressLog:
    """Appends lines with the date and time to a file. Each line is on the disk before the run continues."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        """None writes nothing."""

    def note(self, text: str) -> None:
        """Append a line."""
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8", errors="replace") as file:
                file.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {text}\n")
        except OSError as error:
            cause = error.strerror or error
            raise OutputError(f"cannot write {self.path}: {cause}; make room there, or choose another place") from error

    def stop(self, error: BaseException) -> None:
        """Append why the run ends early. A run that has not begun leaves no file, and a full disk is no news."""
        if self.path is not None and self.path.exists():
            with suppress(OutputError):
                self.note(f"stopped: {str(error) or type(error).__name__}")

    def follow(
        self, title: str, failures: Mapping[str, str], also: Callable[[int, int], None] | None = None
    ) -> Callable[[int, int], None]:
        """Make a function of done and total that writes count, rate, time left and failures, and calls `also`.

        `failures` grows during the run; each new error gets a line of its own.
        """
        line, reported, written = ProgressLine(title, None), set[str](), time.monotonic()

        def update(done: int, total: int) -> None:
            nonlocal written
            if also:
                also(done, total)
            for error in [] if len(failures) == len(reported) else sorted(set(failures.values()) - reported):
                reported.add(error)
                self.note(f"{title}: cannot read {error}")
            line.update(done, total, f"{len(reported):,} unreadable" if reported else "")
            if done == total or time.monotonic() - written > LOG_SECONDS:
                self.note(f"{title}: {line.pace()}")
                written = time.monotonic()

        return update
