"""The seam of decoders: the file they are given, the table of frames they find, and the pictures they give.

A name of `allocembed.decoders` stands for a subclass of `Decoders`, made once for a device and shared by all threads.
It opens a `Decoder` for each file. A decoder gets a path or an open file, and gives back values: tables, numbers and
pixels. Each decoder decides how it reads a file, in which process and on which device. `allocembed.testing.decoders`
checks both classes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from allocembed.video.clip import DecodeLimits, Pixels, Stopwatch

if TYPE_CHECKING:
    from allocembed.remote.ranged import HollowFile, RangedFile

Picture: TypeAlias = tuple[int, int, Pixels]
"""Frame number, presentation time in ticks, and (H, W, 3) uint8 RGB, upright, with square pixels."""


class TableMismatch(Exception):  # noqa: N818 (caught inside the package)
    """The decoder's frames contradict the frame table."""


@dataclass(frozen=True, eq=False)
class VideoInput:
    """A file to decode, and what that may cost."""

    file: Path | RangedFile | HollowFile
    """A local path, or a file object for what is elsewhere."""
    name: str
    """Its name in errors."""
    limits: DecodeLimits
    stopwatch: Stopwatch
    """To be checked in every loop that a file can make long."""


@dataclass(frozen=True, eq=False)
class SampleLayout:
    """Places of all samples (N,) of a local file, also of hidden ones, in the order of the file."""

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
    """Every shown frame of a source, in presentation order. The first four fields are enough for most decoders."""

    stamps: np.ndarray
    """(N,) int64 ascending ticks: presentation times, or decode times where `by` is "dts"."""
    keys: np.ndarray
    """(K,) int64 indices of the keyframes. By "dts" a keyframe is counted before the frames of an open group of
    pictures that follow it in the file but are shown before it."""
    end: int
    """The tick at which the last frame ends."""
    tick_rate: float
    """Ticks per second."""
    rate: float = 25.0
    """Frames per second on average: the clock of frames whose stamps are unusable."""
    trusted: bool = True
    """Whether frames can be found by these stamps; if not, only decoding from the start identifies a frame."""
    counted: bool = True
    """Whether the number of frames is certain. It is not where packets are counted that may hold one field or two."""
    by: Literal["pts", "dts"] = "pts"
    entries: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """(E,) int64 ascending stamps at which decoding can start: those of all keyframes, by default, and of those that an
    edit list hides."""
    seek_offset: int = 0
    """Added to a stamp, gives the container's seek target: a presentation time, even where `by` is "dts"."""
    layout: SampleLayout | None = None
    """Places of the frames in the file, if they are known."""

    def __post_init__(self) -> None:
        if not len(self.entries):
            object.__setattr__(self, "entries", self.stamps[self.keys])

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
    """Decodes one source, for one thread. What is wrong with the source is a VideoError that says what to do."""

    @abstractmethod
    def find_frames(self) -> FrameTable:
        """The table of all frames. A truncated file is an error, never a shorter table."""

    def find_frames_again(self) -> FrameTable | None:
        """A table from a safer way, where decoding contradicts the first one; None if there is no other way."""
        return None

    def find_keyframes(self) -> FrameTable | None:
        """A table that costs less than `find_frames` and is good enough for keyframes; None if there is none."""
        return None

    @abstractmethod
    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        """Yield the frames `keyframes`, which need no other frame, and then the frames `exact` in ascending order.

        Raise TableMismatch as soon as a frame is not where the table says. In a table by decode time, a keyframe has
        the number of its presentation, which is higher where frames of an open group are shown before it.
        """

    @abstractmethod
    def in_order(self, wanted: frozenset[int]) -> Iterator[tuple[int | None, Pixels | None]]:
        """Decode all frames from the start; yield each one's stamp, if it has one, and the pixels of `wanted`."""

    def lane(self) -> AbstractContextManager[Any]:
        """A lane for decoding pictures and copying them to their clip. Leaving it waits until the clip is complete."""
        return nullcontext()

    def close(self) -> None:  # noqa: B027 (some have nothing to release)
        """Release what belongs to this source."""


class Decoders(ABC):
    """Decoders of one kind, for all threads. A name of `allocembed.decoders` stands for such a class."""

    places = 0
    """Files that are decoded at the same time beside the cores, as by a GPU. As many more threads read files."""

    @classmethod
    def find(cls, device: str | None, *, named: bool) -> Self | None:
        """The decoders for pictures that a model on `device` will see; for main memory if it is None.

        None leaves the files to PyAV. If users have `named` this kind, raise ConfigError or MissingDependency where it
        cannot be used; else `auto` asks whether it is the better one.
        """
        return cls() if named else None

    @abstractmethod
    def open(self, video: VideoInput) -> Decoder:
        """A decoder for a file."""

    def readers(self, cores: int) -> int:
        """Threads that read files while a GPU embeds them."""
        return cores

    def tally(self) -> Tally | None:
        """Counts of decoded files so far; None where nothing is counted."""
        return None


class Tally(NamedTuple):
    """Counts of the files that a GPU has decoded, and of those that PyAV has, by reason.

    >>> print(Tally(3, Counter(VP8=2, gif=1)).since(Tally(2, Counter(VP8=2))))
    the GPU decoded 1 file, PyAV 1 (gif)
    """

    files: int
    declined: Counter[str]

    def since(self, before: Tally) -> Tally:
        """The difference from an earlier tally."""
        return Tally(self.files - before.files, self.declined - before.declined)

    def __str__(self) -> str:
        others = sum(self.declined.values())
        reasons = f" ({', '.join(self.declined)})" if others else ""
        return f"the GPU decoded {self.files} file{'s' * (self.files != 1)}, PyAV {others}{reasons}"
