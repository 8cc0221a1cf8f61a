"""Read LongRet's two sources, LoVR and Vript, from the files as they are published.

LoVR (debugger123/LoVR-benchmark) publishes captions in caption_data/ and clips as an archive in three parts. Its
dataset card says that the whole videos are made by joining the clips with scripts/merge_clips.py. Only its evaluation
code, which reads these captions as .jsonl, tells that the columns are vid, path and cap.

Vript (Mutonix/Vript) publishes captions and videos as zip files, which may be unpacked or not.
"""

import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from allocembed.benchmarks.annotations import SUFFIXES, read_file
from allocembed.errors import DataError
from allocembed.jsonlines import parse_json
from allocembed.video import is_video

SCENE = "-Scene-"  # between the id of a video and the number of a clip, in both sources
LOVR_STEPS = (
    "hf download debugger123/LoVR-benchmark --repo-type dataset --local-dir {folder}",
    "cat {folder}/video_data/part_* | tar -xz -C {folder}/video_data",
    "python {folder}/scripts/merge_clips.py --input {folder}/video_data/long_video_clip "
    "--output {folder}/video_data/merged",
)
LOVR_CAPTIONS = (
    "caption_data/{clip,video}_{train,test}.parquet with the columns vid (or video_id), path (or clip_id) and cap (or "
    "caption), or the same as .jsonl"
)
VRIPT_STEPS = (
    # Without the clips, which are 822 GB and not needed.
    "hf download Mutonix/Vript --repo-type dataset --include '*long_videos*' --exclude 'vript_long_videos_clips/*' "
    "--local-dir {folder}",
)
VRIPT_CAPTIONS = "vript_captions/vript_long_videos_captions.zip, or its <video_id>_caption.json in any folder"


@dataclass(frozen=True)
class ZippedVideo:
    """A video that is still in a zip file."""

    archive: Path
    member: str


@dataclass(frozen=True)
class SourceVideo:
    """A video of a source, with its eligible captions by clip and the caption of the whole."""

    corpus: str
    video_id: str
    file: Path | ZippedVideo | None
    """None if no whole video of that name was found."""
    clips: dict[str, str] = field(default_factory=dict)
    whole: str = ""
    absence: str = "no video file"
    """Why there is no file, if there is none."""


def steps(commands: Sequence[str], folder: Path) -> str:
    """The commands that make a source complete, one a line."""
    return "\n".join(f"  {command.format(folder=folder)}" for command in commands)


def read_lovr(folder: Path) -> list[SourceVideo]:
    """LoVR's videos of both splits in order of their ids, each with all its clips and its own caption."""
    clips: dict[str, dict[str, str]] = {}
    wholes: dict[str, str] = {}
    strangers: list[str] = []
    for path in _visible(folder, SUFFIXES):
        records = _records(path)
        before = len(clips), len(wholes)
        for number, line in enumerate(records):
            clip_id, clip, whole = _lovr_captions(path, line, number)
            video_id = _first(line, "vid", "video_id") or (clip_id.split(SCENE)[0] if SCENE in clip_id else "")
            if video_id and whole is not None:
                wholes[video_id] = wholes.get(video_id) or whole
            if video_id and clip is not None:
                clips.setdefault(video_id, {})[clip_id] = clip
        if records and before == (len(clips), len(wholes)):
            strangers.append(f"{path.relative_to(folder)} ({', '.join(map(str, records[0]))})")
    if not clips:
        found = f"found {'; '.join(strangers[:3])}" if strangers else "found no such file"
        raise DataError(
            f"cannot read LoVR's captions of clips in {folder}: {found}; expected {LOVR_CAPTIONS}. To get them:\n"
            + steps(LOVR_STEPS, folder)
        )
    files = _video_files(folder)
    in_clips = {stem.split(SCENE)[0] for stem in files if SCENE in stem}
    found = []
    for video_id in sorted(clips.keys() | wholes.keys()):
        absence = "not joined from its clips" if video_id in in_clips else "no video file"
        own = eligible(clips.get(video_id, {}))
        found.append(SourceVideo("LoVR", video_id, files.get(video_id), own, wholes.get(video_id, ""), absence))
    return found


def read_vript(folder: Path) -> list[SourceVideo]:
    """Vript's long videos in order of their ids; the caption of the whole joins those of the clips."""
    captions: dict[str, dict[str, str]] = {}
    for place, content in _vript_captions(folder):
        video_id, scenes = _vript_scenes(place, content)
        captions.setdefault(video_id, scenes)  # unpacked files come first
    if not captions:
        raise DataError(
            f"cannot find Vript's captions in {folder}: expected {VRIPT_CAPTIONS}. To get them and the videos:\n"
            + steps(VRIPT_STEPS, folder)
        )
    files: dict[str, Path | ZippedVideo] = {**_zipped_videos(folder), **_video_files(folder)}
    return [
        SourceVideo("Vript", video_id, files.get(video_id), eligible(scenes), " ".join(filter(None, scenes.values())))
        for video_id, scenes in sorted(captions.items())
    ]


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


def _lovr_captions(path: Path, line: Mapping[str, Any], number: int) -> tuple[str, str | None, str | None]:
    """A record's clip id, caption of the clip and caption of the video; None for a caption it does not hold.

    The published files say in their names what they caption. Records with both captions name them in their columns.
    """
    names = path.stem.replace("-", "_").split("_")
    caption = next((line[column] for column in ("cap", "caption") if column in line), None)
    clip = line.get("clip_caption", caption if "clip" in names else None)
    whole = line.get("video_caption", caption if "video" in names and "clip" not in names else None)
    named = _first(line, "path", "clip_path", "clip_id") or str(line.get("slice_num", number))
    clip_id = PurePosixPath(named).stem if is_video(named) else named
    return clip_id, None if clip is None else _clean(clip), None if whole is None else _clean(whole)


def _vript_captions(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Places and contents of the caption files of long videos, unpacked ones first."""
    for path in _visible(folder, ["_caption.json"]):
        try:
            yield str(path), path.read_bytes()
        except OSError as error:
            raise DataError(f"cannot read {path} ({error}): download it again") from error
    for path, archive in _archives(folder):
        for name in archive.namelist():
            if name.endswith("_caption.json"):
                try:
                    content = archive.read(name)
                except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, NotImplementedError, OSError) as error:
                    raise DataError(f"cannot read {name} in {path} ({error}): download it again") from error
                yield f"{path}/{name}", content


def _vript_scenes(place: str, content: bytes) -> tuple[str, dict[str, str]]:
    """A video's id and the captions of its scenes in order."""
    try:
        stated = parse_json(content)
        video_id, data = stated["meta"]["video_id"], stated.get("data") or {}
        if not isinstance(video_id, str):
            raise TypeError("its video_id is not a text")
        # The file may have scenes in any order, and null for a missing one.
        return video_id, {
            str(name): _clean(((data[name] or {}).get("caption") or {}).get("content")) for name in sorted(data)
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(f"{place} is not as Vript publishes it ({error}): download it again") from error


def _zipped_videos(folder: Path) -> dict[str, ZippedVideo]:
    """Whole videos in zip files, by file name without suffix."""
    found = {}
    for path, archive in _archives(folder):
        for name in archive.namelist():
            stem = PurePosixPath(name).stem
            if is_video(name) and SCENE not in stem:
                found[stem] = ZippedVideo(path, name)
    return found


def _archives(folder: Path) -> Iterator[tuple[Path, zipfile.ZipFile]]:
    """Zip files of long videos and their captions, opened; those of clips are not."""
    for path in _visible(folder, [".zip"]):
        if "vript_long_videos_clips" in path.parts:
            continue
        try:
            with zipfile.ZipFile(path) as archive:
                yield path, archive
        except (OSError, zipfile.BadZipFile) as error:
            raise DataError(f"cannot read {path} ({error}): download it again") from error


def _visible(folder: Path, ends: Sequence[str]) -> list[Path]:
    """Files below a folder whose names end so, without hidden ones and without Vript's short videos."""
    paths = sorted(path for end in ends for path in folder.rglob(f"*{end}"))
    parts = {path: path.relative_to(folder).parts for path in paths}
    return [
        path
        for path, names in parts.items()
        if not any(name.startswith(".") or "short_video" in name for name in names) and path.is_file()
    ]


def _records(path: Path) -> Sequence[Mapping[str, Any]]:
    """Records of a file; none if it is other JSON, which datasets often have beside their records."""
    try:
        return read_file(path)
    except DataError:
        if path.suffix == ".json":
            return []
        raise


def _first(line: Mapping[str, Any], *columns: str) -> str:
    """The first text among these columns that is not empty."""
    return next((line[column] for column in columns if isinstance(line.get(column), str) and line[column]), "")


def _clean(caption: Any) -> str:
    return " ".join(caption.split()) if isinstance(caption, str) else ""


def _video_files(folder: Path) -> dict[str, Path]:
    """All videos below a folder by file name without suffix; of equal names, the one nearest to the top."""
    paths = [path for path in folder.rglob("*") if is_video(path) and path.is_file()]
    return {path.stem: path for path in sorted(paths, key=lambda path: (-len(path.parts), path))}
