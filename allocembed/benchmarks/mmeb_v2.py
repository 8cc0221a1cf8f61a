"""MMEB-V2's ten video tasks as VLM2Vec-V2 evaluates them: five retrieve a video for a text, five answer a question.

Retrieval searches all videos of a task, each once. A question about a video chooses from its own options. Prompts, the
way options are written and the part of them that is embedded follow VLM2Vec's evaluation code (github.com/TIGER-AI-Lab/
VLM2Vec, src/data/eval_dataset) character for character, so that Base can be compared with its published scores. Where
Qwen3-VL-Embedding's evaluation code (github.com/QwenLM/Qwen3-VL-Embedding, src/evaluation/mmeb_v2) writes a text or an
option in another way, its models get that.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from allocembed.benchmarks.annotations import AnnotationSet, read_annotations
from allocembed.benchmarks.tasks import BenchmarkTask, Wording
from allocembed.errors import DataError
from allocembed.video import IMAGE_SUFFIXES, VIDEO_SUFFIXES

QA_PROMPT = (
    "Given a video and a question, select the most accurate answer from the provided candidates. "
    "Return only the exact text of your chosen answer. Question: "
)
FRAMES = Path("video-tasks", "frames")
FETCH = "hf download TIGER-Lab/MMEB-V2 --repo-type dataset --include 'video-tasks/frames/{kind}*' --local-dir {root}"
UNPACK = {
    "video_ret": "cd {folder} && mkdir -p video_ret && tar -xzf video_ret.tar.gz -C video_ret",
    "video_qa": "cd {folder} && cat video_qa.tar.gz-0* | tar -xz",
}
"""Commands that unpack the archives of frames."""
UNPACKED = Path("data", "ziyan", "video_retrieval")  # where the archive of video_ret has its tasks
MOST_NAMED = 3  # missing videos that are named
LONGEST_NAME = 250  # characters of a video's

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class TaskSpec(AnnotationSet):
    """The annotations of a task, where its videos are, and what is asked."""

    queries: int
    """Number of queries in the published set."""
    prompt: str = QA_PROMPT
    folders: Sequence[str] = ()
    """Names of the folder of frames, if it is published under other names than the task's."""

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
    qwen3_text: str = ""
    """The text for Qwen3-VL-Embedding, if it differs."""
    qwen3_options: Sequence[str] = ()
    """The options for Qwen3-VL-Embedding, if they differ."""


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
    # Of an option without a letter VLM2Vec embeds the last character, and Qwen3-VL-Embedding the whole.
    whole = [without_letter(option) if ". " in option else option for option in line["options"]]
    text = "\n".join([line["question"], *line["options"]])
    answer = ["A", "B", "C", "D"].index(line["answer"])
    return AnnotatedQuery(line["videoID"], text, options, answer, qwen3_options=whole)


def _read_nextqa(line: Line) -> AnnotatedQuery:
    options = [line[f"a{place}"] for place in range(5)]
    text, answer = _listed(line["question"], options), int(line["answer"])
    return AnnotatedQuery(str(line["video"]), text, options, answer, qwen3_options=with_letters(options))


def _read_egoschema(line: Line) -> AnnotatedQuery:
    question, listed = line["question"], " ".join(line["option"])
    options = list(map(without_letter, line["option"]))
    # VLM2Vec writes no space before the first option: its published scores were made like this.
    return AnnotatedQuery(
        line["video_idx"], question + listed, options, int(line["answer"]), qwen3_text=f"{question} {listed}"
    )


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
    lines = read_annotations(spec, root)
    queries = [_read(spec, line, number) for number, line in enumerate(lines, 1)]
    notes = () if len(lines) == spec.queries else (f"{len(lines):,} queries, where {spec.queries:,} were published",)
    texts, names = [query.text for query in queries], [query.video for query in queries]
    if spec.kind == "video_qa":
        answers, options = np.array([query.answer for query in queries]), [list(query.options) for query in queries]
        qwen3 = Wording(
            [query.qwen3_text or query.text for query in queries],
            [list(query.qwen3_options or query.options) for query in queries],
        )
        videos = list(map(Path, names))
        task = BenchmarkTask(name, spec.prompt, texts, videos, answers, options, notes, {"qwen3_vl": qwen3})
    else:
        places = {video: place for place, video in enumerate(dict.fromkeys(names))}
        targets = np.array([places[video] for video in names])
        task = BenchmarkTask(name, spec.prompt, texts, list(map(Path, places)), targets, notes=notes)
    return task.first(limit).find_videos(
        lambda video: find_video(spec, root, video),
        allow_missing=allow_missing,
        remedy=lambda missing: _remedy(spec, root, missing),
    )


def frame_folders(spec: TaskSpec, root: Path, video: Path) -> list[Path]:
    """Folders that may hold the frames of a video: as VLM2Vec names them, or as the archive of video_ret unpacks."""
    frames = root / FRAMES / spec.kind
    found = [frames / folder / video for folder in spec.folders or [spec.name]]
    if spec.kind == "video_ret":
        inner = UNPACKED / spec.name / "frames" / video
        found += [frames / inner, root / spec.kind / inner]
    return found


def raw_videos(spec: TaskSpec, root: Path, video: Path) -> list[Path]:
    """Names that a raw video may have; MVBench names whole files, in a folder for each source of videos."""
    folder = root / "video-tasks" / "videos" / spec.kind / spec.name
    if len(spec.subsets) > 1:
        subset, *rest = video.parts
        return [folder.joinpath(spec.subsets[subset], *rest)]
    return [folder / f"{video}{end}" for end in (".mp4", *sorted(VIDEO_SUFFIXES - {".mp4"}))]


def find_video(spec: TaskSpec, root: Path, video: Path) -> Path | None:
    """The folder of a video's frames, or else its file; None if neither exists."""
    for path in (*frame_folders(spec, root, video), *raw_videos(spec, root, video)):
        if path.is_dir():
            if any(image.suffix.lower() in IMAGE_SUFFIXES for image in path.iterdir()):
                return path
        elif path.suffix.lower() in VIDEO_SUFFIXES and path.is_file():
            return path
    return None


def _checked(query: AnnotatedQuery) -> AnnotatedQuery:
    """The query; raise ValueError if it is none, before any video is embedded for it."""
    for text in (query.video, query.text, *query.options):
        if not isinstance(text, str) or not (text.strip() or text in query.options):
            raise ValueError(f"{text!r} is no text")
    if len(query.video) > LONGEST_NAME:
        raise ValueError(f"{query.video[:40]!r}… is no name of a video")
    if query.options and not 0 <= query.answer < len(query.options):
        raise ValueError(f"its answer is none of its {len(query.options)} options")
    return query


def _read(spec: TaskSpec, line: Line, number: int) -> AnnotatedQuery:
    try:
        if spec.name in READERS:
            query = READERS[spec.name](line)
        else:
            video, caption = (line[column] for column in spec.columns)
            query = AnnotatedQuery(video, caption if isinstance(caption, str) else caption[0])
        return _checked(query)
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(
            f"line {number} of the annotations of {spec.name} is not as published ({error}): download {spec.hub} again"
        ) from error


def _remedy(spec: TaskSpec, root: Path, missing: Sequence[Path]) -> str:
    named = ", ".join(map(str, missing[:MOST_NAMED])) + (", …" if len(missing) > MOST_NAMED else "")
    folders = [f"  {path}/" for path in frame_folders(spec, root, missing[0])]
    searched = "\n".join([*folders, f"  {raw_videos(spec, root, missing[0])[0]}"])
    steps = [UNPACK[spec.kind].format(folder=root / FRAMES)]
    if not any((root / FRAMES).glob(f"{spec.kind}.tar.gz*")):
        steps.insert(0, FETCH.format(kind=spec.kind, root=root))
    todo = "\n".join(f"  {step}" for step in steps)
    return (
        f" ({named}). Looked for the frames or the video of the first one at\n{searched}\n"
        f"{'fetch and unpack' if len(steps) > 1 else 'unpack'} the frames:\n{todo}\n"
        "or leave out the missing ones with --allow-missing"
    )
