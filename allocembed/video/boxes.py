"""Read the boxes of an MP4's header (ISO/IEC 14496-12). Whatever is damaged or ambiguous raises OddFile."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

MOST_BOXES = 10_000
MOST_BYTES = 1 << 28  # of a header: more than a hundred hours of film

Boxes = dict[bytes, list[memoryview]]
"""The content of boxes by their names."""


class OddFile(Exception):  # noqa: N818 (caught inside the package)
    """The header is damaged, or says something that only FFmpeg should interpret."""


def read_header(path: Path) -> tuple[memoryview, int]:
    """Return the only `moov` box of a file, and the size of the file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)

        def read(start: int, count: int) -> bytes:
            file.seek(start)
            return file.read(count)

        boxes = list(_boxes(read, size))
        found = [(start, end - start) for name, start, end in boxes if name == b"moov"]
        if len(found) != 1 or found[0][1] > MOST_BYTES or any(name == b"moof" for name, _, _ in boxes):
            raise OddFile
        return memoryview(read(*found[0])), size


def _boxes(read: Callable[[int, int], bytes | memoryview], end: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, start and end of the content of each box in the `end` bytes that `read` reads."""
    place = 0
    for _ in range(MOST_BOXES):
        if end - place < 8:  # QuickTime ends some lists by four zeros
            return
        header = bytes(read(place, 16))
        size, start = int.from_bytes(header[:4]), place + 8
        if size == 1:
            size, start = int.from_bytes(header[8:]), place + 16
        size = size or end - place
        if not start - place <= size <= end - place:
            raise OddFile
        yield header[4:8], start, place + size
        place += size
    raise OddFile


def inside(box: memoryview) -> Boxes:
    """The boxes in a box."""
    found: Boxes = defaultdict(list)
    for name, start, end in _boxes(lambda place, count: box[place : place + count], len(box)):
        found[name].append(box[start:end])
    return found


def only(boxes: Boxes, *path: bytes) -> memoryview:
    """The box at a path, each part of which must be there once."""
    if len(boxes[path[0]]) != 1:
        raise OddFile
    box = boxes[path[0]][0]
    return only(inside(box), *path[1:]) if path[1:] else box


def number(box: memoryview, *places: int) -> int:
    """The 32-bit number at a place, which depends on the version of the box, 0 or 1."""
    if not box or box[0] > 1 or places[box[0]] + 4 > len(box):
        raise OddFile
    return int.from_bytes(box[places[box[0]] :][:4])


def rows(box: memoryview, kind: str, columns: int = 1) -> np.ndarray:
    """(R, columns) int64: the rows of a box, after its version and their number."""
    count, width = number(box, 4, 4), columns * np.dtype(kind).itemsize
    if len(box) - 8 < count * width:
        raise OddFile
    return np.frombuffer(box[8 : 8 + count * width], kind).reshape(count, columns).astype(np.int64)
