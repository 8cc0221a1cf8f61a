"""Words for scores: a score is compared with those that videos taken at random get for the query.

A cosine alone says little: 0.4 may be the score of every video for one query, and a clear match for another. So each
search also scores a fixed sample of the index. Of n videos that have nothing to do with a query, the best lies about
√(2 ln n) standard deviations above their mean.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from allocembed.search.index import VideoIndex

SAMPLE_VIDEOS = 200  # in the sample, with all their segments
FEWEST_VIDEOS = 5  # videos; fewer say nothing about chance
SAMPLE_SECONDS = 300.0  # after which the sample is taken again, because the index may have grown
LEAST_DEVIATION = 0.02  # standard deviation of scores; smaller differences are noise
CLEAR = 2.0  # standard deviations above the best by chance: a strong match


class ChanceLevel:
    """Scores by chance in one index."""

    def __init__(self, index: VideoIndex) -> None:
        self.index = index
        self._lock, self._taken = threading.Lock(), -math.inf
        self._rows, self._starts, self._videos = np.empty((0, 0), np.float32), np.empty(0, np.intp), 0

    def words(self, vector: np.ndarray, scores: Sequence[float]) -> list[str]:
        """A word for each score of a query: strong, likely or weak; empty if the index is too small to tell."""
        rows, starts, videos = self._sample()
        if len(starts) < FEWEST_VIDEOS:
            return [""] * len(scores)
        usual = np.maximum.reduceat(rows @ vector.astype(np.float32), starts)
        middle = float(np.median(usual))
        # Unlike the standard deviation, this is not widened by the few that do match.
        spread = max(1.4826 * float(np.median(np.abs(usual - middle))), LEAST_DEVIATION)
        return [_word((score - middle) / spread, videos) for score in scores]

    def _sample(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Vectors of some videos, where those of each video begin, and how many videos there are in all."""
        with self._lock:
            if time.monotonic() - self._taken > SAMPLE_SECONDS:
                videos = sorted(self.index.store.videos())
                chosen = random.Random(0).sample(videos, min(SAMPLE_VIDEOS, len(videos)))
                parts = [each for each in self.index.store.segments_of(chosen, ("vector",)).values() if each]
                if parts:
                    self._rows = np.stack([segment.vector for part in parts for segment in part])
                self._starts = np.cumsum([0, *map(len, parts)])[:-1]
                self._videos, self._taken = len(videos), time.monotonic()
            return self._rows, self._starts, self._videos


def _word(deviations: float, videos: int) -> str:
    """The word for a score that lies a number of standard deviations above the middle of all videos' scores.

    >>> _word(6.0, 100), _word(3.5, 100), _word(1.0, 100), _word(3.5, 1_000_000)
    ('strong', 'likely', 'weak', 'weak')
    """
    chance = math.sqrt(2 * math.log(max(videos, 2)))
    return "strong" if deviations >= chance + CLEAR else "likely" if deviations >= chance else "weak"
