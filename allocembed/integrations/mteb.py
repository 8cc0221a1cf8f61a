"""An embedder as an mteb model: `mteb.evaluate(MtebModel(embedder), tasks)`.

Retrieval, question answering, classification, clustering and pairs of videos all run. We read videos, not mteb: its
datasets are asked for files instead of decoded frames. So the allocator samples from the whole video, and no second
decoder is needed. mteb stores results by a model's name and revision. Both hold the digest of everything that
decides the vectors, so results of another allocator, budget or model are never mistaken for these.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from allocembed import __version__
from allocembed.benchmarks.cache import make_key
from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.errors import DataError, MissingDependency
from allocembed.integrations.sources import open_source

if TYPE_CHECKING:
    from mteb.abstasks.task_metadata import TaskMetadata
    from mteb.models import ModelMeta
    from mteb.types import PromptType

BATCH = 4  # videos


class MtebModel:
    """An encoder of mteb: texts, videos, and videos with texts become unit vectors."""

    def __init__(self, embedder: AllocEmbed) -> None:
        self.embedder = embedder
        self.mteb_model_meta = make_meta(embedder)

    @classmethod
    def from_config(cls, config: EmbedConfig) -> MtebModel:
        """Load what a config names."""
        return cls(AllocEmbed.from_config(config))

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
        """Vectors (N, dim) of everything a loader gives, in its order."""
        instruction = self._instruction(task_metadata, prompt_type)
        none = np.empty((0, self.embedder.backbone.dim), np.float32)
        asks = "QA" in str(task_metadata.type)
        return np.concatenate([none, *(self._encode(rows, instruction, asks) for rows in read_batches(inputs))])

    def similarity(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Cosines (N, M); the vectors have length 1."""
        return torch.as_tensor(embeddings1) @ torch.as_tensor(embeddings2).T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> torch.Tensor:
        """Cosines (N,) of the vectors in the same place."""
        return (torch.as_tensor(embeddings1) * torch.as_tensor(embeddings2)).sum(-1)

    def _encode(self, rows: list[dict[str, Any]], instruction: str | None, asks: bool) -> np.ndarray:
        """`asks`: whether a text beside a video is a question about it; no other text steers the allocation."""
        texts = [row["text"] for row in rows if row.get("text") is not None]
        if any(row.get("video") is not None for row in rows):
            with ExitStack() as stack:
                sources = [open_source(row["video"], self.embedder, stack) for row in rows]
                questions = texts if len(texts) == len(rows) else None
                if questions and not asks:
                    return self._encode_beside(sources, questions, instruction)
                found = self.embedder.encode_videos(sources, questions, instruction=instruction)
        elif len(texts) < len(rows):
            kinds = ", ".join(rows[0])
            raise DataError(f"AllocEmbed embeds texts and videos, but this task gives {kinds}: choose another task")
        else:
            found = self.embedder.encode_texts(texts, instruction=instruction)
        return np.stack([each.vector for each in found])

    def _encode_beside(self, sources: list[Any], texts: list[str], instruction: str | None) -> np.ndarray:
        """Vectors of videos with texts that ask nothing about them, such as the changes of composed retrieval."""
        items = [self.embedder.prepare(self.embedder.read(source), None, instruction)[1] for source in sources]
        return self.embedder.embed(
            [replace(item, prompt=replace(item.prompt, text=text)) for item, text in zip(items, texts, strict=True)]
        )

    def _instruction(self, task: TaskMetadata, prompt_type: PromptType | None) -> str | None:
        """The task's own prompt for queries, else the backbone's; documents have none."""
        kind = getattr(prompt_type, "value", prompt_type)
        prompt: Any = task.prompt
        if isinstance(prompt, Mapping):
            prompt = prompt.get(kind or "query")
        elif kind == "document":
            prompt = None
        return prompt or (self.embedder.backbone.query_instruction if kind == "query" else None)


def make_meta(embedder: AllocEmbed) -> ModelMeta:
    """The key of results in mteb: a name and a revision with the digest of all settings and weights."""
    try:
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction
    except ImportError as error:
        raise MissingDependency("evaluation with mteb", "mteb", "eval") from error
    backbone = embedder.backbone
    settings = {name: value for name, value in embedder.config.settings().items() if value is not None}
    digest = make_key(json.dumps(embedder.identity(), sort_keys=True))[:12]
    return ModelMeta.create_empty(
        {
            # By the name alone, as mteb's tables list models, two allocators must differ too.
            "name": f"allocembed/{Path(backbone.name).name}-{embedder.allocator.name}-{embedder.budget}-{digest}",
            "revision": f"{__version__}-{digest}",
            "n_parameters": backbone.parameter_count,
            "embed_dim": backbone.dim,
            "open_weights": True,
            "framework": ["PyTorch"],
            "similarity_fn_name": ScoringFunction.COSINE,
            "use_instructions": True,
            "modalities": ["text", "video"],
            # mteb makes a folder name of these, in which a whole path would not fit.
            "experiment_kwargs": {name: Path(v).name if isinstance(v, str) else v for name, v in settings.items()},
        }
    )


def read_batches(loader: Iterable[Any]) -> Iterator[list[dict[str, Any]]]:
    """Rows a few at a time, with videos as files instead of frames decoded by mteb."""
    dataset = getattr(loader, "dataset", None)
    if dataset is not None and "video" in getattr(dataset, "column_names", ()):
        from datasets import Video

        # Other columns, such as sound, would be decoded for nothing.
        dataset = dataset.select_columns([name for name in ("text", "video") if name in dataset.column_names])
        if isinstance(dataset.features["video"], Video):
            dataset = dataset.cast_column("video", Video(decode=False))
        order = [place for batch in loader.batch_sampler for place in batch]  # pyright: ignore[reportAttributeAccessIssue]
        for start in range(0, len(order), BATCH):
            yield [dataset[place] for place in order[start : start + BATCH]]
        return
    for batch in loader:
        columns = {name: list(values) for name, values in batch.items()}
        yield [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
