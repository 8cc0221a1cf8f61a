"""Vector files: .npz for numpy, .jsonl for everything else."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from allocembed.embedder import Embedding
from allocembed.output import make_room, whole_file


class Writer(ABC):
    """Collects embeddings into a file that appears when the block ends well and at least one was added."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0

    @abstractmethod
    def add(self, embedding: Embedding) -> None:
        """Takes one embedding of a video."""

    @abstractmethod
    def __enter__(self) -> Writer: ...

    @abstractmethod
    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None: ...


class JsonLines(Writer):
    """One line a video: source, cost, budget, base_cost, vector. Written as they come, so memory does not grow."""

    def __enter__(self) -> JsonLines:
        self.stack = ExitStack()
        return self

    def add(self, embedding: Embedding) -> None:
        if not self.count:
            scratch = self.stack.enter_context(whole_file(self.path))
            self.file = self.stack.enter_context(scratch.open("w", encoding="utf-8"))
        allocation = embedding.allocation
        line = {
            "source": embedding.source,
            "cost": allocation.cost,
            "budget": allocation.budget,
            "base_cost": allocation.base_cost,
            "vector": [float(value) for value in embedding.vector],
        }
        # Plain ASCII: file names need not be valid Unicode, JSON escapes always are.
        self.file.write(json.dumps(line) + "\n")
        self.count += 1

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        self.stack.__exit__(kind, error, trace)


class Npz(Writer):
    """Arrays `sources` (N,), `vectors` (N, dim), `costs`, `budgets`, `base_costs` (N,)."""

    def __enter__(self) -> Npz:
        self.embeddings: list[Embedding] = []
        return self

    def add(self, embedding: Embedding) -> None:
        self.embeddings.append(embedding)
        self.count += 1

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if kind is not None or not self.embeddings:
            return
        allocations = [embedding.allocation for embedding in self.embeddings]
        with whole_file(self.path) as scratch, scratch.open("wb") as file:
            np.savez(
                file,
                sources=np.array([embedding.source for embedding in self.embeddings]),
                vectors=np.stack([embedding.vector for embedding in self.embeddings]),
                costs=np.array([allocation.cost for allocation in allocations]),
                budgets=np.array([allocation.budget for allocation in allocations]),
                base_costs=np.array([allocation.base_cost for allocation in allocations]),
            )


FORMATS: dict[str, type[Writer]] = {".npz": Npz, ".jsonl": JsonLines}


def open_writer(path: Path) -> Writer:
    """A writer for the path's suffix; complains now about a place that can't be written, not after the work."""
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"cannot write {path}: the name must end in {' or '.join(FORMATS)}")
    return FORMATS[path.suffix.lower()](make_room(path))
