"""Measure methods and budgets on a person's own videos: embed each video at full resolution and at every setting.

Each video is decoded once for all settings. Vectors are made as fast as the machine can; a few videos are then embedded
again one at a time, because times are meaningful only if nothing else runs.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from allocembed.allocators.base import Allocator
from allocembed.allocators.registry import LEARNED, SENSITIVITY, load_allocator
from allocembed.backbones.base import Backbone
from allocembed.benchmarks.fidelity import FidelityTable, Setting, Timings
from allocembed.benchmarks.request import short_titles
from allocembed.benchmarks.runner import Progress
from allocembed.budget import Allocation, Budget
from allocembed.config import DType, EmbedConfig
from allocembed.embedder import AllocEmbed, Failure
from allocembed.errors import BudgetError, ConfigError, DataError, VideoError
from allocembed.execution.stream import Prepared, PrepareResources, embed_jobs
from allocembed.video import Clip
from allocembed.video import Source as FileSource

METHODS = ("base", "uniform", "content", SENSITIVITY)
BUDGETS = ("2f", "4f", "8f", "16f")
BATCH = 4
TIMED = 5
"""Videos that are timed."""
RUNS = 3
"""Times that a timed video is embedded. The first does not count: the device may not know its shapes yet."""

ComparedSource: TypeAlias = FileSource | Clip | Mapping[int, Clip]
"""A video to decode, its candidates, or a clip for each number of frames that a method wants."""


@dataclass(frozen=True, eq=False)
class ComparedMethods:
    """The embedders to compare; all share one backbone."""

    full: AllocEmbed
    settings: Mapping[Setting, AllocEmbed]

    @property
    def embedders(self) -> dict[Setting | None, AllocEmbed]:
        """All embedders; full resolution is under None."""
        return {None: self.full, **self.settings}

    @property
    def counts(self) -> list[int]:
        """Numbers of frames that the methods want."""
        return sorted({embedder.frames_wanted for embedder in self.embedders.values()})

    def read(self, source: ComparedSource, decoder_threads: int = 0) -> Mapping[int, Clip]:
        """A clip for each number of frames."""
        if isinstance(source, Clip):
            return dict.fromkeys(self.counts, source)
        if isinstance(source, Mapping):
            return source
        with self.full.open(source, decoder_threads=decoder_threads) as video:
            return video.sample_many(self.counts, self.full.config.seek)


@dataclass(frozen=True, eq=False)
class _Job:
    """A video, and the settings that are impossible for it."""

    source: ComparedSource
    impossible: dict[Setting, str] = field(default_factory=dict)
    names: list[str] = field(default_factory=list)


_Tag: TypeAlias = tuple[Setting | None, Allocation]


def make_candidates(
    backbone: Backbone,
    config: EmbedConfig,
    methods: Sequence[str] = (),
    budgets: Sequence[str] = (),
    allocator: str | None = None,
) -> ComparedMethods:
    """Methods × budgets; empty names mean the usual ones. `allocator` is a learned one to compare as well.

    Usual are base, uniform, content and sensitivity, and learned if one is bundled for the backbone.
    """
    methods = methods or (*METHODS, *usual_learned(backbone, allocator))
    names: list[str] = list(dict.fromkeys((*methods, *filter(None, [allocator]))))
    loaded: dict[str, Allocator] = {
        label: load_allocator(name, backbone) for name, label in short_titles(names).items() if name != "full"
    }
    if not loaded:
        raise ConfigError("full resolution is what methods are compared with: name at least one other method")
    settings = {
        Setting(label, budget): AllocEmbed(backbone, method, replace(config, budget=budget))
        for label, method in loaded.items()
        for budget in usual_budgets(budgets, config.candidates)
    }
    return ComparedMethods(AllocEmbed(backbone, "full", config), settings)


def usual_learned(backbone: Backbone, allocator: str | None) -> list[str]:
    """`learned` if one is bundled and no other is named."""
    bundled = backbone.allocator is not None and Path(backbone.allocator).is_dir()
    return [LEARNED] if bundled and allocator is None else []


def usual_budgets(budgets: Sequence[str], candidates: int) -> list[str]:
    """Budgets as they are written in settings; the usual ones are those below full resolution.

    >>> usual_budgets([], 24), usual_budgets([], 8), usual_budgets(["08F", "2048"], 24)
    (['2f', '4f', '8f', '16f'], ['2f', '4f'], ['8f', '2048'])
    """
    below = [budget for budget in BUDGETS if Budget.parse(budget).base_frames < candidates] or BUDGETS[:1]
    return list(dict.fromkeys(str(Budget.parse(budget)) for budget in budgets or below))


def compare_files(
    config: EmbedConfig,
    videos: Sequence[Path],
    *,
    methods: Sequence[str] = (),
    budgets: Sequence[str] = (),
    allocator: str | None = None,
    reference_dtype: DType | None = None,
    progress: Progress | None = None,
) -> FidelityTable:
    """Load what the config names, measure all videos, and time some of them. `progress` counts embeddings.

    With `reference_dtype`, the vectors at full resolution are made in that number format: what the one of the config
    costs in fidelity then shows in the table.
    """
    loaded = AllocEmbed.from_config(replace(config, allocator="full"))
    candidates = make_candidates(loaded.backbone, config, methods, budgets, allocator)
    each = len(candidates.embedders)
    timed = min(TIMED, len(videos)) * each * RUNS
    again = len(videos) if reference_dtype else 0
    total = len(videos) * each + again + timed

    def show(before: int, done: int) -> None:
        if progress:
            progress(before + done, total)

    table = measure(candidates, videos, progress=partial(show, 0))
    if reference_dtype:
        other = AllocEmbed.from_config(replace(config, allocator="full", dtype=reference_dtype))
        vectors = []
        for result in other.stream(table.sources):
            if isinstance(result, Failure):
                raise result.error
            vectors.append(result.vector)
            show(len(videos) * each, len(vectors))
        table = replace(table, full=np.stack(vectors))
    chosen = [Path(table.sources[place]) for place in spread(len(table), TIMED)]
    return add_timings(table, candidates, chosen, progress=partial(show, total - timed))


def measure(
    candidates: ComparedMethods, sources: Iterable[ComparedSource], *, progress: Callable[[int], None] | None = None
) -> FidelityTable:
    """Embed every source at full resolution and at every setting.

    A video that cannot be read, or for which every budget is too small, is left out and named. A setting whose budget
    is too small for some other video is left out, because all settings must have the same videos. `progress` is called
    with the embeddings made so far.
    """
    embedders = candidates.embedders

    def prepare(job: _Job, resources: PrepareResources) -> Iterator[Prepared[_Tag]]:
        clips = candidates.read(job.source, resources.decoder_threads)
        job.names.append(clips[candidates.full.frames_wanted].source)
        for setting, embedder in embedders.items():
            try:
                with resources.lane():
                    allocation, item = embedder.prepare(clips[embedder.frames_wanted])
            except BudgetError as error:
                if setting is None:
                    raise
                job.impossible[setting] = str(VideoError(job.names[0], str(error)))
                continue
            yield Prepared(item, (setting, allocation))

    measured: list[tuple[str, dict[Setting | None, tuple[Allocation, np.ndarray]]]] = []
    failures: list[str] = []
    too_small = ""
    impossible: dict[Setting, str] = {}
    jobs = map(_Job, sources)
    for done, outcome in enumerate(embed_jobs(candidates.full.backbone, jobs, prepare, batch=BATCH), 1):
        if isinstance(outcome.error, VideoError):
            failures.append(str(outcome.error))
        elif outcome.error is not None:
            raise outcome.error
        elif len(outcome.job.impossible) == len(candidates.settings):
            too_small = next(iter(outcome.job.impossible.values()))
            failures.append(too_small)
        else:
            found = {setting: (allocation, vector) for (setting, allocation), vector in outcome.pieces}
            measured.append((outcome.job.names[0], found))
            impossible = {**outcome.job.impossible, **impossible}
        if progress:
            progress(done * len(embedders))
    if len(measured) < 2 and too_small:
        raise BudgetError(f"every budget is too small for some videos: {too_small}")
    if len(measured) < 2:
        named = f"; cannot read {failures[0]}" if failures else ""
        raise DataError(f"cannot compare with {len(measured)} readable videos: give at least two, better 64{named}")
    settings = [setting for setting in candidates.settings if setting not in impossible]
    if not settings:
        raise BudgetError(f"every budget is too small for some videos: {next(iter(impossible.values()))}")
    rows = [[found[setting] for setting in settings] for _, found in measured]
    return FidelityTable(
        settings,
        [source for source, _ in measured],
        full=np.stack([found[None][1] for _, found in measured]),
        vectors=np.stack([[vector for _, vector in row] for row in rows]),
        tokens=np.array([[allocation.cost for allocation, _ in row] for row in rows]),
        look_tokens=np.array([[allocation.look_tokens for allocation, _ in row] for row in rows]),
        full_tokens=np.array([found[None][0].cost for _, found in measured]),
        failures=failures,
        left_out=[f"{setting}: {cause}" for setting, cause in impossible.items()],
    )


def add_timings(
    table: FidelityTable,
    candidates: ComparedMethods,
    sources: Sequence[ComparedSource],
    *,
    progress: Callable[[int], None] | None = None,
) -> FidelityTable:
    """The table with the milliseconds that each setting takes, one video at a time. `sources` must be readable."""
    embedders = [candidates.full, *(candidates.settings[setting] for setting in table.settings)]
    taken, decoding = np.empty((len(sources), len(embedders), 2)), np.empty(len(sources))
    ratios = []
    for number, source in enumerate(sources):
        begun = time.perf_counter()
        clips = candidates.read(source)
        decoding[number] = 1000 * (time.perf_counter() - begun)
        for place, embedder in enumerate(embedders):
            runs = [_time(embedder, clips[embedder.frames_wanted]) for _ in range(RUNS)]
            totals = [sum(run) for run in runs[1:]]
            taken[number, place] = min(runs[1:], key=sum)
            ratios.append(max(totals) / min(totals))
        if progress:
            progress((number + 1) * len(embedders) * RUNS)
    in_memory = any(isinstance(source, Clip | Mapping) for source in sources)
    full, others = taken[:, 0], taken[:, 1:]
    timings = Timings(others[..., 0], others[..., 1], full, None if in_memory else decoding, float(np.median(ratios)))
    return replace(table, timings=timings)


def spread(count: int, wanted: int) -> list[int]:
    """Positions of at most `wanted` of `count` things, evenly spread.

    >>> spread(9, 3), spread(2, 5)
    ([1, 4, 7], [0, 1])
    """
    wanted = min(count, wanted)
    return [int((place + 0.5) * count / wanted) for place in range(wanted)]


def _time(embedder: AllocEmbed, clip: Clip) -> tuple[float, float]:
    """Milliseconds to allocate and to embed."""
    begun = time.perf_counter()
    _, item = embedder.prepare(clip)
    if embedder.backbone.device.type == "cuda":
        torch.cuda.synchronize(embedder.backbone.device)
    prepared = time.perf_counter()
    embedder.embed([item])
    return 1000 * (prepared - begun), 1000 * (time.perf_counter() - prepared)
