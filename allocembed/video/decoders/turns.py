"""Who decodes the next file, where a card's decoders and the cores may both do it: who will be done with it first."""

from threading import BoundedSemaphore, Lock

RECENT = 0.3  # share of the newest file in what a file is expected to take
FORGET = 0.995  # what the cores took counts less with each file that waits, so that they are tried again
UNKNOWN = 5.0  # seconds to wait for a place while nothing is known


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

    def wait_for_place(self) -> bool:
        """Take a place on the card; False if none becomes free, as where one thread has many files open."""
        return self._free.acquire(timeout=UNKNOWN)

    def take_place(self, work: int) -> bool:
        """Take a place on the card; False if the cores will be done earlier than a place is free and used."""
        if self._free.acquire(blocking=False):
            return True
        patience = self._patience(work)
        if patience <= 0:
            return False
        try:
            return self._free.acquire(timeout=patience)
        finally:
            with self._lock:
                self._waiting -= 1

    def card_done(self, seconds: float, work: int) -> None:
        """Give a place back."""
        with self._lock:
            self.card = _recent(self.card, seconds / work)
        self._free.release()

    def cores_done(self, seconds: float, work: int) -> None:
        """The cores have decoded a file."""
        with self._lock:
            self.cores = _recent(self.cores, seconds / work)

    def _patience(self, work: int) -> float:
        """Seconds that it is worth to wait, which are then counted; 0 if a place is not free in time."""
        with self._lock:
            if self.cores is None:
                first, self._tried = not self._tried, True  # one file is enough to know
                patience = 0.0 if first else UNKNOWN
            else:
                self.cores *= FORGET
                card = (self.card or 0.0) * work
                patience = self.cores * work - card
                patience = patience if patience > card * (self._waiting + 1) / self.places else 0.0
            self._waiting += patience > 0
            return patience


def _recent(before: float | None, value: float) -> float:
    return value if before is None else before + RECENT * (value - before)
