"""Read groups of pictures from a local MP4 by its sample tables, many pictures at once, for a hardware decoder.

Every packet that PyAV reads and every call of a decoder gives Python's lock away, and while many threads decode,
getting it back takes longer than the work. So one read fetches many pictures, and the decoder gets them in one call.
It then gets the time of the first one alone. Pictures are known by their order: one comes out for each that was
given, and they come out in the order of their times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import NamedTuple

import numpy as np

from allocembed.video.decoders.base import FrameTable, SampleLayout, TableMismatch
from allocembed.video.decoders.nvdec import CannotDecodeHere
from allocembed.video.decoders.nvdec.bitstream import StartPoint, Stream
from allocembed.video.decoders.nvdec.display import Display
from allocembed.video.decoders.nvdec.sessions import DecoderSlot, Session, Surface
from allocembed.video.decoders.pyav import SEEK_COST

READ = 1 << 22  # bytes to read at once, unless one picture has more
TOGETHER, TOGETHER_BYTES = 32, 1 << 25  # pictures to decode in one call, and their bytes: the library holds them all


class OpenGroup(Exception):  # noqa: N818 (caught inside the package)
    """Decoding cannot start with this group's keyframe alone."""


@dataclass
class Group:
    """Samples to decode one after the other: from a keyframe on."""

    first: int
    last: int
    wanted: list[int]
    """Frame numbers, ascending."""


class PictureBatch(NamedTuple):
    """Pictures behind start codes, and their presentation times, in the order of the file."""

    data: bytes
    stamps: list[int]


def plan(table: FrameTable, layout: SampleLayout, wanted: Sequence[int]) -> list[Group]:
    """The groups to decode for the frames `wanted`, ascending."""
    stamps = table.stamps[list(wanted)]
    entries = table.entries[np.searchsorted(table.entries, stamps, side="right") - 1]
    groups: list[Group] = []
    for index, first, last in zip(wanted, layout.find(entries).tolist(), layout.find(stamps).tolist(), strict=True):
        if groups and first <= groups[-1].last + SEEK_COST:
            groups[-1].last = max(groups[-1].last, last)
            groups[-1].wanted.append(index)
        else:
            groups.append(Group(first, last, [index]))
    return groups


class Order:
    """Tells which of the wanted frames a picture is, by the order in which pictures come out of a decoder.

    Wanted pictures are held, as `keep` makes them, until one with a known time proves that none before it was lost.
    """

    def __init__(self, keep: Callable[[Surface, int], Surface]) -> None:
        self.missing: dict[int, int] = {}
        """Numbers of wanted frames by time."""
        self._keep = keep
        self._due: list[int] = []  # times of all pictures in the decoder, a heap
        self._known: set[int] = set()
        self._held: list[tuple[int, Surface]] = []

    def want(self, table: FrameTable, indices: Sequence[int]) -> None:
        """These frames are wanted, too."""
        self.missing |= {int(table.stamps[index]): index for index in indices}

    def expect(self, stamps: Sequence[int]) -> None:
        """The decoder gets pictures with these times, of which it is given only the first."""
        for stamp in stamps:
            heappush(self._due, stamp)
        self._known.add(stamps[0])

    def identify(self, surfaces: Iterable[Surface]) -> Iterator[tuple[int, Surface]]:
        """Take what came out; yield wanted frames that are proved to be the right ones, and their numbers."""
        for surface in surfaces:
            stamp = heappop(self._due) if self._due else None
            if stamp is None or (stamp in self._known and surface.pts != stamp):
                raise TableMismatch
            if stamp in self.missing:
                self._held.append((self.missing.pop(stamp), self._keep(surface, stamp)))
            if stamp in self._known:
                yield from self._release()

    def finish(self, surfaces: Iterable[Surface]) -> Iterator[tuple[int, Surface]]:
        """Identify the last pictures that come out."""
        yield from self.identify(surfaces)
        if self._due or self.missing:
            raise TableMismatch
        yield from self._release()

    def _release(self) -> Iterator[tuple[int, Surface]]:
        held, self._held = self._held, []
        yield from held


class GroupReader:
    """Reads the pictures of one file. `check` is called before each access to the disk."""

    def __init__(self, path: Path, layout: SampleLayout, stream: Stream, check: Callable[[], None]) -> None:
        self.layout, self.stream, self.check = layout, stream, check
        try:
            self.file = path.open("rb", buffering=0)
        except OSError as error:
            raise CannotDecodeHere("a file that cannot be read") from error

    def close(self) -> None:
        self.file.close()

    def batches(
        self, group: Group, most: int, left_out: Callable[[int], bool]
    ) -> tuple[StartPoint, Iterator[PictureBatch]]:
        """The condition for decoding to start with a group, and its batches of at most `most` pictures.

        `left_out` says of a time whether its picture is left out if no other one refers to it.
        """
        samples = self._samples(group)
        stamp, data = next(samples)
        entry, _ = self.stream.mark_units(data)
        return entry, self._batches(stamp, data, samples, most, left_out)

    def _batches(
        self,
        entry: int,
        first: memoryview,
        samples: Iterator[tuple[int, memoryview]],
        most: int,
        left_out: Callable[[int], bool],
    ) -> Iterator[PictureBatch]:
        parts, stamps = [self.stream.headers, first], [entry]
        for stamp, data in samples:
            _, disposable = self.stream.mark_units(data)
            # A picture that is shown before the keyframe belongs to the group before.
            if stamp < entry or (disposable and left_out(stamp)):
                continue
            if len(stamps) == most:
                yield PictureBatch(b"".join(parts), stamps)
                parts, stamps = [], []
            parts.append(data)
            stamps.append(stamp)
        yield PictureBatch(b"".join(parts), stamps)

    def _samples(self, group: Group) -> Iterator[tuple[int, memoryview]]:
        """Time and data of each sample, in the order of the file."""
        some = slice(group.first, group.last + 1)
        stamps, starts = self.layout.stamps[some], self.layout.starts[some]
        ends = starts + self.layout.sizes[some]
        at = 0
        while at < len(stamps):
            near = (starts[at:] >= starts[at]) & (ends[at:] <= starts[at] + READ)
            near[0] = True
            end = len(stamps) if near.all() else at + int(near.argmin())
            block = self._read(int(starts[at]), int(ends[at:end].max()))
            for number in range(at, end):
                yield int(stamps[number]), block[starts[number] - starts[at] : ends[number] - starts[at]]
            at = end

    def _read(self, start: int, end: int) -> memoryview:
        self.check()
        block, done = memoryview(bytearray(end - start)), 0
        try:
            self.file.seek(start)
            while done < len(block) and (count := self.file.readinto(block[done:])):
                done += count
        except OSError as error:
            raise CannotDecodeHere("a file that cannot be read") from error
        if done < len(block):
            raise CannotDecodeHere("a file that became shorter")
        return block


class GroupDecoder:
    """Decodes groups of one file in one session, many pictures in each call.

    What a group leaves in the session comes out when the next one begins, or in the end.
    """

    def __init__(
        self, slot: DecoderSlot, session: Session, reader: GroupReader, display: Display, *, spares: bool
    ) -> None:
        self.slot, self.session, self.reader, self.display, self.spares = slot, session, reader, display, spares
        self.most = max(1, min(TOGETHER, TOGETHER_BYTES // display.bytes))
        self.order = Order(self._keep)

    def close(self) -> None:
        self.reader.close()

    def start(self) -> None:
        """Forget what was decoded before."""
        self.session.drain()
        self.order = Order(self._keep)

    def decode(self, table: FrameTable, group: Group) -> Iterator[tuple[int, Surface]]:
        """Yield wanted frames and their numbers, also those of the group before."""
        entry, batches = self.reader.batches(group, self.most, self._is_spare)
        if entry is StartPoint.NOWHERE:
            raise OpenGroup
        if entry is StartPoint.AFTER_END:
            yield from self.finish()
        self.order.want(table, group.wanted)
        for batch in batches:
            self.order.expect(batch.stamps)
            yield from self.order.identify(self.session.decode_bytes(batch.data, batch.stamps[0]))

    def finish(self) -> Iterator[tuple[int, Surface]]:
        """Yield what is left."""
        yield from self.order.finish(self.session.drain())

    def decode_whole(self, table: FrameTable, group: Group) -> list[tuple[int, Surface]] | None:
        """All wanted frames of a group, complete on the GPU; None if decoding cannot start with it."""
        with self.slot.lane():
            self.start()
            try:
                return [*self.decode(table, group), *self.finish()]
            except OpenGroup:
                return None

    def _is_spare(self, stamp: int) -> bool:
        return self.spares and stamp not in self.order.missing

    def _keep(self, surface: Surface, pts: int) -> Surface:
        with self.slot.within():
            return Surface(pts, None, self.display.to_rgb(surface.frame))
