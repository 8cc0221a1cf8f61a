"""A source of frames, and which of its frames are sampled: evenly spread ones, nearest keyframes, windows, a part."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from PIL import Image

from allocembed.errors import ConfigError, VideoError
from allocembed.video.clip import FETCH_AGAIN, Clip, Pixels, Seek, Stopwatch, VideoInfo, candidate_indices, on_host
from allocembed.video.decoders.base import Decoder, FrameTable, Picture, TableMismatch


@dataclass(frozen=True)
class Span:
    """Consecutive frames of a source, and the seconds that they cover."""

    first: int
    total: int
    start: float
    duration: float
    source_total: int
    """Frames in the whole source."""

    def candidates(self, count: int, *, rounds: bool = False) -> np.ndarray:
        """Frame numbers of `count` evenly spread frames."""
        return self.first + candidate_indices(self.total, count, rounds=rounds)

    def starts(self, number: int) -> list[float]:
        """Second at which each of `number` equal windows begins."""
        return (self.start + np.linspace(0, self.duration, number + 1)[:-1]).tolist()

    def windows(self, number: int, count: int) -> list[np.ndarray]:
        """Frame numbers of each of `number` equal windows: the middles of `count` equal parts, or fewer frames.

        >>> [window.tolist() for window in Span(0, 24, 0.0, 1.0, 24).windows(2, 3)]
        [[2, 6, 10], [14, 18, 22]]
        """
        middles = (np.arange(number * count) + 0.5) * self.total / (number * count)
        return [self.first + np.unique(window.astype(np.int64)) for window in middles.reshape(number, count)]

    def even_times(self) -> np.ndarray:
        """(N,) seconds of all frames of the source, if they follow each other evenly."""
        return self.start + (np.arange(self.source_total) - self.first) * self.duration / self.total

    def bounds(self, number: int, window: int) -> tuple[int, int]:
        """First frame number of window `window` of `number`, and the frame number after its last one."""
        return self.first + window * self.total // number, self.first - (-(window + 1) * self.total // number)


@dataclass(frozen=True)
class Part:
    """The seconds of a source to read: frames with start <= time < end."""

    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= (self.start or 0) < (np.inf if self.end is None else self.end):
            raise ConfigError(f"start must be 0 or more seconds and end must be later, not {self.start} and {self.end}")

    def span(self, times: np.ndarray, duration: float, source: str) -> Span:
        """Select the frames of this part, given the times of all (N,) frames and the duration of the source."""
        start, end = self.start or 0.0, duration if self.end is None else min(self.end, duration)
        first = int(np.searchsorted(times, start))
        last = len(times) if self.end is None else int(np.searchsorted(times, self.end))
        if first >= last:
            asked = f"from {start:g} s" + (f" to {self.end:g} s" if self.end is not None else "")
            raise VideoError(source, f"no frames {asked}: the video is {duration:.2f} s long; change start or end")
        return Span(first, last - first, start, end - start, len(times))


class VideoSource:
    """A video to sample: a file, a folder of images, or frames in memory. Use it as a context manager, in one thread.

    `rounds` says how positions of evenly spread frames become whole; see `candidate_indices`. A source that is `listed`
    is a list of frames, whose times are real if it is `timed`.
    """

    def __init__(
        self,
        decoder: Decoder,
        stopwatch: Stopwatch,
        part: Part,
        *,
        rounds: bool = False,
        listed: bool = False,
        timed: bool = True,
    ) -> None:
        self.decoder, self.stopwatch, self.source, self.part = decoder, stopwatch, stopwatch.source, part
        self.rounds, self.listed, self.timed = rounds, listed, timed
        self.spans: dict[Seek, Span] = {}

    @cached_property
    def table(self) -> FrameTable:
        """All frames of the source."""
        return self.decoder.find_frames()

    @cached_property
    def _quick(self) -> FrameTable | None:
        """A table for keyframes alone."""
        return self.decoder.find_keyframes()

    def _find_frames_again(self) -> bool:
        """Replace a table that was found to be wrong by one from a safer way; return whether there was one."""
        if (table := self.decoder.find_frames_again()) is None:
            return False
        self.table, self._quick = table, None
        self.spans.clear()
        return True

    def probe(self) -> VideoInfo:
        """Return size, length and rate, from one decoded frame and a count of all frames."""
        clip = self.sample(1, "keyframe")
        average = clip.total / clip.duration if clip.duration else 0.0
        return VideoInfo(clip.width, clip.height, clip.total, clip.duration, average, clip.source)

    def sample(self, count: int, seek: Seek = "exact") -> Clip:
        """Return `count` evenly spread frames, or all frames when there are fewer.

        `exact` decodes exactly those frames. `keyframe` takes the nearest keyframe within half the distance between two
        candidates instead, and decodes exactly where there is none: much faster on long videos.
        """
        self._begin(count, seek)
        quick = self._quick if seek == "keyframe" and self.part == Part() else None
        # Worth it only if all candidates have a keyframe.
        if quick and not choose_frames(quick, self._span(quick), count, seek, rounds=self.rounds)[1]:
            try:
                return self._sample_table(quick, count, seek)
            except TableMismatch:
                self._quick = None
        if self.table.trusted:
            with suppress(TableMismatch):
                return self._sample_table(self.table, count, seek)
            if self._find_frames_again():
                return self.sample(count, seek)
        # Fields as packets, invented timestamps, false keyframes: only decoding tells the frames.
        return self._read_through(count, seek)

    def sample_many(self, counts: Iterable[int], seek: Seek = "exact") -> dict[int, Clip]:
        """Return the clip that `sample` gives for each count. Exact frames are decoded once for all counts."""
        counts = sorted(set(counts))
        if len(counts) < 2 or seek != "exact" or not self.table.trusted:
            return {count: self.sample(count, seek) for count in counts}
        self._begin(counts[0], seek)
        span, table = self._span(self.table), self.table
        chosen = {count: span.candidates(count, rounds=self.rounds) for count in counts}
        canvases = {count: Canvas(len(indices)) for count, indices in chosen.items()}
        try:
            union = np.unique(np.concatenate(list(chosen.values()))).tolist()
            with self.decoder.lane():
                for index, _, pixels in self.decoder.pictures(table, union):
                    for count, indices in chosen.items():
                        if indices[position := int(np.searchsorted(indices, index)) % len(indices)] == index:
                            canvases[count].put(position, pixels)
        except TableMismatch:
            return {count: self.sample(count, seek) for count in counts}
        self.spans[seek] = span
        return {
            count: self.make_clip(canvases[count], table.times[indices], indices, span, span.start)
            for count, indices in chosen.items()
        }

    def windows(self, number: int, count: int, seek: Seek = "exact", *, within: float = 0.0) -> Iterator[Clip]:
        """Cut the source into `number` equal windows and yield `count` frames of each, in one pass.

        By `exact` seeking, a keyframe is taken instead of a frame that is at most `within` seconds away from it.
        Each frame is decoded once, and one window is held in memory at a time. Exhaust the iterator before reading
        anything else from this source.
        """
        self._begin(count, seek, number)
        if seek not in self.spans:
            self.sample(1, seek)
        span, table, done = self.spans[seek], self.table, 0
        windows, starts = span.windows(number, count), span.starts(number)
        if table.trusted and len(table) == span.source_total:
            reach = np.inf if seek == "keyframe" else within * table.tick_rate
            if reach:
                bounds = (span.bounds(number, k) for k in range(number))
                windows = [_on_keyframes(table, one, *own, reach) for one, own in zip(windows, bounds, strict=True)]
            pictures = self.decoder.pictures(table, np.unique(np.concatenate(windows)).tolist())
            try:
                for clip in self._cut(span, windows, starts, table.times, pictures):
                    yield clip
                    done += 1
                return
            except TableMismatch:
                if not done and self._find_frames_again():
                    yield from self.windows(number, count, seek, within=within)
                    return
                windows, starts = windows[done:], starts[done:]
        pictures = self._count_out(np.unique(np.concatenate(windows)))
        yield from self._cut(span, windows, starts, span.even_times(), pictures)

    def frames_at(self, seconds: Sequence[float]) -> Clip:
        """Return the frames that are shown at these seconds of the source, ascending, each once.

        They may lie outside of the part that was opened.
        """
        self._begin(len(seconds), "exact")
        if self.table.trusted:
            times = self.table.times
            shown = _shown(times, seconds)
            try:
                return self._single(
                    self._span(self.table), shown, times, self.decoder.pictures(self.table, shown.tolist())
                )
            except TableMismatch:
                if self._find_frames_again():
                    return self.frames_at(seconds)
        if "exact" not in self.spans:
            self.sample(1)  # counts the frames
        span = self.spans["exact"]
        times = span.even_times()
        shown = _shown(times, seconds)
        return self._single(span, shown, times, self._count_out(shown))

    def _single(self, span: Span, indices: np.ndarray, times: np.ndarray, pictures: Iterator[Picture]) -> Clip:
        (clip,) = self._cut(span, [indices], [float(times[indices[0]])], times, pictures)
        return clip

    def close(self) -> None:
        """Release the file."""
        self.decoder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def make_clip(self, canvas: Canvas, times: np.ndarray, indices: np.ndarray, span: Span, start: float) -> Clip:
        """The clip of frames that were put on a canvas."""
        span_of = (span.total, span.duration, self.source, start)
        return Clip(canvas.frames, times, indices, *span_of, listed=self.listed, timed=self.timed)

    def _begin(self, count: int, seek: str, number: int = 1) -> None:
        if min(count, number) < 1:
            raise ConfigError(f"count must be at least 1 frame (of at least 1 window), not {count} (of {number})")
        if seek not in ("exact", "keyframe"):
            raise ConfigError(f"seek must be 'exact' or 'keyframe', not {seek!r}")
        self.stopwatch.restart()

    def _span(self, table: FrameTable) -> Span:
        return self.part.span(table.times, table.duration, self.source)

    def _sample_table(self, table: FrameTable, count: int, seek: Seek) -> Clip:
        span = self._span(table)
        keyframes, exact = choose_frames(table, span, count, seek, rounds=self.rounds)
        wanted = sorted(keyframes + exact)
        canvas = Canvas(len(wanted))
        indices, stamps = np.full((2, len(wanted)), -1, np.int64)
        with self.decoder.lane():
            for index, stamp, pixels in self.decoder.pictures(table, exact, keyframes):
                position = int(np.searchsorted(wanted, index, side="right")) - 1
                indices[position], stamps[position] = index, stamp
                canvas.put(position, pixels)
        # In a table by decode time, times are counted from the first frame, which must therefore be among these.
        by_decoding = table.by == "dts"
        if (np.diff(indices) <= 0).any() or (by_decoding and span.first == 0 and indices[0] != 0):
            raise TableMismatch
        self.spans[seek] = span
        times = (stamps - (stamps[0] if by_decoding else table.stamps[0])) / table.tick_rate
        return self.make_clip(canvas, times, indices, span, span.start)

    def _read_through(self, count: int, seek: Seek) -> Clip:
        """Decode all frames in order: slow, but without need of timestamps or seeking.

        The number of frames is known only at the end, so the first pass takes that of the table.
        """
        guess = len(self.table)
        wanted = candidate_indices(guess if self.part == Part() else 0, count, rounds=self.rounds)
        stamps: list[int | None] = []
        for _ in range(2):
            canvas, position, stamps = Canvas(len(wanted)), 0, []
            with self.decoder.lane():
                for stamp, pixels in self.decoder.in_order(frozenset(wanted.tolist())):
                    stamps.append(stamp)
                    if pixels is not None:
                        canvas.put(position, pixels)
                        position += 1
            if not stamps or (len(stamps) != guess and self.table.counted):
                break
            times, duration = _clock(stamps, self.table)
            span = self.spans[seek] = self.part.span(times, duration, self.source)
            indices = span.candidates(count, rounds=self.rounds)
            if np.array_equal(indices, wanted):
                return self.make_clip(canvas, times[indices], indices, span, span.start)
            wanted = indices
        cause = f"the file is truncated or corrupt: {len(stamps)} of {guess} frames could be read"
        raise VideoError(self.source, f"{cause}; {FETCH_AGAIN}")

    def _count_out(self, wanted: np.ndarray) -> Iterator[Picture]:
        for index, (stamp, pixels) in enumerate(self.decoder.in_order(frozenset(wanted.tolist()))):
            if pixels is not None:
                yield index, stamp or 0, pixels
        raise VideoError(self.source, f"the file is truncated or corrupt: it ends early; {FETCH_AGAIN}")

    def _cut(
        self, span: Span, windows: list[np.ndarray], starts: list[float], times: np.ndarray, pictures: Iterator[Picture]
    ) -> Iterator[Clip]:
        held: dict[int, Pixels] = {}
        for window, start in zip(windows, starts, strict=True):
            held = {index: pixels for index, pixels in held.items() if index >= window[0]}
            canvas = Canvas(len(window))
            with self.decoder.lane():
                while window[-1] not in held:
                    index, _, pixels = next(pictures)
                    held[index] = pixels
                for position, index in enumerate(window.tolist()):
                    canvas.put(position, held[index])
            paused = time.monotonic()
            yield self.make_clip(canvas, times[window], window, span, start)
            self.stopwatch.started += time.monotonic() - paused  # the caller's time does not count


class Canvas:
    """Pixel buffer of a clip, filled one position at a time; every frame takes the size of the first one put in.

    Frames that are tensors stay where they are.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.frames: Pixels = np.empty((0, 0, 0, 3), np.uint8)

    def put(self, position: int, image: Pixels) -> None:
        """Store `image` (H, W, 3), resized if it differs in size from the first."""
        if not len(self.frames):
            shape = (self.count, *image.shape)
            self.frames = np.empty(shape, np.uint8) if isinstance(image, np.ndarray) else image.new_empty(shape)
        height, width = self.frames.shape[1:3]
        if tuple(image.shape[:2]) != (height, width):
            small = np.asarray(Image.fromarray(on_host(image)).resize((width, height), Image.Resampling.BICUBIC))
            image = small if isinstance(image, np.ndarray) else image.new_tensor(small)
        self.frames[position] = image  # pyright: ignore[reportArgumentType] (all of one kind)


def choose_frames(
    table: FrameTable, span: Span, count: int, seek: Seek, *, rounds: bool = False
) -> tuple[list[int], list[int]]:
    """Return the frames to take as keyframes and those to decode exactly: ascending, `count` or all frames in total."""
    wanted = span.candidates(count, rounds=rounds).tolist()
    keys = table.keys_within(span.first, span.first + span.total)
    if seek == "exact" or not len(keys):
        return [], wanted
    stamps, key_stamps = table.stamps, table.stamps[keys]
    interval = (stamps[wanted[-1]] - stamps[wanted[0]]) / (len(wanted) - 1) if len(wanted) > 1 else np.inf
    # A keyframe that is itself a candidate is reserved for that candidate.
    keyframes, exact, reserved = [], [], set(wanted)
    for index in wanted:
        distances = np.abs(key_stamps - stamps[index])
        nearest = int(keys[distances.argmin()])
        if distances.min() <= interval / 2 and (nearest == index or nearest not in reserved):
            keyframes.append(nearest)
            reserved.add(nearest)
        else:
            exact.append(index)
    return keyframes, exact


def _clock(stamps: list[int | None], table: FrameTable) -> tuple[np.ndarray, float]:
    """Return times and duration in seconds of frames in order: by their stamps if those never fall and seldom are
    equal, else by the frame rate."""
    known = [stamp for stamp in stamps if stamp is not None]
    steps = np.diff(known)
    if len(known) == len(stamps) and (steps >= 0).all() and np.count_nonzero(steps == 0) <= len(steps) / 20:
        times = (np.array(known, np.int64) - known[0]) / table.tick_rate
    else:
        times = np.arange(len(stamps)) / table.rate
    return times, float(times[-1]) + 1 / table.rate


def _shown(times: np.ndarray, seconds: Sequence[float]) -> np.ndarray:
    """Numbers of the frames that are shown at these seconds, each once, given the (N,) times of all."""
    return np.unique((np.searchsorted(times, np.asarray(seconds), side="right") - 1).clip(0))


def _on_keyframes(table: FrameTable, window: np.ndarray, first: int, end: int, reach: float) -> np.ndarray:
    """Move each frame to the nearest keyframe of its window [first, end) if within `reach` ticks, and within half the
    distance to the next frame."""
    keys, stamps = table.keys_within(first, end), table.stamps
    if not len(keys):
        return window
    reach = min(reach, float(stamps[window[-1]] - stamps[window[0]]) / max(1, len(window) - 1) / 2)
    distances = np.abs(stamps[keys][None] - stamps[window][:, None])
    return np.unique(np.where(distances.min(1) <= reach, keys[distances.argmin(1)], window))
