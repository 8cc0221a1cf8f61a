"""The language models of Qwen2-VL and Qwen3-VL on one sentence, computed as transformers computes them.

All three axes of a text's positions are equal, so the rotary embedding is the plain one.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from allocembed.backbones.qwen_vl.layouts import VIDEO_PAD, Sentence, find_layout
from allocembed.backbones.sentence_model import AS_IT_IS, SentenceModel, rotate_half
from allocembed.inputs import Inputs

# transformers builds this class of tokenizers from its words and merges, with this way to split a text.
REBUILT = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class TextModelShape:
    """Settings of the model that its weights do not show."""

    layers: int
    head: int
    """Numbers of one head."""
    epsilon: float
    theta: float
    """Base of the rotary embedding."""


class QwenTextHalf(SentenceModel):
    """The language model of a checkpoint, for one text at a time."""

    placeholders = (VIDEO_PAD,)

    def set_up(self, config: dict[str, Any], inputs: Inputs) -> None:
        self.shape = _shape(config.get("text_config", config))
        self.layout = find_layout(inputs.layout, config["model_type"])
        self.query_instruction = self.layout.query

    def lay_out(self, text: str, instruction: str | None) -> str:
        return self.layout.write(Sentence(text, instruction))

    def is_usual(self, tokenizer: Any, stated: dict[str, Any], described: dict[str, Any]) -> bool:
        kind = stated["tokenizer_class"]
        usual = _is_rebuilt_alike(described) if kind in REBUILT else kind in AS_IT_IS
        added = stated.get("added_tokens_decoder") or {}
        known = all(tokenizer.token_to_id(token["content"]) == int(number) for number, token in added.items())
        extra = [*(stated.get("additional_special_tokens") or ()), *(stated.get("extra_special_tokens") or ())]
        known = known and all(tokenizer.token_to_id(token) is not None for token in extra)
        return usual and known and not (stated.get("add_bos_token") or stated.get("add_eos_token"))

    def pool(self, ids: torch.Tensor) -> torch.Tensor:
        """The state of the last token."""
        hidden = self.table[ids].to(self.dtype)[None]
        exponents = torch.arange(0, self.shape.head, 2, dtype=torch.float) / self.shape.head
        angles = torch.arange(len(ids))[:, None].float() * (1.0 / self.shape.theta**exponents)
        rotary = [torch.cat([each, each], -1).to(self.dtype) for each in (angles.cos(), angles.sin())]
        for number in range(self.shape.layers):
            hidden = self._run_layer(f"layers.{number}.", hidden, rotary[0], rotary[1])
        return self._norm("norm", hidden[:, -1])

    def _run_layer(self, at: str, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        attend, feed = f"{at}self_attn.", f"{at}mlp."
        normed = self._norm(f"{at}input_layernorm", hidden)
        query, key, value = (
            self.linear(f"{attend}{name}_proj", normed).view(*hidden.shape[:2], -1, self.shape.head) for name in "qkv"
        )
        if f"{attend}q_norm.weight" in self.weights:
            query, key = self._norm(f"{attend}q_norm", query), self._norm(f"{attend}k_norm", key)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        query, key = (each * cos + rotate_half(each) * sin for each in (query, key))
        attended = _attend(query, key, value, self.shape.head**-0.5)
        hidden = hidden + self.linear(f"{attend}o_proj", attended.flatten(2))
        normed = self._norm(f"{at}post_attention_layernorm", hidden)
        gated = F.silu(self.linear(f"{feed}gate_proj", normed)) * self.linear(f"{feed}up_proj", normed)
        return hidden + self.linear(f"{feed}down_proj", gated)

    def _norm(self, at: str, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.shape.epsilon)
        return self.weights[f"{at}.weight"] * wide.to(hidden.dtype)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of one row, (1, heads, S, d) to (1, S, heads, d), by the kernel of the whole model."""
    grouped = query.shape[1] != key.shape[1]
    causal = query.shape[2] > 1
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale, enable_gqa=grouped)
    return attended.transpose(1, 2)


def _shape(text: dict[str, Any]) -> TextModelShape:
    """Read a config of any generation. Raise ValueError for what is not computed here."""
    rope = text.get("rope_parameters") or {"rope_theta": text["rope_theta"], **(text.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    sliding = text.get("use_sliding_window") or "sliding_attention" in (text.get("layer_types") or ())
    if kind not in ("default", "mrope") or sliding or text.get("hidden_act", "silu") != "silu":
        raise ValueError("not a usual language model")
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    return TextModelShape(text["num_hidden_layers"], head, text["rms_norm_eps"], rope["rope_theta"])


def _is_rebuilt_alike(described: dict[str, Any]) -> bool:
    """Whether building a tokenizer anew from its words and merges gives the one of the file."""
    steps = described["pre_tokenizer"]["pretokenizers"]
    parts = (described["normalizer"]["type"], steps[0]["pattern"]["Regex"], steps[1]["type"])
    plain = not (steps[1]["add_prefix_space"] or steps[1]["use_regex"] or len(steps) > 2)
    return parts == ("NFC", SPLIT, "ByteLevel") and plain
