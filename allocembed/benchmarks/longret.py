"""LongRet: text-to-video retrieval in long videos, built from LoVR and Vript as the paper describes (appendix A.2).

Complete videos are the targets. Clip queries are captions of single clips, up to three per video, drawn by seed; video
queries describe the whole: LoVR's own caption, or all of Vript's clip captions in order. A video is included if it has
a file and captions and, in Vript, lasts at least ten and less than thirty minutes.
"""

import random
import shutil
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from allocembed.benchmarks.annotations import read_file
from allocembed.benchmarks.longret_sources import SourceVideo, ZippedVideo
from allocembed.benchmarks.mmeb_v2 import SPECS
from allocembed.benchmarks.tasks import BenchmarkTask
from allocembed.errors import DataError, MissingDependency, OutputError, VideoError
from allocembed.output.files import whole_file
from allocembed.threads import map_ordered
from allocembed.video import probe

PROMPT = SPECS["MSR-VTT"].prompt  # the paper names no prompt for LongRet
CLIP_QUERIES = 3
SOURCE_SECONDS = {"LoVR": (0.0, float("inf")), "Vript": (600.0, 1800.0)}
"""Durations that are included: the lower bound is, the upper one is not."""
VIDEOS, QUERIES = "videos.parquet", "queries.parquet"
UNZIPPED = "videos"  # folder of the videos that were taken out of zip files


@dataclass(frozen=True)
class LongRetVideo:
    """A target."""

    corpus: str
    video_id: str
    path: str
    duration: float
    """Seconds."""


@dataclass(frozen=True)
class LongRetQuery:
    """A text that looks for a video of its own corpus."""

    subset: str
    query_id: str
    video_id: str
    text: str


@dataclass(frozen=True, eq=False)
class LongRet:
    """The benchmark: targets, queries, and which videos of the sources were left out, and why."""

    videos: list[LongRetVideo]
    queries: list[LongRetQuery]
    left_out: list[str]


def build(
    sources: Iterable[SourceVideo],
    unzip_to: Path,
    *,
    seed: int = 0,
    workers: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> LongRet:
    """Measure each video and draw queries for the eligible ones; list the others.

    Eligible videos that are in zip files are written to `unzip_to`, where a second run finds them.
    """
    sources = list(sources)
    videos, queries, left_out = [], [], []
    measure = partial(_measure, unzip_to=unzip_to)
    measured = map_ordered(measure, sources, workers=workers)
    for done, (source, found) in enumerate(zip(sources, measured, strict=True), 1):
        if progress:
            progress(done, len(sources))
        if isinstance(found, str):
            left_out.append(f"{source.corpus} {source.video_id}: {found}")
            continue
        videos.append(found)
        queries += draw_queries(source, seed)
    return LongRet(videos, queries, left_out)


def draw_queries(source: SourceVideo, seed: int) -> list[LongRetQuery]:
    """Queries for one video. The choice of clips depends on the seed and on this video alone.

    >>> source = SourceVideo("LoVR", "v", None, {"v_1": "a dog", "v_2": "a cat"}, "pets")
    >>> [(query.subset, query.query_id) for query in draw_queries(source, 0)]
    [('LoVR-Clip', 'v_1'), ('LoVR-Clip', 'v_2'), ('LoVR-Video', 'v')]
    """
    chance = random.Random(f"{seed} {source.corpus} {source.video_id}")
    names = list(source.clips)
    drawn = sorted(chance.sample(range(len(names)), min(CLIP_QUERIES, len(names))))
    clips = [LongRetQuery(f"{source.corpus}-Clip", names[i], source.video_id, source.clips[names[i]]) for i in drawn]
    whole = (
        [LongRetQuery(f"{source.corpus}-Video", source.video_id, source.video_id, source.whole)] if source.whole else []
    )
    return clips + whole


def save(longret: LongRet, folder: Path) -> None:
    """Write videos and queries as parquet."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingDependency("writing LongRet", "pyarrow", "eval") from error
    for name, rows in ((VIDEOS, longret.videos), (QUERIES, longret.queries)):
        with whole_file(folder / name) as scratch:
            parquet.write_table(pyarrow.Table.from_pylist([vars(row) for row in rows]), scratch)


def load(folder: Path) -> LongRet:
    """Read what `save` wrote."""
    if missing := [name for name in (VIDEOS, QUERIES) if not (folder / name).is_file()]:
        raise DataError(
            f"{folder} has no {missing[0]}: make it with allocembed longret build --lovr DIR --vript DIR --out {folder}"
        )
    try:
        videos = [LongRetVideo(**line) for line in read_file(folder / VIDEOS)]
        queries = [LongRetQuery(**line) for line in read_file(folder / QUERIES)]
    except TypeError as error:
        raise DataError(f"{folder} was not made by allocembed longret build ({error}): build it again") from error
    return LongRet(videos, queries, [])


def make_task(longret: LongRet, subset: str, *, limit: int | None = None, allow_missing: bool = False) -> BenchmarkTask:
    """One subset; all videos of its corpus are candidates."""
    corpus = subset.split("-")[0]
    videos = [video for video in longret.videos if video.corpus == corpus]
    queries = [query for query in longret.queries if query.subset == subset]
    if not queries:
        raise DataError(f"this LongRet has no {subset} queries: build it with --{corpus.lower()} DIR, or leave it out")
    places = {video.video_id: place for place, video in enumerate(videos)}
    wrong = next((each for each in queries if each.video_id not in places or not isinstance(each.text, str)), None)
    if wrong is not None:
        cause = "has no text" if wrong.video_id in places else f"names the video {wrong.video_id!r}, which is not there"
        raise DataError(f"query {wrong.query_id!r} of {subset} {cause}: run allocembed longret build again")
    targets = np.array([places[query.video_id] for query in queries])
    paths = [Path(video.path) for video in videos]
    task = BenchmarkTask(subset, PROMPT, [query.text for query in queries], paths, targets)
    return task.first(limit).find_videos(
        lambda path: path if path.exists() else None,
        allow_missing=allow_missing,
        remedy=lambda missing: (
            f", such as {missing[0]}: put them back, build LongRet again from where they are now, or leave them out "
            "with --allow-missing"
        ),
    )


def reasons(left_out: Sequence[str]) -> Counter[str]:
    """Number of videos left out for each reason.

    >>> reasons(["LoVR a: no captions", "LoVR b: no captions"])
    Counter({'LoVR: no captions': 2})
    """
    return Counter(f"{line.split(' ', 1)[0]}: {line.split(': ', 1)[1].split(' (')[0]}" for line in left_out)


def _measure(source: SourceVideo, unzip_to: Path) -> LongRetVideo | str:
    """The video with its duration, or the reason why it is left out."""
    if not source.clips:
        return "no captions"
    if source.file is None:
        return source.absence
    path = unzip_to / PurePosixPath(source.file.member).name if isinstance(source.file, ZippedVideo) else source.file
    try:
        if isinstance(source.file, ZippedVideo):
            _unzip(source.file, path)
        duration = probe(path).duration
        reason = _wrong_duration(source.corpus, duration)
    except VideoError as error:
        duration, reason = 0.0, f"unreadable ({error.cause})"
    if reason is None:
        return LongRetVideo(source.corpus, source.video_id, str(path.resolve()), duration)
    if isinstance(source.file, ZippedVideo):
        path.unlink(missing_ok=True)
    return reason


def _wrong_duration(corpus: str, seconds: float) -> str | None:
    shortest, longest = SOURCE_SECONDS[corpus]
    if seconds < shortest:
        return f"shorter than {shortest / 60:g} minutes ({seconds / 60:.2f})"
    return None if seconds < longest else f"{longest / 60:g} minutes or longer ({seconds / 60:.2f})"


def _unzip(video: ZippedVideo, path: Path) -> None:
    """Take a video out of its zip file, unless an earlier run has."""
    if path.is_file():
        return
    try:
        with (
            zipfile.ZipFile(video.archive) as archive,
            archive.open(video.member) as file,
            whole_file(path) as scratch,
            scratch.open("wb") as target,
        ):
            shutil.copyfileobj(file, target, 1 << 20)
    except OutputError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, OSError) as error:
        raise VideoError(str(video.archive), f"{error}; download it again") from error
