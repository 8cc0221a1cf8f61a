"""Training batches for the nano backbones: timelines, texts and token rows, made in worker processes.

Token rows come from the backbone class that will load the finished model, so training sees the layout, times and
positions of inference. Pixels are not made here: the trainer renders each group on its own device.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from nano_rows import Rows, make_rows
from torch.utils.data import IterableDataset, get_worker_info

from allocembed.backbones.base import Backbone, Prompt
from allocembed.budget import grids_at, project
from allocembed.video import candidate_indices
from allocembed_nano import world
from allocembed_nano.world import vocabulary as vocab
from allocembed_nano.world.files import USUAL_FRAMES
from allocembed_nano.world.timeline import EVENT_SLOTS, MAX_EVENTS, slots_at

FRAME_COUNTS = {8: 0.25, 16: 0.12, 24: 0.50, 32: 0.08, 48: 0.05}
NOTHING = -1
GLIMPSE_STEPS = 400  # over which whole videos replace glimpses
LARGE = replace(world.SHORT, object_size=(0.4, 0.7), word_size=(0.16, 0.26), object_skew=1.0, word_skew=1.0)
CONCEPTS = (vocab.OBJECTS, vocab.COLOURS, vocab.WORDS, vocab.PLACES)
CONCEPT_COUNTS = tuple(len(names) for names in CONCEPTS)
CONCEPT_STARTS = tuple(np.concatenate([[0], np.cumsum(CONCEPT_COUNTS)[:-1]]).tolist())


@dataclass(frozen=True, eq=False)
class VideoGroup:
    """Videos of one orientation and one frame count: what to render, and the grid of each chunk."""

    timelines: world.Timelines
    fractions: np.ndarray
    """(T,), or (b, T) if every video has its own."""
    grids: np.ndarray
    """(b, C, 2) token rows and cols."""
    glimpse: bool = False
    """Whether these are a few chunks of each video, described by what they show."""


@dataclass(frozen=True, eq=False)
class EmbeddingBatch:
    """One step of the second stage: videos with descriptions or, where `asks`, with a question."""

    groups: list[VideoGroup]
    videos: list[Rows]
    """One per group, whose rows are of similar length."""
    asks: torch.Tensor
    """(B,) bool."""
    chunk_labels: torch.Tensor
    """(chunks, frames, 4 kinds of concept); NOTHING if no event is on screen."""
    chunk_marks: torch.Tensor
    """(chunks, frames, 6): where object and sign are."""
    video_concepts: torch.Tensor
    """(B, V) bool: concepts on screen, or the answer for a video with a question."""
    descriptions: Rows
    """One per video without a question."""
    phrases: Rows
    """Two moments per video without a question, then four options per video with one."""
    answers: torch.Tensor
    """(A,) index of the right option."""
    moment_concepts: torch.Tensor
    """(2 R, V) bool."""


class SeededBatches(IterableDataset):
    """An endless stream of `make(seed)`; every worker has its own seeds."""

    def __init__(self, make: Callable[[list[int]], object], seed: int) -> None:
        self.make, self.seed = make, seed

    def __iter__(self) -> Iterator[object]:
        worker = get_worker_info()
        step, stride = (worker.id, worker.num_workers) if worker else (0, 1)
        torch.set_num_threads(1)
        while True:
            yield self.make([self.seed, step])
            step += stride


@dataclass(frozen=True, eq=False)
class ReadingBatch:
    """One step of the first stage: single chunks for the vision tower, and texts for the language model."""

    groups: list[VideoGroup]
    chunk_labels: torch.Tensor
    """(chunks, frames, 4 kinds of concept)."""
    chunk_marks: torch.Tensor
    """(chunks, frames, 6): where object and sign are."""
    phrases: Rows
    phrase_concepts: torch.Tensor
    """(phrases, V) bool."""


def make_reading(backbone: Backbone, size: int, seed: list[int]) -> ReadingBatch:
    """About `size` chunks in which nearly every frame shows an event, at scales at which it may be readable.

    Half the videos show larger things than the world does, because an untrained tower learns from those first.
    """
    rng = np.random.default_rng(seed)
    plain = random.Random(int(rng.integers(2**62)))
    per_chunk = backbone.geometry.frames_per_chunk
    groups, labels, marks, phrases, concepts = [], [], [], [], []
    for number, orientation in enumerate(("landscape", "portrait")):
        draws = [
            world.draw(size // 12, [*seed, number, i], "short", "train", orientation=orientation, config=config)
            for i, config in enumerate((LARGE, None))
        ]
        timelines = world.concat(draws)
        fractions = event_fractions(rng, timelines, 3, per_chunk)
        # Few sizes per step: each one costs the trainer a dozen kernel launches.
        sizes = np.exp(rng.uniform(np.log(0.45), np.log(1.6), 4))
        scales = rng.choice(sizes, (len(timelines), 3))
        groups.append(
            VideoGroup(timelines, fractions, grids_at(scales, native_sides(backbone, orientation, len(timelines))))
        )
        labels.append(frame_labels(world.events_at(timelines, fractions), event_facts(timelines), per_chunk))
        marks.append(frame_marks(timelines, fractions, per_chunk))
        facts = event_facts(timelines)
        for video in range(len(timelines)):
            event = plain.randrange(int(timelines.events[video]))
            phrases.append(world.describe_moment(timelines, video, event, plain))
            concepts.append(multi_hot(facts[video, event]))
    for name in plain.sample(sorted(_ANSWERS), min(len(phrases), 96)):
        phrases.append(name)
        concepts.append(multi_hot([_ANSWERS[name]]))
    prompts = [Prompt(text, plain.choice((None, backbone.query_instruction))) for text in phrases]
    return ReadingBatch(
        groups=groups,
        chunk_labels=torch.from_numpy(np.concatenate(labels)),
        chunk_marks=torch.from_numpy(np.concatenate(marks)),
        phrases=text_rows(backbone, prompts),
        phrase_concepts=torch.from_numpy(np.stack(concepts)),
    )


def native_sides(backbone: Backbone, orientation: str, count: int) -> np.ndarray:
    """Rows and cols (count, 2) of the native grid of world videos."""
    native = backbone.geometry.native(*(world.PORTRAIT if orientation == "portrait" else world.LANDSCAPE))
    return np.tile([native.rows, native.cols], (count, 1))


def event_fractions(rng: np.random.Generator, timelines: world.Timelines, chunks: int, per_chunk: int) -> np.ndarray:
    """Times (B, chunks · frames) at which events are on screen; a pair shows one event twice, two, or anything."""
    shape = (len(timelines), chunks)
    first = (rng.random(shape) * timelines.events[:, None]).astype(int)
    other = (rng.random(shape) * timelines.events[:, None]).astype(int)
    same = rng.random(shape) < 0.5
    events = np.stack([first, np.where(same, first, other)][:per_chunk], -1).reshape(len(timelines), -1)
    slots = EVENT_SLOTS[events]
    start = np.take_along_axis(timelines.start, slots, 1)
    end = np.take_along_axis(timelines.end, slots, 1)
    on_event = start + (end - start) * rng.uniform(0.05, 0.95, events.shape)
    return np.where(rng.random(events.shape) < 0.12, rng.random(events.shape), on_event)


def make_batch(backbone: Backbone, size: int, ask_share: float, done: int, seed: list[int]) -> EmbeddingBatch:
    """Landscape and portrait videos, half short and half long, in two groups with their own frame counts.

    At first most groups are glimpses: one to four chunks of a video, with a sentence for each. The model must learn
    what a moment looks like before it can distinguish whole videos by their moments, and which colour belongs to which
    object before it can answer questions. `done` is the number of steps of an earlier run.
    """
    glimpses = max(0.25, 0.8 - 0.55 * (done + seed[-1]) / GLIMPSE_STEPS)
    rng = np.random.default_rng(seed)
    plain = random.Random(int(rng.integers(2**62)))
    per_chunk, groups = backbone.geometry.frames_per_chunk, []
    for number, orientation in enumerate(("landscape", "portrait")):
        kinds = ("short", "long")
        draws = [world.draw(size // 4, [*seed, number], kind, "train", orientation=orientation) for kind in kinds]
        timelines = world.concat(draws)
        sides = native_sides(backbone, orientation, len(timelines))
        if rng.random() < glimpses:
            chunks = int(rng.integers(1, 5)) * 2 // per_chunk
            fractions = np.sort(event_fractions(rng, timelines, chunks, per_chunk), 1)
            scales = rng.choice(np.exp(rng.uniform(np.log(0.4), np.log(1.6), 4)), (len(timelines), chunks))
            groups.append(VideoGroup(timelines, fractions, grids_at(scales, sides), glimpse=True))
            continue
        frames = int(rng.choice(list(FRAME_COUNTS), p=list(FRAME_COUNTS.values())))
        groups.append(VideoGroup(timelines, frame_fractions(frames), draw_grids(rng, sides, frames, per_chunk)))
    return assemble(backbone, groups, plain, ask_share)


def frame_fractions(count: int) -> np.ndarray:
    """Times (count,) of uniformly sampled frames in a world video, from 0 to 1."""
    return candidate_indices(USUAL_FRAMES, count) / (USUAL_FRAMES - 1)


def draw_grids(rng: np.random.Generator, sides: np.ndarray, frames: int, per_chunk: int) -> np.ndarray:
    """Random grids (videos, C, 2), so that the model learns all resolutions: all native, or one per chunk.

    Every video has its own budget. Mixed ones favour some chunks more or less strongly, as an allocator will.
    """
    videos, chunks, tokens = len(sides), frames // per_chunk, int(sides[0].prod())
    native = np.ones((videos, chunks))
    if (frames == 8 and rng.random() < 0.7) or (frames == 24 and rng.random() < 0.2):
        return grids_at(native, sides)
    mixed = np.exp(rng.normal(0, rng.uniform(0.2, 0.9, (videos, 1)), (videos, chunks)))
    scales = np.where(rng.random((videos, 1)) < 0.3, native, mixed)
    smallest = int(grids_at(np.array([0.2]), sides[:1]).prod()) * chunks
    budgets = tokens * rng.uniform(5, 11, videos) / per_chunk  # those of 5 to 11 native frames
    return project(scales, sides, np.maximum(budgets, smallest).astype(int))[1]


def assemble(backbone: Backbone, groups: list[VideoGroup], plain: random.Random, ask_share: float) -> EmbeddingBatch:
    """Add texts, rows and labels to groups of videos."""
    prompts, asks, labels, marks, concepts = [], [], [], [], []
    descriptions, moments, moment_concepts, options, answers = [], [], [], [], []
    query, per_chunk = backbone.query_instruction, backbone.geometry.frames_per_chunk
    for group in groups:
        timelines = group.timelines
        seen = world.events_at(timelines, group.fractions)
        facts = event_facts(timelines)
        labels.append(frame_labels(seen, facts, per_chunk))
        marks.append(frame_marks(timelines, group.fractions, per_chunk))
        prompts.append([])
        for video in range(len(timelines)):
            visible = sorted(set(seen[video].tolist()) - {NOTHING})
            asked = bool(visible) and plain.random() < ask_share
            asks.append(asked)
            seconds = chunk_times(group, video, per_chunk)
            if asked:
                question = world.question(timelines, video, plain, event=plain.choice(visible))
                prompts[-1].append(Prompt(question.text, seconds=seconds))
                options += question.options
                answers.append(question.answer)
                concepts.append(multi_hot([answer_concept(question.options[question.answer])]))
                continue
            prompts[-1].append(Prompt(seconds=seconds))
            concepts.append(multi_hot(facts[video, visible].ravel() if visible else []))
            if group.glimpse and visible:
                descriptions.append(world.describe_moment(timelines, video, plain.choice(visible), plain))
            else:
                descriptions.append(world.describe_video(timelines, video, plain))
            for event in plain.choices(visible, k=2) if visible else (0, 0):
                moments.append(world.describe_moment(timelines, video, event, plain))
                moment_concepts.append(multi_hot(facts[video, event]))

    def queries(texts: list[str]) -> list[Prompt]:
        return [Prompt(text, query if plain.random() < 0.7 else None) for text in texts]

    phrases = [*queries(moments), *(Prompt(option) for option in options)]
    rows = [
        backbone.rows(backbone.tokenise(some), list(group.grids)) for group, some in zip(groups, prompts, strict=True)
    ]
    return EmbeddingBatch(
        groups=groups,
        videos=[make_rows(backbone, own, group.grids) for group, own in zip(groups, rows, strict=True)],
        asks=torch.tensor(asks),
        chunk_labels=torch.from_numpy(np.concatenate(labels)),
        chunk_marks=torch.from_numpy(np.concatenate(marks)),
        video_concepts=torch.from_numpy(np.stack(concepts)),
        descriptions=text_rows(backbone, queries(descriptions)),
        phrases=text_rows(backbone, phrases),
        answers=torch.tensor(answers, dtype=torch.long),
        moment_concepts=torch.from_numpy(np.stack(moment_concepts)),
    )


def event_facts(timelines: world.Timelines) -> np.ndarray:
    """Concept numbers (B, MAX_EVENTS, 4) of every event: object, colour, word, place."""
    columns = (timelines.object, timelines.colour, timelines.word, timelines.place)
    return np.stack([c[:, EVENT_SLOTS] + start for c, start in zip(columns, CONCEPT_STARTS, strict=True)], -1)


def frame_labels(seen: np.ndarray, facts: np.ndarray, per_chunk: int) -> np.ndarray:
    """Concept numbers (B · C, frames, 4) on each frame of each chunk."""
    shown = np.take_along_axis(facts, np.clip(seen, 0, MAX_EVENTS - 1)[..., None], axis=1)
    shown = np.where((seen >= 0)[..., None], shown - np.array(CONCEPT_STARTS), NOTHING)
    return shown.reshape(-1, per_chunk, len(CONCEPTS)).astype(np.int64)


def frame_marks(timelines: world.Timelines, fractions: np.ndarray, per_chunk: int) -> np.ndarray:
    """Positions (B · C, frames, 6) on each frame: object x, y, half size; word x, y, height, in short sides."""
    slots = slots_at(timelines, fractions)

    def at(values: np.ndarray) -> np.ndarray:
        return np.take_along_axis(values, slots, 1)

    start, end = at(timelines.start), at(timelines.end)
    moved = (fractions - start) / np.maximum(end - start, 1e-9) - 0.5
    columns = (
        at(timelines.object_x) + at(timelines.drift_x) * moved,
        at(timelines.object_y) + at(timelines.drift_y) * moved,
        at(timelines.object_size) / 2,
        at(timelines.word_x),
        at(timelines.word_y),
        at(timelines.word_size),
    )
    return np.stack(columns, -1).reshape(-1, per_chunk, len(columns)).astype(np.float32)


def multi_hot(numbers: Sequence[int] | np.ndarray) -> np.ndarray:
    """A bool vector (V,) of concepts."""
    hot = np.zeros(sum(CONCEPT_COUNTS), bool)
    hot[np.asarray(numbers, dtype=int)] = True
    return hot


def answer_concept(option: str) -> int:
    """The number of the concept that an option of a question names."""
    return _ANSWERS[option]


_ANSWERS = {
    name: start + i for names, start in zip(CONCEPTS, CONCEPT_STARTS, strict=True) for i, name in enumerate(names)
}
_ANSWERS |= {phrases[0]: CONCEPT_STARTS[3] + i for i, phrases in enumerate(vocab.PLACE_PHRASES.values())}


def chunk_times(group: VideoGroup, video: int, per_chunk: int) -> np.ndarray:
    """Mean second (C,) of each chunk of a video."""
    fractions = group.fractions if group.fractions.ndim == 1 else group.fractions[video]
    return (fractions * group.timelines.duration[video]).reshape(-1, per_chunk).mean(1)


def text_rows(backbone: Backbone, prompts: Sequence[Prompt]) -> Rows:
    """Rows of prompts without a video."""
    return make_rows(backbone, backbone.rows(backbone.tokenise(prompts), [np.empty((0, 2), np.int64)] * len(prompts)))
