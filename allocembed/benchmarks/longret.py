"""LongRet: text-to-video retrieval in long videos, built from LoVR and Vript as the paper describes (appendix A.2).

Complete videos are the targets. Clip queries are captions of single clips, up to three a video, drawn by seed; video
queries describe the whole: LoVR's own caption, or all of Vript's clip captions one after another. A video is in where
it has a file, captions, and in Vript at least ten minutes.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from allocembed.benchmarks.annotations import NEEDS, read_file
from allocembed.benchmarks.longret_sources import Described
from allocembed.benchmarks.paper import LONGRET
from allocembed.benchmarks.tasks import Task
from allocembed.output import whole_file
from allocembed.video import VideoError, probe

PROMPT = "Find a video that contains the following visual content:"  # the paper names none; this is MSR-VTT's
CLIP_QUERIES = 3
SHORTEST = {"LoVR": 0.0, "Vript": 600.0}  # seconds
VIDEOS, QUERIES = "videos.parquet", "queries.parquet"


@dataclass(frozen=True)
class Video:
    """A target."""

    corpus: str
    video_id: str
    path: str
    duration: float
    """Seconds."""


@dataclass(frozen=True)
class Query:
    """A text that looks for a video of its own corpus."""

    subset: str
    query_id: str
    video_id: str
    text: str


@dataclass(frozen=True, eq=False)
class LongRet:
    """The benchmark: targets, queries, and which videos of the sources are not in it, and why."""

    videos: list[Video]
    queries: list[Query]
    left_out: list[str]


def build(
    described: Iterable[Described],
    *,
    seed: int = 0,
    workers: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> LongRet:
    """Draws queries for every video that is eligible; what is not is named."""
    described = list(described)
    videos, queries, left_out = [], [], []
    with ThreadPoolExecutor(workers) as threads:
        for done, (source, found) in enumerate(zip(described, threads.map(_measure, described), strict=True), 1):
            if progress:
                progress(done, len(described))
            if isinstance(found, str):
                left_out.append(f"{source.corpus} {source.video_id}: {found}")
                continue
            videos.append(found)
            queries += draw_queries(source, seed)
    return LongRet(videos, queries, left_out)


def draw_queries(source: Described, seed: int) -> list[Query]:
    """Queries for one video; which clips are drawn depends on the seed and on this video alone.

    >>> source = Described("LoVR", "v", None, {"v_1": "a dog", "v_2": "a cat"}, "pets")
    >>> [(query.subset, query.query_id) for query in draw_queries(source, 0)]
    [('LoVR-Clip', 'v_1'), ('LoVR-Clip', 'v_2'), ('LoVR-Video', 'v')]
    """
    chance = random.Random(f"{seed} {source.corpus} {source.video_id}")
    names = list(source.clips)
    drawn = sorted(chance.sample(range(len(names)), min(CLIP_QUERIES, len(names))))
    clips = [Query(f"{source.corpus}-Clip", names[i], source.video_id, source.clips[names[i]]) for i in drawn]
    whole = [Query(f"{source.corpus}-Video", source.video_id, source.video_id, source.whole)] if source.whole else []
    return clips + whole


def save(longret: LongRet, folder: Path) -> None:
    """Writes videos and queries as parquet."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f"LongRet is written with pyarrow: {NEEDS}") from error
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in ((VIDEOS, longret.videos), (QUERIES, longret.queries)):
        with whole_file(folder / name) as scratch:
            parquet.write_table(pyarrow.Table.from_pylist([vars(row) for row in rows]), scratch)


def load(folder: Path) -> LongRet:
    """Reads what `save` wrote."""
    if lost := [name for name in (VIDEOS, QUERIES) if not (folder / name).is_file()]:
        raise FileNotFoundError(
            f"{folder} holds no {lost[0]}: make it with allocembed longret build --lovr DIR --vript DIR --out {folder}"
        )
    try:
        videos = [Video(**line) for line in read_file(folder / VIDEOS)]
        queries = [Query(**line) for line in read_file(folder / QUERIES)]
    except TypeError as error:
        raise ValueError(f"{folder} is not what allocembed longret build makes ({error}): build it again") from error
    return LongRet(videos, queries, [])


def check_tasks(tasks: Sequence[str]) -> list[str]:
    """The subsets by their own names, whatever their case; refuses one that doesn't exist.

    >>> check_tasks(["lovr-clip"])
    ['LoVR-Clip']
    """
    names = {name.lower(): name for name in LONGRET}
    if not tasks or (unknown := [task for task in tasks if task.lower() not in names]):
        named = f"there is no subset {unknown[0]!r}" if tasks else "there is no subset to run"
        raise ValueError(f"{named}: take some of {','.join(LONGRET)}")
    return [names[task.lower()] for task in tasks]


def make_task(longret: LongRet, subset: str, *, limit: int | None = None, allow_missing: bool = False) -> Task:
    """One subset: all videos of its corpus are candidates."""
    corpus = subset.split("-")[0]
    videos = [video for video in longret.videos if video.corpus == corpus]
    asked = [query for query in longret.queries if query.subset == subset]
    if not asked:
        raise ValueError(f"this LongRet has no {subset} queries: build it with --{corpus.lower()} DIR, or leave it out")
    places = {video.video_id: place for place, video in enumerate(videos)}
    targets = np.array([places[query.video_id] for query in asked])
    task = Task(subset, PROMPT, [query.text for query in asked], [Path(video.path) for video in videos], targets)
    task = task.first(limit)
    missing = [path for path in task.videos if not path.exists()]
    if not missing:
        return task
    if not allow_missing or len(missing) == len(task.videos):
        raise FileNotFoundError(
            f"{subset}: {len(missing):,} of {len(task.videos):,} videos are missing, such as {missing[0]}: "
            "put them back or build LongRet again where they are now, or run on what is there with --allow-missing"
        )
    there = np.array([path.exists() for path in task.videos])
    kept = np.flatnonzero(there[task.targets]).tolist()
    return task.keep(kept, (*task.notes, f"{len(missing):,} of {len(task.videos):,} videos are missing"))


def reasons(left_out: Sequence[str]) -> Counter[str]:
    """How many videos were left out for which reason.

    >>> reasons(["LoVR a: no captions", "LoVR b: no captions"])
    Counter({'LoVR: no captions': 2})
    """
    return Counter(f"{line.split(' ', 1)[0]}: {line.split(': ', 1)[1].split(' (')[0]}" for line in left_out)


def _measure(source: Described) -> Video | str:
    """The video with its duration, or why it is not in."""
    if not source.clips:
        return "no captions"
    if source.path is None:
        return "no video file"
    try:
        duration = probe(source.path).duration
    except VideoError as error:
        return f"unreadable ({error.cause})"
    shortest = SHORTEST[source.corpus]
    if duration < shortest:
        return f"shorter than {shortest / 60:g} minutes ({duration / 60:.2f})"
    return Video(source.corpus, source.video_id, str(source.path.resolve()), duration)
