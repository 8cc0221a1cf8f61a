"""Show the hits of a search, and cut their moments out."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from allocembed.errors import AllocEmbedError
from allocembed.film import format_time
from allocembed.output.console import complain, say
from allocembed.search.hit import Hit
from allocembed.search.index import VideoIndex
from allocembed.search.match import ChanceLevel
from allocembed.words import counted, printable

LONGEST_STEM = 200  # bytes of a video's name in that of a clip; file systems allow 255 in all


def matches(index: VideoIndex, hits: Sequence[Hit], vector: np.ndarray | None) -> list[str]:
    """A word for the score of each hit: strong, likely, weak, or said; empty if the index is too small to tell."""
    if vector is None or not hits:
        return ["said"] * len(hits)
    words = ChanceLevel(index).words(vector, [hit.score for hit in hits])
    return ["said" if hit.line else word for hit, word in zip(hits, words, strict=True)]


def print_hits(hits: Sequence[Hit], words: Sequence[str]) -> None:
    """Print a line per hit with a word for its score, and under it the line that was said."""
    if not hits:
        say("nothing found")
        return
    # Plain lines, because a table would break long paths.
    # The tokens of all of a video's vectors: of the whole, and of its segments.
    print(f"{'score':>6}  {'match':<6}  {'moment':>17}  {'tokens':>7}  video")
    for hit, word in zip(hits, words, strict=True):
        moment = "–".join(format_time(seconds, tenths=hit.duration < 60) for seconds in (hit.start, hit.end))
        copies = f"  (and {counted(hit.copies, 'near-duplicate')})" if hit.copies else ""
        print(f"{hit.score:6.3f}  {word or '?':<6}  {moment:>17}  {hit.cost:7,}  {printable(hit.path)}{copies}")
        if hit.line:
            print(f"{'':16}{format_time(hit.line_start):>17}  “{printable(hit.line)}”")
    if set(words) == {"weak"}:
        say("no video stands out: these are the closest")


def cut_hits(hits: Sequence[Hit], folder: Path) -> int:
    """Cut the moments out into a folder; return the exit status."""
    from allocembed.search.cut import cut

    status = 0
    for rank, hit in enumerate(hits, 1):
        try:
            stem = os.fsencode(Path(hit.path).stem)[:LONGEST_STEM].decode(errors="ignore")
            path, begin = cut(hit.path, hit.start, hit.end, folder, f"{rank:02}-{stem}-{hit.start:.0f}s")
            say(f"{path} from {begin:.1f} s on")
        except AllocEmbedError as error:
            complain("left out", str(error))
            status = 1
    return status
