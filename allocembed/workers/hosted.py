"""A worker in a process of its own. What it says are reports, so that every error can be sent."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

from allocembed.workers.base import Worker
from allocembed.workers.pool import ErrorReport, ReadyReport, ResultReport, StartFailure, WorkerReport


class HostedWorker:
    """The worker of this number. An engine calls its methods from afar."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._worker: Worker[Any, Any] | None = None

    def begin(self, pickled: bytes) -> WorkerReport:
        """Do a pickled task with its share. It may come twice, if the first report was lost."""
        try:
            if self._worker is None:
                task, share = pickle.loads(pickled)
                self._worker = task(share)
        except Exception as error:
            return StartFailure(self.number, _portable(error))
        return ReadyReport(self.number)

    def work(self, items: Sequence[Any], again: bool) -> WorkerReport:
        """Do a portion of work."""
        assert self._worker is not None
        try:
            return ResultReport(self.number, list(self._worker.work(items, again)))
        except Exception as error:
            return ErrorReport(self.number, _portable(error))

    def is_there(self) -> None:
        """Answer, which a dead process does not."""


def _portable(error: Exception) -> Exception:
    """The error, or its text if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # whatever a class of errors does when it is pickled
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
