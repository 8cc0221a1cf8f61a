"""The language model of EmbeddingGemma 2 on one sentence, computed as transformers and the backbone compute it."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.attention.by_length import attend_by_length
from allocembed.backbones.gemma.inputs import QUERY, lay_out
from allocembed.backbones.sentence_model import AS_IT_IS, SentenceModel, rotate_half
from allocembed.inputs import Inputs

ROTARY = {"sliding_attention": 10_000.0, "full_attention": 1_000_000.0}  # the bases, if a config does not state them
# transformers builds this class of tokenizers from its words and merges, with these settings.
REBUILT = ("GemmaTokenizer", "GemmaTokenizerFast")
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
SPLIT = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}


@dataclass(frozen=True)
class LayerShape:
    """Settings of a layer that its weights do not show."""

    kind: str
    head: int
    """Numbers of one head."""


class GemmaTextHalf(SentenceModel):
    """The language model of a checkpoint, for one text at a time."""

    query_instruction = QUERY
    parts = ("layers.", "norm.", "ple.", "embedding_projection.")
    placeholders = ("<|image|>", "<|video|>", "<|audio|>")

    def set_up(self, config: dict[str, Any], inputs: Inputs) -> None:
        if self.dtype == torch.float16:
            raise ValueError("the whole backbone says why not")
        text = config["text_config"]
        self._layers, self._bases = _layers(text), _bases(text)
        self._radius, self._epsilon = text.get("sliding_window", 512), text.get("rms_norm_eps", 1e-6)

    def lay_out(self, text: str, instruction: str | None) -> str:
        return lay_out(text, instruction)

    def is_usual(self, tokenizer: Any, stated: dict[str, Any], described: dict[str, Any]) -> bool:
        special = [token["content"] for token in described["added_tokens"] if token["special"]]
        if any(word not in special for word in self.placeholders):
            return False
        kind = stated["tokenizer_class"]
        if kind not in REBUILT:
            return kind in AS_IT_IS and not (stated.get("add_bos_token") or stated.get("add_eos_token"))
        model, around = described["model"], tokenizer.encode("").tokens  # what stands around every text
        plain = described["normalizer"] == REPLACE and described["pre_tokenizer"] == SPLIT
        same_ends = all(
            stated.get(f"add_{name}_token", there) == there
            for name in ("bos", "eos")
            for there in [stated[f"{name}_token"] in around]
        )
        return plain and model["type"] == "BPE" and model["fuse_unk"] and model["byte_fallback"] and same_ends

    def pool(self, ids: torch.Tensor) -> torch.Tensor:
        """The projected mean of the states of all tokens."""
        hidden = self.table[ids].to(self.dtype)[None]
        hidden = first = hidden * torch.tensor(hidden.shape[-1] ** 0.5).to(self.dtype)
        rotary = {layer: self._rotary(layer, len(ids)) for layer in set(self._layers)}
        extra = self.weights["ple.per_layer_model_projection.weight"].chunk(len(self._layers))
        for number, layer in enumerate(self._layers):
            own = F.linear(first, extra[number]) * first.shape[-1] ** -0.5
            own = self._norm("ple.per_layer_projection_norm", own)
            hidden = self._run_layer(f"layers.{number}.", layer, hidden, own, *rotary[layer])
        states = self._norm("norm", hidden)[0].float()
        weighted = states * torch.tensor(np.full(len(ids), 1 / len(ids), np.float32))[:, None]
        mean = weighted.new_zeros((1, states.shape[-1])).index_add(0, torch.zeros_like(ids), weighted)
        return F.linear(mean, self.weights["embedding_projection.weight"].float())

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
        gate = F.gelu(self.linear(f"{at}mlp.gate_proj", normed), approximate="tanh")
        fed = self.linear(f"{at}mlp.down_proj", gate * self.linear(f"{at}mlp.up_proj", normed))
        hidden = hidden + self._norm(f"{at}post_feedforward_layernorm", fed)
        gated = F.gelu(self.linear(f"{at}ple_block.per_layer_input_gate", hidden), approximate="tanh") * own
        gated = self.linear(f"{at}ple_block.per_layer_projection", gated)
        hidden = hidden + self._norm(f"{at}ple_block.post_per_layer_input_norm", gated)
        return hidden * self.weights[f"{at}layer_scalar"]

    def _attend(
        self, at: str, layer: LayerShape, normed: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> torch.Tensor:
        parts = [self.linear(f"{at}self_attn.{name}_proj", normed) for name in "qkv"]
        parts = [part.view(*normed.shape[:2], -1, layer.head).transpose(1, 2) for part in parts]
        query, key, value = (
            self._norm(f"{at}self_attn.{name}_norm", part) for name, part in zip("qkv", parts, strict=True)
        )
        query, key = (each * cos[:, None] + rotate_half(each) * sin[:, None] for each in (query, key))
        query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
        radius = self._radius if layer.kind == "sliding_attention" else None
        attended = attend_by_length(query, key, value, [len(query)], False, radius, 1.0)
        return self.linear(f"{at}self_attn.o_proj", attended[None].flatten(2))

    def _norm(self, at: str, hidden: torch.Tensor) -> torch.Tensor:
        """Values have a norm without weights."""
        wide = hidden.float()
        wide = wide * torch.pow(wide.pow(2).mean(-1, keepdim=True) + self._epsilon, -0.5)
        if (weight := self.weights.get(f"{at}.weight")) is not None:
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
