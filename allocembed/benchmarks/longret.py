"""LongRet: text-to-video retrieval in long videos, built from LoVR and Vript as the paper describes (appendix A.2).

Complete videos are the targets. Clip queries are captions of single clips, up to three per video, drawn by seed; video
queries describe the whole: LoVR's own caption, or all of Vript's clip captions in order. A video is included if it has
a file and captions and, in Vript, lasts at least ten minutes. The sources are read as they are published:

LoVR      records (.parquet, .jsonl or .json, anywhere in the folder) with video_id, clip_id, video_path,
          clip_caption and video_caption; videos at their path, or as <video_id>.mp4
Vript     vript_captions/vript_long_videos_captions/<video_id>_caption.json and vript_long_videos/<video_id>.mp4
"""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from allocembed.benchmarks.annotations import SUFFIXES, read_file
from allocembed.benchmarks.mmeb_v2 import SPECS
from allocembed.benchmarks.tasks import BenchmarkTask
from allocembed.errors import DataError, MissingDependency, VideoError
from allocembed.jsonlines import parse_json
from allocembed.output.files import whole_file
from allocembed.video import VIDEO_SUFFIXES, probe

PROMPT = SPECS["MSR-VTT"].prompt  # the paper names no prompt for LongRet
CLIP_QUERIES = 3
SHORTEST = {"LoVR": 0.0, "Vript": 600.0}  # seconds
VIDEOS, QUERIES = "videos.parquet", "queries.parquet"
VRIPT_CAPTIONS = Path("vript_captions", "vript_long_videos_captions")
VRIPT_VIDEOS = Path("vript_long_videos")
LOVR_COMMAND = "hf download debugger123/LoVR-benchmark --repo-type dataset --local-dir {folder}"
VRIPT_COMMAND = "hf download Mutonix/Vript --repo-type dataset --include '*long_videos*' --local-dir {folder}"


@dataclass(frozen=True)
class SourceVideo:
    """A video of a source, with its eligible captions by clip and the caption of the whole."""

    corpus: str
    video_id: str
    path: Path | None
    """None if no file of that name was found."""
    clips: dict[str, str] = field(default_factory=dict)
    whole: str = ""


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
    """The benchmark: targets, queries, and which videos of the sources were left out, and why."""

    videos: list[Video]
    queries: list[Query]
    left_out: list[str]


def read_lovr(folder: Path) -> list[SourceVideo]:
    """LoVR's videos in order of their ids, each with all its clips and its own caption."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for path in sorted(path for end in SUFFIXES for path in folder.rglob(f"*{end}")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        for line in _records(path):
            if isinstance(line.get("video_id"), str) and ("clip_caption" in line or "video_caption" in line):
                lines.setdefault(line["video_id"], []).append(line)
    if not lines:
        raise DataError(
            f"{folder} has no LoVR records (.parquet, .jsonl or .json with video_id, clip_caption, video_caption): "
            + LOVR_COMMAND.format(folder=folder)
        )
    files = _video_files(folder)
    found = []
    for video_id, own in sorted(lines.items()):
        clips = {str(line.get("clip_id", n)): _clean(line.get("clip_caption")) for n, line in enumerate(own)}
        whole = next(filter(None, (_clean(line.get("video_caption")) for line in own)), "")
        named = [line["video_path"] for line in own if isinstance(line.get("video_path"), str)]
        path = files.get(video_id) or next((folder / name for name in named if _is_file(folder / name)), None)
        found.append(SourceVideo("LoVR", video_id, path, eligible(clips), whole))
    return found


def read_vript(folder: Path) -> list[SourceVideo]:
    """Vript's long videos in order of their ids; the caption of the whole joins those of the clips."""
    captions = sorted((folder / VRIPT_CAPTIONS).glob("*_caption.json"))
    if not captions:
        raise DataError(
            f"there are no *_caption.json in {folder / VRIPT_CAPTIONS}: {VRIPT_COMMAND.format(folder=folder)}"
        )
    files = _video_files(folder / VRIPT_VIDEOS)
    found = []
    for path in captions:
        try:
            stated = parse_json(path.read_bytes())
            video_id, data = stated["meta"]["video_id"], stated.get("data") or {}
            if not isinstance(video_id, str):
                raise TypeError("its video_id is not a text")
            # The file may have scenes in any order, and null for a missing one.
            scenes = {
                str(name): _clean(((data[name] or {}).get("caption") or {}).get("content")) for name in sorted(data)
            }
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise DataError(f"{path} is not as Vript publishes it ({error}): download it again") from error
        whole = " ".join(filter(None, scenes.values()))
        found.append(SourceVideo("Vript", video_id, files.get(video_id), eligible(scenes), whole))
    return found


def eligible(captions: Mapping[str, str]) -> dict[str, str]:
    """Captions that are not empty, each text once.

    >>> eligible({"1": "a dog", "2": "", "3": "a dog", "4": "a cat"})
    {'1': 'a dog', '4': 'a cat'}
    """
    first: dict[str, str] = {}
    for clip, caption in captions.items():
        if caption:
            first.setdefault(caption, clip)
    return {clip: caption for caption, clip in first.items()}


def build(
    sources: Iterable[SourceVideo],
    *,
    seed: int = 0,
    workers: int = 8,
    progress: Callable[[int, int], None] | None = None,
) -> LongRet:
    """Measure each video and draw queries for the eligible ones; list the others."""
    sources = list(sources)
    videos, queries, left_out = [], [], []
    with ThreadPoolExecutor(workers) as threads:
        for done, (source, found) in enumerate(zip(sources, threads.map(_measure, sources), strict=True), 1):
            if progress:
                progress(done, len(sources))
            if isinstance(found, str):
                left_out.append(f"{source.corpus} {source.video_id}: {found}")
                continue
            videos.append(found)
            queries += draw_queries(source, seed)
    return LongRet(videos, queries, left_out)


def draw_queries(source: SourceVideo, seed: int) -> list[Query]:
    """Queries for one video. The choice of clips depends on the seed and on this video alone.

    >>> source = SourceVideo("LoVR", "v", None, {"v_1": "a dog", "v_2": "a cat"}, "pets")
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
        videos = [Video(**line) for line in read_file(folder / VIDEOS)]
        queries = [Query(**line) for line in read_file(folder / QUERIES)]
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


def _measure(source: SourceVideo) -> Video | str:
    """The video with its duration, or the reason why it is left out."""
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


def _records(path: Path) -> Sequence[Mapping[str, Any]]:
    """Records of a file; none if it is other JSON, which datasets often have beside their records."""
    try:
        return read_file(path)
    except DataError:
        if path.suffix == ".json":
            return []
        raise


def _clean(caption: Any) -> str:
    return " ".join(caption.split()) if isinstance(caption, str) else ""


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name longer than the file system allows
        return False


def _video_files(folder: Path) -> dict[str, Path]:
    """All videos below a folder by file name without suffix; of equal names, the one nearest to the top."""
    paths = [path for path in folder.rglob("*") if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()]
    return {path.stem: path for path in sorted(paths, key=lambda path: (-len(path.parts), path))}
