"""Who decodes the next file, where a card's decoders and the cores may both do it: who would finish it first."""

from __future__ import annotations

import time
from threading import BoundedSemaphore, Lock

RECENT = 0.3  # share of the newest file in what a file is expected to take
FORGET = 0.995  # what the cores took counts less with each file that finds no place, so that they are tried again
LONGEST = 5.0  # seconds to wait for a place where the cores can take the file
PATIENCE = 30.0  # seconds to wait where they cannot


class Turns:
    """Places on a card, for all threads. It learns how long the card and the cores take for a file.

    Times are compared for pictures of one size: `work` is the number of pixels in a file's pictures.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.card: float | None = None
        """Seconds a pixel on the card, while others are decoded there too."""
        self.cores: float | None = None
        """Seconds a pixel on the cores; None until a file was decoded there."""
        self._free = BoundedSemaphore(places)
        self._lock = Lock()
        self._waiting = 0
        self._tried = False

    def wait_for_place(self, work: int) -> Place | None:
        """Take a place on the card; None if none becomes free, as where one thread has many files open."""
        return Place(self, work) if self._free.acquire(timeout=PATIENCE) else None

    def take_place(self, work: int) -> Place | None:
        """Take a place on the card; None if the cores would finish the file before the card could."""
        if self._free.acquire(blocking=False):
            return Place(self, work)
        patience = self.patience(work)
        if patience <= 0:
            return None
        with self._lock:
            self._waiting += 1
        try:
            return Place(self, work) if self._free.acquire(timeout=patience) else None
        finally:
            with self._lock:
                self._waiting -= 1

    def patience(self, work: int) -> float:
        """Seconds that it is worth to wait for a place; 0 if none is expected to be free in time."""
        with self._lock:
            if self.cores is None:
                first, self._tried = not self._tried, True  # one file is enough to know
                return 0.0 if first else LONGEST
            self.cores *= FORGET
            card = (self.card or 0.0) * work
            saved = self.cores * work - card
            return min(saved, LONGEST) if saved > card * (self._waiting + 1) / self.places else 0.0

    def note_cores(self, seconds: float, work: int) -> None:
        """The cores have decoded a file."""
        with self._lock:
            self.cores = _recent(self.cores, seconds / work)

    def note_card(self, seconds: float, work: int) -> None:
        """The card has decoded a file."""
        with self._lock:
            self.card = _recent(self.card, seconds / work)

    def free(self) -> None:
        """Another file may take a place."""
        self._free.release()


class Place:
    """A place on the card, from now on until it is given back."""

    def __init__(self, turns: Turns, work: int) -> None:
        self.turns, self.work, self.began = turns, work, time.monotonic()
        self.held = True

    def give_back(self, *, decoded: bool) -> None:
        """Let another file have the place. Only what the card has `decoded` tells how long it takes."""
        if self.held:
            self.held = False
            if decoded:
                self.turns.note_card(time.monotonic() - self.began, self.work)
            self.turns.free()


def _recent(before: float | None, value: float) -> float:
    return value if before is None else before + RECENT * (value - before)
