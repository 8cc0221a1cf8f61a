"""Build LongRet into a folder, and describe it in the paper's three tables with every difference from the paper."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from allocembed.benchmarks import longret
from allocembed.benchmarks.longret_sources import LOVR_STEPS, VRIPT_STEPS, read_lovr, read_vript, steps
from allocembed.benchmarks.paper import BINS, CORPORA, QUERIES, STATISTICS, Durations
from allocembed.benchmarks.report import render
from allocembed.errors import ConfigError, DataError
from allocembed.output.files import make_room, write_text


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
    """Tables (a), (b) and (c), and the number of videos of the sources left out, by reason."""

    subsets: dict[str, Subset]
    corpora: dict[str, Durations]
    left_out: dict[str, int]


def build_benchmark(
    lovr: Path | None,
    vript: Path | None,
    out: Path,
    *,
    seed: int = 0,
    workers: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[str, list[Path]]:
    """Build LongRet from the folders of its sources; return its description in Markdown and the files written."""
    if lovr is None and vript is None:
        raise ConfigError("there is no source to build from: give --lovr DIR, --vript DIR or both")
    make_room(out / longret.VIDEOS)
    sources = [*(read_lovr(lovr) if lovr else []), *(read_vript(vript) if vript else [])]
    built = longret.build(sources, out / longret.UNZIPPED, seed=seed, workers=workers, progress=progress)
    if not built.videos:
        raise DataError(_nothing(built, lovr, vript))
    longret.save(built, out)
    composition = compose(built)
    texts = {
        "composition.md": markdown(composition),
        "composition.json": json.dumps({**asdict(composition), "differences": differences(composition)}, indent=1),
        "left_out.txt": "".join(f"{line}\n" for line in built.left_out),
    }
    for name, text in texts.items():
        write_text(out / name, text)
    return texts["composition.md"], [out / name for name in (longret.VIDEOS, longret.QUERIES, *texts)]


def _nothing(built: longret.LongRet, lovr: Path | None, vript: Path | None) -> str:
    """Advice if no video can be used."""
    counts = ", ".join(f"{reason}: {count:,}" for reason, count in longret.reasons(built.left_out).items())
    message = f"cannot build LongRet: no video of the sources can be used ({counts}), such as {built.left_out[0]}."
    if lovr:
        message += f" LoVR's whole videos are expected as <vid>.mp4 below {lovr}, made by\n{steps(LOVR_STEPS, lovr)}\n"
    if vript:
        message += (
            f" Vript's are expected as <video_id>.mp4 or in vript_long_videos/*.zip below {vript}, from\n"
            f"{steps(VRIPT_STEPS, vript)}\n"
        )
    return message.rstrip()


def compose(built: longret.LongRet) -> Composition:
    """Counts and durations of a LongRet."""
    corpora = {}
    for corpus in dict.fromkeys(video.corpus for video in built.videos):
        corpora[corpus] = durations(np.array([v.duration / 60 for v in built.videos if v.corpus == corpus]))
    subsets = {}
    for subset in QUERIES:
        targets = [query.video_id for query in built.queries if query.subset == subset]
        if targets:
            subsets[subset] = Subset(len(targets), len(set(targets)), corpora[subset.split("-")[0]].videos)
    return Composition(subsets, corpora, dict(sorted(longret.reasons(built.left_out).items())))


def durations(minutes: np.ndarray) -> Durations:
    """Statistics of a corpus; percentiles by linear interpolation.

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
    # Each number that the paper states too: its name, ours, the paper's.
    numbers: list[tuple[str, float, float]] = [
        (f"{name} queries", subset.queries, QUERIES[name]) for name, subset in composition.subsets.items()
    ]
    for name, corpus in composition.corpora.items():
        paper = CORPORA[name]
        numbers += [(f"{name} videos", corpus.videos, paper.videos), (f"{name} hours", corpus.hours, paper.hours)]
        numbers += [(f"{name} {key} in minutes", corpus.minutes[key], paper.minutes[key]) for key in STATISTICS]
        numbers += [(f"{name} videos of {key} min", corpus.bins[key], paper.bins[key]) for key in BINS]
    found = [f"{subset}: not built" for subset in QUERIES if subset not in composition.subsets]
    for name, ours, paper in numbers:
        digits = 0 if isinstance(paper, int) else 2
        if round(ours, digits) != paper:
            change = round(ours - paper, digits)
            found.append(f"{name}: {ours:,.{digits}f}, in the paper {paper:,.{digits}f} ({change:+,.{digits}f})")
    return found


def markdown(composition: Composition) -> str:
    """The three tables with the paper's numbers in parentheses, then the list of differences."""
    pairs = [((name, corpus), ("*paper*", CORPORA[name])) for name, corpus in composition.corpora.items()]
    return render(
        "composition.md.j2",
        subsets=composition.subsets,
        corpora=[line for pair in pairs for line in pair],
        left_out=composition.left_out,
        differences=differences(composition),
        queries=QUERIES,
        paper=CORPORA,
        statistics=STATISTICS,
        bins=BINS,
    )
