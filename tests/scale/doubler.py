"""A worker without a model, in a module that a process imports at once."""

import os
import signal
from collections.abc import Sequence


class Doubler:
    """Doubles numbers. At 77 its process dies, and at 99 it fails."""

    def ready(self) -> int:
        return os.getpid()

    def work(self, numbers: Sequence[int], again: bool) -> list[tuple[int, int]]:
        if 99 in numbers:
            raise ValueError("a number that nobody can double")
        if 77 in numbers:
            os.kill(os.getpid(), signal.SIGKILL)
        return [(number, 2 * number) for number in numbers]
