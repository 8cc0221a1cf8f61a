"""Run methods on tasks: embed what the cache lacks, then score.

A video is opened and decoded once for all methods and all questions about it. Under torchrun and with shards each
process embeds the videos and texts whose key falls to it, so processes need not agree on what is missing. A video that
cannot be read costs the queries that need it, and is listed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from allocembed.backbones.base import LONGEST_TEXT
from allocembed.benchmarks.cache import CachedEmbedding, EmbeddingCache, make_key, video_digest
from allocembed.benchmarks.metrics import Score, hits, measure
from allocembed.benchmarks.shards import Shard, ShardRecords
from allocembed.benchmarks.tasks import BenchmarkTask, instruction_for
from allocembed.budget import Allocation
from allocembed.embedder import AllocEmbed
from allocembed.errors import BudgetError, DataError, VideoError
from allocembed.execution.distributed import Processes
from allocembed.execution.stream import Prepared, PrepareResources, embed_jobs
from allocembed.threads import core_count, map_ordered
from allocembed.video import Clip

TEXTS_AT_ONCE = 64

Progress = Callable[[int, int], None]
"""Called with the number of embeddings made so far and to be made by this process in this run."""


@dataclass(frozen=True, eq=False)
class TaskOutcome:
    """Result of one method on one task, query by query."""

    score: Score
    tokens: float
    """Mean visual tokens that the language model read per video."""
    task: BenchmarkTask
    """The task as scored: without the queries whose video could not be read."""
    best: np.ndarray
    """(Q,) index of the candidate ranked first."""
    hits: np.ndarray
    """(Q,) 1 if that is the right one; less if others tie with it."""


@dataclass(frozen=True, eq=False)
class EvaluationResults:
    """Results of one backbone, and the videos that could not be read."""

    outcomes: list[TaskOutcome]
    failures: list[str]

    @property
    def scores(self) -> list[Score]:
        return [outcome.score for outcome in self.outcomes]


@dataclass(frozen=True, eq=False)
class WantedEmbedding:
    """A video as one method embeds it, with a question about it or without."""

    label: str
    embedder: AllocEmbed
    cache: EmbeddingCache
    key: str
    question: str | None
    instruction: str | None


@dataclass(frozen=True, eq=False)
class VideoJob:
    """All embeddings of one video that are to be made, from one decode."""

    video: Path
    wanted: list[WantedEmbedding] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    """Errors, by the name of the embedding in its cache."""

    def prepare(self, resources: PrepareResources) -> Iterator[Prepared[tuple[WantedEmbedding, Allocation]]]:
        """Read the frames that all methods want, then prepare one embedding after the other."""
        clips = self._read({want.embedder.frames_wanted for want in self.wanted}, resources)
        for want in self.wanted:
            clip = clips[want.embedder.frames_wanted]
            if isinstance(clip, VideoError):
                self.failures[want.cache.name(want.key)] = str(clip)
                continue
            try:
                with resources.lane():
                    allocation, item = want.embedder.prepare(clip, want.question, want.instruction)
            except BudgetError as error:
                # The settings are at fault, not the file.
                cause = VideoError(clip.source, str(error))
                raise BudgetError(f"{want.label} cannot meet the budget: {cause}") from error
            yield Prepared(item, (want, allocation))

    def fail(self, error: Exception) -> None:
        """Record the error that ended the whole job."""
        self.failures.update({want.cache.name(want.key): str(error) for want in self.wanted})

    def _read(self, counts: Iterable[int], resources: PrepareResources) -> dict[int, Clip | VideoError]:
        embedder, counts = self.wanted[0].embedder, sorted(counts)
        try:
            with embedder.open(self.video, decoder_threads=resources.decoder_threads, on_device=True) as video:
                return {**video.sample_many(counts, embedder.config.seek)}
        except VideoError as error:
            if len(counts) == 1:
                return {counts[0]: error}
        # A damaged frame may be one that only some methods need.
        return {count: clip for alone in counts for count, clip in self._read([alone], resources).items()}


@dataclass(frozen=True, eq=False)
class Measurement:
    """One method on one task."""

    label: str
    embedder: AllocEmbed
    cache: EmbeddingCache
    task: BenchmarkTask
    prompt: str
    """The task's prompt as the backbone's family words it."""
    keys: list[str]
    """Cache key of each video of the task."""

    def wanted(self, place: int) -> WantedEmbedding:
        """The embedding of the video at a place of the task."""
        # A prompt belongs to a query, and a video is part of the query only when it is asked about.
        asked = (self.task.texts[place], self.prompt) if self.task.is_qa else (None, None)
        return WantedEmbedding(self.label, self.embedder, self.cache, self.keys[place], *asked)

    def score(self, texts: EmbeddingCache) -> TaskOutcome:
        """Score the task from cached embeddings, without the videos that are not there."""
        found = np.array([key in self.cache for key in self.keys], bool)
        if not found.any():
            raise DataError(f"cannot read any of the {len(found):,} videos of {self.task.name}: check its folder")
        task = _readable(self.task, found)
        entries = [self.cache[key] for key in self.keys if key in self.cache]
        vectors = np.stack([entry.vector for entry in entries]).astype(np.float64)
        asked = [texts[key].vector for key in _text_keys(task, self.prompt)]
        scores = task.scores(np.stack(asked).astype(np.float64), vectors)
        score = measure(self.label, task.name, scores, task.targets, entries)
        tokens = float(np.mean([entry.cost for entry in entries]))
        return TaskOutcome(score, tokens, task, scores.argmax(1), hits(scores, task.targets))


@dataclass(frozen=True, eq=False)
class Inventory:
    """Embeddings that an evaluation needs, and the cache that stores them. It holds no model."""

    texts: EmbeddingCache
    text_keys: set[str]
    videos: list[tuple[EmbeddingCache, list[str]]]
    records: ShardRecords

    def refresh(self) -> None:
        """Read what other processes have stored."""
        for stored in {id(cache): cache for cache in (self.texts, *(cache for cache, _ in self.videos))}.values():
            stored.refresh()

    def missing(self) -> int:
        """Number of embeddings that are neither stored nor known to be impossible."""
        self.refresh()
        videos = {cache.name(key) for cache, keys in self.videos for key in keys if key not in cache}
        return sum(key not in self.texts for key in self.text_keys) + len(videos - set(self.records.failures()))


class Evaluation:
    """Methods on tasks with one backbone: `embed` what is missing, then take the `results`."""

    def __init__(
        self,
        embedders: Mapping[str, AllocEmbed],
        tasks: Sequence[BenchmarkTask],
        cache: Path,
        *,
        digests: Mapping[Path, str] | None = None,
        processes: Processes | None = None,
        shard: Shard | None = None,
    ) -> None:
        self.processes = processes or Processes("cpu")
        self.sharded = shard is not None
        self.shard = shard or Shard(self.processes.rank + 1, self.processes.world)
        self.digests = digest_videos(tasks, self.processes) if digests is None else digests
        self.reader = next(iter(embedders.values()))
        family = self.reader.backbone.family
        prompted = [(_shorten(task.for_family(family)), instruction_for(task.prompt, family)) for task in tasks]
        self.texts = EmbeddingCache.for_texts(cache, self.reader)
        self.caches: dict[Path, EmbeddingCache] = {}
        self.measurements: list[Measurement] = []
        for label, embedder in embedders.items():
            # Embedders with equal identities, such as Base in a sweep over frames, share a cache.
            videos = EmbeddingCache.for_videos(cache, embedder)
            videos = self.caches.setdefault(videos.folder, videos)
            for task, prompt in prompted:
                keys = _video_keys(task, prompt, self.digests)
                self.measurements.append(Measurement(label, embedder, videos, task, prompt, keys))
        self.failures: dict[str, str] = {}
        """Errors of this process, by the name of the embedding."""
        videos = [(each.cache, each.keys) for each in self.measurements]
        names = sorted({stored.name(key) for stored, keys in videos for key in keys})
        records = ShardRecords(cache / "shards" / make_key(*names)[:12])
        text_keys = {key for task, prompt in prompted for key in _text_keys(task, prompt)}
        self.inventory = Inventory(self.texts, text_keys, videos, records)

    def embed(self, batch: int = 4, progress: Progress | None = None) -> None:
        """Embed the texts and videos of this process that are not stored."""
        if self.sharded:
            self.inventory.records.begin(self.shard)
        text_jobs, video_jobs = self._text_jobs(), self._video_jobs()
        total = sum(map(len, text_jobs.values())) + sum(len(job.wanted) for job in video_jobs)
        steps = chain(
            *(_embed_texts(self.reader, instruction, todo, self.texts) for instruction, todo in text_jobs.items()),
            self._embed_videos(video_jobs, batch),
        )
        try:
            for done in accumulate(steps):
                if progress:
                    progress(done, total)
        finally:
            for stored in (self.texts, *self.caches.values()):
                stored.flush()
        if self.sharded:
            self.inventory.records.finish(self.shard, self.failures)

    def results(self) -> EvaluationResults:
        """Scores, once all processes have embedded their part."""
        said = {error for part in self.processes.share(self.failures) for error in part.values()}
        self.inventory.refresh()
        return EvaluationResults([each.score(self.texts) for each in self.measurements], sorted(said))

    def _text_jobs(self) -> dict[str | None, dict[str, str]]:
        """Texts to embed, by instruction, then by key."""
        jobs: dict[str | None, dict[str, str]] = {}
        for each in self.measurements:
            keys = _text_keys(each.task, each.prompt)
            own = jobs.setdefault(None if each.task.is_qa else each.prompt, {})
            for key, text in zip(keys, each.task.candidate_texts, strict=True):
                if key not in self.texts and self.shard.has(key):
                    own[key] = text
        return jobs

    def _video_jobs(self) -> list[VideoJob]:
        """One job per video; a second one if embedders open it with other settings."""
        jobs: dict[tuple[object, ...], VideoJob] = {}
        seen: set[str] = set()
        for each in self.measurements:
            config = each.embedder.config
            opening = (config.limits, config.seek, config.start, config.end, config.rate)
            for place, (video, key) in enumerate(zip(each.task.videos, each.keys, strict=True)):
                name = each.cache.name(key)
                # Another task may have the same video with the same text.
                if key in each.cache or name in seen or not self.shard.has(make_key(self.digests[video])):
                    continue
                seen.add(name)
                want = each.wanted(place)
                for text in filter(None, (want.question, want.instruction)):
                    self.reader.backbone.check_text(text)  # before any video is decoded for it
                jobs.setdefault((video, *opening), VideoJob(video)).wanted.append(want)
        return list(jobs.values())

    def _embed_videos(self, jobs: list[VideoJob], batch: int) -> Iterator[int]:
        """Embed videos into their caches; yield 1 for each embedding that was made or failed."""
        backbone, decoders = self.reader.backbone, self.reader.decoders
        for outcome in embed_jobs(backbone, jobs, VideoJob.prepare, batch=batch, decoders=decoders, ordered=False):
            job = outcome.job
            if isinstance(outcome.error, BudgetError):
                raise outcome.error
            if outcome.error is not None:
                job.fail(outcome.error)
            self.failures |= job.failures
            for (want, used), vector in outcome.pieces:
                want.cache.add(want.key, CachedEmbedding(vector, used.cost, used.budget, used.base_cost))
            yield from [1] * len(job.wanted)


def evaluate(
    embedders: Mapping[str, AllocEmbed],
    tasks: Sequence[BenchmarkTask],
    cache: Path,
    *,
    digests: Mapping[Path, str] | None = None,
    processes: Processes | None = None,
    batch: int = 4,
    progress: Progress | None = None,
) -> EvaluationResults:
    """Hit@1 and cost of each embedder, by label, on each task. All embedders share one backbone."""
    evaluation = Evaluation(embedders, tasks, cache, digests=digests, processes=processes)
    evaluation.embed(batch, progress)
    return evaluation.results()


def digest_videos(tasks: Sequence[BenchmarkTask], processes: Processes) -> dict[Path, str]:
    """Identify each video of the tasks once, by its content; the processes of a job divide the reading."""
    videos = list(dict.fromkeys(video for task in tasks for video in task.videos))
    mine = [videos[place] for place in processes.mine(len(videos))]
    found = dict(zip(mine, map_ordered(_digest, mine, workers=core_count()), strict=True))
    return {video: digest for part in processes.share(found) for video, digest in part.items()}


def _digest(video: Path) -> str:
    try:
        return video_digest(video)
    except OSError:
        return str(video)  # reading it will say what is wrong


def _shorten(task: BenchmarkTask) -> BenchmarkTask:
    """Cut texts to the length that backbones accept: descriptions of whole videos can be longer."""
    long = sum(len(text) > LONGEST_TEXT for text in task.texts)
    if not long:
        return task
    notes = (*task.notes, f"{long:,} texts cut to {LONGEST_TEXT:,} characters")
    return replace(task, texts=[text[:LONGEST_TEXT] for text in task.texts], notes=notes)


def _text_keys(task: BenchmarkTask, prompt: str) -> list[str]:
    """Cache keys of the texts to compare with videos; options have no instruction."""
    return [make_key(text, None if task.is_qa else prompt) for text in task.candidate_texts]


def _video_keys(task: BenchmarkTask, prompt: str, digests: Mapping[Path, str]) -> list[str]:
    if task.is_qa:
        return [make_key(digests[video], text, prompt) for video, text in zip(task.videos, task.texts, strict=True)]
    return [make_key(digests[video], None, None) for video in task.videos]


def _embed_texts(
    reader: AllocEmbed, instruction: str | None, texts: Mapping[str, str], cache: EmbeddingCache
) -> Iterator[int]:
    keys = list(texts)
    for start in range(0, len(keys), TEXTS_AT_ONCE):
        some = keys[start : start + TEXTS_AT_ONCE]
        made = reader.encode_texts([texts[key] for key in some], instruction=instruction)
        for key, embedding in zip(some, made, strict=True):
            cache.add(key, CachedEmbedding(embedding.vector))
        yield len(some)


def _readable(task: BenchmarkTask, found: np.ndarray) -> BenchmarkTask:
    """The task without the videos that could not be read and the queries that need them."""
    if found.all():
        return task
    lost = int((~found).sum())
    if task.is_qa:
        return task.keep_videos(found, f"{lost:,} questions about unreadable videos left out")
    queries = int((~found[task.targets]).sum())
    return task.keep_videos(found, f"{lost:,} unreadable videos and their {queries:,} queries left out")
