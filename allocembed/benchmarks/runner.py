"""Runs methods on tasks: embeds what is not stored yet, this process's share of it, and scores what all have stored.

Started by torchrun, every process takes the jobs whose key falls to it, so they need not agree on what is missing. A
video that can't be read costs the queries that need it, and is named.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from allocembed.backbones.base import LONGEST_TEXT
from allocembed.benchmarks.metrics import Row, hits, measure
from allocembed.benchmarks.store import Entry, Store, make_key, text_store, video_digest, video_store
from allocembed.benchmarks.tasks import Task, instruction_for, score_options
from allocembed.budget import BudgetError
from allocembed.embedder import AllocEmbed, Failure
from allocembed.output import whole_file
from allocembed.rdpo.processes import Processes

TEXTS_AT_ONCE = 64
FAILURES = "unreadable"

Progress = Callable[[int, int], None]
"""Called with the embeddings made so far and to be made, by this process, in this run."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """How one method did on one task, query by query."""

    row: Row
    tokens: float
    """Mean visual tokens that the language model read for a video."""
    task: Task
    """What was asked in the end: without the queries whose video could not be read."""
    best: np.ndarray
    """(Q,) index of the candidate ranked first."""
    hits: np.ndarray
    """(Q,) 1 where that is the right one; less where others are ranked equal."""


@dataclass(frozen=True, eq=False)
class Results:
    """Everything one backbone did, and what was left out."""

    outcomes: list[Outcome]
    failures: list[str]

    @property
    def rows(self) -> list[Row]:
        return [outcome.row for outcome in self.outcomes]


@dataclass(frozen=True, eq=False)
class Wanted:
    """A task as one method is to do it."""

    label: str
    task: Task
    prompt: str
    """The task's prompt as the backbone's family words it."""
    keys: list[str]
    """One for every video of the task."""

    @property
    def instruction(self) -> str | None:
        """What stands before a video: the prompt belongs to the queries, and only questions are queries with one."""
        return self.prompt if self.task.asks else None


def evaluate(
    embedders: Mapping[str, AllocEmbed],
    tasks: Sequence[Task],
    cache: Path,
    *,
    processes: Processes | None = None,
    batch: int = 4,
    progress: Progress | None = None,
) -> Results:
    """Hit@1 and cost of embedders by label, all with one backbone, on every task."""
    processes = processes or Processes("cpu")
    tasks = [_shorten(task) for task in tasks]
    reader = next(iter(embedders.values()))
    stores = _stores(embedders, cache)
    texts = text_store(cache, reader.backbone)
    digests = {video: _digest(video) for task in tasks for video in task.videos}
    family = reader.backbone.family
    wanted = [_want(label, task, family, digests) for label in embedders for task in tasks]

    def mine(keys: Sequence[str], store: Store) -> dict[str, int]:
        """The places of the jobs that are missing and fall to this process, each once."""
        places: dict[str, int] = {}
        for place, key in enumerate(keys):
            if key not in store and int(key[:8], 16) % processes.world == processes.rank:
                places.setdefault(key, place)
        return places

    asked = {key: job for task in tasks for key, job in _text_jobs(task, family).items()}
    text_jobs = {key: asked[key] for key in mine(list(asked), texts)}
    video_jobs = [(each, mine(each.keys, stores[each.label])) for each in wanted]
    total = len(text_jobs) + sum(len(jobs) for _, jobs in video_jobs)
    failures: dict[str, str] = {}
    steps = chain(
        _embed_texts(reader, text_jobs, texts),
        *(_embed_videos(embedders[w.label], w, jobs, stores[w.label], batch, failures) for w, jobs in video_jobs),
    )
    try:
        for done in accumulate(steps):
            if progress:
                progress(done, total)
    finally:
        for store in (texts, *stores.values()):
            store.flush()
    failures = _share(failures, cache, processes)
    for store in (texts, *stores.values()):
        store.refresh()
    outcomes = [_score(each, stores[each.label], texts) for each in wanted]
    return Results(outcomes, sorted(set(failures.values())))


def _stores(embedders: Mapping[str, AllocEmbed], cache: Path) -> dict[str, Store]:
    """The store of every label; those whose settings come to the same, as Base's in a sweep over frames, share one."""
    shared: dict[Path, Store] = {}
    stores = {label: video_store(cache, embedder) for label, embedder in embedders.items()}
    return {label: shared.setdefault(store.folder, store) for label, store in stores.items()}


def _shorten(task: Task) -> Task:
    """Texts no longer than backbones read: descriptions of whole videos can be."""
    if all(len(text) <= LONGEST_TEXT for text in task.texts):
        return task
    long = sum(len(text) > LONGEST_TEXT for text in task.texts)
    notes = (*task.notes, f"{long:,} texts cut to {LONGEST_TEXT:,} characters")
    texts = [text[:LONGEST_TEXT] for text in task.texts]
    return replace(task, texts=texts, notes=notes)


def _digest(video: Path) -> str:
    try:
        return video_digest(video)
    except OSError:
        return str(video)  # whoever reads it says what is wrong with it


def _text_jobs(task: Task, family: str) -> dict[str, tuple[str, str | None]]:
    """The texts to embed with their instructions, by key: the queries, or all options, which have none."""
    if task.options is not None:
        jobs = [(text, None) for options in task.options for text in options]
    else:
        jobs = [(text, instruction_for(task.prompt, family)) for text in task.texts]
    return {make_key(*job): job for job in jobs}


def _want(label: str, task: Task, family: str, digests: Mapping[Path, str]) -> Wanted:
    prompt = instruction_for(task.prompt, family)
    if task.asks:
        keys = [make_key(digests[video], text, prompt) for video, text in zip(task.videos, task.texts, strict=True)]
    else:
        keys = [make_key(digests[video], None, None) for video in task.videos]
    return Wanted(label, task, prompt, keys)


def _embed_texts(reader: AllocEmbed, jobs: Mapping[str, tuple[str, str | None]], store: Store) -> Iterator[int]:
    by_instruction: dict[str | None, list[str]] = {}
    for key, (_, instruction) in jobs.items():
        by_instruction.setdefault(instruction, []).append(key)
    for instruction, keys in by_instruction.items():
        for start in range(0, len(keys), TEXTS_AT_ONCE):
            some = keys[start : start + TEXTS_AT_ONCE]
            made = reader.encode_texts([jobs[key][0] for key in some], instruction=instruction)
            for key, embedding in zip(some, made, strict=True):
                store.add(key, Entry.of(embedding))
            yield len(some)


def _embed_videos(
    embedder: AllocEmbed, wanted: Wanted, jobs: Mapping[str, int], store: Store, batch: int, failures: dict[str, str]
) -> Iterator[int]:
    # Another task may have the same video with the same text, and may have been done meanwhile.
    left = {key: place for key, place in jobs.items() if key not in store}
    if len(left) < len(jobs):
        yield len(jobs) - len(left)
    sources = [wanted.task.videos[place] for place in left.values()]
    texts = [wanted.task.texts[place] for place in left.values()] if wanted.task.asks else None
    results = embedder.stream(sources, texts, instruction=wanted.instruction, batch=batch)
    for key, result in zip(left, results, strict=True):
        if isinstance(result, Failure):
            if isinstance(result.error.__cause__, BudgetError):  # the settings are at fault, not the file
                raise BudgetError(f"{wanted.label} can't keep the budget: {result.error}")
            failures[key] = str(result.error)
        else:
            store.add(key, Entry.of(result))
        yield 1


def _share(failures: dict[str, str], cache: Path, processes: Processes) -> dict[str, str]:
    """What no process could read, known to all of them."""
    if processes.world == 1:
        return failures
    paths = [cache / f"{FAILURES}-{rank}.json" for rank in range(processes.world)]
    with whole_file(paths[processes.rank]) as scratch:
        scratch.write_text(json.dumps(failures), encoding="utf-8")
    processes.wait()
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    processes.wait()
    paths[processes.rank].unlink()
    return {key: error for part in found for key, error in part.items()}


def _score(wanted: Wanted, store: Store, texts: Store) -> Outcome:
    there = np.array([key in store for key in wanted.keys], bool)
    if not there.any():
        raise ValueError(f"none of the {len(there):,} videos of {wanted.task.name} could be read: check its folder")
    task = _readable(wanted.task, there)
    entries = [store[key] for key, found in zip(wanted.keys, there, strict=True) if found]
    vectors = np.stack([entry.vector for entry in entries]).astype(np.float64)
    if task.options is not None:
        scores = score_options(vectors, [_vectors(texts, own, None) for own in task.options])
    else:
        scores = _vectors(texts, task.texts, wanted.prompt) @ vectors.T
    row = measure(wanted.label, task.name, scores, task.targets, entries)
    tokens = float(np.mean([entry.cost for entry in entries]))
    return Outcome(row, tokens, task, scores.argmax(1), hits(scores, task.targets))


def _vectors(store: Store, texts: Sequence[str], instruction: str | None) -> np.ndarray:
    return np.stack([store[make_key(text, instruction)].vector for text in texts]).astype(np.float64)


def _readable(task: Task, there: np.ndarray) -> Task:
    """The task without the videos that could not be read and the queries that need them."""
    if there.all():
        return task
    lost = int((~there).sum())
    if task.asks:
        return task.keep(
            np.flatnonzero(there).tolist(), (*task.notes, f"{lost:,} questions about unreadable videos left out")
        )
    kept = np.flatnonzero(there[task.targets])
    return replace(
        task,
        texts=[task.texts[i] for i in kept],
        targets=(np.cumsum(there) - 1)[task.targets[kept]],
        videos=[video for video, found in zip(task.videos, there, strict=True) if found],
        notes=(*task.notes, f"{lost:,} unreadable videos and their {len(task.texts) - len(kept):,} queries left out"),
    )
