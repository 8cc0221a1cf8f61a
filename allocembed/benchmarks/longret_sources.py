"""Reads LongRet's two sources as they are published: complete videos with captions of their clips.

LoVR      records (.parquet, .jsonl or .json, anywhere in the folder) with video_id, clip_id, video_path,
          clip_caption and video_caption; videos by their path, or as <video_id>.mp4
Vript     vript_captions/vript_long_videos_captions/<video_id>_caption.json and vript_long_videos/<video_id>.mp4
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allocembed.benchmarks.annotations import SUFFIXES, read_file
from allocembed.video import VIDEO_SUFFIXES

VRIPT_CAPTIONS = Path("vript_captions", "vript_long_videos_captions")
VRIPT_VIDEOS = Path("vript_long_videos")
LOVR_COMMAND = "hf download debugger123/LoVR-benchmark --repo-type dataset --local-dir {folder}"
VRIPT_COMMAND = "hf download Mutonix/Vript --repo-type dataset --include '*long_videos*' --local-dir {folder}"


@dataclass(frozen=True)
class Described:
    """A video with what is said about it: eligible captions by clip, and of the whole."""

    corpus: str
    video_id: str
    path: Path | None
    """None where no file of that name was found."""
    clips: dict[str, str] = field(default_factory=dict)
    whole: str = ""


def read_lovr(folder: Path) -> list[Described]:
    """LoVR's videos in the order of their ids, each with all its clips and its own caption."""
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for path in sorted(path for end in SUFFIXES for path in folder.rglob(f"*{end}")):
        if any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        for line in _records(path):
            if isinstance(line.get("video_id"), str) and ("clip_caption" in line or "video_caption" in line):
                lines.setdefault(line["video_id"], []).append(line)
    if not lines:
        raise FileNotFoundError(
            f"{folder} holds no LoVR records (.parquet, .jsonl or .json with video_id, clip_caption, video_caption): "
            + LOVR_COMMAND.format(folder=folder)
        )
    files = _files(folder)
    found = []
    for video_id, own in sorted(lines.items()):
        clips = {str(line.get("clip_id", n)): _clean(line.get("clip_caption")) for n, line in enumerate(own)}
        whole = next(filter(None, (_clean(line.get("video_caption")) for line in own)), "")
        named = [line["video_path"] for line in own if isinstance(line.get("video_path"), str)]
        path = files.get(video_id) or next((folder / name for name in named if (folder / name).is_file()), None)
        found.append(Described("LoVR", video_id, path, eligible(clips), whole))
    return found


def read_vript(folder: Path) -> list[Described]:
    """Vript's long videos in the order of their ids; the description of the whole is its clips' one after another."""
    captions = sorted((folder / VRIPT_CAPTIONS).glob("*_caption.json"))
    if not captions:
        raise FileNotFoundError(
            f"there are no *_caption.json in {folder / VRIPT_CAPTIONS}: {VRIPT_COMMAND.format(folder=folder)}"
        )
    files = _files(folder / VRIPT_VIDEOS)
    found = []
    for path in captions:
        try:
            told = json.loads(path.read_text(encoding="utf-8"))
            video_id = told["meta"]["video_id"]
            scenes = {str(name): _clean((scene.get("caption") or {}).get("content")) for name, scene in _scenes(told)}
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} is not as Vript publishes it ({error}): download it again") from error
        clips = eligible(scenes)
        found.append(Described("Vript", video_id, files.get(video_id), clips, " ".join(filter(None, scenes.values()))))
    return found


def eligible(captions: Mapping[str, str]) -> dict[str, str]:
    """Captions that say something, each once: an empty one asks for nothing, a second equal one asks again.

    >>> eligible({"1": "a dog", "2": "", "3": "a dog", "4": "a cat"})
    {'1': 'a dog', '4': 'a cat'}
    """
    seen: dict[str, str] = {}
    for clip, caption in captions.items():
        if caption and caption not in seen.values():
            seen[clip] = caption
    return seen


def _scenes(told: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Scenes in the order of their numbers, whatever order the file has; missing ones are null."""
    for name in sorted(told.get("data") or {}):
        yield name, told["data"][name] or {}


def _records(path: Path) -> Sequence[Mapping[str, Any]]:
    """Records of a file, none where it is something else: datasets have all kinds of JSON beside their records."""
    try:
        return read_file(path)
    except ValueError:
        if path.suffix == ".json":
            return []
        raise


def _clean(caption: Any) -> str:
    return " ".join(caption.split()) if isinstance(caption, str) else ""


def _files(folder: Path) -> dict[str, Path]:
    """All videos in a folder and beneath by the name of the file, those nearer to the top first."""
    paths = [path for path in folder.rglob("*") if path.suffix.lower() in VIDEO_SUFFIXES and path.is_file()]
    return {path.stem: path for path in sorted(paths, key=lambda path: (-len(path.parts), path))}
