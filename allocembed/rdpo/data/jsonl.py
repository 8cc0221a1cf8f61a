"""Real videos with texts, one JSON object per line, in LLaVA-Hound's layout; `docs/training.md` shows it.

    {"id": "v1", "video": "v1", "conversations": [{"from": "human", "value": "<video>\\nWhat is …?"},
                                                  {"from": "gpt", "value": "A dog."}]}
    {"id": "v2", "video": "clips/v2.mp4", "caption": "a dog runs over a lawn"}

The answer or caption is the target; without one it is the video's own vector at full resolution. A human turn is a
question or an instruction (`is_question`); the keys `question` and `instruction` override it. The policy sees questions
only. A target without a question is a search sentence. A question may have `"options": [...]`, its wrong answers.
Videos are files or folders of frames; two names of one file are one video. A line or video that cannot be read is
skipped, counted and named.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from allocembed.budget import Budget
from allocembed.errors import AllocEmbedError, DataError, VideoError
from allocembed.inputs import Inputs
from allocembed.jsonlines import parse_json, read_lines
from allocembed.rdpo.data.base import (
    TRAINING,
    VALIDATION,
    Source,
    TrainingBatch,
    TrainingExample,
    VideoBatch,
    own_example,
)
from allocembed.rdpo.negatives import TextPool
from allocembed.resize import resize
from allocembed.threads import map_ordered
from allocembed.video import open_video
from allocembed.video.clip import VIDEO_SUFFIXES, Clip

QUESTION_MARKS = re.compile("[?？؟]")
ON_DEVICE = 8 * 2**30  # bytes of frames of one size
PLACEHOLDER = re.compile(r"\s*<(?:video|image)>\s*")


@dataclass(frozen=True)
class Record:
    """One line: the video's name, the question, the target, the wrong options of the question, the instruction."""

    video: str
    question: str | None
    target: str | None
    options: tuple[str, ...] = ()
    instruction: str | None = None


@dataclass(frozen=True, eq=False)
class DecodedBatch:
    """Examples of a batch, and the clips of this process by example number."""

    examples: list[TrainingExample]
    clips: dict[int, Clip]
    budget: Budget


class JsonlSource(Source):
    """Examples from a file. Some of its videos, with all their texts, are held out for validation."""

    def __init__(
        self,
        file: Path,
        root: Path,
        *,
        seed: int = 0,
        validation: int = 512,
        workers: int = 8,
        check_text: Callable[[str], None] | None = None,
        texts: bool = True,
        pixels: int = 0,
        held: Path | None = None,
        inputs: Inputs | None = None,
    ) -> None:
        """`check_text` raises an AllocEmbedError for a text that the backbone cannot embed; its line is skipped. With
        `texts=False` the target is the video's own vector, except for answers to questions. Frames of more than
        `pixels` are shrunk. `held` is a file of validation examples; without it, some of `file` are held out. Frames
        are chosen and numbered as the backbone's `inputs` say."""
        self.seed, self.root, self.check_text, self.texts, self.pixels = seed, root, check_text, texts, pixels
        self.names: dict[Path, str] = {}
        self.rounds, self.list_rate = (inputs.rounds, inputs.list_rate) if inputs else (False, 1.0)
        self.skipped: list[str] = []
        self.unreadable: set[str] = set()
        self.workers = workers
        records = self._records(file)
        if not records:
            first = f"; the first problem: {self.skipped[0]}" if self.skipped else ""
            raise DataError(f"{file} has no usable line: write it as docs/training.md shows{first}")
        if held is None:
            self.held, self.records = split(records, self._to_hold(validation, len(records)), seed)
        else:
            self.held = self._records(held)
            if not self.held:
                raise DataError(f"{held} has no usable line: write it as docs/training.md shows, or pass another file")
            known = {record.video for record in self.held}
            self.records = [record for record in records if record.video not in known]
        if not self.records:
            holds = f"--validation {validation} holds them all out; lower it"
            if held is not None:
                holds = f"all their videos are in {held}; take some out of it"
            raise DataError(f"no training examples: {file} has {len(records)} usable lines, and {holds}")
        examples = [each for each in map(self._example, self.records) if not each.own]
        self.corpus = TextPool([each.sample for each in examples], [each.target for each in examples])
        answers, queries = (
            frozenset(r.target for r in self.records if r.target is not None and (r.question is not None) == asked)
            for asked in (True, False)
        )
        self.answers, self.queries = answers, queries

    def _to_hold(self, wanted: int, records: int) -> int:
        """Number of records to hold out for validation."""
        return wanted

    def prepare(self, stream: int, step: int, count: int, budget: Budget, candidates: int, mine: range) -> DecodedBatch:
        if stream == VALIDATION:
            chosen = self.held[:count]
        else:
            count = min(count, len(self.records))
            chosen = [self.records[i] for i in shuffled(len(self.records), self.seed, step * count, count)]
        examples = [self._example(record) for record in chosen]
        own = [number for number in mine if number < len(chosen)]
        names = [chosen[number].video for number in own]
        clips = map_ordered(lambda name: self._read(name, candidates), names, workers=self.workers)
        found = {number: clip for number, clip in zip(own, clips, strict=True) if clip is not None}
        return DecodedBatch(examples, found, budget)

    def _example(self, record: Record) -> TrainingExample:
        if record.target is None or (not self.texts and record.question is None):
            return own_example(record.video, record.question, record.instruction)
        return TrainingExample(
            record.video,
            record.target,
            record.question,
            query=record.question is None,
            options=record.options,
            instruction=record.instruction,
        )

    def finish(self, prepared: DecodedBatch, device: torch.device) -> TrainingBatch:
        alike: dict[tuple[Any, ...], list[int]] = defaultdict(list)
        for number, clip in prepared.clips.items():
            alike[clip.frames.shape, clip.listed, clip.timed].append(number)
        videos = []
        for (_, listed, timed), members in alike.items():
            clips = [prepared.clips[number] for number in members]
            frames = torch.stack([torch.from_numpy(clip.frames) for clip in clips])
            # What would fill the device stays on the host, and is moved part by part where it is needed.
            frames = (frames if frames.numel() > ON_DEVICE else frames.to(device)).movedim(-1, 2)
            times = np.stack([clip.times for clip in clips])
            totals, rate = np.array([clip.total for clip in clips]), None if timed else self.list_rate
            videos.append(VideoBatch(np.array(members), frames, times, totals, listed, rate))
        return TrainingBatch(prepared.examples, videos, prepared.budget)

    def _read(self, name: str, candidates: int) -> Clip | None:
        try:
            with open_video(find_video(self.root, name), rounds=self.rounds) as source:
                return shrink(source.sample(candidates), self.pixels)
        except VideoError as error:
            if name not in self.unreadable:
                self.unreadable.add(name)
                self.skipped.append(str(error))
            return None

    def _records(self, file: Path) -> list[Record]:
        try:
            lines = read_lines(file)
        except OSError as error:
            raise DataError(f"cannot read {file}: {error.strerror}; give a .jsonl file with --data") from error
        records: list[Record] = []
        for number, line in lines:
            try:
                record = parse_record(parse_json(line))
                target = record.target if self.texts or record.question is not None else None
                for text in (record.question, record.instruction, target, *record.options):
                    if text and self.check_text:
                        self.check_text(text)
                # Two names of one file are one video, else validation could use a video of the training.
                name = self.names.setdefault(_file(self.root, record.video), record.video)
                records.append(replace(record, video=name))
            except (AllocEmbedError, ValueError) as error:
                self.skipped.append(f"{file}:{number}: {error}")
        return records


def shrink(clip: Clip, pixels: int) -> Clip:
    """The clip with frames of at most `pixels`, or as it is if they are smaller or `pixels` is 0."""
    if not pixels or clip.height * clip.width <= pixels:
        return clip
    scale = (pixels / (clip.height * clip.width)) ** 0.5
    size = max(1, int(clip.height * scale)), max(1, int(clip.width * scale))
    frames = (torch.from_numpy(frame).permute(2, 0, 1)[None] for frame in clip.frames)
    return replace(clip, frames=torch.cat([resize(frame, size) for frame in frames]).permute(0, 2, 3, 1).numpy())


def parse_record(line: Any) -> Record:
    """Read one line; a DataError says what is wrong with it.

    >>> parse_record({"id": "v2", "video": "v2.mp4", "caption": "a dog"})
    Record(video='v2.mp4', question=None, target='a dog', options=(), instruction=None)
    >>> turns = [{"from": "human", "value": "<video>\\nWho runs?"}, {"from": "gpt", "value": "A dog."}]
    >>> parse_record({"video": "v1", "conversations": turns, "options": ["A dog.", "A cat."]})
    Record(video='v1', question='Who runs?', target='A dog.', options=('A cat.',), instruction=None)
    """
    if not isinstance(line, dict) or not isinstance(line.get("video"), str) or not line["video"]:
        raise DataError("no video is named; write a JSON object with a field video")
    turn, target = "", line.get("caption") or line.get("text")
    if turns := line.get("conversations"):
        try:
            values = [(turn["from"], turn["value"]) for turn in turns]
            start = next(i for i, (who, _) in enumerate(values) if who == "human")
            turn = PLACEHOLDER.sub(" ", values[start][1])
            target = next(value for who, value in values[start:] if who == "gpt")
        except (TypeError, KeyError, StopIteration) as error:
            raise DataError("the conversation has no human turn with an answer by gpt") from error
    if target is not None and (not isinstance(target, str) or not target.strip()):
        raise DataError("the target is not a text; give a caption, a text or conversations, or leave it out")
    options = line.get("options") or []
    if not isinstance(options, list) or not all(isinstance(option, str) and option.strip() for option in options):
        raise DataError("the options must be a list of texts")
    target = None if target is None else target.strip()
    wrong = dict.fromkeys(option.strip() for option in options if option.strip() != target)
    kind = "question" if is_question(turn, options) else "instruction"
    said = {kind: turn} | {name: line[name] for name in ("question", "instruction") if name in line}
    if not all(text is None or isinstance(text, str) for text in said.values()):
        raise DataError("the question and the instruction must be texts")
    question, instruction = ((said.get(name) or "").strip() or None for name in ("question", "instruction"))
    return Record(line["video"], question, target, tuple(wrong), instruction)


def is_question(turn: str, options: Sequence[str]) -> bool:
    """Whether a human turn asks something about the video: it has a question mark, or options to choose from.

    >>> is_question("Who runs?", []), is_question("Name the animal.", ["a dog"]), is_question("Describe the video.", [])
    (True, True, False)
    """
    return bool(options) or QUESTION_MARKS.search(turn) is not None


def split(records: Sequence[Record], held: int, seed: int) -> tuple[list[Record], list[Record]]:
    """Split off at least `held` records for validation; all records of a video stay on one side.

    >>> records = [Record(f"v{i // 2}", None, str(i)) for i in range(10)]
    >>> validation, training = split(records, 3, seed=0)
    >>> len(validation), len(training), {r.video for r in validation} & {r.video for r in training}
    (4, 6, set())
    """
    by_video: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_video[record.video].append(record)
    videos, validation = list(by_video), []
    order = np.random.default_rng([seed, VALIDATION]).permutation(len(videos)).tolist()
    while order and len(validation) < held:
        validation += by_video.pop(videos[order.pop()])
    return validation, [record for group in by_video.values() for record in group]


def shuffled(total: int, seed: int, start: int, count: int) -> list[int]:
    """Positions `start` to `start + count` of an endless sequence of shuffled epochs over `total` records.

    >>> drawn = shuffled(5, seed=0, start=0, count=10)
    >>> sorted(drawn[:5]), sorted(drawn[5:]), drawn[3:7] == shuffled(5, 0, 3, 4)
    ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], True)
    """
    first, last = start // total, (start + count - 1) // total
    epochs = [np.random.default_rng([seed, TRAINING, epoch]).permutation(total) for epoch in range(first, last + 1)]
    return np.concatenate(epochs)[start - first * total :][:count].tolist()


def find_video(root: Path, name: str) -> Path:
    """Path of a named video: the file or folder itself, a file with a video suffix, or a folder without the suffix."""
    named = root / name
    if named.exists():
        return named
    if named.suffix.lower() in VIDEO_SUFFIXES and named.with_suffix("").is_dir():
        return named.with_suffix("")
    return next((path for end in sorted(VIDEO_SUFFIXES) if (path := named.with_name(named.name + end)).exists()), named)


def _file(root: Path, name: str) -> Path:
    """The file or folder of a named video, without links; it need not exist."""
    try:
        return find_video(root, name).resolve()
    except (OSError, RuntimeError) as error:  # RuntimeError: a loop of links, before Python 3.13
        cause = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot look for the video {name[:80]!r}: {cause}") from error
