"""Embeddings on disk, so that an evaluation that was stopped goes on, and one that is repeated is done at once.

An entry is found by what made it: the content of the video, the texts, the model's weights, the method and its
settings. Names and places do not count: a moved dataset keeps its entries, a changed model gets none of another's.

Entries are written a few dozen to a file, each file whole or not there; several processes may write into one folder.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch

from allocembed.allocators import Learned
from allocembed.backbones import Backbone
from allocembed.embedder import AllocEmbed, Embedding
from allocembed.frames import IMAGE_SUFFIXES
from allocembed.output import whole_file

ENTRIES, SECONDS = 64, 20.0  # written when so many have come, or after so long: what a kill costs at most
PIECE = 1 << 16  # bytes read at the start, middle and end of a file to know its content
VALUES = 64  # of every weight tensor that tell one model from another


@dataclass(frozen=True, eq=False)
class Entry:
    """A vector and what it cost, with the names that `Allocation` gives these numbers; a text costs nothing."""

    vector: np.ndarray
    cost: int = 0
    budget: int = 0
    base_cost: int = 1

    @property
    def relative_cost(self) -> float:
        return self.cost / self.base_cost

    @classmethod
    def of(cls, embedding: Embedding) -> Entry:
        """What is kept of an embedding."""
        if embedding.allocation is None:
            return cls(embedding.vector)
        allocation = embedding.allocation
        return cls(embedding.vector, allocation.cost, allocation.budget, allocation.base_cost)


class Store:
    """Entries by key in one folder; `about` says in words what made them."""

    def __init__(self, folder: Path, about: dict) -> None:
        self.folder = folder
        self.entries: dict[str, Entry] = {}
        self.fresh: list[str] = []
        self.written = time.monotonic()
        self.known: set[Path] = set()
        folder.mkdir(parents=True, exist_ok=True)
        with whole_file(folder / "about.json") as scratch:
            scratch.write_text(json.dumps(about, indent=1), encoding="utf-8")
        self.refresh()

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def __getitem__(self, key: str) -> Entry:
        return self.entries[key]

    def add(self, key: str, entry: Entry) -> None:
        """Keeps an entry, and writes what has gathered when it is time."""
        self.entries[key] = entry
        self.fresh.append(key)
        if len(self.fresh) >= ENTRIES or time.monotonic() - self.written > SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes all that is not yet written."""
        if self.fresh:
            entries = [self.entries[key] for key in self.fresh]
            path = self.folder / f"{uuid.uuid4().hex}.npz"
            with whole_file(path) as scratch, scratch.open("wb") as file:
                np.savez(
                    file,
                    keys=np.array(self.fresh),
                    vectors=np.stack([entry.vector for entry in entries]),
                    costs=np.array([(entry.cost, entry.budget, entry.base_cost) for entry in entries]),
                )
            self.known.add(path)
            self.fresh = []
        self.written = time.monotonic()

    def refresh(self) -> None:
        """Reads what other processes or runs have written."""
        for path in sorted(self.folder.glob("*.npz")):
            if path not in self.known:
                self.known.add(path)
                self.entries |= dict(_read(path))


def _read(path: Path) -> Iterator[tuple[str, Entry]]:
    try:
        with np.load(path, allow_pickle=False) as found:
            keys, vectors, costs = found["keys"].tolist(), found["vectors"], found["costs"].tolist()
    except Exception as error:  # whatever zip and numpy make of a damaged file
        raise ValueError(f"the stored embeddings in {path} are damaged: delete that file and run again") from error
    for key, vector, (cost, budget, base_cost) in zip(keys, vectors, costs, strict=True):
        yield key, Entry(vector, cost, budget, base_cost)


def make_key(*parts: str | None) -> str:
    """One key of several parts, none of which can pass for another.

    >>> make_key("a", "b") == make_key("a", "b"), make_key("ab", None) == make_key("a", "b")
    (True, False)
    """
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def text_store(cache: Path, backbone: Backbone) -> Store:
    """Where the vectors of texts by one model are."""
    about = describe_backbone(backbone)
    return Store(_folder(cache, backbone, "texts", about), about)


def video_store(cache: Path, embedder: AllocEmbed) -> Store:
    """Where the vectors of videos by one model, method and settings are."""
    about = describe(embedder)
    return Store(_folder(cache, embedder.backbone, embedder.allocator.name, about), about)


def describe(embedder: AllocEmbed) -> dict:
    """All that, beside video and texts, decides what vector comes out."""
    wanted = embedder.allocator.frames_wanted(embedder.budget, embedder.candidates)
    about = describe_backbone(embedder.backbone) | {
        "method": embedder.allocator.name,
        "budget": str(embedder.budget),
        "frames": wanted,
        "range": list(embedder.scale_range),
        "seek": embedder.seek,
    }
    if isinstance(embedder.allocator, Learned):
        previewer = embedder.allocator.previewer
        eyes = getattr(previewer, "backbone", previewer).model
        about |= {"policy": weights_digest(embedder.allocator.policy), "preview": weights_digest(eyes)}
        about |= {"preview tokens": getattr(previewer, "tokens", None)}
    return about


def describe_backbone(backbone: Backbone) -> dict:
    """The model: its weights rather than its name, and how pictures come to it."""
    return {
        "allocembed": version("allocembed"),
        "family": backbone.family,
        "weights": weights_digest(backbone.model),
        "dtype": str(backbone.dtype),
        "dim": backbone.dim,
        "geometry": repr(backbone.geometry),
    }


def weights_digest(model: torch.nn.Module) -> str:
    """Tells models apart by the name, shape and a few values of every weight.

    >>> layer = torch.nn.Linear(3, 2)
    >>> before = weights_digest(layer)
    >>> with torch.no_grad(): _ = layer.bias.add_(1)
    >>> before == weights_digest(layer)
    False
    """
    digest = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        flat = tensor.detach().flatten()
        few = flat[:: max(1, len(flat) // VALUES)].double().cpu().numpy()
        digest.update(f"{name} {tuple(tensor.shape)}".encode() + few.tobytes())
    return digest.hexdigest()[:16]


def video_digest(source: Path) -> str:
    """Tells videos apart by content: size and three pieces of a file; of a frame folder every image's name and size,
    and the first, middle and last image. Reading whole files would take as long as decoding them.
    """
    digest = hashlib.sha256()
    if source.is_dir():
        images = sorted(path for path in source.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES)
        digest.update(json.dumps([(path.name, path.stat().st_size) for path in images]).encode())
        files = [images[i] for i in sorted({0, len(images) // 2, len(images) - 1})] if images else []
    else:
        digest.update(str(source.stat().st_size).encode())
        files = [source]
    for path in files:
        size = path.stat().st_size
        with path.open("rb") as file:
            for start in sorted({0, max(0, (size - PIECE) // 2), max(0, size - PIECE)}):
                file.seek(start)
                digest.update(file.read(PIECE))
    return digest.hexdigest()[:32]


def _folder(cache: Path, backbone: Backbone, what: str, about: dict) -> Path:
    """A folder with a name people can read, and a digest that nothing else shares."""
    title = Path(backbone.name).name or "model"
    return cache / title / f"{what}-{make_key(json.dumps(about, sort_keys=True))[:12]}"
