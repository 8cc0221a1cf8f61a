"""Embeddings on disk, so that a stopped evaluation resumes and a repeated one finishes at once.

A folder belongs to one `AllocEmbed.identity()`; a key in it to the content of a video and to its texts. Names and
places do not count: a moved dataset keeps its embeddings, and a changed model never gets another one's.

Embeddings are written a few dozen per file, each file whole or absent. Several processes may write into one folder.
"""

import hashlib
import json
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from allocembed.embedder import AllocEmbed
from allocembed.errors import DataError
from allocembed.files import fingerprint
from allocembed.output.files import whole_file, write_text
from allocembed.video import IMAGE_SUFFIXES

MOST_PENDING, MOST_PENDING_SECONDS = 64, 20.0  # embeddings and time between two writes: the most that a kill can lose


@dataclass(frozen=True, eq=False)
class CachedEmbedding:
    """A vector and its cost, with the names that `Allocation` uses. A text costs nothing."""

    vector: np.ndarray
    cost: int = 0
    budget: int = 0
    base_cost: int = 1

    @property
    def relative_cost(self) -> float:
        return self.cost / self.base_cost


class EmbeddingCache:
    """Embeddings by key in one folder; `identity` says what made them."""

    def __init__(self, folder: Path, identity: Mapping[str, Any]) -> None:
        self.folder = folder
        self._entries: dict[str, CachedEmbedding] = {}
        self._pending: list[str] = []
        self._written = time.monotonic()
        self._read: set[Path] = set()
        write_text(folder / "identity.json", json.dumps(identity, indent=1))
        self.refresh()

    @classmethod
    def for_videos(cls, root: Path, embedder: AllocEmbed, kind: str = "") -> Self:
        """The cache of videos embedded with these weights and settings; `kind` replaces the method in its name."""
        identity, title = embedder.identity(), Path(embedder.backbone.name).name or "model"
        digest = make_key(json.dumps(identity, sort_keys=True))[:12]
        return cls(root / title / f"{kind or embedder.allocator.name}-{digest}", identity)

    @classmethod
    def for_texts(cls, root: Path, embedder: AllocEmbed) -> Self:
        """The cache of texts embedded with this backbone, which no allocation changes."""
        return cls.for_videos(root, AllocEmbed(embedder.backbone, "base"), "texts")

    def name(self, key: str) -> str:
        """A name of an embedding that no other cache shares."""
        return f"{self.folder.name}/{key}"

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> CachedEmbedding:
        return self._entries[key]

    def add(self, key: str, entry: CachedEmbedding) -> None:
        """Keep an embedding, and write the pending ones when it is time."""
        self._entries[key] = entry
        self._pending.append(key)
        if len(self._pending) >= MOST_PENDING or time.monotonic() - self._written > MOST_PENDING_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write all pending embeddings."""
        if self._pending:
            entries = [self[key] for key in self._pending]
            path = self.folder / f"{uuid.uuid4().hex}.npz"
            with whole_file(path) as scratch, scratch.open("wb") as file:
                np.savez(
                    file,
                    keys=np.array(self._pending),
                    vectors=np.stack([entry.vector for entry in entries]),
                    costs=np.array([(entry.cost, entry.budget, entry.base_cost) for entry in entries]),
                )
            self._read.add(path)
            self._pending = []
        self._written = time.monotonic()

    def refresh(self) -> None:
        """Read what other processes or runs have written."""
        for path in sorted(set(self.folder.glob("*.npz")) - self._read):
            try:
                with np.load(path, allow_pickle=False) as found:
                    keys, vectors, costs = found["keys"].tolist(), found["vectors"], found["costs"].tolist()
            except Exception as error:  # whatever zip and numpy raise for a damaged file
                raise DataError(f"cannot read the embeddings in {path}: delete that file and run again") from error
            for key, vector, cost in zip(keys, vectors, costs, strict=True):
                self._entries[key] = CachedEmbedding(vector, *cost)
            self._read.add(path)


def make_key(*parts: str | None) -> str:
    """One key from several parts; no two lists of parts share a key.

    >>> make_key("a", "b") == make_key("a", "b"), make_key("ab", None) == make_key("a", "b")
    (True, False)
    """
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def video_digest(source: Path) -> str:
    """Identify a video by its content; a frame folder by the names and the contents of its images."""
    if not source.is_dir():
        return fingerprint(source)
    images = sorted(path for path in source.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file())
    return make_key(*(part for path in images for part in (path.name, fingerprint(path))))
