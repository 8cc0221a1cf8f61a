"""Real videos with texts, one JSON object a line, in LLaVA-Hound's layout; `docs/training.md` shows it.

    {"id": "v1", "video": "v1", "conversations": [{"from": "human", "value": "<video>\\nWhat is …?"},
                                                  {"from": "gpt", "value": "A dog."}]}
    {"id": "v2", "video": "clips/v2.mp4", "caption": "a dog runs over a lawn"}

The answer or caption is the target, the question the video's task text; a question may have `"options": [...]`, the
wrong answers it comes with. Videos are files or folders of frames. A video
or line that can't be read is left out, counted and named, and costs itself only.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from allocembed.backbones.base import LONGEST_TEXT, VIDEO_PAD
from allocembed.budget import Budget
from allocembed.frames import Clip, VideoError
from allocembed.rdpo.data import TRAINING, VALIDATION, Batch, Example, Source, Videos
from allocembed.rdpo.negatives import TextPool

PLACEHOLDER = re.compile(r"\s*<(?:video|image)>\s*")


@dataclass(frozen=True)
class Record:
    """One line: the video as it is named there, its task text, its target, and the wrong options of a question."""

    video: str
    text: str | None
    target: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Read:
    """Examples of a batch, and the clips of this process's own by their numbers."""

    examples: list[Example]
    clips: dict[int, Clip]
    budget: Budget


class JsonlSource(Source):
    """Examples from a file; a share of the videos, with all that is said about them, is kept for validation."""

    def __init__(self, file: Path, root: Path, *, seed: int = 0, validation: int = 512, workers: int = 8) -> None:
        self.seed, self.root = seed, root
        self.skipped: list[str] = []
        self.unreadable: set[str] = set()
        self.threads = ThreadPoolExecutor(max_workers=workers)
        records = self._records(file)
        if not records:
            said = f"; the first: {self.skipped[0]}" if self.skipped else ""
            raise ValueError(f"{file} has no usable line: give a .jsonl file as docs/training.md shows it{said}")
        self.held, self.records = split(records, validation, seed)
        if not self.records:
            raise ValueError(
                f"{file} has {len(records)} usable lines, and {validation} are kept for validation: lower --validation"
            )
        self.corpus = TextPool([record.video for record in self.records], [record.target for record in self.records])
        self.queries = frozenset()
        self.answers = frozenset(record.target for record in self.records if record.text is not None)

    def prepare(self, stream: int, step: int, count: int, budget: Budget, candidates: int, mine: range) -> Read:
        if stream == VALIDATION:
            chosen = self.held[:count]
        else:
            chosen = [self.records[i] for i in shuffled(len(self.records), self.seed, step * count, count)]
        examples = [Example(record.video, record.target, record.text, options=record.options) for record in chosen]
        own = [number for number in mine if number < len(chosen)]
        clips = self.threads.map(lambda number: self._read(chosen[number].video, candidates), own)
        found = {number: clip for number, clip in zip(own, clips, strict=True) if clip is not None}
        return Read(examples, found, budget)

    def finish(self, prepared: Read, device: torch.device) -> Batch:
        alike: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for number, clip in prepared.clips.items():
            alike[clip.frames.shape].append(number)
        videos = []
        for members in alike.values():
            clips = [prepared.clips[number] for number in members]
            frames = torch.stack([torch.from_numpy(clip.frames) for clip in clips]).to(device).movedim(-1, 2)
            times = np.stack([clip.times for clip in clips])
            videos.append(Videos(np.array(members), frames, times, np.array([clip.total for clip in clips])))
        return Batch(prepared.examples, videos, prepared.budget)

    def _read(self, video: str, candidates: int) -> Clip | None:
        from allocembed.video import sample

        try:
            return sample(find_video(self.root, video), candidates)
        except VideoError as error:
            if video not in self.unreadable:
                self.unreadable.add(video)
                self.skipped.append(str(error))
            return None

    def _records(self, file: Path) -> list[Record]:
        records = []
        try:
            lines = file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            cause = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ValueError(f"cannot read {file}: {cause}; give a .jsonl file with --data") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                records.append(parse_record(json.loads(line)))
            except ValueError as error:
                self.skipped.append(f"{file}:{number}: {error}")
        return records


def parse_record(line: Any) -> Record:
    """Reads one line; a ValueError says what is wrong with it.

    >>> parse_record({"id": "v2", "video": "v2.mp4", "caption": "a dog"})
    Record(video='v2.mp4', text=None, target='a dog', options=())
    >>> said = [{"from": "human", "value": "<video>\\nWho runs?"}, {"from": "gpt", "value": "A dog."}]
    >>> parse_record({"video": "v1", "conversations": said, "options": ["A dog.", "A cat."]})
    Record(video='v1', text='Who runs?', target='A dog.', options=('A cat.',))
    """
    if not isinstance(line, dict) or not isinstance(line.get("video"), str) or not line["video"]:
        raise ValueError("no video is named; write a JSON object with a field video")
    text, target = None, line.get("caption") or line.get("text")
    if said := line.get("conversations"):
        try:
            values = [(turn["from"], turn["value"]) for turn in said]
            start = next(i for i, (who, _) in enumerate(values) if who == "human")
            text = PLACEHOLDER.sub(" ", values[start][1]).strip() or None
            target = next(value for who, value in values[start:] if who == "gpt")
        except (TypeError, KeyError, StopIteration) as error:
            raise ValueError("the conversation has no human turn with an answer by gpt") from error
    if not isinstance(target, str) or not target.strip():
        raise ValueError("there is no target; give a caption, a text or conversations")
    options = line.get("options") or []
    if not isinstance(options, list) or not all(isinstance(option, str) and option.strip() for option in options):
        raise ValueError("the options must be a list of texts")
    for each in filter(None, (text, target, *options)):
        if VIDEO_PAD in each or len(each) > LONGEST_TEXT:
            raise ValueError(f"the text is too long or holds {VIDEO_PAD}")
    target = target.strip()
    wrong = dict.fromkeys(option.strip() for option in options if option.strip() != target)
    return Record(line["video"], text, target, tuple(wrong))


def split(records: Sequence[Record], held: int, seed: int) -> tuple[list[Record], list[Record]]:
    """At least `held` records for validation, and the rest; all records of a video are on one side.

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
    """Places `start` to `start + count` in an endless sequence of shuffled epochs over `total` things.

    >>> drawn = shuffled(5, seed=0, start=0, count=10)
    >>> sorted(drawn[:5]), sorted(drawn[5:]), drawn[3:7] == shuffled(5, 0, 3, 4)
    ([0, 1, 2, 3, 4], [0, 1, 2, 3, 4], True)
    """
    first, last = start // total, (start + count - 1) // total
    epochs = [np.random.default_rng([seed, TRAINING, epoch]).permutation(total) for epoch in range(first, last + 1)]
    return np.concatenate(epochs)[start - first * total :][:count].tolist()


def find_video(root: Path, video: str) -> Path:
    """Where a named video is: a file or folder of that name, one with a video's ending, or a folder without it."""
    from allocembed.video import VIDEO_SUFFIXES

    named = root / video
    if named.exists():
        return named
    if named.suffix.lower() in VIDEO_SUFFIXES and named.with_suffix("").is_dir():
        return named.with_suffix("")
    return next((path for end in sorted(VIDEO_SUFFIXES) if (path := named.with_name(named.name + end)).exists()), named)
