"""AllocEmbed: the path from a video to a vector, as stages that can be called one by one.

    source → read → Clip → plan → Plan → allocate → Allocation → patch → Patches → item → Item → embed → vector

No stage starts a thread. `stream` and the `encode_…` methods hand the stages to an executor (`allocembed.execution`).
Every embedding of a video comes with the allocation that made it, and so with its exact cost in tokens.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from allocembed import __version__
from allocembed.allocators.base import AllocationRequest, Allocator, Plan, allocate_clip
from allocembed.allocators.registry import AUTO, load_allocator
from allocembed.backbones.base import Backbone, Item, Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.registry import DEFAULT_BACKBONE
from allocembed.budget import CANDIDATES, Allocation, Budget, BudgetError
from allocembed.config import DType, EmbedConfig
from allocembed.errors import AllocEmbedError, ConfigError, MissingDependency, VideoBudgetError
from allocembed.execution.stream import BATCH, Prepared, PrepareResources, embed_items, embed_jobs
from allocembed.geometry import Geometry
from allocembed.planner import Planner, Source
from allocembed.resize import Patches, prompt_seconds, send, to_patches
from allocembed.video import Clip, DecodeLimits, PictureSource, Seek, read_picture

SMALLEST_PICTURE_SCALE = 1e-3  # scale of a picture under a small budget; it has one token at least
logger = logging.getLogger("allocembed")


@dataclass(frozen=True, eq=False)
class VideoEmbedding:
    """A unit vector (dim,), fp32, of a video, and where its tokens went."""

    vector: np.ndarray
    source: str
    allocation: Allocation

    @property
    def cost(self) -> int:
        """Visual tokens that the backbone read."""
        return self.allocation.cost


@dataclass(frozen=True, eq=False)
class ImageEmbedding(VideoEmbedding):
    """A unit vector (dim,), fp32, of a picture, and the size at which it was read."""


@dataclass(frozen=True, eq=False)
class TextEmbedding:
    """A unit vector (dim,), fp32, of a text."""

    vector: np.ndarray
    text: str


@dataclass(frozen=True, eq=False)
class Failure:
    """A source that could not be embedded, and why."""

    source: str
    error: AllocEmbedError


class AllocEmbed(Planner):
    """Embeds videos under a token budget with a frozen backbone.

    `config` holds the budget and all other settings; its `backbone` and `allocator` are replaced by the given objects.
    A backbone has its `dim` and `inputs` from loading: a config with others is refused.
    """

    def __init__(
        self, backbone: Backbone, allocator: str | Allocator = AUTO, config: EmbedConfig | None = None
    ) -> None:
        config = config or EmbedConfig()
        _check_loaded(backbone, config)
        self.backbone = backbone
        found = load_allocator(allocator, backbone) if isinstance(allocator, str) else allocator
        super().__init__(backbone.inputs, found, config)
        self.config = replace(
            config,
            backbone=backbone.name,
            allocator=allocator if isinstance(allocator, str) and allocator != AUTO else found.name,
            scale_range=self.scale_range,
            dim=backbone.dim,
        )

    @classmethod
    def from_pretrained(
        cls,
        backbone: str | Path = DEFAULT_BACKBONE,
        allocator: str | Path = AUTO,
        *,
        inputs: str | None = None,
        budget: str | int | Budget = "8f",
        candidates: int = CANDIDATES,
        scale_range: tuple[float, float] | None = None,
        seek: Seek = "exact",
        start: float | None = None,
        end: float | None = None,
        rate: float | None = None,
        dim: int | None = None,
        device: str = "auto",
        dtype: DType = "auto",
        compile: bool = False,
        decoder: str = "auto",
        max_pixels: int = DecodeLimits.max_pixels,
        max_seconds: float = DecodeLimits.max_seconds,
    ) -> Self:
        """Load a backbone and an allocator by name, hub id or folder. The options are the fields of `EmbedConfig`."""
        config = EmbedConfig(
            backbone=str(backbone),
            allocator=str(allocator),
            inputs=inputs,
            budget=str(budget),
            candidates=candidates,
            scale_range=scale_range,
            seek=seek,
            start=start,
            end=end,
            rate=rate,
            dim=dim,
            device=device,
            dtype=dtype,
            compile=compile,
            decoder=decoder,
            max_pixels=max_pixels,
            max_seconds=max_seconds,
        )
        return cls.from_config(config)

    @classmethod
    def from_config(cls, config: EmbedConfig) -> Self:
        """Load what a config names."""
        config.check()
        backbone = load_backbone(
            config.backbone,
            inputs=config.inputs,
            dim=config.dim,
            device=config.device,
            dtype=config.dtype,
            compile=config.compile,
        )
        if backbone.notice:
            logger.warning(backbone.notice)
        return cls(backbone, config.allocator, config)

    def with_config(self, config: EmbedConfig) -> Self:
        """An embedder with other settings, which shares this one's backbone and allocator."""
        other = type(self)(self.backbone, self.allocator, config)
        other.config = replace(other.config, allocator=self.config.allocator)
        return other

    def identity(self) -> dict[str, Any]:
        """Everything that decides which vector comes out, besides the video and the texts: a key for caches."""
        settings = self.config.settings() | {"backbone": self.backbone.weights_digest}
        settings["candidates"] = self.frames_wanted
        return {
            "allocembed": __version__,
            "family": self.backbone.family,
            "inputs": repr(self.backbone.inputs),
            "dtype": str(self.backbone.dtype),
            **{name: value for name, value in settings.items() if name != "inputs"},
            "allocator": self.allocator.identity(),
        }

    # The stages of the model; `Planner` has those before it.

    @property
    def device(self) -> str:
        return str(self.backbone.device)

    def patch(self, clip: Clip, allocation: Allocation) -> Patches:
        """Resize the frames and cut them into patches."""
        return _patch(clip, allocation, self.geometry)

    def item(
        self,
        clip: Clip,
        allocation: Allocation,
        patches: Patches,
        question: str | None = None,
        instruction: str | None = None,
    ) -> Item:
        """Patches with the prompt that stands around them."""
        seconds = prompt_seconds(clip, allocation.frames, self.inputs.list_rate)
        return Item(Prompt(question, instruction, seconds), patches)

    def embed(self, items: Sequence[Item]) -> np.ndarray:
        """Vectors (N, dim) of items; batched on a GPU, one by one on a CPU."""
        return embed_items(self.backbone, items)

    # From sources to vectors

    def prepare(
        self, clip: Clip, question: str | None = None, instruction: str | None = None
    ) -> tuple[Allocation, Item]:
        """Plan, allocate and patch. If the backbone is on a GPU, the frames are sent there once, as they are."""
        sent = self._send(clip)
        seen = sent if self.allocator.takes_tensors else clip.on_host()
        allocation = self.allocate(seen, self.plan(seen, question))
        return allocation, self.item(clip, allocation, self.patch(sent, allocation), question, instruction)

    def prepare_picture(
        self, clip: Clip, question: str | None = None, instruction: str | None = None
    ) -> tuple[Allocation, Item]:
        """Allocate and patch a picture, a clip of one frame: at its native size, or as large as the budget allows."""
        geometry = self.backbone.inputs.picture_geometry
        request = AllocationRequest(geometry, self.budget, (SMALLEST_PICTURE_SCALE, 1.0))
        allocation = allocate_clip(clip, Plan(np.arange(1), np.ones(1), grow=False), request)
        prompt = Prompt(question, instruction, np.zeros(1), picture=True)
        return allocation, Item(prompt, _patch(self._send(clip), allocation, geometry))

    def _send(self, clip: Clip) -> Clip:
        """The clip with its frames on the device, if items are prepared there."""
        if not self.backbone.packs or not isinstance(clip.frames, np.ndarray):
            return clip
        frames = send(torch.from_numpy(np.ascontiguousarray(clip.frames)), self.backbone.device)
        return replace(clip, frames=frames)

    def encode_video(
        self, source: Source, question: str | None = None, *, instruction: str | None = None
    ) -> VideoEmbedding:
        """Embed one video, with a question about it if there is one. Raise VideoError if it cannot be read."""
        return self.encode_videos([source], question, instruction=instruction)[0]

    def encode_videos(
        self,
        sources: Iterable[Source],
        question: str | Sequence[str | None] | None = None,
        *,
        instruction: str | None = None,
    ) -> list[VideoEmbedding]:
        """Embed videos, with one question for all or one for each. The first bad one raises; see `stream`."""
        results = []
        for result in self.stream(sources, question, instruction=instruction):
            if isinstance(result, Failure):
                raise result.error
            results.append(result)
        return results

    def stream(
        self,
        sources: Iterable[Source],
        question: str | Sequence[str | None] | None = None,
        *,
        instruction: str | None = None,
        batch: int = BATCH,
        workers: int | None = None,
    ) -> Iterator[VideoEmbedding | Failure]:
        """Embed videos in order. A bad file yields a Failure and does not affect the others. A package that is not
        installed ends the run.

        While the backbone works, `workers` threads prepare videos: by default

        - one for each core, with a GPU or a small model;
        - one for each place of the GPU's decoders and one for every four cores, if the GPU decodes too;
        - one, if a large model runs on a CPU.

        At most one video for each thread and 2 × `batch` more are in preparation, and a slow one does not hold up those
        after it. A GPU embeds up to `batch` videos at a time. On a CPU every video is embedded alone, so that its
        vector is always the same, bit for bit.
        """
        if isinstance(sources, str | Path):
            raise TypeError(f"pass a list of videos, such as [{str(sources)!r}], or use encode_video")
        sources = list(sources)
        questions = [question] * len(sources) if question is None or isinstance(question, str) else list(question)
        if len(questions) != len(sources):
            raise ValueError(f"{len(sources)} videos and {len(questions)} questions: pass one, or one for each video")
        for text in {text for text in (*questions, instruction) if text is not None}:
            self.backbone.check_text(text)  # before any video is decoded for it

        decoders = self.decoders  # bad options raise; bad videos only fail themselves

        def prepare(
            job: tuple[Source, str | None], resources: PrepareResources
        ) -> Iterator[Prepared[tuple[str, Allocation]]]:
            clip = self.read(job[0], decoder_threads=resources.decoder_threads, on_device=True)
            try:
                with resources.lane():
                    allocation, item = self.prepare(clip, job[1], instruction)
            except BudgetError as error:
                raise VideoBudgetError(clip.source, str(error)) from error
            yield Prepared(item, (clip.source, allocation))

        jobs = list(zip(sources, questions, strict=True))
        for outcome in embed_jobs(self.backbone, jobs, prepare, batch=batch, workers=workers, decoders=decoders):
            if isinstance(outcome.error, MissingDependency):
                raise outcome.error
            if outcome.error is not None:
                yield Failure(getattr(outcome.error, "source", str(outcome.job[0])), outcome.error)
            else:
                ((source, allocation), vector) = outcome.pieces[0]
                yield VideoEmbedding(vector, source, allocation)

    def encode_image(
        self, source: PictureSource, question: str | None = None, *, instruction: str | None = None
    ) -> ImageEmbedding:
        """Embed one picture: a path, the bytes of a file, a Pillow image or an (H, W, 3) uint8 array."""
        return self.encode_images([source], question, instruction=instruction)[0]

    def encode_images(
        self, sources: Iterable[PictureSource], question: str | None = None, *, instruction: str | None = None
    ) -> list[ImageEmbedding]:
        """Embed pictures as the model's own code does, within the budget. The first bad one raises VideoError."""
        if isinstance(sources, str | Path | bytes | np.ndarray):
            raise TypeError("pass a list of pictures, or use encode_image")
        for text in filter(None, (question, instruction)):
            self.backbone.check_text(text)  # before any picture is decoded for it

        def prepare(source: PictureSource, resources: PrepareResources) -> Iterator[Prepared[tuple[str, Allocation]]]:
            clip = read_picture(source, self.config.limits)
            with resources.lane():
                allocation, item = self.prepare_picture(clip, question, instruction)
            yield Prepared(item, (clip.source, allocation))

        results = []
        for outcome in embed_jobs(self.backbone, sources, prepare):
            if outcome.error is not None:
                raise outcome.error
            ((source, allocation), vector) = outcome.pieces[0]
            results.append(ImageEmbedding(vector, source, allocation))
        return results

    def encode_text(self, text: str, *, instruction: str | None = None) -> TextEmbedding:
        """Embed one text."""
        return self.encode_texts([text], instruction=instruction)[0]

    def encode_texts(self, texts: Iterable[str], *, instruction: str | None = None) -> list[TextEmbedding]:
        """Embed texts: captions, answers or, with `backbone.query_instruction`, search sentences."""
        if isinstance(texts, str):
            raise TypeError(f"pass a list of texts, such as [{texts!r}], or use encode_text")
        texts = list(texts)
        vectors = self.backbone.embed([Item(Prompt(text, instruction)) for text in texts]).numpy()
        return [TextEmbedding(vector, text) for vector, text in zip(vectors, texts, strict=True)]


def _check_loaded(backbone: Backbone, config: EmbedConfig) -> None:
    """Raise ConfigError if a config has settings of a backbone that was loaded otherwise."""
    loaded = backbone.load_arguments or {}
    # A model with fewer dimensions keeps all, unless it was loaded for some of them.
    longer = config.dim is not None and config.dim > backbone.dim and loaded.get("dim") in (None, config.dim)
    if config.dim is not None and config.dim != backbone.dim and not longer:
        raise ConfigError(
            f"{backbone.name} was loaded for vectors of {backbone.dim} dimensions, not {config.dim}: load it with "
            f"dim={config.dim}"
        )
    if config.inputs is not None and config.inputs != loaded.get("inputs", config.inputs):
        raise ConfigError(
            f"{backbone.name} was loaded with {loaded['inputs']}, not {config.inputs}: load it with "
            f"inputs={config.inputs!r}"
        )


def _patch(clip: Clip, allocation: Allocation, geometry: Geometry) -> Patches:
    canvas = geometry.canvas(clip.height, clip.width, listed=clip.listed)
    return to_patches(clip.frames, allocation, geometry, canvas=canvas)
