"""NanoRet: text-to-video retrieval and video questions in the procedural world, shaped like LongRet and MMEB-V2.

Five subsets on three sets of 500 videos. `short` (1 to 5 minutes) and `long` (10 to 60, with sparser evidence) are each
searched with descriptions of single moments (`-clip`, up to three a video) and of whole videos (`-video`, one each);
`qa` asks one question about each video of a third set, half short and half long, with four options to choose from.

The videos never become files: a video is sampled exactly as a decoded file of NOMINAL_FRAMES frames would be, and goes
through `AllocEmbed.stream` like any other clip. All methods look at the same rendering.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from allocembed import world
from allocembed.allocators import Allocator
from allocembed.backbones import Backbone
from allocembed.benchmarks.metrics import Row, measure
from allocembed.benchmarks.report import Layout
from allocembed.embedder import AllocEmbed, Embedding, Failure
from allocembed.frames import Clip, candidate_indices
from allocembed.world.files import USUAL_FRAMES

SUBSETS = {"short-clip": "short", "short-video": "short", "long-clip": "long", "long-video": "long", "qa": "qa"}
"""Every subset and the set of videos it uses."""
RETRIEVAL = ("short-clip", "short-video", "long-clip", "long-video")
LAYOUT = Layout("NanoRet", averages={"retrieval": RETRIEVAL, "all": tuple(SUBSETS)}, videos=SUBSETS)

# Seeds of the shipped test videos. Training never draws them: it draws split="train", another random stream, in which
# the held-out combinations of object, colour and word do not occur.
TEST_SEEDS = {"short": 31_415_001, "long": 31_415_002, "qa": 31_415_003}
VIDEOS = 500
CLIP_QUERIES = 3  # at most so many moments of a video are asked for
NOMINAL_FRAMES = USUAL_FRAMES  # of every video, whatever its duration: as many as its file would have
AT_ONCE = 32  # videos in memory

Progress = Callable[[int, int], None]
"""Called with the videos embedded so far and in all; every method counts apart."""


@dataclass(frozen=True, eq=False)
class VideoSet:
    """Videos of one of the three sets, and the key from which their texts are drawn."""

    name: str
    key: str
    timelines: world.Timelines

    def __len__(self) -> int:
        return len(self.timelines)

    def text_source(self, purpose: str) -> random.Random:
        """Randomness for one kind of text, so that no kind depends on what else was asked for."""
        return random.Random(f"{self.key} {purpose}")


@dataclass(frozen=True, eq=False)
class Task:
    """What a subset asks of its videos: texts to embed, and which of the candidates each query should find."""

    texts: list[str]
    targets: np.ndarray
    """(Q,) index of the right candidate."""
    options: int = 0
    """0 where every text looks for a video; else how many of the texts, in order, each video chooses from."""

    def scores(self, texts: np.ndarray, videos: np.ndarray) -> np.ndarray:
        """(Q, candidates) cosines from the vectors of the texts and of the videos."""
        if not self.options:
            return texts @ videos.T
        return np.einsum("vd,vod->vo", videos, texts.reshape(len(videos), self.options, -1))


def evaluate(
    backbone: Backbone,
    methods: Sequence[str | Allocator],
    *,
    subsets: Sequence[str] = tuple(SUBSETS),
    limit: int | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
    **settings,
) -> list[Row]:
    """Runs allocation methods on NanoRet with one backbone; `settings` are those of `AllocEmbed`.

    `limit` keeps the first so many videos of each set, which makes retrieval easier: there are fewer to confuse.
    `seed` draws fresh test videos instead of the shipped ones.
    """
    home = at_home(backbone)
    embedders = [AllocEmbed(home, method, **settings) for method in methods]
    named = {embedder.allocator.name: embedder for embedder in embedders}
    if not named or len(named) < len(embedders):
        raise ValueError("give at least one method, and each once; evaluate_embedders takes labels for equal names")
    return evaluate_embedders(named, subsets=subsets, limit=limit, seed=seed, progress=progress)


def evaluate_embedders(
    embedders: Mapping[str, AllocEmbed],
    *,
    subsets: Sequence[str] = tuple(SUBSETS),
    limit: int | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> list[Row]:
    """The same for embedders by label, which become the rows' methods; all of them share one backbone."""
    check_subsets(subsets)
    sets = [draw_videos(name, limit, seed) for name in dict.fromkeys(SUBSETS[subset] for subset in subsets)]
    total = len(embedders) * sum(len(videos) for videos in sets)
    done = 0

    def tick() -> None:
        nonlocal done
        done += 1
        if progress:
            progress(done, total)

    rows = {}
    for videos in sets:
        wanted = [subset for subset in subsets if SUBSETS[subset] == videos.name]
        rows |= {(row.method, row.subset): row for row in _evaluate_set(embedders, videos, wanted, tick)}
    return [rows[label, subset] for label in embedders for subset in subsets]


def at_home(backbone: Backbone) -> Backbone:
    """The backbone without its notice, for use in the very world that the notice says it knows."""
    quiet = copy.copy(backbone)
    quiet.notice = None
    return quiet


def check_subsets(subsets: Sequence[str]) -> None:
    """Refuses a subset that doesn't exist."""
    if not subsets or (unknown := [subset for subset in subsets if subset not in SUBSETS]):
        named = f"there is no subset {unknown[0]!r}" if subsets else "there is no subset to run"
        raise ValueError(f"{named}: take some of {','.join(SUBSETS)}")


def draw_videos(name: str, limit: int | None = None, seed: int | None = None) -> VideoSet:
    """The first `limit` of the 500 videos of a set: the shipped ones, or fresh ones for a `seed`.

    >>> len(draw_videos("qa")), len(draw_videos("short", limit=7))
    (500, 7)
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    if seed is not None and seed < 0:
        raise ValueError(f"seed must be 0 or more, not {seed}")
    numbers = [TEST_SEEDS[name], 0 if seed is None else 1 + seed]
    kinds = ("short", "long") if name == "qa" else (name,)
    parts = [world.draw(VIDEOS // len(kinds), numbers, kind, split="test", orientation="mixed") for kind in kinds]
    # Kinds take turns, so that the first few videos hold as many of each.
    turns = np.arange(VIDEOS).reshape(len(kinds), -1).T.ravel()[:limit]
    return VideoSet(name, f"{name} {numbers}", world.concat(parts).select(turns))


def make_task(subset: str, videos: VideoSet) -> Task:
    """The texts of a subset and their targets.

    >>> task = make_task("qa", draw_videos("qa", limit=5))
    >>> len(task.texts), task.options, len(task.targets)
    (20, 4, 5)
    """
    if subset == "qa":
        asked = questions(videos)
        options = [option for question in asked for option in question.options]
        return Task(options, np.array([question.answer for question in asked]), len(asked[0].options))
    source = videos.text_source(subset)
    if subset.endswith("-video"):
        texts = [world.describe_video(videos.timelines, video, source) for video in range(len(videos))]
        return Task(texts, np.arange(len(videos)))
    texts, targets = [], []
    for video, count in enumerate(videos.timelines.events.tolist()):
        for event in sorted(source.sample(range(count), min(CLIP_QUERIES, count))):
            texts.append(world.describe_moment(videos.timelines, video, event, source))
            targets.append(video)
    return Task(texts, np.array(targets))


def questions(videos: VideoSet) -> list[world.Question]:
    """A question with its options about every video."""
    source = videos.text_source("qa")
    return [world.question(videos.timelines, video, source) for video in range(len(videos))]


def clips_of(
    videos: VideoSet, chosen: Sequence[int], counts: Sequence[int], device: str | torch.device = "cpu"
) -> dict[int, list[Clip]]:
    """For each count of frames, the chosen videos sampled at so many; every frame is rendered once.

    >>> clips = clips_of(draw_videos("short"), [3, 4], [8, 24])
    >>> len(clips[8]), len(clips[24][0]), clips[8][0].indices.tolist(), clips[8][0].total
    (2, 24, [0, 68, 136, 205, 273, 342, 410, 479], 480)
    """
    indices = {count: candidate_indices(NOMINAL_FRAMES, count) for count in counts}
    every = np.unique(np.concatenate(list(indices.values())))
    clips: dict[int, dict[int, Clip]] = {count: {} for count in counts}
    chosen = np.asarray(chosen)
    upright = videos.timelines.portrait[chosen]
    for members in (chosen[upright], chosen[~upright]):
        if not len(members):
            continue
        frames = world.render(videos.timelines.select(members), every / (NOMINAL_FRAMES - 1), device=device)
        frames = frames.permute(0, 1, 3, 4, 2).contiguous().cpu().numpy()
        for video, pictures in zip(members.tolist(), frames, strict=True):
            for count, wanted in indices.items():
                clips[count][video] = _clip(videos, video, wanted, pictures[np.searchsorted(every, wanted)])
    return {count: [by_video[video] for video in chosen.tolist()] for count, by_video in clips.items()}


def _clip(videos: VideoSet, video: int, indices: np.ndarray, frames: np.ndarray) -> Clip:
    duration = float(videos.timelines.duration[video])
    times = indices / (NOMINAL_FRAMES - 1) * duration
    return Clip(frames, times, indices, NOMINAL_FRAMES, duration, f"nano/{videos.name}/{video:03}")


def _evaluate_set(
    embedders: Mapping[str, AllocEmbed], videos: VideoSet, subsets: Sequence[str], tick: Callable[[], None]
) -> Iterator[Row]:
    """Rows of the subsets that use one set of videos, which are rendered and embedded once for all of them."""
    asked = [question.text for question in questions(videos)] if videos.name == "qa" else None
    embedded = _embed(embedders, videos, asked, tick)
    reader = next(iter(embedders.values()))
    for subset in subsets:
        task = make_task(subset, videos)
        instruction = None if task.options else reader.backbone.query_instruction
        texts = _vectors(reader.encode_texts(task.texts, instruction=instruction))
        for label, results in embedded.items():
            scores = task.scores(texts, _vectors(results))
            yield measure(label, subset, scores, task.targets, [result.allocation for result in results])


def _embed(
    embedders: Mapping[str, AllocEmbed], videos: VideoSet, texts: list[str] | None, tick: Callable[[], None]
) -> dict[str, list[Embedding]]:
    """All videos by all embedders, a few videos at a time, so that memory does not grow with the benchmark."""
    counts = {label: e.allocator.frames_wanted(e.budget, e.candidates) for label, e in embedders.items()}
    device = next(iter(embedders.values())).backbone.device
    batch = 4 if device.type == "cpu" else AT_ONCE
    results: dict[str, list[Embedding]] = {label: [] for label in embedders}
    for start in range(0, len(videos), AT_ONCE):
        chosen = range(start, min(start + AT_ONCE, len(videos)))
        clips = clips_of(videos, chosen, sorted(set(counts.values())), device)
        for label, embedder in embedders.items():
            text = texts[start : start + AT_ONCE] if texts else None
            for result in embedder.stream(clips[counts[label]], text, batch=batch):
                if isinstance(result, Failure):
                    raise result.error
                results[label].append(result)
                tick()
    return results


def _vectors(embeddings: Sequence[Embedding]) -> np.ndarray:
    return np.stack([embedding.vector for embedding in embeddings]).astype(np.float64)
