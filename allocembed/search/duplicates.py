"""Near-duplicates: videos of an index whose whole-video vectors are almost the same.

Comparing all pairs of 100,000 videos would take ten thousand million products. Instead, in an index of more than 2,000
videos, each is assigned to the nearest of a few pivots, and compared with the videos of its eight nearest pivots only.
So their groups are approximate. Vectors are kept in half precision: 100,000 of 2,048 dimensions take 400 MB. 20,000
videos of 512 dimensions take 2.5 s on one core; all pairs in blocks would take 14 s, and a search of LanceDB's index
for each video 240 s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from allocembed.files import FileEntry
from allocembed.search.ranking import SAME_VIDEO

if TYPE_CHECKING:
    from allocembed.search.index import VideoIndex

PROBED_PARTS = 8
ALL_PAIRS_UP_TO = 2000  # videos
BLOCK_VIDEOS = 1024  # videos that are compared at once


@dataclass(frozen=True)
class Duplicate:
    """A file of a group, and how alike its video and the first of the group are."""

    file: FileEntry
    score: float


def find_duplicates(index: VideoIndex, alike: float = SAME_VIDEO) -> list[list[Duplicate]]:
    """Groups of files whose videos are near-duplicates or equal, the largest first; the best file of each is first."""
    videos, vectors = index.store.whole_vectors()
    files: dict[str, list[FileEntry]] = {}
    for file in index.files():
        files.setdefault(file.video, []).append(file)
    groups: list[list[Duplicate]] = []
    for places in connected(vectors, alike):
        members = [(file, place) for place in places for file in files.get(videos[place], ()) if not file.error]
        if len(members) > 1:
            members.sort(key=lambda each: (-each[0].width * each[0].height, -each[0].size, each[0].path))
            first = vectors[members[0][1]].astype(np.float32)
            scores = [float(vectors[place].astype(np.float32) @ first) for _, place in members]
            groups.append([Duplicate(file, score) for (file, _), score in zip(members, scores, strict=True)])
    return sorted(groups, key=lambda group: (-len(group), group[0].file.path))


def connected(vectors: np.ndarray, alike: float) -> list[list[int]]:
    """Places of vectors (n, dim), grouped: each group is connected by cosines of at least `alike`.

    Of more than ALL_PAIRS_UP_TO vectors not all pairs are compared, so a group may come out in parts.

    >>> connected(np.eye(3)[[0, 1, 0, 2]], 0.9)
    [[0, 2], [1], [3]]
    """
    parent = list(range(len(vectors)))

    def root(place: int) -> int:
        while parent[place] != place:
            parent[place] = parent[parent[place]]
            place = parent[place]
        return place

    for one, other in near_pairs(vectors, alike):
        first, second = sorted((root(one), root(other)))
        parent[second] = first
    groups: dict[int, list[int]] = {}
    for place in range(len(vectors)):
        groups.setdefault(root(place), []).append(place)
    return list(groups.values())


def near_pairs(vectors: np.ndarray, alike: float) -> Iterator[tuple[int, int]]:
    """Pairs that connect near-duplicates. Each video is linked to the first and the nearest in a cell, not to all."""
    if len(vectors) <= ALL_PAIRS_UP_TO:
        yield from _exact_pairs(vectors, alike)
        return
    for visitors, members in _cells(vectors):
        inside = vectors[members].astype(np.float32)
        for first in range(0, len(visitors), BLOCK_VIDEOS):
            block = visitors[first : first + BLOCK_VIDEOS]
            cosines = vectors[block].astype(np.float32) @ inside.T
            cosines[block[:, None] == members[None]] = -1.0
            nearest = cosines.argmax(axis=1)
            earliest = (cosines >= alike).argmax(axis=1)
            for row in np.flatnonzero(cosines[np.arange(len(block)), nearest] >= alike):
                yield int(block[row]), int(members[nearest[row]])
                yield int(block[row]), int(members[earliest[row]])


def _exact_pairs(vectors: np.ndarray, alike: float) -> Iterator[tuple[int, int]]:
    """Pairs that connect all near-duplicates: from each video to those that were not reached before."""
    exact = vectors.astype(np.float32)
    near = exact @ exact.T >= alike
    unseen = np.ones(len(vectors), bool)
    for start in range(len(vectors)):
        reached = [start] if unseen[start] else []
        unseen[start] = False
        while reached:
            one = reached.pop()
            new = np.flatnonzero(near[one] & unseen).tolist()
            unseen[new] = False
            reached += new
            yield from ((one, other) for other in new)


def _cells(vectors: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """For each pivot: the places of those that look around there, and of those that live there."""
    count = len(vectors)
    number = int(np.sqrt(count))
    chosen = np.random.default_rng(0).choice(count, number, replace=False)
    pivots = vectors[chosen].astype(np.float32)
    near = np.empty((count, min(PROBED_PARTS, number)), np.int32)
    for first in range(0, count, BLOCK_VIDEOS):
        cosines = vectors[first : first + BLOCK_VIDEOS].astype(np.float32) @ pivots.T
        near[first : first + BLOCK_VIDEOS] = np.argsort(-cosines, axis=1)[:, : near.shape[1]]
    by_home = np.argsort(near[:, 0], kind="stable")
    homes = np.searchsorted(near[by_home, 0], np.arange(number + 1))
    looks = near.ravel()
    by_look = np.argsort(looks, kind="stable")
    edges = np.searchsorted(looks[by_look], np.arange(number + 1))
    for cell in range(number):
        members = by_home[homes[cell] : homes[cell + 1]]
        if len(members):
            yield by_look[edges[cell] : edges[cell + 1]] // near.shape[1], members
