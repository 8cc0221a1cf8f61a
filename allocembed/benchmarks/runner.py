"""Run methods on tasks: embed what the cache lacks, then score.

Under torchrun each process embeds the jobs whose key falls to it, so processes need not agree on what is missing. A
video that cannot be read costs the queries that need it, and is listed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from allocembed.backbones.base import LONGEST_TEXT
from allocembed.benchmarks.cache import CachedEmbedding, EmbeddingCache, make_key, video_digest
from allocembed.benchmarks.metrics import Score, hits, measure
from allocembed.benchmarks.tasks import BenchmarkTask, instruction_for
from allocembed.embedder import AllocEmbed, Failure
from allocembed.errors import BudgetError, DataError
from allocembed.execution.distributed import Processes

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
class VideoJobs:
    """The videos of one task as one method embeds them."""

    label: str
    embedder: AllocEmbed
    cache: EmbeddingCache
    task: BenchmarkTask
    prompt: str
    """The task's prompt as the backbone's family words it."""
    keys: list[str]
    """Cache key of each video of the task."""

    def embed(self, todo: Mapping[str, int], batch: int, failures: dict[str, str]) -> Iterator[int]:
        """Embed the videos at the places `todo` into the cache; yield how many were finished at each step."""
        # Another task may have the same video with the same text, and may have been embedded meanwhile.
        left = {key: place for key, place in todo.items() if key not in self.cache}
        if len(left) < len(todo):
            yield len(todo) - len(left)
        sources = [self.task.videos[place] for place in left.values()]
        questions = [self.task.texts[place] for place in left.values()] if self.task.is_qa else None
        # A prompt belongs to a query, and a video is part of the query only when it is asked about.
        instruction = self.prompt if self.task.is_qa else None
        results = self.embedder.stream(sources, questions, instruction=instruction, batch=batch)
        for key, result in zip(left, results, strict=True):
            if isinstance(result, Failure):
                if any(isinstance(error, BudgetError) for error in (result.error, result.error.__cause__)):
                    # The settings are at fault, not the file.
                    raise BudgetError(f"{self.label} cannot meet the budget: {result.error}")
                failures[key] = str(result.error)
            else:
                used = result.allocation
                self.cache.add(key, CachedEmbedding(result.vector, used.cost, used.budget, used.base_cost))
            yield 1

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


def evaluate(
    embedders: Mapping[str, AllocEmbed],
    tasks: Sequence[BenchmarkTask],
    cache: Path,
    *,
    processes: Processes | None = None,
    batch: int = 4,
    progress: Progress | None = None,
) -> EvaluationResults:
    """Hit@1 and cost of each embedder, by label, on each task. All embedders share one backbone."""
    processes = processes or Processes("cpu")
    reader = next(iter(embedders.values()))
    prompted = [(_shorten(task), instruction_for(task.prompt, reader.backbone.family)) for task in tasks]
    texts = EmbeddingCache.for_texts(cache, reader)
    digests = {video: _digest(video) for video in dict.fromkeys(video for task in tasks for video in task.videos)}
    caches: dict[Path, EmbeddingCache] = {}
    jobs: list[VideoJobs] = []
    for label, embedder in embedders.items():
        # Embedders with equal identities, such as Base in a sweep over frames, share a cache.
        videos = EmbeddingCache.for_videos(cache, embedder)
        videos = caches.setdefault(videos.folder, videos)
        for task, prompt in prompted:
            jobs.append(VideoJobs(label, embedder, videos, task, prompt, _video_keys(task, prompt, digests)))

    def missing(keys: Sequence[str], stored: EmbeddingCache) -> dict[str, int]:
        """Keys that are not stored and fall to this process, each with its first place."""
        places: dict[str, int] = {}
        for place, key in enumerate(keys):
            if key not in stored and int(key[:8], 16) % processes.world == processes.rank:
                places.setdefault(key, place)
        return places

    text_jobs: dict[str | None, dict[str, str]] = {}  # by instruction, then by key
    for task, prompt in prompted:
        asked, todo = task.candidate_texts, missing(_text_keys(task, prompt), texts)
        own = text_jobs.setdefault(None if task.is_qa else prompt, {})
        own |= {key: asked[place] for key, place in todo.items()}
    video_jobs = [(job, missing(job.keys, job.cache)) for job in jobs]
    total = sum(map(len, text_jobs.values())) + sum(len(todo) for _, todo in video_jobs)
    failures: dict[str, str] = {}
    steps = chain(
        *(_embed_texts(reader, instruction, todo, texts) for instruction, todo in text_jobs.items()),
        *(job.embed(todo, batch, failures) for job, todo in video_jobs),
    )
    try:
        for done in accumulate(steps):
            if progress:
                progress(done, total)
    finally:
        for stored in (texts, *caches.values()):
            stored.flush()
    said = {error for part in processes.share(failures) for error in part.values()}
    for stored in (texts, *caches.values()):
        stored.refresh()
    return EvaluationResults([job.score(texts) for job in jobs], sorted(said))


def _shorten(task: BenchmarkTask) -> BenchmarkTask:
    """Cut texts to the length that backbones accept: descriptions of whole videos can be longer."""
    long = sum(len(text) > LONGEST_TEXT for text in task.texts)
    if not long:
        return task
    notes = (*task.notes, f"{long:,} texts cut to {LONGEST_TEXT:,} characters")
    return replace(task, texts=[text[:LONGEST_TEXT] for text in task.texts], notes=notes)


def _digest(video: Path) -> str:
    try:
        return video_digest(video)
    except OSError:
        return str(video)  # reading it will say what is wrong


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
