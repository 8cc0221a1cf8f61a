"""MMEB-V2's ten video tasks as VLM2Vec-V2 evaluates them: five retrieve a video for a text, five answer a question.

Retrieval searches all videos of a task, each once. A question about a video chooses from its own options. Prompts, the
way options are written and the part of them that is embedded follow VLM2Vec's evaluation code (github.com/TIGER-AI-Lab/
VLM2Vec, src/data/eval_dataset) character for character, so that Base can be compared with its published scores.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from allocembed.benchmarks.annotations import read_annotations
from allocembed.benchmarks.tasks import BenchmarkTask
from allocembed.errors import DataError
from allocembed.video import VIDEO_SUFFIXES

QA_PROMPT = (
    "Given a video and a question, select the most accurate answer from the provided candidates. "
    "Return only the exact text of your chosen answer. Question: "
)
FETCH = "hf download TIGER-Lab/MMEB-V2 --repo-type dataset --include 'video-tasks/frames/{kind}*' --local-dir {root}"
UNPACK = {
    "video_ret": "cd {folder} && mkdir -p video_ret && tar -xzf video_ret.tar.gz -C video_ret",
    "video_qa": "cd {folder} && cat video_qa.tar.gz-0* | tar -xz",
}
"""Commands that unpack the archives of frames."""
SHOWN = 3  # missing videos that are named

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """Where the annotations of a task are, and what they hold."""

    name: str
    hub: str
    split: str
    queries: int
    """Number of queries in the published set."""
    columns: Sequence[str]
    subsets: Sequence[str] = ()
    prompt: str = QA_PROMPT

    @property
    def kind(self) -> str:
        """The part of the dataset that holds the frames."""
        return "video_qa" if self.prompt == QA_PROMPT else "video_ret"


_STATED = json.loads(Path(__file__).with_name("mmeb_v2.json").read_text(encoding="utf-8"))
SPECS = {name: TaskSpec(name=name, **stated) for name, stated in _STATED.items()}


class AnnotatedQuery(NamedTuple):
    """One line of annotations: the video's name, the text, and for a question its options and the right one."""

    video: str
    text: str
    options: Sequence[str] = ()
    answer: int = 0


def with_letters(options: Sequence[str]) -> list[str]:
    """Options as NExTQA's and MVBench's questions list them.

    >>> with_letters(["yes", "no"])
    ['(A) yes', '(B) no']
    """
    return [f"({chr(ord('A') + place)}) {option}" for place, option in enumerate(options)]


def without_letter(option: str) -> str:
    """The text of an option of Video-MME and EgoSchema.

    >>> without_letter("A. Apples."), without_letter("B. 3.5 m"), without_letter("C. e.g. this")
    ('Apples', '3.5 m', 'e.g. this')
    """
    return option[option.find(". ") :].strip(". ")


def _listed(question: str, options: Sequence[str]) -> str:
    return "\n".join([question, "Options:", *with_letters(options)]).rstrip()


def _read_didemo(line: Line) -> AnnotatedQuery:
    return AnnotatedQuery(PurePosixPath(line["video"]).stem, line["caption"])


def _read_video_mme(line: Line) -> AnnotatedQuery:
    options = list(map(without_letter, line["options"]))
    text = "\n".join([line["question"], *line["options"]])
    return AnnotatedQuery(line["videoID"], text, options, "ABCD".index(line["answer"]))


def _read_nextqa(line: Line) -> AnnotatedQuery:
    options = [line[f"a{place}"] for place in range(5)]
    return AnnotatedQuery(str(line["video"]), _listed(line["question"], options), options, int(line["answer"]))


def _read_egoschema(line: Line) -> AnnotatedQuery:
    options = list(map(without_letter, line["option"]))
    # There is no space before the first option: the published scores were made like this.
    return AnnotatedQuery(line["video_idx"], line["question"] + " ".join(line["option"]), options, int(line["answer"]))


def _read_mvbench(line: Line) -> AnnotatedQuery:
    options = list(line["candidates"])
    # If an option occurs twice, VLM2Vec takes the last one that equals the answer.
    answer = len(options) - 1 - options[::-1].index(line["answer"])
    video = f"{line['subset']}/{line['video']}"
    return AnnotatedQuery(video, _listed(line["question"], options), with_letters(options), answer)


def _read_activitynetqa(line: Line) -> AnnotatedQuery:
    options, text = ["yes", "no"], f"{line['question']}? (A) yes; (B) no."
    return AnnotatedQuery(f"v_{line['video_name']}", text, options, options.index(line["answer"]))


READERS: dict[str, Callable[[Line], AnnotatedQuery]] = {
    "DiDeMo": _read_didemo,
    "Video-MME": _read_video_mme,
    "NExTQA": _read_nextqa,
    "EgoSchema": _read_egoschema,
    "MVBench": _read_mvbench,
    "ActivityNetQA": _read_activitynetqa,
}
"""The other tasks have a column of names and a column of captions; of several captions the first counts."""


def load_task(name: str, root: Path, *, limit: int | None = None, allow_missing: bool = False) -> BenchmarkTask:
    """Read a task from a dataset folder; `docs/benchmarks.md` shows its layout.

    `limit` keeps the first N queries and their videos. If videos are missing, DataError says which and how to get them,
    unless `allow_missing` leaves out their queries and adds a note.
    """
    spec = SPECS[name]
    lines = read_annotations(root, name, spec.hub, spec.subsets, spec.split, spec.columns)
    queries = [_read(spec, line, number) for number, line in enumerate(lines, 1)]
    notes = () if len(lines) == spec.queries else (f"{len(lines):,} queries, where {spec.queries:,} were published",)
    texts, names = [query.text for query in queries], [query.video for query in queries]
    if spec.kind == "video_qa":
        answers, options = np.array([query.answer for query in queries]), [list(query.options) for query in queries]
        task = BenchmarkTask(name, spec.prompt, texts, list(map(Path, names)), answers, options, notes)
    else:
        places = {video: place for place, video in enumerate(dict.fromkeys(names))}
        targets = np.array([places[video] for video in names])
        task = BenchmarkTask(name, spec.prompt, texts, list(map(Path, places)), targets, notes=notes)
    return task.first(limit).find_videos(
        lambda video: find_video(spec, root, video),
        allow_missing=allow_missing,
        remedy=lambda missing: _remedy(spec, root, missing),
    )


def places(spec: TaskSpec, root: Path, video: Path) -> list[Path]:
    """Where a video may be: frames in the two published layouts and as the second one's archive unpacks, or a file."""
    inner = Path("data/ziyan/video_retrieval", spec.name, "frames", video)
    frames, raw = root / "video-tasks" / "frames" / spec.kind, root / "video-tasks" / "videos" / spec.kind / spec.name
    files = [raw / f"{video}{end}" for end in ("", *sorted(VIDEO_SUFFIXES))]
    return [frames / spec.name / video, root / spec.kind / inner, frames / inner, *files]


def find_video(spec: TaskSpec, root: Path, video: Path) -> Path | None:
    """The folder of a video's frames, or else its file; None if neither exists."""
    for path in places(spec, root, video):
        if any(path.iterdir()) if path.is_dir() else path.suffix.lower() in VIDEO_SUFFIXES and path.is_file():
            return path
    return None


def _read(spec: TaskSpec, line: Line, number: int) -> AnnotatedQuery:
    try:
        if spec.name in READERS:
            return READERS[spec.name](line)
        video, caption = (line[column] for column in spec.columns)
        return AnnotatedQuery(video, caption if isinstance(caption, str) else caption[0])
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"line {number} of the annotations of {spec.name} is not as published ({error}): download {spec.hub} again"
        ) from error


def _remedy(spec: TaskSpec, root: Path, missing: Sequence[Path]) -> str:
    named = ", ".join(map(str, missing[:SHOWN])) + (", …" if len(missing) > SHOWN else "")
    *folders, raw = places(spec, root, missing[0])[:4]
    searched = "\n".join(f"  {path}" for path in (*folders, f"{raw}.mp4"))
    return (
        f" ({named}). Searched for the first one in\n{searched}\n"
        f"fetch and unpack the frames:\n  {FETCH.format(kind=spec.kind, root=root)}\n"
        f"  {UNPACK[spec.kind].format(folder=root / 'video-tasks' / 'frames')}\n"
        "or leave out the missing ones with --allow-missing"
    )
