"""What a LongRet is made of, in the paper's three tables, and where it differs from the paper's, number by number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from allocembed.benchmarks.longret import LongRet, reasons
from allocembed.benchmarks.paper import BINS, CORPORA, QUERIES, STATISTICS, Durations
from allocembed.benchmarks.report import markdown_table


@dataclass(frozen=True)
class Subset:
    """A line of table (a)."""

    queries: int
    targets: int
    """Videos that some query looks for."""
    videos: int
    """Videos of the corpus, all of which are candidates."""


@dataclass(frozen=True)
class Composition:
    """Tables (a), (b) and (c), and how many videos of the sources are not in it, by reason."""

    subsets: dict[str, Subset]
    corpora: dict[str, Durations]
    left_out: dict[str, int]


def compose(longret: LongRet) -> Composition:
    """Counts and durations of a LongRet."""
    corpora = {}
    for corpus in dict.fromkeys(video.corpus for video in longret.videos):
        corpora[corpus] = durations(np.array([v.duration / 60 for v in longret.videos if v.corpus == corpus]))
    subsets = {}
    for subset in QUERIES:
        asked = [query for query in longret.queries if query.subset == subset]
        if asked:
            targets = {query.video_id for query in asked}
            subsets[subset] = Subset(len(asked), len(targets), corpora[subset.split("-")[0]].videos)
    return Composition(subsets, corpora, dict(sorted(reasons(longret.left_out).items())))


def durations(minutes: np.ndarray) -> Durations:
    """Statistics of a corpus, percentiles by linear interpolation.

    >>> found = durations(np.array([10.0, 15.0, 20.0, 30.0]))
    >>> found.hours, found.minutes["median"], list(found.bins.values())
    (1.25, 17.5, [0, 1, 1, 1, 1])
    """
    quarter, median, three, most = np.percentile(minutes, [25, 50, 75, 95]).tolist()
    values = (minutes.mean().item(), minutes.min().item(), quarter, median, three, most, minutes.max().item())
    bins = {name: int(((minutes >= low) & (minutes < high)).sum()) for name, (low, high) in BINS.items()}
    return Durations(len(minutes), minutes.sum().item() / 60, dict(zip(STATISTICS, values, strict=True)), bins)


def differences(composition: Composition) -> list[str]:
    """Every number that is not the paper's, at the paper's precision."""
    found = []
    for name, ours, paper in _numbers(composition):
        digits = 0 if isinstance(paper, int) else 2
        if round(ours, digits) != paper:
            change = round(ours - paper, digits)
            found.append(f"{name}: {ours:,.{digits}f}, in the paper {paper:,.{digits}f} ({change:+,.{digits}f})")
    absent = [subset for subset in QUERIES if subset not in composition.subsets]
    return [*(f"{subset}: not built" for subset in absent), *found]


def as_json(composition: Composition) -> dict:
    """All of it in plain numbers."""
    return {
        "subsets": {name: vars(subset) for name, subset in composition.subsets.items()},
        "corpora": {name: vars(corpus) for name, corpus in composition.corpora.items()},
        "left_out": composition.left_out,
        "differences": differences(composition),
    }


def markdown(composition: Composition) -> str:
    """The three tables with the paper's numbers in parentheses, then the differences in words."""
    mapping = {"Clip": "local description → complete video", "Video": "complete description → complete video"}
    queries = [["subset", "queries", "unique full-video targets", "source videos", "query → target"]]
    for name, subset in composition.subsets.items():
        paper = f"{subset.queries:,} ({QUERIES[name]:,})"
        videos = f"{subset.videos:,} ({CORPORA[name.split('-')[0]].videos:,})"
        queries.append([name, paper, f"{subset.targets:,}", videos, mapping[name.split("-")[1]]])
    statistics = [["corpus", "videos", "total (h)", *STATISTICS]]
    bins = [["corpus", *(f"{name} min" for name in BINS)]]
    for name, corpus in composition.corpora.items():
        for title, each in ((name, corpus), ("*paper*", CORPORA[name])):
            minutes = [f"{each.minutes[statistic]:.2f}" for statistic in STATISTICS]
            statistics.append([title, f"{each.videos:,}", f"{each.hours:.2f}", *minutes])
            bins.append([title, *(f"{count:,} ({100 * count / each.videos:.1f} %)" for count in each.bins.values())])
    found = differences(composition)
    said = "\n".join(f"- {line}" for line in found) if found else "Every number is the paper's."
    reasons_given = "\n".join(f"- {reason}: {count:,}" for reason, count in composition.left_out.items())
    parts = [
        "# LongRet as built here\n",
        markdown_table("(a) Evaluation composition, the paper's counts in parentheses", queries),
        markdown_table("(b) Unique complete-video duration statistics, in minutes", statistics),
        markdown_table("(c) Unique complete-video duration distribution", bins),
        f"## Differences from the paper\n\n{said}\n",
    ]
    if reasons_given:
        parts.append(f"## Videos of the sources that are not in it\n\n{reasons_given}\n")
    return "\n".join(parts)


def _numbers(composition: Composition) -> Iterator[tuple[str, float, float]]:
    """Every number that the paper states too: its name, ours, the paper's."""
    for name, subset in composition.subsets.items():
        yield f"{name} queries", subset.queries, QUERIES[name]
    for name, corpus in composition.corpora.items():
        paper = CORPORA[name]
        yield f"{name} videos", corpus.videos, paper.videos
        yield f"{name} hours", corpus.hours, paper.hours
        for statistic in STATISTICS:
            yield f"{name} {statistic} in minutes", corpus.minutes[statistic], paper.minutes[statistic]
        for part in BINS:
            yield f"{name} videos of {part} min", corpus.bins[part], paper.bins[part]
