"""A second, closer look at the moment of a hit, so that the player starts where the thing is.

A window is several seconds long, and what was found may begin before it. So single frames of the window and of its
neighbours are embedded as pictures. The first are spread over them. The next halve the time in which the thing begins
and ends. All looks together cost no more tokens than the video was embedded with as a whole. A frame
belongs to the moment if the mean of its similarities to the query and to the best frame is nearer to the best frame's
than to that of the frames around.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from allocembed.errors import AllocEmbedError, VideoError
from allocembed.search.hit import Hit

if TYPE_CHECKING:
    from allocembed.embedder import AllocEmbed
    from allocembed.search.index import VideoIndex
    from allocembed.search.store import EmbeddedSegment
    from allocembed.video import VideoSource

MOST_LOOKS = 16  # at one hit
LEAST_LOOKS = 6
LEAST_TOKENS = 12  # of a look, if that leaves enough looks
CLOSE_LOOKS = 4  # spread over the best window; half as many over another
FURTHER = 2  # windows on each side that may belong to the moment too
PRECISION = 0.4  # seconds at which an edge is found
SHORTEST_MOMENT = 1.0  # seconds of a moment
CONTRAST = 0.02  # of the likeness to the query; below it nothing stands out, and the hit stays as it is
HIT_SECONDS = 60.0  # spent on one hit; a file that is slower to decode keeps its moment


def refine(index: VideoIndex, hits: Sequence[Hit], vector: np.ndarray, most_seconds: float = HIT_SECONDS) -> list[Hit]:
    """Hits with better moments, in the same order. A hit whose file cannot be read, or shows no edges, stays.

    So does one that takes more than `most_seconds`.
    """
    segments = index.store.segments_of([hit.video for hit in hits], ("vector",))
    embedder = index.embedder
    return [_refine_hit(embedder, segments.get(hit.video, []), hit, vector, most_seconds) for hit in hits]


def _refine_hit(
    embedder: AllocEmbed, segments: Sequence[EmbeddedSegment], hit: Hit, vector: np.ndarray, most_seconds: float
) -> Hit:
    try:
        with embedder.open(hit.path) as video:
            if not segments or not video.table.trusted:  # every look would decode the whole file
                return hit
            close_up = CloseUp(embedder, video, vector, most_seconds)
            seconds = look_times(segments, vector)
            windows = segments[1:] or segments
            earliest = max(window.start for window in windows if window.start <= seconds[0])
            latest = min(window.end for window in windows if window.end >= seconds[-1])
            moment = close_up.find(seconds, earliest, latest)
    except (AllocEmbedError, OSError):
        return hit
    if moment is None:
        return hit
    start, end = moment[0], max(moment[1], moment[0] + SHORTEST_MOMENT)
    return replace(hit, start=start, end=min(end, segments[0].end), look_tokens=close_up.tokens)


def look_times(segments: Sequence[EmbeddedSegment], vector: np.ndarray) -> list[float]:
    """Seconds of the first looks: in the best window, at the edges of the windows that match like it, and one beyond.

    A video without windows is looked at as a whole.
    """
    windows = segments[1:]
    if not windows:
        return _spread(segments[0], 2 * CLOSE_LOOKS)
    scores = np.stack([segment.vector for segment in windows]) @ vector
    best = int(scores.argmax())
    enough = (scores[best] + np.median(scores)) / 2
    first = last = best
    while first > max(0, best - FURTHER) and scores[first - 1] >= enough:
        first -= 1
    while last < min(len(windows) - 1, best + FURTHER) and scores[last + 1] >= enough:
        last += 1
    looked = {first - 1, first, best, last, last + 1} & set(range(len(windows)))
    counts = {number: CLOSE_LOOKS if number == best else CLOSE_LOOKS // 2 for number in sorted(looked)}
    return [second for number, count in counts.items() for second in _spread(windows[number], count)]


def _spread(segment: EmbeddedSegment, count: int) -> list[float]:
    """The middles of `count` equal parts."""
    return (segment.start + (np.arange(count) + 0.5) * (segment.end - segment.start) / count).tolist()


class CloseUp:
    """Looks at single frames of one video, of which the budget allows a number."""

    def __init__(self, embedder: AllocEmbed, video: VideoSource, vector: np.ndarray, most_seconds: float) -> None:
        self.most_seconds, self.until = most_seconds, time.monotonic() + most_seconds
        video.stopwatch.seconds = min(video.stopwatch.seconds, most_seconds)
        about, geometry, budget = video.probe(), embedder.backbone.geometry, embedder.budget
        native = geometry.native(about.height, about.width, frames=min(budget.base_frames, about.total))
        total = budget.tokens(native, about.total, geometry.frames_per_chunk)
        self.left = min(MOST_LOOKS, max(LEAST_LOOKS, total // LEAST_TOKENS))
        self.reader = embedder.with_config(replace(embedder.config, budget=str(max(1, total // self.left))))
        self.video, self.vector = video, vector
        self.tokens = 0
        """Visual tokens that all looks have cost."""

    def find(self, seconds: Sequence[float], earliest: float, latest: float) -> tuple[float, float] | None:
        """Start and end of the moment, from first looks at these seconds; None if no frame stands out.

        A moment that all looks on one side belong to begins `earliest`, or ends `latest`.
        """
        if len(seconds) > self.left - 2:
            seconds = [seconds[place] for place in np.linspace(0, len(seconds) - 1, self.left - 2, dtype=int)]
        seen = self._look(seconds)
        times = sorted(seen)
        belongs = _Membership.among([seen[second] for second in times], self.vector)
        if belongs is None:
            return None
        inside = [belongs(seen[second]) for second in times]
        first = last = belongs.best
        while first and inside[first - 1]:
            first -= 1
        while last < len(times) - 1 and inside[last + 1]:
            last += 1
        start = self._halve(times[first], times[first - 1], belongs)[0] if first else earliest
        end = self._halve(times[last], times[last + 1], belongs)[1] if last < len(times) - 1 else latest
        return start, end

    def _halve(self, inside: float, outside: float, belongs: _Membership) -> tuple[float, float]:
        """The last time that belongs to the moment and the first that does not, as near as looks allow."""
        while abs(outside - inside) > PRECISION and self.left:
            ((second, looked),) = self._look([(inside + outside) / 2]).items()
            if not min(inside, outside) < second < max(inside, outside):
                break  # there is no frame in between
            inside, outside = (second, outside) if belongs(looked) else (inside, second)
        return inside, outside

    def _look(self, seconds: Sequence[float]) -> dict[float, np.ndarray]:
        """Times and vectors of the frames that are shown at these seconds."""
        times = self.video.table.times
        shown = (np.searchsorted(times, np.asarray(seconds), side="right") - 1).clip(0)
        found = {}
        for number in np.unique(shown).tolist():
            if time.monotonic() > self.until:
                raise VideoError(
                    self.video.source, f"took longer than {self.most_seconds:g} s; search without --refine"
                )
            second = float(times[number])
            allocation, found[second] = self.reader.prepare_picture(self.video.frames_at([second]))
            self.tokens += allocation.cost
            self.left -= 1
        return dict(zip(found, self.reader.embed(list(found.values())), strict=True))


@dataclass(frozen=True, eq=False)
class _Membership:
    """Tells whether a look belongs to the moment of the best one."""

    vector: np.ndarray
    looks: np.ndarray
    """(N, dim) vectors of the first looks."""
    best: int
    """Number of the look that is most like the query."""
    usual: tuple[float, float]
    """Likeness to the query and to the best look that a frame around the moment has."""

    @classmethod
    def among(cls, looks: Sequence[np.ndarray], vector: np.ndarray) -> _Membership | None:
        """None if nothing stands out."""
        rows = np.stack(looks)
        best = int((rows @ vector).argmax())
        asked, alike = rows @ vector, rows @ rows[best]
        usual = (float(np.percentile(asked, 20)), float(np.percentile(alike, 20)))
        if asked[best] - usual[0] < CONTRAST or alike[best] - usual[1] < CONTRAST:
            return None
        return cls(vector, rows, best, usual)

    def __call__(self, look: np.ndarray) -> bool:
        shares = [
            (look @ wanted - usual) / (self.looks[self.best] @ wanted - usual)
            for wanted, usual in zip((self.vector, self.looks[self.best]), self.usual, strict=True)
        ]
        return bool(sum(shares) >= 1)
