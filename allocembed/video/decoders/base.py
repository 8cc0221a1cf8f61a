"""The interface of a decoder: pictures by their index in a `FrameTable`, or all pictures in order."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

Picture = tuple[int, int, np.ndarray]
"""Frame number, presentation time in ticks, and (H, W, 3) uint8 RGB, upright, square pixels. A decoder on a GPU gives a
tensor there."""


class CannotDecodeHere(Exception):  # noqa: N818 (caught inside the package)
    """This hardware cannot decode this file; the text says why."""


class HardwareError(Exception):
    """The library of the hardware has failed; the text is the name of its own error."""

    @classmethod
    @contextmanager
    def wrapped(cls) -> Iterator[None]:
        """Raise this instead of any error inside, which only calls the library. Errors of ours stay what they are."""
        try:
            yield
        except Exception as error:  # of many kinds
            raise cls(type(error).__name__) from error


class TableMismatch(Exception):  # noqa: N818 (caught inside the package)
    """The decoder's frames contradict the frame table."""


@dataclass(frozen=True, eq=False)
class SampleLayout:
    """Where the samples of a local file are, all (N,) of them, also hidden ones, in the order of the file."""

    stamps: np.ndarray
    """int64 presentation times in ticks."""
    starts: np.ndarray
    """int64 first byte."""
    sizes: np.ndarray
    """int64 bytes."""

    def find(self, stamps: np.ndarray) -> np.ndarray:
        """The numbers of the samples with these times."""
        order = np.argsort(self.stamps, kind="stable")
        return order[np.searchsorted(self.stamps, stamps, sorter=order)]


@dataclass(frozen=True, eq=False)
class FrameTable:
    """Every shown frame of a stream, in presentation order."""

    stamps: np.ndarray
    """(N,) int64 ascending ticks: presentation times, or decode times where `by` is "dts"."""
    keys: np.ndarray
    """(K,) int64 indices of the keyframes. By "dts" a keyframe is counted before the frames of an open group of
    pictures that follow it in the file but are shown before it."""
    entries: np.ndarray
    """(E,) int64 ascending: stamps of all keyframes, including those that an edit list hides: decoding starts there."""
    end: int
    """The tick at which the last frame ends."""
    tick_rate: float
    """Ticks per second."""
    by: Literal["pts", "dts"] = "pts"
    seek_offset: int = 0
    """Added to a stamp, gives the container's seek target: a presentation time, even where `by` is "dts"."""
    trusted: bool = True
    """Whether frames can be found by these stamps; if not, only decoding from the start identifies a frame."""
    layout: SampleLayout | None = None
    """Where the frames are in the file, if that is known."""

    def __len__(self) -> int:
        return len(self.stamps)

    @property
    def duration(self) -> float:
        """Seconds from the start of the first frame to the end of the last."""
        return float(self.end - self.stamps[0]) / self.tick_rate

    @property
    def times(self) -> np.ndarray:
        """(N,) float64 seconds after the first frame."""
        return (self.stamps - self.stamps[0]) / self.tick_rate

    def keys_within(self, first: int, end: int) -> np.ndarray:
        """The keyframes with first <= index < end."""
        return self.keys[(self.keys >= first) & (self.keys < end)]

    def entry_before(self, index: int) -> tuple[int, int]:
        """Return the stamp of the keyframe to decode frame `index` from, and the first frame that it gives."""
        entry = self.entries[np.searchsorted(self.entries, self.stamps[index], side="right") - 1]
        return int(entry), int(np.searchsorted(self.stamps, entry))


class Decoder(ABC):
    """Decodes the frames of one source."""

    def close(self) -> None:  # noqa: B027 (most have nothing to release)
        """Release what belongs to this source."""

    def lane(self) -> AbstractContextManager[Any]:
        """Where pictures are decoded and copied to their clip. Leaving it waits until the clip is complete."""
        return nullcontext()

    @abstractmethod
    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        """Yield the frames `keyframes`, which need no other frame, and then the frames `exact` in ascending order.

        Raise TableMismatch as soon as a frame is not where the table says. In a table by decode time, a keyframe has
        the number of its presentation, which is higher where frames of an open group are shown before it.
        """

    @abstractmethod
    def in_order(self, wanted: frozenset[int]) -> Iterator[tuple[int | None, np.ndarray | None]]:
        """Decode all frames from the start; yield each one's stamp, if it has one, and the pixels of `wanted`."""


class Hardware(Protocol):
    """Decoders outside of the CPU."""

    def open(self, demuxer: Any) -> Decoder:
        """A decoder for what a `Demuxer` reads."""
        ...
