"""Reads damaged copies of small videos: a number a line in, an outcome a line out; see media.py."""

import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

from allocembed.errors import VideoError
from allocembed.video import open_video, sample

BLOCK = 512


def main() -> None:
    originals, seed = sorted(Path(sys.argv[1]).iterdir()), int(sys.argv[2])
    scratch = Path(sys.argv[3])
    print("ready", flush=True)
    for line in sys.stdin:
        number = int(line)
        original = originals[number % len(originals)]
        path = scratch / f"{number}{original.suffix}"
        path.write_bytes(damage(original.read_bytes(), random.Random(f"{seed} {number}")))
        print(json.dumps([read(lambda way=way, path=path: way(path)) for way in WAYS]), flush=True)
        if len(sys.argv) < 5:
            path.unlink()


def read(way: Callable[[], None]) -> str:
    """How a read ended."""
    try:
        way()
    except VideoError:
        return "VideoError"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "read"


def take(path: Path) -> None:
    if not len(sample(path, 6).frames):
        raise ValueError("no frames")


def windows(path: Path, seek: str) -> None:
    with open_video(path) as video:
        for clip in video.windows(5, 2, seek):  # type: ignore[arg-type]
            if not len(clip.frames):
                raise ValueError("no frames")


WAYS = (take, lambda path: windows(path, "exact"), lambda path: windows(path, "keyframe"))


def damage(content: bytes, source: random.Random) -> bytes:
    """One to four kinds of damage, one after another."""
    data = bytearray(content)
    for _ in range(source.choice((1, 1, 1, 2, 4))):
        if len(data) > BLOCK:
            source.choice(DAMAGES)(data, source)
    return bytes(data)


def flip(data: bytearray, source: random.Random) -> None:
    # Half of the flips hit the ends, where containers keep their tables.
    for _ in range(source.choice((1, 3, 10, 100))):
        place = source.randrange(len(data))
        if source.random() < 0.5:
            place = source.choice((place % BLOCK, len(data) - 1 - place % BLOCK))
        data[place] ^= 1 << source.randrange(8)


def truncate(data: bytearray, source: random.Random) -> None:
    del data[source.randrange(1, len(data)) :]


def erase(data: bytearray, source: random.Random) -> None:
    place = source.randrange(len(data) - BLOCK // 2)
    data[place : place + BLOCK // 2] = bytes(BLOCK // 2)


def swap(data: bytearray, source: random.Random) -> None:
    size = source.randrange(8, BLOCK // 2)
    one, other = sorted(source.randrange(len(data) - size) for _ in range(2))
    if other - one >= size:
        data[one : one + size], data[other : other + size] = data[other : other + size], data[one : one + size]


def scramble(data: bytearray, source: random.Random) -> None:
    size = source.randrange(1, BLOCK)
    place = source.randrange(len(data) - size)
    data[place : place + size] = source.randbytes(size)


def insert(data: bytearray, source: random.Random) -> None:
    place = source.randrange(len(data))
    data[place:place] = source.randbytes(source.randrange(1, 64))


def remove(data: bytearray, source: random.Random) -> None:
    place = source.randrange(len(data) - BLOCK // 2)
    del data[place : place + source.randrange(1, BLOCK // 2)]


DAMAGES = (flip, flip, truncate, erase, swap, scramble, insert, remove)

if __name__ == "__main__":
    main()
