"""An MP4 of two films with a sample description each, as editors join them."""

import struct
from collections.abc import Iterator
from pathlib import Path

TABLE = [b"trak", b"mdia", b"minf", b"stbl"]


def join(first: Path, second: Path, to: Path) -> Path:
    """Both have one stream of video, and pictures in the order in which they are shown."""
    (one, head, kind, movie), (two, tail, _, _) = _film(first), _film(second)
    sizes, start = [_numbers(table, b"stsz", 2) for table in (one, two)], 8 + len(kind) + 8
    keys = [_numbers(table, b"stss", 1) for table in (one, two)]
    counts = [len(each) for each in sizes]
    changed = {
        b"stsd": struct.pack(">II", 0, 2) + one[b"stsd"][8:] + two[b"stsd"][8:],
        b"stts": struct.pack(">III", 0, 1, sum(counts)) + one[b"stts"][12:16],
        b"stsc": struct.pack(">II6I", 0, 2, 1, counts[0], 1, 2, counts[1], 2),
        b"stsz": struct.pack(f">III{sum(counts)}I", 0, 0, sum(counts), *sizes[0], *sizes[1]),
        b"stco": struct.pack(">IIII", 0, 2, start, start + len(head)),
        b"stss": _table([*keys[0], *(counts[0] + key for key in keys[1])]),
    }
    movie = _changed(movie, [b"moov", *TABLE], changed)
    to.write_bytes(_box(b"ftyp", kind) + _box(b"mdat", head + tail) + movie)
    return to


def _film(path: Path) -> tuple[dict[bytes, bytes], bytes, bytes, bytes]:
    """The tables of samples, the samples, and the boxes at the start and of the film."""
    boxes = dict(_boxes(path.read_bytes()))
    content = boxes[b"moov"]
    for name in TABLE:
        content = dict(_boxes(content))[name]
    return dict(_boxes(content)), boxes[b"mdat"], boxes[b"ftyp"], _box(b"moov", boxes[b"moov"])


def _changed(data: bytes, path: list[bytes], changed: dict[bytes, bytes]) -> bytes:
    """Boxes with others in the innermost one; edit lists are left out."""
    if not path:
        return b"".join(_box(name, changed.get(name, content)) for name, content in _boxes(data))
    return b"".join(
        _box(name, _changed(content, path[1:], changed) if name == path[0] else content)
        for name, content in _boxes(data)
        if name != b"edts"
    )


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(data):
        (size,) = struct.unpack_from(">I", data, at)
        yield data[at + 4 : at + 8], data[at + 8 : at + size]
        at += size


def _box(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content) + 8) + name + content


def _numbers(table: dict[bytes, bytes], name: bytes, skipped: int) -> list[int]:
    content = table[name][4 * skipped :]
    return list(struct.unpack_from(f">{int.from_bytes(content[:4])}I", content, 4))


def _table(numbers: list[int]) -> bytes:
    return struct.pack(f">II{len(numbers)}I", 0, len(numbers), *numbers)
