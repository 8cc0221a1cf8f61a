"""Windows of a long video, so that a hit has a time: how many, and their frames, one window at a time.

A window is looked at with a sixth of the candidates and a quarter of the budget of a whole video (four frames in two
frames' worth of tokens by default). The usual dozen of windows so costs three times what the whole video does, and its
cost is counted like any other. All windows are read in one pass over the file, with one window's frames held at a time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from allocembed.budget import FRAMES_PER_CHUNK, Budget
from allocembed.frames import Canvas, Clip, DecodeLimits
from allocembed.packets import FrameTable, Reader, table_from_packets
from allocembed.search.errors import SearchError
from allocembed.video import _decode_all, _decode_exactly, _Painter, _TableError

WINDOWS = 12  # of a video of usual length: the moments of most videos last a twelfth of it or more
SHORTEST = 5.0  # seconds: below that a window tells no more than its video
LONGEST = 60.0  # seconds: a hit should not have to be searched for once more
MOST = 2000  # windows of one video, whatever is asked for
CANDIDATE_SHARE = 6
BUDGET_SHARE = 4


def parse_segments(text: str) -> float | None:
    """Seconds of a window; 0 for none, None where the video's length decides.

    >>> parse_segments("auto"), parse_segments("off"), parse_segments("30")
    (None, 0.0, 30.0)
    """
    if text in ("auto", "off"):
        return None if text == "auto" else 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.5 <= seconds < math.inf:
        raise SearchError(f"segments are auto, off, or seconds from 0.5 on, as in --segments 30; not {text!r}")
    return seconds


def window_count(duration: float, segments: str) -> int:
    """How many windows a video of `duration` seconds is cut into; 0 where it is left whole.

    >>> [window_count(seconds, "auto") for seconds in (8, 30, 120, 3600)]
    [0, 6, 12, 60]
    >>> window_count(100, "30"), window_count(100, "off"), window_count(20, "30")
    (4, 0, 0)
    """
    seconds = parse_segments(segments)
    if seconds is None:
        count = max(min(WINDOWS, int(duration / SHORTEST)), math.ceil(duration / LONGEST))
    else:
        count = math.ceil(duration / seconds) if seconds else 0
    return min(count, MOST) if count > 1 else 0


def window_budget(budget: Budget) -> Budget:
    """What one window may cost.

    >>> str(window_budget(Budget.parse("8f"))), str(window_budget(Budget.parse("2048")))
    ('2f', '512')
    """
    if budget.limit is None:
        return Budget(frames=max(FRAMES_PER_CHUNK, budget.frames // BUDGET_SHARE))
    return Budget(frames=None, limit=max(1, budget.limit // BUDGET_SHARE))


def window_candidates(candidates: int) -> int:
    """Frames looked at in one window.

    >>> window_candidates(24), window_candidates(4)
    (4, 2)
    """
    return max(FRAMES_PER_CHUNK, candidates // CANDIDATE_SHARE)


def window_indices(total: int, windows: int, count: int) -> list[np.ndarray]:
    """Frames of each window: `count` in the middles of equal parts of it, or fewer where there are fewer.

    >>> [part.tolist() for part in window_indices(24, 2, 3)]
    [[2, 6, 10], [14, 18, 22]]
    """
    middles = (np.arange(windows * count) + 0.5) * total / (windows * count)
    return [np.unique(part.astype(np.int64)) for part in middles.reshape(windows, count)]


def read_windows(path: Path, whole: Clip, windows: int, count: int, seek: str, limits: DecodeLimits) -> Iterator[Clip]:
    """The clip of each window, in order; times are those of the whole video, of which a sample has been taken."""
    parts = window_indices(whole.total, windows, count)
    done = 0
    with Reader(path, whole.source, limits) as reader:
        table = table_from_packets(reader)
        if table.trusted and len(table) == whole.total:
            if seek == "keyframe":
                parts = [_on_keyframes(table, part) for part in parts]
            try:
                for clip in _by_table(reader, table, parts):
                    yield clip
                    done += 1
                return
            except _TableError:
                pass  # the decoder contradicts the table, so only counting tells which frame is which
        reader.open()
        yield from _by_counting(reader, whole, parts[done:])


def _by_table(reader: Reader, table: FrameTable, parts: list[np.ndarray]) -> Iterator[Clip]:
    paint = _Painter(reader)
    decoded = _decode_exactly(reader, table, np.unique(np.concatenate(parts)).tolist())
    pictures: dict[int, np.ndarray] = {}
    for part in parts:
        pictures = {index: pictures[index] for index in part.tolist() if index in pictures}
        while part[-1] not in pictures:
            index, frame = next(decoded)
            pictures[index] = paint(frame)
        times = (table.stamps[part] - table.stamps[0]) / table.tick_rate
        yield _clip(pictures, part, times, len(table), table.duration, reader.source)


def _by_counting(reader: Reader, whole: Clip, parts: list[np.ndarray]) -> Iterator[Clip]:
    paint = _Painter(reader)
    waiting = iter(parts)
    part = next(waiting, None)
    pictures: dict[int, np.ndarray] = {}
    for index, frame in enumerate(_decode_all(reader)):
        if part is None:
            return
        if index in part:
            pictures[index] = paint(frame)
        if index == part[-1]:
            times = part * whole.duration / whole.total
            yield _clip(pictures, part, times, whole.total, whole.duration, whole.source)
            part, pictures = next(waiting, None), {}


def _on_keyframes(table: FrameTable, part: np.ndarray) -> np.ndarray:
    """The part's frames, each moved to the nearest keyframe where that is within half the way to the next frame."""
    if not len(table.keys):
        return part
    stamps, keys = table.stamps, table.stamps[table.keys]
    reach = (stamps[part[-1]] - stamps[part[0]]) / max(1, len(part) - 1) / 2
    nearest = np.abs(keys[None] - stamps[part][:, None]).argmin(1)
    near = np.abs(keys[nearest] - stamps[part]) <= reach
    return np.unique(np.where(near, table.keys[nearest], part))


def _clip(pictures: dict[int, np.ndarray], part: np.ndarray, times: np.ndarray, *rest) -> Clip:
    canvas = Canvas(len(part))
    for slot, index in enumerate(part.tolist()):
        canvas.put(slot, pictures[index])
    return Clip(canvas.frames, times, part, *rest)
