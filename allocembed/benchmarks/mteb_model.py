"""Our embedder as an mteb model: `mteb.evaluate(MtebModel(embedder), tasks)`.

Videos are read by us, not by mteb: its datasets are asked for files instead of decoded frames, so that the allocator
chooses from the whole video, and no second decoder is needed. How the budget was spent goes into the results
as experiment arguments, so that runs with different methods stand beside each other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from allocembed.benchmarks.annotations import NEEDS
from allocembed.embedder import AllocEmbed

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models import ModelMeta
    from mteb.types import PromptType

BATCH = 4  # videos


class MtebModel:
    """What mteb calls an encoder: texts, videos, and videos with texts become unit vectors."""

    def __init__(self, embedder: AllocEmbed) -> None:
        self.embedder = embedder
        self.mteb_model_meta = make_meta(embedder)

    @classmethod
    def from_pretrained(cls, backbone: str, **settings: Any) -> MtebModel:
        """Loads a backbone by short name, hub id or folder; `settings` are those of `AllocEmbed.from_pretrained`."""
        return cls(AllocEmbed.from_pretrained(backbone, **settings))

    def encode(
        self,
        inputs: Any,
        *,
        task_metadata: TaskMetadata,
        hf_split: str = "",
        hf_subset: str = "",
        prompt_type: PromptType | None = None,
        **_: Any,
    ) -> np.ndarray:
        """(N, dim) vectors of everything a loader gives, in its order."""
        instruction = self._instruction(task_metadata, prompt_type)
        return np.concatenate([self._encode(rows, instruction) for rows in read_batches(inputs)])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """(N, M) cosines: our vectors have length 1."""
        return torch.as_tensor(embeddings1) @ torch.as_tensor(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """(N,) cosines of the vectors in the same place."""
        return (torch.as_tensor(embeddings1) * torch.as_tensor(embeddings2)).sum(-1)

    def _encode(self, rows: list[Mapping[str, Any]], instruction: str | None) -> np.ndarray:
        texts = [row.get("text") for row in rows]
        if any(row.get("video") is not None for row in rows):
            with ExitStack() as stack:
                sources = [as_source(row["video"], stack) for row in rows]
                words = None if None in texts else texts
                found = self.embedder.encode_videos(sources, words, instruction=instruction)
        elif None in texts:
            kinds = ", ".join(rows[0])
            raise ValueError(f"AllocEmbed embeds texts and videos; this task gives {kinds}: choose another task")
        else:
            found = self.embedder.encode_texts(texts, instruction=instruction)
        return np.stack([each.vector for each in found])

    def _instruction(self, task: TaskMetadata, prompt_type: PromptType | None) -> str | None:
        """The task's own prompt for queries, else the backbone's; what is searched has none."""
        kind = getattr(prompt_type, "value", prompt_type)
        prompt = task.prompt
        if isinstance(prompt, Mapping):
            prompt = prompt.get(kind or "query")
        elif kind == "document":
            prompt = None
        return prompt or (self.embedder.backbone.query_instruction if kind == "query" else None)


def make_meta(embedder: AllocEmbed) -> ModelMeta:
    """What mteb writes beside its results, the allocation's settings among it."""
    try:
        from mteb.models import ModelMeta
    except ImportError as error:
        raise ValueError(f"mteb is not installed: {NEEDS}") from error
    from importlib.metadata import version

    backbone = embedder.backbone
    return ModelMeta(
        loader=None,
        name=f"allocembed/{Path(backbone.name).name}",
        revision=version("allocembed"),
        release_date=None,
        languages=None,
        n_parameters=sum(weights.numel() for weights in backbone.model.parameters()),
        memory_usage_mb=None,
        max_tokens=None,
        embed_dim=backbone.dim,
        license=None,
        open_weights=True,
        public_training_code=None,
        public_training_data=None,
        framework=["PyTorch"],
        similarity_fn_name="cosine",
        use_instructions=True,
        training_datasets=None,
        modalities=["text", "video"],
        experiment_kwargs={
            "method": embedder.allocator.name,
            "budget": str(embedder.budget),
            "candidates": embedder.candidates,
            "scale_range": "-".join(f"{bound:g}" for bound in embedder.scale_range),
        },
    )


def read_batches(loader: Iterable[Any]) -> Iterator[list[dict[str, Any]]]:
    """Rows a few at a time, their videos as files rather than decoded by mteb."""
    dataset = getattr(loader, "dataset", None)
    if dataset is not None and "video" in getattr(dataset, "column_names", ()):
        from datasets import Video

        if isinstance(dataset.features["video"], Video):
            dataset = dataset.cast_column("video", Video(decode=False))
        order = [place for batch in loader.batch_sampler for place in batch]
        for start in range(0, len(order), BATCH):
            yield [dataset[place] for place in order[start : start + BATCH]]
        return
    for batch in loader:
        columns = {name: list(values) for name, values in batch.items()}
        yield [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def as_source(video: Any, stack: ExitStack) -> Any:
    """A video as `AllocEmbed` reads it: a path, a file's bytes, or frames (T, C, H, W) or (T, H, W, C)."""
    if isinstance(video, Mapping) and "bytes" in video:
        if video["bytes"] is None:
            return video["path"]
        suffix = Path(video.get("path") or "video.mp4").suffix
        path = Path(stack.enter_context(tempfile.TemporaryDirectory()), f"video{suffix}")
        path.write_bytes(video["bytes"])
        return path
    if isinstance(video, str | Path):
        return video
    frames = video.numpy() if isinstance(video, torch.Tensor) else np.asarray(video)
    if frames.ndim == 4 and frames.shape[1] == 3 and frames.shape[3] != 3:
        frames = frames.transpose(0, 2, 3, 1)
    return frames.astype(np.uint8)
