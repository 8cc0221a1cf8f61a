"""One search: the nearest vectors, the lines with the query's words, or both together, under filters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from allocembed.errors import SearchError
from allocembed.files import FileEntry
from allocembed.search.filters import Filters
from allocembed.search.hit import Hit
from allocembed.search.ranking import ENOUGH, fold_copies, fuse, rank_lines
from allocembed.search.said.words import content_words
from allocembed.search.store import EmbeddedSegment, FoundLine

if TYPE_CHECKING:
    from allocembed.search.index import VideoIndex

MOST_HITS = 100_000  # videos of one answer
POOL = 50  # videos of each kind that are ranked together
PREFILTERED = 10_000  # videos that LanceDB is given to search among; with more, the others are left out afterwards
MOST_FOLDED = 1000  # videos that are compared with each other to leave out near-duplicates
SPARE = 4  # more videos than requested, because some may have no file
ROUNDS = 4  # in which more and more lines are looked at
SHORTEST_MOMENT = 4.0  # seconds from the start of a line


@dataclass(frozen=True, eq=False)
class SearchJob:
    """One search: by a vector, by words, or by both."""

    index: VideoIndex
    vector: np.ndarray | None
    text: str = ""
    top: int = 10
    min_score: float | None = None
    filters: Filters | None = None
    dedupe: bool = False
    without: str | None = None
    """A video that must not be among the hits."""

    def __post_init__(self) -> None:
        if not 1 <= self.top <= MOST_HITS:
            raise SearchError(f"top must be from 1 to {MOST_HITS:,}, not {self.top}")
        if self.min_score is not None and not np.isfinite(self.min_score):
            raise SearchError(f"the lowest score must be a number such as 0.3, not {self.min_score}")

    def hits(self) -> list[Hit]:
        """The best videos. With `dedupe`, more candidates are taken until enough different ones are found."""
        among, count, most = self._among(), self.top, max(self.top, MOST_FOLDED)
        while True:
            ranked = self._ranked(count, among)
            hits = self._described(ranked)
            if len(hits) >= self.top or len(ranked) < count or not self.dedupe or count == most:
                return hits[: self.top]
            count = min(4 * count, most)

    def _among(self) -> set[str] | None:
        """The videos that meet the filters; None if all do."""
        filters = self.filters
        if filters is None or filters.is_empty:
            return None
        found = self.index.store.matching(filters)
        if filters.speech is not None:
            spoken = self.index.lines.videos()
            found = found & spoken if filters.speech else found - spoken
        return found

    def _ranked(self, count: int, among: set[str] | None) -> list[_Candidate]:
        """Candidates, best first, a few more than `count` if there are."""
        if self.vector is None:
            said = self._by_lines(count + SPARE, among)
            least = self.min_score or 0.0
            return [_Candidate(video, line, share, True) for video, (share, line) in said.items() if share >= least]
        wanted = max(count, POOL) if self.text else count
        seen = self._by_vector(self.vector, wanted, among)
        if self.min_score is not None:
            seen = {video: score for video, score in seen.items() if score >= self.min_score}
        if not self.text:
            return [_Candidate(video) for video in list(seen)[: count + SPARE]]
        said = {video: best for video, best in self._by_lines(wanted, among).items() if best[0] >= ENOUGH}
        order = fuse(list(seen), list(said))[: count + SPARE]
        return [_Candidate(video, said[video][1] if video in said else None, 0.0, by_line) for video, by_line in order]

    def _by_vector(self, vector: np.ndarray, count: int, among: set[str] | None) -> dict[str, float]:
        """The nearest videos. A video may have many vectors, so the limit is raised until enough videos are found."""
        store = self.index.store
        total, limit, share = store.count(), 8 * count + 32, 1.0
        if among is not None:
            share = len(among) / max(1, len(among), store.file_count())
        inside = among if among is not None and len(among) <= PREFILTERED else None
        exact = store.compares_all(inside)
        if among is not None and inside is None:
            limit = int(limit / share)
        while total and share:
            best: dict[str, float] = {}
            rows = store.nearest(vector, min(limit, total), among=inside, share=share)
            for video, score in rows:
                if video != self.without and (among is None or video in among):
                    best.setdefault(video, score)
            if len(best) >= count + SPARE or limit >= total:
                return best
            # The next round could find no more.
            if inside is not None and (len(best) >= len(inside - {self.without}) or (exact and len(rows) < limit)):
                return best
            limit, share = 4 * limit, share if among is None else share / 4
        return {}

    def _by_lines(self, count: int, among: set[str] | None) -> dict[str, tuple[float, FoundLine]]:
        """The videos whose lines have most of the words, with the share of the words and the best line."""
        wanted = content_words(self.text)
        inside = among if among is not None and len(among) <= PREFILTERED else None
        limit = 10 * count + 50
        best: dict[str, tuple[float, FoundLine]] = {}
        for _ in range(ROUNDS):
            lines = self.index.lines.find(wanted, limit, inside)
            allowed = [line for line in lines if line.video != self.without and (among is None or line.video in among)]
            best = rank_lines(wanted, allowed)
            if len(best) >= count or len(lines) < limit:
                break
            limit *= 4
        return best

    def _described(self, ranked: Sequence[_Candidate]) -> list[Hit]:
        """Hits with files, moments and scores. Those found by vectors alone are sorted by their exact scores."""
        files = self.index.files_of([each.video for each in ranked], self.filters)
        segments = self.index.store.segments_of(files, () if self.vector is None else ("vector",))
        hits = [
            _hit(files[each.video], segments[each.video], self.vector, each)
            for each in ranked
            if each.video in segments
        ]
        if not self.text:
            hits.sort(key=lambda hit: -hit.score)
        if self.dedupe:
            hits = fold_copies(hits, self._whole_vectors(segments))
        return hits

    def _whole_vectors(self, segments: Mapping[str, list[EmbeddedSegment]]) -> dict[str, np.ndarray]:
        if self.vector is not None:
            return {video: each[0].vector for video, each in segments.items()}
        videos, vectors = self.index.store.whole_vectors(segments)
        return dict(zip(videos, vectors.astype(np.float32), strict=True))


@dataclass(frozen=True)
class _Candidate:
    video: str
    line: FoundLine | None = None
    share: float = 0.0
    by_line: bool = False
    """Whether the line is why it was found."""


def _hit(file: FileEntry, segments: list[EmbeddedSegment], vector: np.ndarray | None, found: _Candidate) -> Hit:
    """Score a video by its nearest vector. Its moment is its best window, if it has any, or that of the line."""
    best, score = segments[0], found.share
    if vector is not None:
        scores = np.stack([segment.vector.astype(np.float64) for segment in segments]) @ vector
        best = segments[1 + int(scores[1:].argmax()) if len(segments) > 1 else 0]
        score = float(scores.max())
    start, end = best.start, best.end
    said = FoundLine("", 0.0, 0.0, "", "", 0.0) if found.line is None else found.line
    line_start = min(said.start, file.duration)
    if found.by_line:
        best = next((each for each in segments[1:] if each.start <= line_start < each.end), segments[-1])
        start, end = line_start, min(file.duration, max(said.end, line_start + SHORTEST_MOMENT))
    cost = sum(segment.cost for segment in segments)
    place = (start, end, best.number)
    return Hit(file.path, file.video, score, *place, file.duration, cost, said.text, line_start)
