"""Vector files: .npz for numpy, .jsonl for everything else. Both appear only when they are whole."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from pathlib import Path

import numpy as np

from allocembed.embedder import Embedding


class Writer(ABC):
    """Collects embeddings into a file that is complete or not there: written beside its place, then moved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.partial = path.with_name(f".{path.name}.partial")
        self.count = 0

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        self.close()
        if self.count and kind is None:
            self.partial.replace(self.path)
        else:
            self.partial.unlink(missing_ok=True)

    def add(self, embedding: Embedding) -> None:
        self.count += 1
        self.write(embedding)

    @abstractmethod
    def write(self, embedding: Embedding) -> None: ...

    @abstractmethod
    def close(self) -> None: ...


class JsonLines(Writer):
    """One line a video: source, cost, budget, base_cost, vector."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.file = self.partial.open("w", encoding="utf-8")

    def write(self, embedding: Embedding) -> None:
        allocation = embedding.allocation
        line = {
            "source": embedding.source,
            "cost": allocation.cost,
            "budget": allocation.budget,
            "base_cost": allocation.base_cost,
            "vector": [float(value) for value in embedding.vector],
        }
        self.file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def close(self) -> None:
        self.file.close()


class Npz(Writer):
    """Arrays `sources` (N,), `vectors` (N, dim), `costs`, `budgets`, `base_costs` (N,)."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.partial.touch()
        self.embeddings: list[Embedding] = []

    def write(self, embedding: Embedding) -> None:
        self.embeddings.append(embedding)

    def close(self) -> None:
        if not self.embeddings:
            return
        allocations = [embedding.allocation for embedding in self.embeddings]
        with self.partial.open("wb") as file:
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
    if path.suffix not in FORMATS:
        raise ValueError(f"cannot write {path}: the name must end in {' or '.join(FORMATS)}")
    return FORMATS[path.suffix](make_room(path))


def make_room(path: Path) -> Path:
    """Makes the folder of a file to be written; a ValueError says why where it can't be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_name(f".{path.name}.partial").open("wb"):
            pass
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}; choose another place") from error
    path.with_name(f".{path.name}.partial").unlink()
    return path
