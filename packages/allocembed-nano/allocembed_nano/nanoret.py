"""NanoRet: text-to-video retrieval and video questions in the procedural world, shaped like LongRet and MMEB-V2.

Five subsets on three sets of 500 videos. `short` (1 to 5 minutes) and `long` (10 to 60, with sparser evidence) are each
searched with descriptions of single moments (`-clip`, up to three per video) and of whole videos (`-video`, one each);
`qa` asks one question about each video of a third set, half short and half long, with four options.

The videos never become files: a video is sampled exactly as a decoded file of NOMINAL_FRAMES frames would be, and goes
through `AllocEmbed.stream` like any other clip. All methods see the same rendering.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from allocembed.allocators.base import Allocator
from allocembed.backbones.base import Backbone
from allocembed.benchmarks import report
from allocembed.benchmarks.campaign import CampaignResults, cost_unit, load_allocators, load_evaluated, save_sweeps
from allocembed.benchmarks.metrics import Score, measure
from allocembed.benchmarks.report import TableLayout
from allocembed.benchmarks.request import short_titles
from allocembed.benchmarks.runner import Progress
from allocembed.benchmarks.sweep import Sweep, make_embedders
from allocembed.benchmarks.tasks import BenchmarkTask, check_names
from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed, Failure, TextEmbedding, VideoEmbedding
from allocembed.errors import ConfigError, MissingDependency
from allocembed.output.files import make_room
from allocembed.video import Clip, candidate_indices
from allocembed_nano import world
from allocembed_nano.request import RETRIEVAL, SUBSETS, NanoRequest, check_videos
from allocembed_nano.world.files import USUAL_FRAMES
from allocembed_nano.world.timeline import Kind

if TYPE_CHECKING:
    from allocembed.benchmarks.campaign import ShowProgress

LAYOUT = TableLayout("NanoRet", averages={"retrieval": RETRIEVAL, "all": tuple(SUBSETS)}, videos=SUBSETS)

# Seeds of the shipped test videos. Training never draws them: it draws split="train", another random stream, in which
# the held-out combinations of object, colour and word do not occur.
TEST_SEEDS = {"short": 31_415_001, "long": 31_415_002, "qa": 31_415_003}
VIDEOS = 500
CLIP_QUERIES = 3  # at most this many moments of each video are queries
NOMINAL_FRAMES = USUAL_FRAMES  # of every video, whatever its duration: as many as its file would have
VIDEOS_IN_MEMORY = 32  # videos in memory


@dataclass(frozen=True, eq=False)
class VideoSet:
    """Videos of one of the three sets, and the key from which their texts are drawn."""

    name: str
    key: str
    timelines: world.Timelines

    def __len__(self) -> int:
        return len(self.timelines)

    @property
    def sources(self) -> list[Path]:
        """A name for each video."""
        return [Path(f"nano/{self.name}/{video:03}") for video in range(len(self))]

    def text_source(self, purpose: str) -> random.Random:
        """Randomness for one kind of text, independent of which other kinds are drawn."""
        return random.Random(f"{self.key} {purpose}")


def run(request: NanoRequest, *, progress: ShowProgress | None = None) -> CampaignResults:
    """Score each method with each backbone, once or at each point of a sweep, whose files it writes."""
    if request.sweep:
        MissingDependency.check("plotting a sweep", "matplotlib", "plot")
        make_room(request.out / "sweep.json")
    found: dict[str, list[Score]] = {}
    titles = short_titles(request.backbones)
    # All are loaded first, so that a wrong one is found before any is measured. Their notice is not given: NanoRet is
    # the world that they know.
    settings = {title: request.settings_of(name) for name, title in titles.items()}
    backbones = {title: load_evaluated(*each, request.config.device) for title, each in settings.items()}
    for title, backbone in backbones.items():
        allocators, (_, config) = load_allocators(request.methods, backbone), settings[title]
        embedders = make_embedders(request.sweep, backbone, allocators, config)
        with progress(title) if progress else nullcontext() as line:
            update = line.update if line else None
            found[title] = evaluate_embedders(
                embedders, subsets=request.subsets, limit=request.limit, seed=request.seed, progress=update
            )
    note, unit = describe_videos(request.limit, request.seed), cost_unit(request)
    if over := request.sweep:
        notes, videos = [unit, note], SUBSETS
        sweeps = [Sweep(over, title, scores, notes, videos=videos) for title, scores in found.items()]
        return save_sweeps(sweeps, LAYOUT.title, request.out)
    rows, texts, tables = [], [], []
    for title, scores in found.items():
        layout = replace(LAYOUT, title=f"{LAYOUT.title}, {title}")
        rows += report.as_json(scores, **({"backbone": title} if len(found) > 1 else {}))
        texts.append(report.markdown(scores, layout, f"{note}; {unit}"))
        tables.append(report.rich_table(scores, layout, f"{note}; {unit}"))
    return CampaignResults(True, {"rows": rows}, "\n".join(texts), tables=tables)


def evaluate(
    backbone: Backbone,
    methods: Sequence[str | Allocator],
    *,
    config: EmbedConfig | None = None,
    subsets: Sequence[str] = tuple(SUBSETS),
    limit: int | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> list[Score]:
    """Score allocation methods on NanoRet with one backbone.

    `limit` keeps the first N videos of each set, which makes retrieval easier. `seed` draws fresh test videos instead
    of the shipped ones. `progress` counts videos; each method counts separately.
    """
    embedders = [AllocEmbed(backbone, method, config) for method in methods]
    named = {embedder.allocator.name: embedder for embedder in embedders}
    if not named or len(named) < len(embedders):
        raise ConfigError("give at least one method, and each once; evaluate_embedders takes labels for equal names")
    return evaluate_embedders(named, subsets=subsets, limit=limit, seed=seed, progress=progress)


def evaluate_embedders(
    embedders: Mapping[str, AllocEmbed],
    *,
    subsets: Sequence[str] = tuple(SUBSETS),
    limit: int | None = None,
    seed: int | None = None,
    progress: Progress | None = None,
) -> list[Score]:
    """Score embedders by label, which becomes the method of their scores. All of them share one backbone."""
    subsets = check_names("subset", subsets, SUBSETS)
    sets = [draw_videos(name, limit, seed) for name in dict.fromkeys(SUBSETS[subset] for subset in subsets)]
    total = len(embedders) * sum(map(len, sets))
    done = 0
    reader = next(iter(embedders.values()))
    scores = {}
    for videos in sets:
        # The videos of a set are rendered and embedded once for all subsets that use them.
        embedded: dict[str, list[VideoEmbedding]] = {label: [] for label in embedders}
        for label, result in _embed(embedders, videos):
            embedded[label].append(result)
            done += 1
            if progress:
                progress(done, total)
        for subset in (subset for subset in subsets if SUBSETS[subset] == videos.name):
            task = make_task(subset, videos)
            instruction = None if task.is_qa else reader.backbone.query_instruction
            texts = _vectors(reader.encode_texts(task.candidate_texts, instruction=instruction))
            for label, results in embedded.items():
                allocations = [result.allocation for result in results]
                cosines = task.scores(texts, _vectors(results))
                scores[label, subset] = measure(label, subset, cosines, task.targets, allocations)
    return [scores[label, subset] for label in embedders for subset in subsets]


def draw_videos(name: str, limit: int | None = None, seed: int | None = None) -> VideoSet:
    """The first `limit` of the 500 videos of a set: the shipped ones, or fresh ones for a `seed`.

    >>> len(draw_videos("qa")), len(draw_videos("short", limit=7))
    (500, 7)
    """
    check_videos(limit, seed)
    numbers = [TEST_SEEDS[name], 0 if seed is None else 1 + seed]
    kinds: tuple[Kind, ...] = ("short", "long") if name == "qa" else (cast(Kind, name),)
    parts = [world.draw(VIDEOS // len(kinds), numbers, kind, split="test", orientation="mixed") for kind in kinds]
    # Kinds take turns, so that any first few videos hold the same number of each.
    turns = np.arange(VIDEOS).reshape(len(kinds), -1).T.ravel()[:limit]
    return VideoSet(name, f"{name} {numbers}", world.concat(parts).select(turns))


def make_task(subset: str, videos: VideoSet) -> BenchmarkTask:
    """The texts of a subset and their targets.

    >>> task = make_task("qa", draw_videos("qa", limit=5))
    >>> len(task.texts), len(task.candidate_texts), len(task.targets)
    (5, 20, 5)
    """
    if subset == "qa":
        asked = questions(videos)
        texts, options = [question.text for question in asked], [list(question.options) for question in asked]
        targets = np.array([question.answer for question in asked])
        return BenchmarkTask(subset, "", texts, videos.sources, targets, options)
    source, texts, targets = videos.text_source(subset), [], []
    for video, events in enumerate(videos.timelines.events.tolist()):
        if subset.endswith("-video"):
            texts.append(world.describe_video(videos.timelines, video, source))
            targets.append(video)
            continue
        for event in sorted(source.sample(range(events), min(CLIP_QUERIES, events))):
            texts.append(world.describe_moment(videos.timelines, video, event, source))
            targets.append(video)
    return BenchmarkTask(subset, "", texts, videos.sources, np.array(targets))


def questions(videos: VideoSet) -> list[world.Question]:
    """A question with its options about each video."""
    source = videos.text_source("qa")
    return [world.question(videos.timelines, video, source) for video in range(len(videos))]


def describe_videos(limit: int | None, seed: int | None) -> str:
    """Words that say which test videos were used.

    >>> describe_videos(20, None)
    'the shipped test videos; only the first 20 of every 500, so retrieval is easier'
    """
    videos = "the shipped test videos" if seed is None else f"fresh test videos, seed {seed}"
    if limit is None or limit >= VIDEOS:
        return videos
    return f"{videos}; only the first {limit} of every {VIDEOS}, so retrieval is easier"


def clips_of(
    videos: VideoSet, chosen: Sequence[int], counts: Sequence[int], device: str | torch.device = "cpu"
) -> dict[int, list[Clip]]:
    """For each count, clips of the chosen videos with that many frames; each frame is rendered once.

    >>> clips = clips_of(draw_videos("short"), [3, 4], [8, 24])
    >>> len(clips[8]), len(clips[24][0]), clips[8][0].indices.tolist(), clips[8][0].total
    (2, 24, [0, 68, 136, 205, 273, 342, 410, 479], 480)
    """
    indices = {count: candidate_indices(NOMINAL_FRAMES, count) for count in counts}
    every = np.unique(np.concatenate(list(indices.values())))
    clips: dict[int, dict[int, Clip]] = {count: {} for count in counts}
    numbers, names = np.asarray(chosen), videos.sources
    upright = videos.timelines.portrait[numbers]
    for members in (numbers[upright], numbers[~upright]):
        if not len(members):
            continue
        frames = world.render(videos.timelines.select(members), every / (NOMINAL_FRAMES - 1), device=device)
        frames = frames.permute(0, 1, 3, 4, 2).contiguous().cpu().numpy()
        for video, pictures in zip(members.tolist(), frames, strict=True):
            duration, name = float(videos.timelines.duration[video]), str(names[video])
            for count, wanted in indices.items():
                shown, times = pictures[np.searchsorted(every, wanted)], wanted / (NOMINAL_FRAMES - 1) * duration
                clips[count][video] = Clip(shown, times, wanted, NOMINAL_FRAMES, duration, name)
    return {count: [by_video[video] for video in numbers.tolist()] for count, by_video in clips.items()}


def _embed(embedders: Mapping[str, AllocEmbed], videos: VideoSet) -> Iterator[tuple[str, VideoEmbedding]]:
    """Embed all videos with all embedders, a few videos at a time, so that memory does not grow with the benchmark."""
    asked = [question.text for question in questions(videos)] if videos.name == "qa" else None
    counts = sorted({embedder.frames_wanted for embedder in embedders.values()})
    device = next(iter(embedders.values())).backbone.device
    batch = 4 if device.type == "cpu" else VIDEOS_IN_MEMORY
    for start in range(0, len(videos), VIDEOS_IN_MEMORY):
        clips = clips_of(videos, range(start, min(start + VIDEOS_IN_MEMORY, len(videos))), counts, device)
        some = asked[start : start + VIDEOS_IN_MEMORY] if asked else None
        for label, embedder in embedders.items():
            for result in embedder.stream(clips[embedder.frames_wanted], some, batch=batch):
                if isinstance(result, Failure):
                    raise result.error
                yield label, result


def _vectors(embeddings: Sequence[VideoEmbedding] | Sequence[TextEmbedding]) -> np.ndarray:
    return np.stack([embedding.vector for embedding in embeddings]).astype(np.float64)
