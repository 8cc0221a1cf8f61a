"""Training examples from the procedural nano world."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import numpy as np
import torch

from allocembed.budget import Budget
from allocembed.rdpo.config import TrainConfig
from allocembed.rdpo.data.base import CORPUS, Source, TrainingBatch, TrainingExample, VideoBatch, own_example
from allocembed.rdpo.negatives import TextPool
from allocembed.video.clip import candidate_indices
from allocembed_nano import world
from allocembed_nano.world.files import USUAL_FRAMES
from allocembed_nano.world.timeline import Kind, Orientation

Mixture: TypeAlias = tuple[float, float, float]
LENGTHS: tuple[Kind, ...] = ("short", "long")
ORIENTATIONS: tuple[Orientation, ...] = ("landscape", "portrait")


@dataclass(frozen=True, eq=False)
class WorldBatch:
    """Timelines and texts of a batch, before rendering."""

    timelines: world.Timelines
    examples: list[TrainingExample]
    indices: np.ndarray
    budget: Budget
    mine: range


class WorldSource(Source):
    """Videos of the nano world from the training split: short and long, landscape and portrait, in equal parts.

    The target is a sentence about one moment that the candidate frames show, a description of the whole video, or the
    answer to a question about it.
    """

    def __init__(self, seed: int, pool: int, mixture: Mixture = TrainConfig.mixture, *, texts: bool = True) -> None:
        """With `texts=False` the target is the video's own vector, except for answers to questions."""
        self.seed, self.mixture, self.texts, self.skipped = seed, mixture, texts, []
        self.corpus, self.queries, self.answers = world_corpus(seed, pool, mixture)

    def prepare(self, stream: int, step: int, count: int, budget: Budget, candidates: int, mine: range) -> WorldBatch:
        indices = candidate_indices(USUAL_FRAMES, candidates)
        timelines = draw_timelines([self.seed, stream, step], count)
        seen = world.events_at(timelines, indices / (USUAL_FRAMES - 1))
        examples = [
            make_example(timelines, number, seen[number], self.mixture, f"{self.seed} {stream} {step} {number}")
            for number in range(count)
        ]
        if not self.texts:
            named = [(stream, step, each.sample) for each in examples]  # the queue holds videos of several steps
            examples = [
                each if each.question is not None else own_example(name)
                for each, name in zip(examples, named, strict=True)
            ]
        return WorldBatch(timelines, examples, indices, budget, mine)

    def finish(self, prepared: WorldBatch, device: torch.device) -> TrainingBatch:
        mine = np.asarray(prepared.mine)
        fractions = prepared.indices / (USUAL_FRAMES - 1)
        portrait = prepared.timelines.portrait[mine]
        videos = []
        for members in (mine[~portrait], mine[portrait]):
            if len(members):
                chosen = prepared.timelines.select(members)
                frames = world.render(chosen, fractions, device=device)
                times = fractions * chosen.duration[:, None]
                videos.append(VideoBatch(members, frames, times, np.full(len(members), USUAL_FRAMES)))
        return TrainingBatch(prepared.examples, videos, prepared.budget)


def open_world(config: TrainConfig) -> WorldSource:
    """The source for the settings of a run."""
    return WorldSource(config.seed, config.pool, config.mixture, texts=config.target == "text")


def draw_timelines(seed: Sequence[int], count: int) -> world.Timelines:
    """Draw `count` training videos that alternate in kind and orientation.

    >>> drawn = draw_timelines([0, CORPUS, 3], 6)
    >>> drawn.portrait.tolist(), (drawn.duration >= 600).tolist()
    ([False, True, False, True, False, True], [False, False, True, True, False, False])
    """
    parts, places = [], []
    for number, (kind, way) in enumerate(product(LENGTHS, ORIENTATIONS)):
        where = np.arange(number, count, 4)
        if len(where):
            parts.append(world.draw(len(where), [*seed, number], kind, "train", orientation=way))
            places.append(where)
    return world.concat(parts).select(np.argsort(np.concatenate(places)))


def make_example(
    timelines: world.Timelines, number: int, seen: np.ndarray, mixture: Mixture, key: str
) -> TrainingExample:
    """Make a target for one video; `seen` (T,) are the events on its candidate frames, -1 for none."""
    rng = random.Random(key)
    visible = sorted(set(seen.tolist()) - {-1}) or [0]
    moment, whole, _ = mixture
    kind = rng.random()
    if kind < moment:
        return TrainingExample(number, world.describe_moment(timelines, number, rng.choice(visible), rng), query=True)
    if kind < moment + whole:
        return TrainingExample(number, world.describe_video(timelines, number, rng), query=True)
    asked = world.question(timelines, number, rng, event=rng.choice(visible))
    target = asked.options[asked.answer]
    return TrainingExample(number, target, asked.text, options=tuple(text for text in asked.options if text != target))


def world_corpus(seed: int, count: int, mixture: Mixture) -> tuple[TextPool, frozenset[str], frozenset[str]]:
    """`count` target texts of videos that no step shows, in the examples' proportions; its queries; its answers."""
    timelines = draw_timelines([seed, CORPUS], count)
    events = np.arange(world.WorldConfig().events[0] - 1)
    examples = [
        make_example(timelines, number, events, mixture, f"{seed} {CORPUS} {number}") for number in range(count)
    ]
    ids = [("corpus", number) for number in range(count)]
    queries = frozenset(example.target for example in examples if example.query)
    answers = frozenset(example.target for example in examples if example.question is not None)
    return TextPool(ids, [example.target for example in examples]), queries, answers
