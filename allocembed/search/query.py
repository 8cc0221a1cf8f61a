"""Queries: sentences, pictures and moments of videos to look for, and sentences to avoid. No torch here.

Each part has a unit vector. What is wanted is their mean. Of what is not wanted, only the part that is orthogonal to it
is subtracted, so that "a dog, but not a brown dog" still means a dog. Several such parts together are no longer than
the longest of them, so that many exclusions do not drown what is wanted.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from allocembed.errors import SearchError
from allocembed.paths import why_absent

if TYPE_CHECKING:
    from allocembed.embedder import AllocEmbed

LONGEST_QUERY = 2000  # characters: longer than any sentence, short enough to embed quickly
MOST_PARTS = 16  # of one query: each is embedded before the search begins
MOMENT = 5.0  # seconds of an example of which only the start is given
CLOCK = r"(?:(?:\d+:)?\d+:)?\d+(?:\.\d+)?"
EXAMPLE = re.compile(rf"(?P<path>.+)@(?P<start>{CLOCK})(?:(?P<dash>[-–])(?P<end>{CLOCK})?)?")


@dataclass(frozen=True)
class Example:
    """A video, or a moment of it in seconds, that shows what is wanted. It need not be in the index."""

    path: Path
    start: float | None = None
    end: float | None = None

    def __post_init__(self) -> None:
        if self.end is not None and self.end <= (self.start or 0.0):
            moment = f"from {self.start or 0:g} s to {self.end:g} s"
            raise SearchError(f"cannot search by {self.path} {moment}: end it later")

    @classmethod
    def parse(cls, text: str) -> Example:
        """Read `video.mp4`, `video.mp4@1:20-1:30`, `video.mp4@80-` (to the end) or `video.mp4@80` (five seconds).

        >>> example = Example.parse("dog.mp4@1:20-1:30")
        >>> str(example.path), example.start, example.end
        ('dog.mp4', 80.0, 90.0)
        >>> Example.parse("dog@home.mp4").start, Example.parse("dog.mp4@1:00:02.5").end, Example.parse("a.mp4@9-").end
        (None, 3607.5, None)
        """
        found = EXAMPLE.fullmatch(text)
        # A file may have a name like this.
        if found is None or not why_absent(text):
            return cls(Path(text))
        start = _seconds(found["start"])
        end = start + MOMENT if found["dash"] is None else None if found["end"] is None else _seconds(found["end"])
        return cls(Path(found["path"]), start, end)


@dataclass(frozen=True)
class Query:
    """Sentences, pictures and examples of what a video should show, and of what it should not."""

    texts: tuple[str, ...] = ()
    images: tuple[Path | bytes, ...] = ()
    """Files, or the bytes of files."""
    like: tuple[Example, ...] = ()
    unlike: tuple[str, ...] = ()
    """Sentences that say what is not wanted. They need something that is."""

    def __post_init__(self) -> None:
        for name in ("texts", "images", "like", "unlike"):
            if isinstance(getattr(self, name), str | bytes | Path | Example):
                raise TypeError(f"{name} must be a tuple, such as ({getattr(self, name)!r},)")

    def check(self) -> None:
        """Raise SearchError if nothing is wanted, or a sentence cannot be searched for."""
        wanted = len(self.texts) + len(self.images) + len(self.like)
        if not wanted and self.unlike:
            raise SearchError("cannot search for what is not wanted alone: say what is wanted, too")
        if not wanted:
            raise SearchError("the query is empty: give a sentence, a picture or an example")
        if wanted + len(self.unlike) > MOST_PARTS:
            raise SearchError(f"the query has {wanted + len(self.unlike)} parts: give {MOST_PARTS} at most")
        for text in (*self.texts, *self.unlike):
            check_query(text)


def check_query(query: str) -> None:
    """Raise SearchError if a sentence is empty or too long.

    >>> check_query("   ")
    Traceback (most recent call last):
        ...
    allocembed.errors.SearchError: the query is empty: write what the video shows
    """
    if not query.strip():
        raise SearchError("the query is empty: write what the video shows")
    if len(query) > LONGEST_QUERY:
        raise SearchError(f"the query has {len(query):,} characters: shorten it to {LONGEST_QUERY:,}")


def example_vectors(embedder: AllocEmbed, query: Query) -> list[np.ndarray]:
    """Vectors (dim,) of the pictures and of the examples of a query. Raise VideoError if one cannot be read."""
    vectors = [picture.vector for picture in embedder.encode_images(query.images)] if query.images else []
    for example in query.like:
        reader = embedder
        if example.start is not None or example.end is not None:
            reader = embedder.with_config(replace(embedder.config, start=example.start, end=example.end))
        vectors.append(reader.encode_video(example.path).vector)
    return vectors


def combine(wanted: Sequence[np.ndarray], unwanted: Sequence[np.ndarray] = ()) -> np.ndarray:
    """The unit vector (dim,) of what is wanted, away from what is not; all of them unit vectors.

    >>> combine([np.array([1.0, 0.0])], [np.array([0.6, 0.8])]).round(2).tolist()
    [0.78, -0.62]
    """
    query = _unit(np.sum(wanted, axis=0))
    away = [other - (other @ query) * query for other in unwanted]
    if not away:
        return query
    together = np.sum(away, axis=0)
    length, longest = np.linalg.norm(together), max(map(np.linalg.norm, away))
    return _unit(query - (together * (longest / length) if length > longest else together))


def _unit(vector: np.ndarray) -> np.ndarray:
    length = float(np.linalg.norm(vector))
    if not length:
        raise SearchError("cannot search for parts that cancel each other: leave one out")
    return vector / length


def _seconds(clock: str) -> float:
    """Seconds of `90`, `1:30` or `0:01:30`."""
    total = 0.0
    for part in clock.split(":"):
        total = 60 * total + float(part)
    return total
