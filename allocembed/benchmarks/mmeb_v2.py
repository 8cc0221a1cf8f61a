"""MMEB-V2's ten video tasks as VLM2Vec-V2 evaluates them: five retrieve a video for a text, five answer a question.

Retrieval searches all videos of a task, each once. A question about a video chooses from its own options. Prompts, the
way options are written out and what is embedded of them follow VLM2Vec's evaluation code (github.com/TIGER-AI-Lab/
VLM2Vec, src/data/eval_dataset) string for string, because its published scores are what Base should give.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from allocembed.benchmarks.annotations import read_annotations
from allocembed.benchmarks.report import Layout
from allocembed.benchmarks.tasks import Task
from allocembed.video import VIDEO_SUFFIXES

QA_PROMPT = (
    "Given a video and a question, select the most accurate answer from the provided candidates. "
    "Return only the exact text of your chosen answer. Question: "
)
FRAMES_COMMAND = (
    "hf download TIGER-Lab/MMEB-V2 --repo-type dataset --include 'video-tasks/frames/{kind}*' --local-dir {root}"
)
SHOWN = 3  # missing videos that are named
MVBENCH = (
    "episodic_reasoning",
    "action_sequence",
    "action_prediction",
    "action_antonym",
    "fine_grained_action",
    "unexpected_action",
    "object_existence",
    "object_interaction",
    "object_shuffle",
    "moving_direction",
    "action_localization",
    "scene_transition",
    "action_count",
    "moving_count",
    "moving_attribute",
    "state_change",
    "fine_grained_pose",
    "character_order",
    "egocentric_navigation",
    "counterfactual_inference",
)


@dataclass(frozen=True)
class Asked:
    """One line of annotations, read: the video's name, the text, and for a question its options and the right one."""

    video: str
    text: str
    options: tuple[str, ...] = ()
    answer: int = 0


@dataclass(frozen=True)
class Spec:
    """Where a task's annotations are, what they are to look like, and how a line of them is read."""

    name: str
    hub: str
    split: str
    columns: tuple[str, ...]
    read: Callable[[Mapping[str, Any]], Asked]
    queries: int
    """How many the published set has."""
    prompt: str = QA_PROMPT
    subsets: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The part of the dataset its frames are in."""
        return "video_qa" if self.prompt == QA_PROMPT else "video_ret"


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


def _stem(path: str) -> str:
    return PurePosixPath(path).stem


def _read_video_mme(line: Mapping[str, Any]) -> Asked:
    options = tuple(line["options"])
    text = "\n".join([line["question"], *options])
    return Asked(line["videoID"], text, tuple(map(without_letter, options)), "ABCD".index(line["answer"]))


def _read_nextqa(line: Mapping[str, Any]) -> Asked:
    options = tuple(line[f"a{place}"] for place in range(5))
    return Asked(str(line["video"]), _listed(line["question"], options), options, int(line["answer"]))


def _read_egoschema(line: Mapping[str, Any]) -> Asked:
    options = tuple(line["option"])
    # No space before the first option: so it was published, and so the published scores were made.
    text = line["question"] + " ".join(options)
    return Asked(line["video_idx"], text, tuple(map(without_letter, options)), int(line["answer"]))


def _read_mvbench(line: Mapping[str, Any]) -> Asked:
    options = list(line["candidates"])
    # VLM2Vec takes the last option that equals the answer, where an option is there twice.
    answer = len(options) - 1 - options[::-1].index(line["answer"])
    video = f"{line['subset']}/{line['video']}"
    return Asked(video, _listed(line["question"], options), tuple(with_letters(options)), answer)


def _read_activitynetqa(line: Mapping[str, Any]) -> Asked:
    options = ("yes", "no")
    text = f"{line['question']}? (A) yes; (B) no."
    return Asked(f"v_{line['video_name']}", text, options, options.index(line["answer"]))


SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            "MSR-VTT",
            "VLM2Vec/MSR-VTT",
            "test",
            ("video_id", "caption"),
            lambda line: Asked(line["video_id"], line["caption"]),
            1000,
            "Find a video that contains the following visual content:",
            ("test_1k",),
        ),
        Spec(
            "MSVD",
            "VLM2Vec/MSVD",
            "test",
            ("video_id", "caption"),
            lambda line: Asked(line["video_id"], line["caption"][0]),
            670,
            "Find the video snippet that corresponds to the given summary:",
        ),
        Spec(
            "DiDeMo",
            "VLM2Vec/DiDeMo",
            "test",
            ("video", "caption"),
            lambda line: Asked(_stem(line["video"]), line["caption"]),
            1004,
            "Find a video that includes the following described scenes:",
        ),
        Spec(
            "YouCook2",
            "lmms-lab/YouCook2",
            "val",
            ("id", "sentence"),
            lambda line: Asked(line["id"], line["sentence"]),
            3179,
            "Find a video that demonstrates the following action while making a recipe:",
        ),
        Spec(
            "VATEX",
            "VLM2Vec/VATEX",
            "test",
            ("videoID", "enCap"),
            lambda line: Asked(line["videoID"], line["enCap"][0]),
            4478,
            "Select a video that fits the description provided:",
        ),
        Spec(
            "Video-MME",
            "VLM2Vec/Video-MME",
            "test",
            ("videoID", "question", "options", "answer"),
            _read_video_mme,
            2700,
        ),
        Spec(
            "NExTQA",
            "VLM2Vec/NExTQA",
            "test",
            ("video", "question", "answer", "a0", "a1", "a2", "a3", "a4"),
            _read_nextqa,
            8564,
            subsets=("MC",),
        ),
        Spec(
            "EgoSchema",
            "VLM2Vec/EgoSchema",
            "test",
            ("video_idx", "question", "answer", "option"),
            _read_egoschema,
            500,
            subsets=("Subset",),
        ),
        Spec(
            "MVBench",
            "VLM2Vec/MVBench",
            "train",
            ("video", "question", "candidates", "answer"),
            _read_mvbench,
            4000,
            subsets=MVBENCH,
        ),
        Spec(
            "ActivityNetQA",
            "VLM2Vec/ActivityNetQA",
            "test",
            ("video_name", "question", "answer"),
            _read_activitynetqa,
            1000,
        ),
    )
}
TASKS = tuple(SPECS)


def layout(tasks: Sequence[str] = TASKS) -> Layout:
    """How the table looks: the average is that of all tasks asked for."""
    return Layout("MMEB-V2", averages={"tasks": tuple(tasks)}, videos={task: task for task in tasks})


def check_tasks(tasks: Sequence[str]) -> list[str]:
    """The tasks by their own names, whatever their case; refuses one that doesn't exist.

    >>> check_tasks(["msvd", "Video-MME"])
    ['MSVD', 'Video-MME']
    """
    names = {name.lower(): name for name in SPECS}
    if not tasks or (unknown := [task for task in tasks if task.lower() not in names]):
        named = f"there is no task {unknown[0]!r}" if tasks else "there is no task to run"
        raise ValueError(f"{named}: take some of {','.join(SPECS)}")
    return [names[task.lower()] for task in tasks]


def load_task(name: str, root: Path, *, limit: int | None = None, allow_missing: bool = False) -> Task:
    """A task from a dataset folder; `docs/benchmarks.md` shows what it looks like.

    `limit` keeps the first so many queries and their videos. Where videos are missing the error says which and how to
    get them, unless `allow_missing` leaves their queries out and says so.
    """
    spec = SPECS[name]
    lines = read_annotations(root, name, spec.hub, spec.subsets, spec.split, spec.columns)
    notes = [] if len(lines) == spec.queries else [f"{len(lines):,} queries, where {spec.queries:,} were published"]
    asked = [_read(spec, line, number) for number, line in enumerate(lines)]
    task = _assemble(spec, asked, root, tuple(notes)).first(limit)
    return _present(task, spec, root, allow_missing)


def frame_folders(root: Path, kind: str, task: str, video: str) -> list[Path]:
    """Where the frames of a video may be: the two published layouts, the second as its archive unpacks, too."""
    inner = PurePosixPath("data/ziyan/video_retrieval", task, "frames", video)
    return [
        root / "video-tasks" / "frames" / kind / task / video,
        root / kind / inner,
        root / "video-tasks" / "frames" / kind / inner,
    ]


def find_video(root: Path, kind: str, task: str, video: str) -> Path | None:
    """The frames of a video, or else its file; None where neither is."""
    for folder in frame_folders(root, kind, task, video):
        if folder.is_dir() and any(folder.iterdir()):
            return folder
    raw = root / "video-tasks" / "videos" / kind / task / video
    if raw.suffix.lower() in VIDEO_SUFFIXES and raw.is_file():
        return raw
    return next((path for end in sorted(VIDEO_SUFFIXES) if (path := raw.with_name(raw.name + end)).is_file()), None)


def _read(spec: Spec, line: Mapping[str, Any], number: int) -> Asked:
    try:
        return spec.read(line)
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(
            f"line {number + 1} of {spec.name}'s annotations is not as published ({error}): download {spec.hub} again"
        ) from error


def _assemble(spec: Spec, asked: Sequence[Asked], root: Path, notes: tuple[str, ...]) -> Task:
    """Retrieval: every video once, in the order they first come. Questions: the video of each."""
    texts = [each.text for each in asked]
    if spec.kind == "video_qa":
        videos = [_place(root, spec, each.video) for each in asked]
        options = [list(each.options) for each in asked]
        return Task(spec.name, spec.prompt, texts, videos, np.array([each.answer for each in asked]), options, notes)
    places = {video: place for place, video in enumerate(dict.fromkeys(each.video for each in asked))}
    targets = np.array([places[each.video] for each in asked])
    return Task(spec.name, spec.prompt, texts, [_place(root, spec, video) for video in places], targets, notes=notes)


def _place(root: Path, spec: Spec, video: str) -> Path:
    """Where a video is to be, until it is looked for."""
    return frame_folders(root, spec.kind, spec.name, video)[0]


def _present(task: Task, spec: Spec, root: Path, allow_missing: bool) -> Task:
    """The task with its videos found."""
    first = root / "video-tasks" / "frames" / spec.kind / spec.name
    names = [video.relative_to(first).as_posix() for video in task.videos]
    found = {name: find_video(root, spec.kind, spec.name, name) for name in dict.fromkeys(names)}
    missing = [name for name, path in found.items() if path is None]
    if missing and (not allow_missing or len(missing) == len(found)):
        raise FileNotFoundError(_missing(spec, root, missing, len(found)))
    videos = [found[name] or first / name for name in names]
    there = np.array([found[name] is not None for name in names], bool)
    whole = Task(task.name, task.prompt, task.texts, videos, task.targets, task.options, task.notes)
    if not missing:
        return whole
    kept = np.flatnonzero(there if task.asks else there[task.targets]).tolist()
    return whole.keep(kept, (*task.notes, f"{len(missing):,} of {len(found):,} videos are missing"))


def _missing(spec: Spec, root: Path, missing: Sequence[str], total: int) -> str:
    named = ", ".join(missing[:SHOWN]) + (", …" if len(missing) > SHOWN else "")
    looked = [*frame_folders(root, spec.kind, spec.name, missing[0])]
    looked.append(root / "video-tasks" / "videos" / spec.kind / spec.name / f"{missing[0]}.mp4")
    places = "\n".join(f"  {path}" for path in looked)
    fetch = FRAMES_COMMAND.format(kind=spec.kind, root=root)
    return (
        f"{spec.name}: {len(missing):,} of {total:,} videos are missing ({named}). "
        f"Looked for the first one in\n{places}\n"
        f"fetch and unpack the frames:\n  {fetch}\n"
        f"  {UNPACK[spec.kind].format(folder=root / 'video-tasks' / 'frames')}\n"
        "or run on what is there with --allow-missing"
    )


UNPACK = {
    "video_ret": "cd {folder} && mkdir -p video_ret && tar -xzf video_ret.tar.gz -C video_ret",
    "video_qa": "cd {folder} && cat video_qa.tar.gz-0* | tar -xz",
}
"""How the archives of frames become folders."""
