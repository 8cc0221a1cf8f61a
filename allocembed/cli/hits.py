"""Show the hits of a search, and cut their moments out."""

from collections.abc import Sequence
from pathlib import Path

from allocembed.errors import AllocEmbedError
from allocembed.film import format_time
from allocembed.output.console import complain, say
from allocembed.search.hit import Hit


def print_hits(hits: Sequence[Hit]) -> None:
    """Print a line per hit, and under it the line that was said."""
    if not hits:
        say("nothing found")
        return
    # Plain lines, because a table would break long paths.
    # The tokens of all of a video's vectors: of the whole, and of its segments.
    print(f"{'score':>6}  {'moment':>17}  {'all tokens':>10}  video")
    for hit in hits:
        moment = "–".join(format_time(seconds, tenths=hit.duration < 60) for seconds in (hit.start, hit.end))
        copies = f"  (and {hit.copies} near-duplicates)" if hit.copies else ""
        print(f"{hit.score:6.3f}  {moment:>17}  {hit.cost:10,}  {hit.path}{copies}")
        if hit.line:
            print(f"{'':8}{format_time(hit.line_start):>17}  “{hit.line}”")


def cut_hits(hits: Sequence[Hit], folder: Path) -> int:
    """Cut the moments out into a folder; return the exit status."""
    from allocembed.search.cut import cut

    status = 0
    for rank, hit in enumerate(hits, 1):
        try:
            path, begin = cut(hit.path, hit.start, hit.end, folder, f"{rank:02}-{Path(hit.path).stem}-{hit.start:.0f}s")
            say(f"{path} from {begin:.1f} s on")
        except AllocEmbedError as error:
            complain("left out", str(error))
            status = 1
    return status
