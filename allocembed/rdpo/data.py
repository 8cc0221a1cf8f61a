"""What a step learns from: videos with a target text each, and the corpus its further negatives are drawn from.

Two sources, one interface: the procedural world here, a jsonl of real videos in `jsonl`. Everything a source gives
depends on the seed and the step alone, so that every process, and a run that goes on, sees the same. `prepare` is the
host's part, done ahead in a thread; `finish` puts frames on the device.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from allocembed import world
from allocembed.budget import Budget, chunk_frames
from allocembed.frames import candidate_indices
from allocembed.rdpo.config import TrainConfig
from allocembed.rdpo.negatives import TextPool
from allocembed.world.files import USUAL_FRAMES

# Streams of randomness that never meet each other, the nano backbones' training or NanoRet's test videos.
TRAINING, VALIDATION, CORPUS = 271_828_001, 271_828_002, 271_828_003
Mixture: TypeAlias = tuple[float, float, float]


@dataclass(frozen=True)
class Example:
    """A video's target, and the task text that goes with the video."""

    sample: Hashable
    target: str
    text: str | None = None
    query: bool = False
    """Whether the target is a search sentence, read with the backbone's query instruction, and not an answer."""
    options: tuple[str, ...] = ()
    """What the target has to be told from, where a question comes with its options."""


@dataclass(frozen=True, eq=False)
class Videos:
    """Sampled videos of one frame size and frame count."""

    members: np.ndarray
    """(b,) their numbers among the step's examples."""
    frames: Tensor
    """(b, T, 3, H, W) uint8."""
    times: np.ndarray
    """(b, T) seconds."""
    totals: np.ndarray
    """(b,) frames in each source."""

    def __len__(self) -> int:
        return len(self.members)

    @property
    def pairs(self) -> np.ndarray:
        """(C, 2) frames of each chunk."""
        return np.array(chunk_frames(np.arange(self.frames.shape[1])))

    @property
    def seconds(self) -> np.ndarray:
        """(b, C) mean time of each chunk's frames."""
        return self.times[:, self.pairs].mean(-1)


@dataclass(frozen=True, eq=False)
class Batch:
    """One step's examples on every process, and the videos of this process's own."""

    examples: list[Example]
    videos: list[Videos]
    budget: Budget

    @property
    def answers(self) -> frozenset[str]:
        """Targets that go with a task text, and the options beside them."""
        asked = (example for example in self.examples if example.text is not None)
        return frozenset(text for example in asked for text in (example.target, *example.options))

    @property
    def targets(self) -> TextPool:
        return TextPool([example.sample for example in self.examples], [example.target for example in self.examples])


class Source(ABC):
    """Where examples come from."""

    corpus: TextPool
    queries: frozenset[str]
    """Those texts of the corpus that are search sentences."""
    answers: frozenset[str]
    """Those that answer a question, or are a target with any other task text."""
    skipped: list[str]
    """What could not be read, with the reason."""

    @abstractmethod
    def prepare(self, stream: int, step: int, count: int, budget: Budget, candidates: int, mine: range) -> Any:
        """The host's part of a batch of `count` examples from the stream TRAINING or VALIDATION."""

    @abstractmethod
    def finish(self, prepared: Any, device: torch.device) -> Batch:
        """The batch, with the frames of the examples `mine`; the device may be busy until they are there."""


@dataclass(frozen=True, eq=False)
class Drawn:
    """Timelines and texts of a batch, before rendering."""

    timelines: world.Timelines
    examples: list[Example]
    indices: np.ndarray
    budget: Budget
    mine: range


class WorldSource(Source):
    """Videos of the nano world: short and long, landscape and portrait, in equal parts, from the training split.

    The target is a sentence about one moment that the candidate frames show, a description of the whole video, or the
    right answer to a question, which is then the video's task text.
    """

    def __init__(self, seed: int, pool: int, mixture: Mixture = TrainConfig.mixture) -> None:
        self.seed, self.mixture, self.skipped = seed, mixture, []
        self.corpus, self.queries, self.answers = world_corpus(seed, pool, mixture)

    def prepare(self, stream: int, step: int, count: int, budget: Budget, candidates: int, mine: range) -> Drawn:
        indices = candidate_indices(USUAL_FRAMES, candidates)
        timelines = draw_timelines([self.seed, stream, step], count)
        seen = world.events_at(timelines, indices / (USUAL_FRAMES - 1))
        examples = [
            make_example(timelines, number, seen[number], self.mixture, f"{self.seed} {stream} {step} {number}")
            for number in range(count)
        ]
        return Drawn(timelines, examples, indices, budget, mine)

    def finish(self, prepared: Drawn, device: torch.device) -> Batch:
        mine = np.asarray(prepared.mine)
        fractions = prepared.indices / (USUAL_FRAMES - 1)
        upright = prepared.timelines.portrait[mine]
        videos = []
        for members in (mine[~upright], mine[upright]):
            if len(members):
                chosen = prepared.timelines.select(members)
                frames = world.render(chosen, fractions, device=device)
                times = fractions * chosen.duration[:, None]
                videos.append(Videos(members, frames, times, np.full(len(members), USUAL_FRAMES)))
        return Batch(prepared.examples, videos, prepared.budget)


def draw_timelines(seed: Sequence[int], count: int) -> world.Timelines:
    """`count` training videos whose kind and orientation take turns.

    >>> drawn = draw_timelines([0, TRAINING, 3], 6)
    >>> drawn.portrait.tolist(), (drawn.duration >= 600).tolist()
    ([False, True, False, True, False, True], [False, False, True, True, False, False])
    """
    parts, places = [], []
    for number, (kind, way) in enumerate((k, w) for k in ("short", "long") for w in ("landscape", "portrait")):
        where = np.arange(number, count, 4)
        if len(where):
            parts.append(world.draw(len(where), [*seed, number], kind, "train", orientation=way))
            places.append(where)
    return world.concat(parts).select(np.argsort(np.concatenate(places)))


def make_example(timelines: world.Timelines, number: int, seen: np.ndarray, mixture: Mixture, key: str) -> Example:
    """A target for one video; `seen` (T,) are the events on its candidate frames, -1 for none."""
    rng = random.Random(key)
    visible = sorted(set(seen.tolist()) - {-1}) or [0]
    moment, whole, _ = mixture
    kind = rng.random()
    if kind < moment:
        return Example(number, world.describe_moment(timelines, number, rng.choice(visible), rng), query=True)
    if kind < moment + whole:
        return Example(number, world.describe_video(timelines, number, rng), query=True)
    asked = world.question(timelines, number, rng, event=rng.choice(visible))
    target = asked.options[asked.answer]
    return Example(number, target, asked.text, options=tuple(text for text in asked.options if text != target))


def world_corpus(seed: int, count: int, mixture: Mixture) -> tuple[TextPool, frozenset[str], frozenset[str]]:
    """`count` target texts of videos that no step shows, in the examples' own proportions; which of them are queries,
    and which answers."""
    timelines = draw_timelines([seed, CORPUS], count)
    anything = np.arange(world.WorldConfig().events[0] - 1)
    examples = [
        make_example(timelines, number, anything, mixture, f"{seed} {CORPUS} {number}") for number in range(count)
    ]
    ids = [("corpus", number) for number in range(count)]
    queries = frozenset(example.target for example in examples if example.query)
    answers = frozenset(example.target for example in examples if example.text is not None)
    return TextPool(ids, [example.target for example in examples]), queries, answers
