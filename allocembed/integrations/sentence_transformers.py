"""AllocEmbed as a module of sentence-transformers.

    allocembed export-st FOLDER --backbone qwen3-vl-embedding-2b --allocator uniform --budget 8f

    model = SentenceTransformer("FOLDER", trust_remote_code=True)
    model.encode([{"video": "a.mp4"}, {"video": "a.mp4", "text": "Who speaks?"}, "a dog"])

A prompt is the instruction; the folder has those for `encode_query` and `encode_document`. `encode(…,
output_value=None)` also hands out what each input cost and where its tokens went.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch

from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.errors import ConfigError, MissingDependency
from allocembed.integrations.folder import ALLOCATOR, SETTINGS, has_allocator, read_settings, write_settings
from allocembed.integrations.requests import Embedding, Request, embed_requests

try:
    from sentence_transformers.base.modality import infer_modality
    from sentence_transformers.base.modules import InputModule
except ImportError as error:
    raise MissingDependency("this folder", "sentence-transformers 6", "st") from error

KINDS: list[Any] = ["text", "image", "video"]


class AllocEmbedModule(InputModule):
    """The first and only module of a model.

    Weights are never moved or cast in place: a learned allocator holds CUDA graphs of them. A move to another device
    loads the embedder again there, in the number format that suits the device unless the settings name one.
    """

    config_file_name = SETTINGS

    def __init__(self, settings: EmbedConfig) -> None:
        super().__init__()
        self.settings = settings
        self.loaded: AllocEmbed | None = None
        # Tells where the model should be while nothing is loaded, such as in a new worker process.
        self.register_buffer("anchor", torch.empty(0), persistent=False)

    def __reduce__(self) -> tuple[type, tuple[EmbedConfig]]:
        """Worker processes get the settings and load the model themselves."""
        return type(self), (self.settings,)

    @property
    def embedder(self) -> AllocEmbed:
        """The embedder, loaded when it is first needed."""
        if self.loaded is None:
            device = str(self.get_buffer("anchor").device)
            self.loaded = AllocEmbed.from_config(replace(self.settings, device=device))
            self.backbone = self.loaded.backbone.model  # a submodule, so that the model's parameters are found
        return self.loaded

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> Self:
        self.anchor = fn(self.get_buffer("anchor"))
        if self.loaded is not None:
            backbone = self.loaded.backbone
            moved = fn(torch.empty(0, dtype=backbone.dtype, device=backbone.device))
            if (moved.device, moved.dtype) == (backbone.device, backbone.dtype):
                return self
            if moved.dtype != backbone.dtype:
                self.settings = replace(self.settings, dtype=_dtype_name(moved.dtype))
            self.loaded, self.backbone = None, None
        _ = self.embedder
        return self

    @property
    def modalities(self) -> list[Any]:
        # "message" is how sentence-transformers calls a batch of mixed kinds.
        return [*KINDS, ("image", "text"), ("text", "video"), "message"]

    @property
    def tokenizer(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.embedder.backbone.tokenizer

    @property
    def max_seq_length(self) -> int:
        return self.embedder.backbone.inputs.longest

    def get_embedding_dimension(self) -> int:
        return self.embedder.backbone.dim

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **_: Any) -> dict[str, Any]:
        """Collect inputs. `forward` decodes videos, in threads that stay ahead of the model."""
        return {"requests": [read_input(each) for each in inputs], "instruction": prompt or None}

    def forward(self, features: dict[str, Any], **_: Any) -> dict[str, Any]:
        embedder = self.embedder
        found = embed_requests(embedder, features["requests"], features["instruction"])
        vectors = torch.from_numpy(np.stack([each.vector for each in found]))
        return {"sentence_embedding": vectors.to(embedder.backbone.device), **describe_costs(found)}

    def save(self, output_path: str, *_: Any, **__: Any) -> None:
        write_settings(self.settings, Path(output_path))

    @classmethod
    def load(  # pyright: ignore[reportIncompatibleMethodOverride] (the others are options)
        cls, model_name_or_path: str, subfolder: str = "", **options: Any
    ) -> Self:
        """Load from a folder or a hub id; `model_kwargs` may replace settings, such as `{"budget": "4f"}`."""
        places = ("token", "cache_folder", "revision", "local_files_only")
        where = {name: options[name] for name in places if name in options}
        saved = cls.load_config(model_name_or_path, subfolder=subfolder, **where)
        replaced = dict(options.get("model_kwargs") or {})
        if isinstance(replaced.get("dtype"), torch.dtype):
            replaced["dtype"] = _dtype_name(replaced["dtype"])
        own = None
        if has_allocator(saved):
            own = cls.load_dir_path(model_name_or_path, subfolder=str(Path(subfolder, ALLOCATOR)), **where)
        return cls(read_settings({**saved, **replaced}, own))


def read_input(given: Any) -> Request:
    """An input of `encode` as a request. A string that ends like a media file is that file, as the library has it."""
    if isinstance(given, Path):
        given = str(given)
    if isinstance(given, Mapping) and set(given) <= set(KINDS):
        parts = {name: value for name, value in given.items() if value is not None}
        return Request(parts.get("text"), parts.get("video"), parts.get("image"))
    try:
        kind = infer_modality(given, supported_modalities=KINDS)
    except ValueError as error:
        raise ConfigError(f"cannot embed this input: {error}") from error
    if kind == "text" and isinstance(given, str):
        return Request(given)
    if kind == "image":
        return Request(picture=given)
    if kind == "video":
        return Request(video=given)
    raise ConfigError(f"cannot embed an input of kind {kind}: give a text, an image, a video, or one of both with text")


def describe_costs(found: Sequence[Embedding]) -> dict[str, torch.Tensor]:
    """What each input cost: `tokens` read, the `budget`, `look_tokens` read to find the allocation; and for each chunk
    its `scales`, its `grids` (rows, cols) and its `frames` (their places among the candidates). A text has none."""
    parts = [getattr(each, "allocation", None) for each in found]

    def whole(name: str) -> torch.Tensor:
        return torch.tensor([0 if part is None else getattr(part, name) for part in parts])

    def ragged(name: str, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        rows: list[Any] = [[] if part is None else getattr(part, name) for part in parts]
        if name == "grids":
            rows = [[(grid.rows, grid.cols) for grid in grids] for grids in rows]
        tensors = [torch.tensor(row, dtype=dtype).reshape(len(row), *shape) for row in rows]
        return torch.nested.nested_tensor(tensors, layout=torch.jagged)

    together = next((len(part.frames[0]) for part in parts if part is not None), 1)
    return {
        "tokens": whole("cost"),
        "budget": whole("budget"),
        "look_tokens": whole("look_tokens"),
        "scales": ragged("scales", dtype=torch.float64),
        "grids": ragged("grids", 2),
        "frames": ragged("frames", together),
    }


def _dtype_name(dtype: torch.dtype) -> Any:
    """A name that `EmbedConfig` checks."""
    return str(dtype).removeprefix("torch.")
