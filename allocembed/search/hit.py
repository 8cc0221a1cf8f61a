"""The result of a search: hits."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Hit:
    """A video that was found, and its best moment."""

    path: str
    video: str
    """Fingerprint of its content: its id on the page."""
    score: float
    """Cosine between the query and the nearest of the video's vectors. In a search of what was said alone: the share
    of the query's words that were said there, from 0 to 1."""
    start: float
    end: float
    """Seconds; the whole video if it has no windows. If the video was found by a line, the time of that line."""
    segment: int
    """Number of the moment's window; 0 if there are none."""
    duration: float
    cost: int
    """Visual tokens of all vectors of the video."""
    line: str = ""
    """The line that matches the query best, if the video was found by what was said."""
    line_start: float = 0.0
    """When the line is said, in seconds."""
    copies: int = 0
    """Near-duplicates of this video that were left out of the hits."""
    look_tokens: int = 0
    """Visual tokens that were read to refine the moment, besides the cost."""
