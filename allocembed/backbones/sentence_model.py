"""The base of all families' text halves: it reads a language model, its tokenizer and its sentences.

Only the tensors of the language model are read, and of the table of embeddings only the rows of a sentence.
"""

import json
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from tokenizers import Tokenizer

from allocembed.backbones.devices import LINEAR_ONLY, pick_device, pick_dtype, weight_bytes
from allocembed.inputs import Inputs

TABLE = "embed_tokens.weight"
AS_IT_IS = ("TokenizersBackend", "PreTrainedTokenizerFast")
"""Classes of tokenizers that transformers reads from tokenizer.json as they are."""


class SentenceModel(ABC):
    """The language model of a checkpoint, for one text at a time, computed as transformers computes it."""

    query_instruction: str | None
    parts: ClassVar[tuple[str, ...]] = ("layers.", "norm.")
    """Beginnings of the names of its weights, besides the table."""
    placeholders: ClassVar[tuple[str, ...]]
    """Words that stand for something else than text."""

    def __init__(
        self, folder: Path, config: dict[str, Any], device: str, dtype: str, inputs: Inputs, dim: int | None
    ) -> None:
        """Raise ValueError or LookupError if the checkpoint is not as usual."""
        chosen = pick_device(device)
        if "quantization_config" in config or dtype in LINEAR_ONLY:
            raise ValueError("rounded weights are not computed here")
        if chosen.type != "cpu":
            raise ValueError("a GPU computes attention in other ways, which need the whole package")
        self.dtype = pick_dtype(dtype, chosen, weight_bytes(folder))
        self.longest, self.dim = inputs.longest, dim
        self.set_up(config, inputs)
        self.tokenizer = self._read_tokenizer(folder)
        self.table, self.weights = self._read_weights(folder)

    @abstractmethod
    def set_up(self, config: dict[str, Any], inputs: Inputs) -> None:
        """Read from the config what the weights do not tell."""

    @abstractmethod
    def lay_out(self, text: str, instruction: str | None) -> str:
        """The string that the tokenizer reads."""

    @abstractmethod
    def is_usual(self, tokenizer: Any, stated: dict[str, Any], described: dict[str, Any]) -> bool:
        """Whether transformers makes this tokenizer of `tokenizer_config.json` and `tokenizer.json`, and no other."""

    @abstractmethod
    def pool(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids (S,) to the vector (1, dimensions) of the row, not yet normalised."""

    @torch.inference_mode()
    def vector(self, text: str, instruction: str | None = None) -> np.ndarray | None:
        """The unit vector (dim,), fp32, of a text; None if only the whole backbone can tell."""
        words = self.lay_out(text, instruction)
        if any(word in words for word in self.placeholders) or not _is_unicode(words):
            return None
        ids: list[int] = self.tokenizer.encode(words).ids
        if not 0 < len(ids) <= self.longest:
            return None
        return F.normalize(self.pool(torch.tensor(ids))[:, : self.dim].float(), dim=-1)[0].numpy()

    def linear(self, at: str, hidden: torch.Tensor) -> torch.Tensor:
        """A linear layer by its name."""
        return F.linear(hidden, self.weights[f"{at}.weight"], self.weights.get(f"{at}.bias"))

    def _read_weights(self, folder: Path) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The table of embeddings as it is in the file, and all other weights."""
        files = _tensor_files(folder)
        table = next(name for name in files if name.endswith(TABLE) and "visual" not in name)
        prefix, weights = table.removesuffix(TABLE), {}
        wanted = [
            name for name in files if name == table or name.startswith(tuple(prefix + part for part in self.parts))
        ]
        for file in sorted({files[name] for name in wanted}):
            with safe_open(file, framework="pt") as opened:
                for name in (name for name in wanted if files[name] == file):
                    tensor = cast(torch.Tensor, opened.get_tensor(name))
                    weights[name.removeprefix(prefix)] = tensor if name == table else tensor.to(self.dtype)
        return weights.pop(TABLE), weights

    def _read_tokenizer(self, folder: Path) -> Any:
        stated = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        tokenizer = Tokenizer.from_str(text)
        if not self.is_usual(tokenizer, stated, json.loads(text)):
            raise ValueError("not a usual tokenizer")
        tokenizer.no_truncation()
        tokenizer.no_padding()
        return tokenizer


def rotate_half(states: torch.Tensor) -> torch.Tensor:
    first, second = states.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _tensor_files(folder: Path) -> dict[str, str]:
    """The file of each tensor."""
    listed = folder / "model.safetensors.index.json"
    if listed.is_file():
        places: dict[str, str] = json.loads(listed.read_text(encoding="utf-8"))["weight_map"]
        return {name: str(folder / file) for name, file in places.items()}
    path = str(folder / "model.safetensors")
    with safe_open(path, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), path)


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
