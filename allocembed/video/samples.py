"""Find the frames of a local MP4 from the sample tables in its header, without reading a packet.

Listing packets through PyAV gives up Python's lock several times for each, which holds up all other threads, and reads
the whole file. The sample tables (ISO/IEC 14496-12, section 8.6) hold the same numbers. FFmpeg has rules of its own for
odd files; where one of those could matter, there is no table and the packets must be listed.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from allocembed.video.decoders.base import FrameTable, SampleLayout
from allocembed.video.packets import Demuxer, arrange

PARSED = ("h264", "av1")  # FFmpeg looks into their packets to tell keyframes
CODECS = (*PARSED, "hevc", "mpeg4")  # for others it changes lengths too
LARGEST_INT32 = (1 << 31) - 1  # FFmpeg takes longer frames for negative ones
FARTHEST = 1 << 60  # byte or tick: sums do not overflow
MOST_BOXES = 10_000
MOST_BYTES = 1 << 28  # of a header: more than a hundred hours of film
PROBED_ENTRIES = 6  # entries of FFmpeg's own index to compare with: each gives up Python's lock twice
EDITS = [np.dtype([("length", f">u{size}"), ("time", f">i{size}"), ("rate", ">u4")]) for size in (4, 8)]

Boxes = dict[bytes, list[memoryview]]
"""The content of boxes by their names."""


class OddFile(Exception):  # noqa: N818 (caught inside the package)
    """The header is damaged, or says something that only FFmpeg should interpret."""


@dataclass(frozen=True)
class Samples:
    """The header's entries of (N,) samples, in file order. Times are in ticks of the track."""

    dts: np.ndarray
    delays: np.ndarray  # from decode to presentation time
    lengths: np.ndarray
    keys: np.ndarray
    hidden: np.ndarray
    starts: np.ndarray  # first byte in the file
    sizes: np.ndarray


def table_from_samples(demuxer: Demuxer) -> FrameTable | None:
    """Return the table that `table_from_packets` would give of a local MP4 without fragments; None where in doubt.

    Keyframes are those that the header marks. Where a packet is none, decoding notices (`TableMismatch`).
    """
    stream = demuxer.stream
    codec = stream.codec_context.codec.canonical_name
    if not isinstance(demuxer.file, Path) or "mp4" not in demuxer.container.format.name or codec not in CODECS:
        return None
    index = stream.index_entries
    if len(index) != stream.frames:
        return None
    try:
        header, size = _read_header(demuxer.file)
        samples = _read_samples(header, stream.id, stream.frames, stream.time_base.denominator, parsed=codec in PARSED)
        if (samples.starts + samples.sizes).max() > size:  # truncated: the packets tell where
            return None
        pts = samples.dts + _shift(samples, index) + samples.delays
    except (OddFile, OSError):
        return None
    last = pts.argmax()
    if samples.hidden[last] or not samples.lengths[last]:  # where this one ends is FFmpeg's guess
        return None
    table = arrange(pts, samples.keys, samples.hidden, samples.lengths, float(1 / stream.time_base))
    return replace(table, layout=SampleLayout(pts, samples.starts, samples.sizes)) if table.trusted else None


def _expand(runs: np.ndarray, total: int) -> np.ndarray:
    """(total,) values of (R, 2) runs: count and value."""
    if (runs[:, 0] <= 0).any() or runs[:, 0].sum() != total:
        raise OddFile
    return np.repeat(runs[:, 1], runs[:, 0])


def _read_samples(header: memoryview, track: int, total: int, rate: int, *, parsed: bool) -> Samples:
    movie = _inside(header)
    tracks = [boxes for boxes in map(_inside, movie[b"trak"]) if _number(_only(boxes, b"tkhd"), 12, 20) == track]
    if len(tracks) != 1 or b"mvex" in movie:
        raise OddFile
    boxes = tracks[0]
    for name in (b"mdia", b"minf", b"stbl"):
        boxes = _inside(_only(boxes, name))
    # Partial sync samples and groups of random access points are keyframes too.
    if b"stps" in boxes or any(box[4:8] == b"rap " for box in boxes[b"sbgp"]):
        raise OddFile
    lengths = _expand(_rows(_only(boxes, b"stts"), ">u4", 2), total)
    if not total or lengths.max() > LARGEST_INT32:
        raise OddFile
    dts, delays, back = np.cumsum(lengths) - lengths, np.zeros(total, np.int64), 0
    if boxes[b"ctts"] and len(runs := _rows(_only(boxes, b"ctts"), ">i4", 2)):
        delays = _expand(runs, total)
        # FFmpeg moves decode times back if a delay is negative, and does not look at the last two.
        back = min(LARGEST_INT32, -int(runs[:-2, 1].min(initial=0)))
    keys = np.full(total, not boxes[b"stss"])
    if boxes[b"stss"]:
        marks = _rows(_only(boxes, b"stss"), ">u4")[:, 0]
        if not len(marks) or marks[0] != 1 or marks[-1] > total or (np.diff(marks) <= 0).any():
            raise OddFile
        keys[marks - 1] = True
    elif parsed:
        raise OddFile
    hidden = _hidden(tracks[0], dts + delays, rate, _number(_only(movie, b"mvhd"), 12, 20))
    return Samples(dts, delays + back, lengths, keys, hidden, *_places(boxes, total))


def _places(boxes: Boxes, total: int) -> tuple[np.ndarray, np.ndarray]:
    """First byte and size of each sample."""
    box = _only(boxes, b"stsz")
    if len(box) < 12 or any(box[4:8]):  # one size for all
        raise OddFile
    sizes, runs = _rows(box[4:], ">u4")[:, 0], _rows(_only(boxes, b"stsc"), ">u4", 3)
    starts = (_rows(_only(boxes, b"co64"), ">u8") if boxes[b"co64"] else _rows(_only(boxes, b"stco"), ">u4"))[:, 0]
    chunks = np.diff(runs[:, 0], append=len(starts) + 1)
    if not len(runs) or runs[0, 0] != 1 or (chunks <= 0).any() or (runs[:, 1] <= 0).any():
        raise OddFile
    if (runs[:, 2] != 1).any():  # samples of several descriptions, as in films that were joined
        raise OddFile
    if len(sizes) != total or (sizes <= 0).any() or (runs[:, 1] * chunks).sum() != total:
        raise OddFile
    if starts.min() < 0 or starts.max() > FARTHEST:
        raise OddFile
    counts, before = np.repeat(runs[:, 1], chunks), np.cumsum(sizes) - sizes
    return before + np.repeat(starts - before[np.cumsum(counts) - counts], counts), sizes


def _hidden(track: Boxes, times: np.ndarray, rate: int, movie_rate: int) -> np.ndarray:
    """(N,) whether the edit list leaves out the sample with that presentation time."""
    if not track[b"edts"] or not (boxes := _inside(_only(track, b"edts")))[b"elst"]:
        return np.zeros(len(times), bool)
    box = _only(boxes, b"elst")
    count, kind = _number(box, 4, 4), EDITS[box[0]]
    if len(box) - 8 != count * kind.itemsize or not movie_rate:
        raise OddFile
    edits = [(int(edit["time"]), int(edit["length"])) for edit in np.frombuffer(box[8:], kind)]
    while edits and edits[0][0] == -1:  # empty: what follows is shown later
        edits.pop(0)
    if len(edits) != 1 or not 0 <= edits[0][0] < FARTHEST or edits[0][1] * rate // movie_rate > FARTHEST:
        raise OddFile
    ((start, length),) = edits
    end = start + (2 * length * rate + movie_rate) // (2 * movie_rate)
    return (times < start) | (times >= end)


def _shift(samples: Samples, index: Any) -> int:
    """Return by how many ticks FFmpeg moves all decode times; its index must agree with the samples.

    Only some entries are compared: the whole index would take as long as the packets.
    """
    total, shown = len(samples.dts), np.flatnonzero(~samples.hidden)
    if not len(shown):
        raise OddFile
    shift = index[0].timestamp - int(samples.dts[0])
    first, last = int(shown[0]), int(shown[-1])
    for sample in {*np.linspace(0, total - 1, PROBED_ENTRIES, dtype=int).tolist(), first, last, max(0, first - 1)}:
        entry = index[sample]
        found = (entry.timestamp, entry.pos, entry.size, entry.is_keyframe, entry.is_discard)
        times = (samples.dts[sample] + shift, samples.starts[sample], samples.sizes[sample])
        if found != (*times, samples.keys[sample], samples.hidden[sample]):
            raise OddFile
    return shift


def _read_header(path: Path) -> tuple[memoryview, int]:
    """Return the only `moov` box of a file, and the size of the file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        found, part = [], _FilePart(file)
        for name, start, end in _boxes(part, size):
            if name == b"moof":
                raise OddFile
            if name == b"moov":
                found.append(slice(start, end))
        if len(found) != 1 or found[0].stop - found[0].start > MOST_BYTES:
            raise OddFile
        return memoryview(part[found[0]]), size


class _FilePart:
    """The bytes of a file by their positions."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file

    def __getitem__(self, part: slice) -> bytes:
        self.file.seek(part.start)
        return self.file.read(part.stop - part.start)


def _boxes(data: memoryview | _FilePart, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and end of the content of each box in the first `end` bytes."""
    place = 0
    for _ in range(MOST_BOXES):
        if end - place < 8:  # QuickTime ends some lists by four zeros
            return
        header = bytes(data[place : place + 16])
        size, start = int.from_bytes(header[:4]), place + 8
        if size == 1:
            size, start = int.from_bytes(header[8:]), place + 16
        size = size or end - place
        if not start - place <= size <= end - place:
            raise OddFile
        yield header[4:8], start, place + size
        place += size
    raise OddFile


def _inside(box: memoryview) -> Boxes:
    """The boxes in a box."""
    found: Boxes = defaultdict(list)
    for name, start, end in _boxes(box, len(box)):
        found[name].append(box[start:end])
    return found


def _only(boxes: Boxes, name: bytes) -> memoryview:
    """The box with that name, of which there must be one."""
    if len(boxes[name]) != 1:
        raise OddFile
    return boxes[name][0]


def _number(box: memoryview, *places: int) -> int:
    """The 32-bit number at a place, which depends on the version of the box, 0 or 1."""
    if not box or box[0] > 1 or places[box[0]] + 4 > len(box):
        raise OddFile
    return int.from_bytes(box[places[box[0]] :][:4])


def _rows(box: memoryview, kind: str, columns: int = 1) -> np.ndarray:
    """(R, columns) int64: the rows of a box, after its version and their number."""
    count, width = _number(box, 4, 4), columns * np.dtype(kind).itemsize
    if len(box) - 8 < count * width:
        raise OddFile
    return np.frombuffer(box[8 : 8 + count * width], kind).reshape(count, columns).astype(np.int64)
