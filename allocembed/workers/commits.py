"""Commit what is finished in portions, by number and by the clock."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, Self, TypeVar

T = TypeVar("T")


class Commits(Generic[T]):
    """Hands what is added to `commit` as soon as there are `most`, or `seconds` after the first of them.

    A thread of its own looks at the clock, so that nothing waits for the next one to be finished. Never more than
    `most` are finished and not committed. Leaving the block commits the rest, whatever has ended it.
    """

    def __init__(self, commit: Callable[[list[T]], None], most: int, seconds: float) -> None:
        self._commit, self.most, self.seconds = commit, most, seconds
        self._waiting: list[T] = []
        self._due, self._closed = 0.0, False
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._watch, name="allocembed-commits", daemon=True)

    def add(self, finished: T) -> None:
        """Add one, and commit if there are enough. Raise what an earlier commit has raised."""
        with self._changed:
            self._raise()
            if not self._waiting:
                self._due = time.monotonic() + self.seconds
                self._changed.notify()
            self._waiting.append(finished)
            if len(self._waiting) >= self.most:
                self._flush()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join()
        if self._error is None:
            self._flush()
        elif kind is None:
            self._raise()

    def _watch(self) -> None:
        with self._changed:
            while not self._closed:
                left = self._due - time.monotonic() if self._waiting else None
                if left is None or left > 0:
                    self._changed.wait(left)
                    continue
                try:
                    self._flush()
                except BaseException as error:  # raised again where results are added
                    self._error = error
                    return

    def _flush(self) -> None:
        done, self._waiting = self._waiting, []
        if done:
            self._commit(done)

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error
