"""Embed many videos into tables of vectors, over any workers: `allocembed embed`."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from allocembed.config import EmbedConfig
from allocembed.files import FileEntry
from allocembed.output.vectors import VectorOutput, row_of
from allocembed.workers import Workers, WorkerShare
from allocembed.workers.commits import Commits

if TYPE_CHECKING:
    from allocembed.embedder import AllocEmbed


@dataclass(frozen=True)
class VectorOutcome:
    """The result of a video; `held` if its vector was there already."""

    source: str
    status: Literal["embedded", "held", "failed"]
    tokens: int = 0
    error: str = ""


@dataclass(frozen=True)
class EmbedTask:
    """Makes a worker that embeds videos and writes their vectors: to a writer of its process, or to a folder."""

    config: EmbedConfig
    output: VectorOutput
    commit: int
    question: str | None = None
    instruction: str | None = None

    def __call__(self, share: WorkerShare) -> EmbedWorker:
        from allocembed.embedder import AllocEmbed

        share.take()
        return EmbedWorker(self, AllocEmbed.from_config(self.config), share.commit_seconds)


class EmbedWorker:
    """Embeds videos, and writes at most `commit` vectors or those of some seconds at once."""

    def __init__(self, task: EmbedTask, embedder: AllocEmbed, seconds: float) -> None:
        self.task, self.embedder, self.seconds = task, embedder, seconds

    def work(self, items: Sequence[FileEntry], again: bool) -> Iterator[VectorOutcome]:
        """One outcome for each video. What comes `again` may have been written before."""
        from allocembed.embedder import Failure

        task = self.task
        if again:
            task.output.look()
        done = {file for file in items if again and task.output.holds(file.path, key_of(file))}
        yield from (VectorOutcome(file.path, "embedded") for file in done)
        new = [file for file in items if file not in done]
        stream = self.embedder.stream([file.path for file in new], task.question, instruction=task.instruction)
        with Commits(task.output.write_rows, task.commit, self.seconds) as commits:
            for file, result in zip(new, stream, strict=True):
                if isinstance(result, Failure):
                    yield VectorOutcome(file.path, "failed", error=str(result.error))
                else:
                    commits.add(row_of(result) | ({"key": key_of(file)} if task.output.keyed else {}))
                    yield VectorOutcome(file.path, "embedded", result.cost)


def embed_all(files: Iterator[FileEntry], task: EmbedTask, workers: Workers) -> Iterator[VectorOutcome]:
    """Embed videos; yield an outcome for each. A folder that was begun is continued."""
    output, held = task.output, 0
    output.settle({**task.config.settings(), "question": task.question, "instruction": task.instruction})
    output.look()

    def new() -> Iterator[FileEntry]:
        nonlocal held
        for file in files:
            if output.holds(file.path, key_of(file)):
                held += 1
            else:
                yield file

    yield from workers.run(task, new(), _give_up)
    output.drop_changed()
    yield from (VectorOutcome("", "held") for _ in range(held))


def key_of(file: FileEntry) -> str:
    """Stands for a path with this size and date, or ETag."""
    about = f"{file.path}\n{file.size}\n{file.video or file.changed}"
    return hashlib.blake2b(about.encode(errors="surrogateescape"), digest_size=8).hexdigest()


def _give_up(file: FileEntry, cause: str) -> VectorOutcome:
    return VectorOutcome(file.path, "failed", error=f"{file.path}: {cause}")
