"""Put hits in order: lines by their words, pictures and lines together by reciprocal ranks, near-duplicates folded."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from allocembed.search.hit import Hit
from allocembed.search.store.base import FoundLine

NEIGHBOURS = 10.0  # seconds: a sentence may continue over a few lines
ENOUGH = 0.66  # share of the query's words that a line and its neighbours must have to count beside pictures
FLATNESS = 60  # of reciprocal ranks: the higher, the less the first places differ
SAME_VIDEO = 0.95  # cosine of whole videos above which they count as near-duplicates


def rank_lines(wanted: Sequence[str], lines: Iterable[FoundLine]) -> dict[str, tuple[float, FoundLine]]:
    """The best line of each video with the share of the wanted words that were said around it, best first."""
    by_video: dict[str, list[tuple[FoundLine, set[str]]]] = {}
    for line in lines:
        by_video.setdefault(line.video, []).append((line, set(wanted) & set(line.words.split())))
    best = {video: _best_line(wanted, found) for video, found in by_video.items()}
    order = sorted(best, key=lambda video: (-best[video][0], -best[video][1].relevance, video))
    return {video: best[video] for video in order}


def _best_line(wanted: Sequence[str], found: list[tuple[FoundLine, set[str]]]) -> tuple[float, FoundLine]:
    """The line with most of the wanted words around it. A window slides over the lines and counts their words."""
    found = sorted(found, key=lambda each: each[0].start)
    said = Counter[str]()
    shares: list[float] = []
    first = last = 0
    for line, _ in found:
        while last < len(found) and found[last][0].start <= line.start + NEIGHBOURS:
            said.update(found[last][1])
            last += 1
        while found[first][0].start < line.start - NEIGHBOURS:
            said.subtract(found[first][1])
            first += 1
        shares.append(sum(count > 0 for count in said.values()) / len(set(wanted)))
    place = max(range(len(found)), key=lambda at: (shares[at], found[at][0].relevance, -found[at][0].start))
    return shares[place], found[place][0]


def fuse(pictures: Sequence[str], lines: Sequence[str]) -> list[tuple[str, bool]]:
    """Videos in the order of the sums of their reciprocal ranks, and whether the line counted at least as much.

    Of equals, a video found by a line comes first: that its words are the query's is no accident.

    >>> fuse(["a", "b", "c"], ["b"]), fuse(["a", "b"], ["c"])
    ([('b', True), ('a', False), ('c', False)], [('c', True), ('a', False), ('b', False)])
    """
    by_picture = {video: 1 / (FLATNESS + rank) for rank, video in enumerate(pictures, 1)}
    by_line = {video: 1 / (FLATNESS + rank) for rank, video in enumerate(lines, 1)}
    videos = dict.fromkeys([*lines, *pictures])
    sums = {video: by_picture.get(video, 0.0) + by_line.get(video, 0.0) for video in videos}
    order = sorted(sums, key=lambda video: -sums[video])
    return [(video, by_line.get(video, 0.0) >= by_picture.get(video, 0.0)) for video in order]


def fold_copies(hits: Sequence[Hit], whole: Mapping[str, np.ndarray]) -> list[Hit]:
    """Leave out near-duplicates of better hits; `whole` has the unit vector of each whole video."""
    kept: list[Hit] = []
    for hit in hits:
        same = (place for place, other in enumerate(kept) if whole[hit.video] @ whole[other.video] >= SAME_VIDEO)
        place = next(same, None)
        if place is None:
            kept.append(hit)
        else:
            kept[place] = replace(kept[place], copies=kept[place].copies + 1)
    return kept
