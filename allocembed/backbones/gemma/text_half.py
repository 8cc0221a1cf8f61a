"""The language model of EmbeddingGemma 2 on one sentence, computed as transformers and the backbone compute it.

Only the tensors of the language model are read, and of the table of embeddings only the rows of the sentence.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from tokenizers import Tokenizer

from allocembed.backbones.attention.by_length import attend_by_length
from allocembed.backbones.devices import LINEAR_ONLY, pick_device, pick_dtype, weight_bytes
from allocembed.backbones.gemma.inputs import QUERY, lay_out
from allocembed.backbones.qwen_vl.text_half import is_unicode, rotate_half, tensor_files
from allocembed.inputs import Inputs

TABLE = "embed_tokens.weight"
PLACEHOLDERS = ("<|image|>", "<|video|>", "<|audio|>")
ROTARY = {"sliding_attention": 10_000.0, "full_attention": 1_000_000.0}  # the bases, if a config does not state them
AS_IT_IS = ("TokenizersBackend", "PreTrainedTokenizerFast")
# transformers builds this class of tokenizers from its words and merges, with these settings.
REBUILT = ("GemmaTokenizer", "GemmaTokenizerFast")
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


@dataclass(frozen=True)
class LayerShape:
    """What the weights of a layer do not tell."""

    kind: str
    head: int
    """Numbers of one head."""


class GemmaTextHalf:
    """The language model of a checkpoint, for one text at a time."""

    query_instruction = QUERY

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
        if self.dtype == torch.float16:
            raise ValueError("the whole backbone says why not")
        text = config["text_config"]
        self._layers = _layers(text)
        self._radius, self._epsilon = text.get("sliding_window", 512), text.get("rms_norm_eps", 1e-6)
        self._bases = _bases(text)
        self._longest, self._dim = inputs.longest, dim
        self._tokenizer = _tokenizer(folder)
        self._table, self._weights = self._read(folder)

    def _read(self, folder: Path) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The table of embeddings as it is in the file, and all other weights."""
        files = tensor_files(folder)
        table = next(name for name in files if name.endswith(TABLE))
        prefix, weights = table.removesuffix(TABLE), {}
        wanted = [name for name in files if name.startswith(prefix)]
        for file in sorted({files[name] for name in wanted}):
            with safe_open(file, framework="pt") as opened:
                for name in (name for name in wanted if files[name] == file):
                    tensor = cast(torch.Tensor, opened.get_tensor(name))
                    weights[name.removeprefix(prefix)] = tensor if name == table else tensor.to(self.dtype)
        return weights.pop(TABLE), weights

    def vector(self, text: str, instruction: str | None = None) -> np.ndarray | None:
        """The unit vector (dim,), fp32, of a text; None if only the whole backbone can tell."""
        words = lay_out(text, instruction)
        if any(word in words for word in PLACEHOLDERS) or not is_unicode(words):
            return None
        ids: list[int] = self._tokenizer.encode(words).ids
        if not 0 < len(ids) <= self._longest:
            return None
        projected = F.linear(self._pool(torch.tensor(ids)), self._weights["embedding_projection.weight"].float())
        return F.normalize(projected[:, : self._dim], dim=-1)[0].numpy()

    @torch.inference_mode()
    def _pool(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids (S,) to the mean state (1, width), fp32."""
        hidden = self._table[ids].to(self.dtype)[None]
        hidden = first = hidden * torch.tensor(hidden.shape[-1] ** 0.5).to(self.dtype)
        rotary = {layer: self._rotary(layer, len(ids)) for layer in set(self._layers)}
        extra = self._weights["ple.per_layer_model_projection.weight"].chunk(len(self._layers))
        for number, layer in enumerate(self._layers):
            own = F.linear(first, extra[number]) * first.shape[-1] ** -0.5
            own = self._norm("ple.per_layer_projection_norm", own)
            hidden = self._run_layer(f"layers.{number}.", layer, hidden, own, *rotary[layer])
        states = self._norm("norm", hidden)[0].float()
        weighted = states * torch.tensor(np.full(len(ids), 1 / len(ids), np.float32))[:, None]
        return weighted.new_zeros((1, states.shape[-1])).index_add(0, torch.zeros_like(ids), weighted)

    def _rotary(self, layer: LayerShape, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        exponents = torch.arange(0, layer.head, 2, dtype=torch.float) / layer.head
        angles = torch.arange(length)[None, :, None].float() * (1.0 / self._bases[layer.kind] ** exponents)
        angles = torch.cat([angles, angles], -1)
        return angles.cos().to(self.dtype), angles.sin().to(self.dtype)

    def _run_layer(
        self, at: str, layer: LayerShape, hidden: torch.Tensor, own: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        attended = self._attend(at, layer, self._norm(f"{at}input_layernorm", hidden), cos, sin)
        hidden = hidden + self._norm(f"{at}post_attention_layernorm", attended)
        normed = self._norm(f"{at}pre_feedforward_layernorm", hidden)
        gate = F.gelu(self._linear(f"{at}mlp.gate_proj", normed), approximate="tanh")
        fed = self._linear(f"{at}mlp.down_proj", gate * self._linear(f"{at}mlp.up_proj", normed))
        hidden = hidden + self._norm(f"{at}post_feedforward_layernorm", fed)
        gated = F.gelu(self._linear(f"{at}ple_block.per_layer_input_gate", hidden), approximate="tanh") * own
        gated = self._linear(f"{at}ple_block.per_layer_projection", gated)
        hidden = hidden + self._norm(f"{at}ple_block.post_per_layer_input_norm", gated)
        return hidden * self._weights[f"{at}layer_scalar"]

    def _attend(
        self, at: str, layer: LayerShape, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        parts = [self._linear(f"{at}self_attn.{name}_proj", normed) for name in "qkv"]
        parts = [part.view(*normed.shape[:2], -1, layer.head).transpose(1, 2) for part in parts]
        query, key, value = (
            self._norm(f"{at}self_attn.{name}_norm", part) for name, part in zip("qkv", parts, strict=True)
        )
        query, key = (each * cos[:, None] + rotate_half(each) * sin[:, None] for each in (query, key))
        query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
        radius = self._radius if layer.kind == "sliding_attention" else None
        attended = attend_by_length(query, key, value, [len(query)], False, radius, 1.0)
        return self._linear(f"{at}self_attn.o_proj", attended[None].flatten(2))

    def _linear(self, at: str, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self._weights[f"{at}.weight"], self._weights.get(f"{at}.bias"))

    def _norm(self, at: str, hidden: torch.Tensor) -> torch.Tensor:
        """Values have a norm without weights."""
        wide = hidden.float()
        wide = wide * torch.pow(wide.pow(2).mean(-1, keepdim=True) + self._epsilon, -0.5)
        if (weight := self._weights.get(f"{at}.weight")) is not None:
            wide = wide * weight.float()
        return wide.type_as(hidden)


def _layers(text: dict[str, Any]) -> list[LayerShape]:
    if text.get("hidden_activation", "gelu_pytorch_tanh") != "gelu_pytorch_tanh":
        raise ValueError("not a usual language model")
    own = {int(number): layer for number, layer in text["per_layer_config"].items()}
    heads = [own.get(number, {}).get("head_dim", text["head_dim"]) for number in range(len(text["layer_types"]))]
    return [LayerShape(kind, head) for kind, head in zip(text["layer_types"], heads, strict=True)]


def _bases(text: dict[str, Any]) -> dict[str, float]:
    """The bases of the rotary embeddings of both kinds of layers."""
    stated = text.get("rope_parameters") or {}
    if any(each.get("rope_type", "default") != "default" for each in stated.values()):
        raise ValueError("not a usual rotary embedding")
    return {kind: stated.get(kind, {}).get("rope_theta", base) for kind, base in ROTARY.items()}


def _tokenizer(folder: Path) -> Any:
    """The tokenizer. Raise ValueError if transformers may read another one from these files."""
    stated = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer, kind = Tokenizer.from_str(text), stated["tokenizer_class"]
    described = json.loads(text)
    usual = kind in AS_IT_IS and not (stated.get("add_bos_token") or stated.get("add_eos_token"))
    if kind in REBUILT:
        model = described["model"]
        usual = described["normalizer"] == REPLACE and described["pre_tokenizer"] == SPLIT
        usual = usual and model["type"] == "BPE" and model["fuse_unk"] and model["byte_fallback"]
        around = tokenizer.encode("").tokens  # what stands around every text, unless the settings say otherwise
        for name in ("bos", "eos"):
            there = stated[f"{name}_token"] in around
            usual = usual and stated.get(f"add_{name}_token", there) == there
    special = [token["content"] for token in described["added_tokens"] if token["special"]]
    if not usual or any(word not in special for word in PLACEHOLDERS):
        raise ValueError("not a usual tokenizer")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer
