"""AllocEmbed: the whole path from a video to a vector, and the only place that knows it.

    source → Clip → (allocator) → Allocation within the budget → Patches → (backbone) → vector

Every embedding comes with the allocation that made it, and so with its exact cost in tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch

from allocembed.allocators import DEFAULT_ALLOCATOR, Allocator, check_allocator, load_allocator
from allocembed.backbones import DEFAULT_BACKBONE, Backbone, Item, load_backbone
from allocembed.backbones.base import Batching
from allocembed.budget import CANDIDATES, Allocation, Budget, BudgetError, check_range
from allocembed.pipeline import DeviceLane, core_count, in_order
from allocembed.resize import Patches, send, to_patches
from allocembed.video import Clip, DecodeLimits, VideoError, sample

Source: TypeAlias = str | Path | np.ndarray | Sequence | Clip
BATCH = 8
SMALL = 100_000_000  # parameters: on a CPU the matrices of such a backbone are too small for several threads to share
logger = logging.getLogger("allocembed")


@dataclass(frozen=True, eq=False)
class Embedding:
    """A unit vector (dim,) fp32 and, for a video, what it cost and where the tokens went."""

    vector: np.ndarray
    source: str
    allocation: Allocation | None = None

    @property
    def cost(self) -> int:
        """Visual tokens the backbone read; 0 for a text."""
        return self.allocation.cost if self.allocation else 0


@dataclass(frozen=True, eq=False)
class Failure:
    """A source that could not be embedded, and why."""

    source: str
    error: VideoError


@dataclass(frozen=True, eq=False)
class Prepared:
    """A video ready for the backbone."""

    source: str
    allocation: Allocation
    item: Item


class AllocEmbed:
    """Embeds videos under a token budget with a frozen backbone.

    `budget` is "8f" (as many tokens as 8 native frames of the same video) or a number of tokens; `candidates` frames
    are sampled, and `allocator` (a method by name, or the folder or hub id of a learned one) gives each pair of them a
    resolution within `scale_range`, which is the allocator's own where none is given.
    """

    def __init__(
        self,
        backbone: Backbone,
        allocator: str | Path | Allocator = DEFAULT_ALLOCATOR,
        *,
        budget: str | int | Budget = "8f",
        candidates: int = CANDIDATES,
        scale_range: tuple[float, float] | None = None,
        seek: str = "exact",
        limits: DecodeLimits | None = None,
    ) -> None:
        if candidates < 1:
            raise ValueError(f"candidates must be at least 1, not {candidates}")
        if seek not in ("exact", "keyframe"):
            raise ValueError(f"seek must be exact or keyframe, not {seek!r}")
        self.backbone = backbone
        self.allocator = load_allocator(allocator, backbone)
        self.budget = Budget.parse(budget)
        self.candidates = candidates
        self.scale_range = check_range(scale_range or self.allocator.scale_range)
        self.seek = seek
        self.limits = limits or DecodeLimits()
        self._lane = DeviceLane(backbone.device) if backbone.device.type == "cuda" else None

    @classmethod
    def from_pretrained(
        cls,
        backbone: str | Path = DEFAULT_BACKBONE,
        allocator: str | Path | Allocator = DEFAULT_ALLOCATOR,
        *,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "auto",
        dim: int | None = None,
        compile: bool = False,
        **settings,
    ) -> AllocEmbed:
        """Loads a backbone by short name, hub id or folder (see `load_backbone`); `settings` are the constructor's."""
        check_allocator(allocator)
        loaded = load_backbone(backbone, device=device, dtype=dtype, dim=dim, compile=compile)
        return cls(loaded, allocator, **settings)

    def read(self, source: Source) -> Clip:
        """Samples the frames the allocator wants to see."""
        return self._read(source, self.limits)

    def allocate(self, source: Source, text: str | None = None) -> Allocation:
        """Where the tokens of a video would go, without embedding it."""
        return self._allocate(self.read(source), text)

    def cut(self, clip: Clip, text: str | None = None) -> tuple[Allocation, Patches]:
        """Allocates and resizes, on a GPU where the backbone is on one: the frames go there once, as they are."""
        if self._lane is None:
            allocation = self._allocate(clip, text)
            return allocation, to_patches(clip.frames, clip.times, allocation, self.backbone.geometry)
        with self._lane():
            frames = send(torch.from_numpy(np.ascontiguousarray(clip.frames)), self.backbone.device)
            seen = replace(clip, frames=frames) if self.allocator.takes_tensors else clip
            allocation = self._allocate(seen, text)
            return allocation, to_patches(frames, clip.times, allocation, self.backbone.geometry)

    @property
    def batching(self) -> Batching:
        """How several videos go through the backbone: packed on a GPU, where padding would be read for nothing."""
        return "pack" if self._lane else "pad"

    def encode_video(self, source: Source, text: str | None = None, *, instruction: str | None = None) -> Embedding:
        """Embeds one video, with the task text or question that belongs to it; raises VideoError if it can't."""
        return self.encode_videos([source], text, instruction=instruction)[0]

    def encode_videos(
        self,
        sources: Iterable[Source],
        text: str | Sequence[str] | None = None,
        *,
        instruction: str | None = None,
    ) -> list[Embedding]:
        """Embeds videos, all with one text or each with its own; the first bad one raises. See `stream`."""
        results = []
        for result in self.stream(sources, text, instruction=instruction):
            if isinstance(result, Failure):
                raise result.error
            results.append(result)
        return results

    def stream(
        self,
        sources: Iterable[Source],
        text: str | Sequence[str] | None = None,
        *,
        instruction: str | None = None,
        batch: int = BATCH,
        workers: int | None = None,
    ) -> Iterator[Embedding | Failure]:
        """Embeds videos in order as they are read; a bad file yields a Failure and costs itself only.

        `workers` threads, by default one for every core, make videos ready while the backbone works: ahead of it are at
        most one in each thread and 2 × `batch` more. A GPU embeds `batch` videos at a time, packed. On a CPU every
        video is embedded alone, so that its vector is the same, bit for bit, in any company; a small backbone that is
        not compiled does so on every core at once.
        """
        if isinstance(sources, str | Path):
            raise TypeError(f"give a list of videos, as in [{str(sources)!r}], or use encode_video")
        if batch < 1:
            raise ValueError(f"batch must be at least 1, not {batch}")
        if workers is not None and workers < 1:
            raise ValueError(f"workers must be at least 1, not {workers}")
        if self.backbone.notice:
            logger.warning(self.backbone.notice)
        sources = list(sources)
        texts = [text] * len(sources) if text is None or isinstance(text, str) else list(text)
        if len(texts) != len(sources):
            raise ValueError(f"{len(sources)} videos and {len(texts)} texts: give one text, or one for each video")
        for each in {text for text in (*texts, instruction) if text is not None}:
            self.backbone.check_text(each)  # before any video is decoded for it
        self.backbone.tokenise([Item("")])  # its first call may change its settings, which no two threads must do
        whole = self._embeds_side_by_side()
        many = whole or self._lane is not None
        workers = max(1, min(workers or (core_count() if many else 1), 2 * batch, len(sources)))
        # A decoder needs threads of its own only where there are more cores than videos.
        limits = replace(self.limits, threads=self.limits.threads or max(1, core_count() // workers))
        work = partial(self._embed_one if whole else self._prepare, limits=limits, instruction=instruction)
        how = {"workers": workers, "ahead": workers + 2 * batch, "torch_threads": 1 if many else None}
        with closing(in_order(work, zip(sources, texts, strict=True), **how)) as done:
            if whole:
                yield from done
                return
            while some := list(islice(done, batch if self._lane else 1)):
                yield from self._embed_all(some)

    def encode_text(self, text: str, *, instruction: str | None = None) -> Embedding:
        """Embeds one text."""
        return self.encode_texts([text], instruction=instruction)[0]

    def encode_texts(self, texts: Sequence[str], *, instruction: str | None = None) -> list[Embedding]:
        """Embeds texts: captions, answers, or (with `backbone.query_instruction`) search sentences."""
        if isinstance(texts, str):
            raise TypeError(f"give a list of texts, as in [{texts!r}], or use encode_text")
        vectors = self.backbone.embed([Item(text=text, instruction=instruction) for text in texts]).numpy()
        return [Embedding(vector, text) for vector, text in zip(vectors, texts, strict=True)]

    def _embeds_side_by_side(self) -> bool:
        """Whether whole videos go through the backbone beside each other, each on a core of its own."""
        # Compiled code is made for one number of threads, and would be made again for every core.
        if self.backbone.device.type != "cpu" or self.backbone.compiled:
            return False
        return sum(weights.numel() for weights in self.backbone.model.parameters()) < SMALL

    def _read(self, source: Source, limits: DecodeLimits) -> Clip:
        if isinstance(source, Clip):
            return source
        wanted = self.allocator.frames_wanted(self.budget, self.candidates)
        return sample(source, wanted, seek=self.seek, limits=limits)

    def _allocate(self, clip: Clip, text: str | None) -> Allocation:
        native = self.backbone.geometry.native(clip.height, clip.width)
        return self.allocator.allocate(clip, native, self.budget, text=text, scale_range=self.scale_range)

    def _prepare(
        self, job: tuple[Source, str | None], limits: DecodeLimits, instruction: str | None
    ) -> Prepared | Failure:
        source, text = job
        try:
            clip = self._read(source, limits)
            try:
                allocation, patches = self.cut(clip, text)
            except BudgetError as error:
                raise VideoError(clip.source, str(error)) from error
        except VideoError as error:
            return Failure(error.source, error)
        return Prepared(clip.source, allocation, Item(text, patches, instruction))

    def _embed_one(self, job: tuple[Source, str | None], **how) -> Embedding | Failure:
        return next(self._embed_all([self._prepare(job, **how)]))

    def _embed_all(self, prepared: Sequence[Prepared | Failure]) -> Iterator[Embedding | Failure]:
        items = [video.item for video in prepared if isinstance(video, Prepared)]
        vectors = iter(self.backbone.embed(items, batching=self.batching).numpy() if items else ())
        for video in prepared:
            if isinstance(video, Failure):
                yield video
            else:
                yield Embedding(next(vectors), video.source, video.allocation)
