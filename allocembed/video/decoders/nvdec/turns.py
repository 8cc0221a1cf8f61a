"""Choose between a GPU's decoders and the cores for the next file: the one that would finish it first."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

RECENT = 0.3  # weight of the newest file in the running estimate
FORGET = 0.995  # the estimate of the cores falls with each file that finds no place, so that they are tried again
LONGEST_TURN_WAIT = 5.0  # seconds to wait for a place where the cores can take the file
LONGEST_WAIT = 30.0  # seconds to wait where they cannot
KEPT_SECONDS = 0.25  # seconds for which places beside a file's own are kept until it uses them


class Turns:
    """Places on a GPU, for all threads. It learns how long the GPU and the cores take for a file.

    Times are compared for pictures of one size: `work` is the number of pixels in a file's pictures. While few files
    are decoded, a file gets places beside its own, to be decoded in several at once: half of those that are free.
    """

    def __init__(self, places: int) -> None:
        self.places = places
        self.gpu: float | None = None
        """Seconds a pixel on the GPU, while others are decoded there too."""
        self.cores: float | None = None
        """Seconds a pixel on the cores; a guess until a file was decoded there."""
        self._free = places
        self._changed = Condition()
        self._beside = 0  # places that files have beside their own
        self._unused: list[DecoderPlace] = []  # files' own places, where those beside are not in use yet
        self._waiting = 0
        self._known = False  # what the cores take

    def wait_for_place(self, work: int) -> DecoderPlace | None:
        """Take a place on the GPU; None if none becomes free, as where one thread has many files open."""
        return self._take(work, LONGEST_WAIT)

    def take_place(self, work: int) -> DecoderPlace | None:
        """Take a place on the GPU; None if the cores would finish the file before the GPU could."""
        if place := self._take(work, 0.0):
            return place
        patience = self.patience(work)
        if patience <= 0:
            return None
        with self._counted():
            return self._take(work, patience)

    def patience(self, work: int) -> float:
        """Seconds that it is worth to wait for a place; 0 if none is expected to be free in time."""
        with self._changed:
            if self._beside:
                return LONGEST_TURN_WAIT  # they will be free soon
            if self.gpu is None or self.cores is None:
                return LONGEST_TURN_WAIT
            self.cores *= FORGET
            gpu = self.gpu * work
            saved = self.cores * work - gpu
            return min(saved, LONGEST_TURN_WAIT) if saved > gpu * (self._waiting + 1) / self.places else 0.0

    def note_cores(self, seconds: float, work: int) -> None:
        """The cores have decoded a file."""
        with self._changed:
            self.cores = _recent(self.cores if self._known else None, seconds / work)
            self._known = True

    def note_gpu(self, seconds: float, work: int, guess: float) -> None:
        """The GPU has decoded a file. On the cores it was estimated at `guess` seconds."""
        with self._changed:
            self.gpu = _recent(self.gpu, seconds / work)
            if not self._known:
                self.cores = _recent(self.cores, guess / work)

    def free(self, count: int = 1) -> None:
        """Other files may take places."""
        with self._changed:
            self._free += count
            self._changed.notify(count)

    def widen(self, place: DecoderPlace) -> None:
        """Give a file places beside its own, if it has none: half of those that are free."""
        with self._changed:
            if place.held and not place.beside:
                place.beside = self._free // 2
                self._free -= place.beside
                self._beside += place.beside

    def use_beside(self, place: DecoderPlace, most: int) -> int:
        """Use up to `most` of the places beside one, and free the others; return how many are used."""
        with self._changed:
            if place in self._unused:
                self._unused.remove(place)
            spare = max(0, place.beside - most)
            place.beside -= spare
            self._beside -= spare
            self.free(spare)
            return place.beside

    def _take(self, work: int, patience: float) -> DecoderPlace | None:
        end = time.monotonic() + patience
        with self._changed:
            while not self._free:
                now = time.monotonic()
                for place in [place for place in self._unused if place.began + KEPT_SECONDS <= now]:
                    self.use_beside(place, 0)
                if self._free:
                    break
                if now >= end:
                    return None
                self._changed.wait(min([end, *(place.began + KEPT_SECONDS for place in self._unused)]) - now)
            self._free -= 1
            place = DecoderPlace(self, work)
            self.widen(place)
            if place.beside:
                self._unused.append(place)
            return place

    @contextmanager
    def _counted(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
        try:
            yield
        finally:
            with self._changed:
                self._waiting -= 1


class DecoderPlace:
    """A place on the GPU, from now on until it is given back, and perhaps others beside it."""

    def __init__(self, turns: Turns, work: int) -> None:
        self.turns, self.work, self.began = turns, work, time.monotonic()
        self.beside = 0
        """Other places that the file has. Those that it does not use soon, other files may take."""
        self.held = self.alone = True

    def use_beside(self, most: int) -> int:
        """Use up to `most` of the places beside this one, from now on; return how many there are."""
        used = self.turns.use_beside(self, most)
        self.alone = self.alone and not used
        return used

    def give_back(self, guess: float | None) -> None:
        """Let other files have the places. If the GPU has decoded the file, `guess` are the seconds estimated
        for the cores. Only a file that was decoded in one place is measured."""
        self.use_beside(0)
        if self.held:
            self.held = False
            if guess is not None and self.alone:
                self.turns.note_gpu(time.monotonic() - self.began, self.work, guess)
            self.turns.free()


def _recent(before: float | None, value: float) -> float:
    return value if before is None else before + RECENT * (value - before)
