"""The language models of Qwen2-VL and Qwen3-VL on one sentence, computed as transformers computes them.

All three axes of a text's positions are equal, so the rotary embedding is the plain one. Only the tensors of the
language model are read, and of the table of embeddings only the rows of the sentence.
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

from allocembed.backbones.devices import LINEAR_ONLY, pick_device, pick_dtype, weight_bytes
from allocembed.backbones.qwen_vl.layouts import VIDEO_PAD, Sentence, find_layout
from allocembed.inputs import Inputs

Weights = dict[str, torch.Tensor]
TABLE = "embed_tokens.weight"
# transformers builds this class of tokenizers from its words and merges, with this way to split a text.
REBUILT = ("Qwen2Tokenizer", "Qwen2TokenizerFast")
AS_IT_IS = ("TokenizersBackend", "PreTrainedTokenizerFast")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Shape:
    """What the weights do not tell."""

    layers: int
    head: int
    """Numbers of one head."""
    epsilon: float
    theta: float
    """Base of the rotary embedding."""


class QwenTextHalf:
    """The language model of a checkpoint, for one text at a time."""

    def __init__(
        self, folder: Path, config: dict[str, Any], device: str, dtype: str, inputs: Inputs, dim: int | None
    ) -> None:
        """Raise ValueError or LookupError if the checkpoint is not as usual."""
        if "quantization_config" in config:
            raise ValueError("quantised weights are not computed here")
        chosen = pick_device(device)
        if chosen.type != "cpu":
            raise ValueError("a GPU computes attention in other ways, which need the whole package")
        if dtype in LINEAR_ONLY:
            raise ValueError("rounded weights are not computed here")
        self.dtype = pick_dtype(dtype, chosen, weight_bytes(folder))
        self.shape = _shape(config.get("text_config", config))
        self._layout = find_layout(inputs.layout, config["model_type"])
        self.query_instruction = self._layout.query
        self._longest, self._dim = inputs.longest, dim
        self._tokenizer = _tokenizer(folder)
        self._table, self._weights = self._read(folder)

    def _read(self, folder: Path) -> tuple[torch.Tensor, Weights]:
        """The table of embeddings as it is in the file, and all other weights."""
        places = tensor_files(folder)
        name = next(name for name in places if name.endswith(TABLE) and "visual" not in name)
        prefix = name.removesuffix(TABLE)
        wanted = [name, f"{prefix}norm.weight", *(each for each in places if each.startswith(f"{prefix}layers."))]
        weights: Weights = {}
        for file in sorted({places[each] for each in wanted}):
            with safe_open(file, framework="pt") as opened:
                for each in (each for each in wanted if places[each] == file):
                    tensor = cast(torch.Tensor, opened.get_tensor(each))
                    kept = tensor if each == name else tensor.to(self.dtype)
                    weights[each.removeprefix(prefix)] = kept
        return weights.pop(TABLE), weights

    def vector(self, text: str, instruction: str | None = None) -> np.ndarray | None:
        """The unit vector (dim,), fp32, of a text; None if only the whole backbone can tell."""
        laid_out = self._layout.write(Sentence(text, instruction))
        if VIDEO_PAD in laid_out or not is_unicode(laid_out):
            return None
        ids: list[int] = self._tokenizer.encode(laid_out).ids
        if not 0 < len(ids) <= self._longest:
            return None
        pooled = self._pool(torch.tensor(ids))
        return F.normalize(pooled[:, : self._dim].float(), dim=-1)[0].numpy()

    @torch.inference_mode()
    def _pool(self, ids: torch.Tensor) -> torch.Tensor:
        """Ids (S,) to the state (1, width) of the last token."""
        hidden = self._table[ids].to(self.dtype)[None]
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
            self._linear(f"{attend}{name}_proj", normed).view(*hidden.shape[:2], -1, self.shape.head) for name in "qkv"
        )
        if f"{attend}q_norm.weight" in self._weights:
            query, key = self._norm(f"{attend}q_norm", query), self._norm(f"{attend}k_norm", key)
        query, key, value = (each.transpose(1, 2) for each in (query, key, value))
        query, key = (each * cos + rotate_half(each) * sin for each in (query, key))
        attended = _attend(query, key, value, self.shape.head**-0.5)
        hidden = hidden + self._linear(f"{attend}o_proj", attended.flatten(2))
        normed = self._norm(f"{at}post_attention_layernorm", hidden)
        gated = F.silu(self._linear(f"{feed}gate_proj", normed)) * self._linear(f"{feed}up_proj", normed)
        return hidden + self._linear(f"{feed}down_proj", gated)

    def _linear(self, at: str, hidden: torch.Tensor) -> torch.Tensor:
        return F.linear(hidden, self._weights[f"{at}.weight"], self._weights.get(f"{at}.bias"))

    def _norm(self, at: str, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.shape.epsilon)
        return self._weights[f"{at}.weight"] * wide.to(hidden.dtype)


def rotate_half(states: torch.Tensor) -> torch.Tensor:
    first, second = states.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal attention of one row, (1, heads, S, d) to (1, S, heads, d), by the kernel of the whole model."""
    grouped = query.shape[1] != key.shape[1]
    causal = query.shape[2] > 1
    attended = F.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale, enable_gqa=grouped)
    return attended.transpose(1, 2)


def _shape(text: dict[str, Any]) -> Shape:
    """Read a config of any generation. Raise ValueError for what is not computed here."""
    rope = text.get("rope_parameters") or {"rope_theta": text["rope_theta"], **(text.get("rope_scaling") or {})}
    kind = rope.get("rope_type", rope.get("type", "default"))
    sliding = text.get("use_sliding_window") or "sliding_attention" in (text.get("layer_types") or ())
    if kind not in ("default", "mrope") or sliding or text.get("hidden_act", "silu") != "silu":
        raise ValueError("not a usual language model")
    head = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    return Shape(text["num_hidden_layers"], head, text["rms_norm_eps"], rope["rope_theta"])


def tensor_files(folder: Path) -> dict[str, str]:
    """The file of each tensor."""
    listed = folder / "model.safetensors.index.json"
    if listed.is_file():
        places: dict[str, str] = json.loads(listed.read_text(encoding="utf-8"))["weight_map"]
        return {name: str(folder / file) for name, file in places.items()}
    path = str(folder / "model.safetensors")
    with safe_open(path, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), path)


def _tokenizer(folder: Path) -> Any:
    """The tokenizer. Raise ValueError if transformers may read another one from these files."""
    stated = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    text = (folder / "tokenizer.json").read_text(encoding="utf-8")
    tokenizer, kind = Tokenizer.from_str(text), stated["tokenizer_class"]
    described = json.loads(text)
    if kind in REBUILT:
        steps = described["pre_tokenizer"]["pretokenizers"]
        usual = (described["normalizer"]["type"], steps[0]["pattern"]["Regex"], steps[1]["type"]) == (
            "NFC",
            SPLIT,
            "ByteLevel",
        ) and not (steps[1]["add_prefix_space"] or steps[1]["use_regex"] or len(steps) > 2)
    else:
        usual = kind in AS_IT_IS
    added = stated.get("added_tokens_decoder") or {}
    known = all(tokenizer.token_to_id(token["content"]) == int(number) for number, token in added.items())
    extra = [*(stated.get("additional_special_tokens") or ()), *(stated.get("extra_special_tokens") or ())]
    known = known and all(tokenizer.token_to_id(token) is not None for token in extra)
    if not usual or not known or stated.get("add_bos_token") or stated.get("add_eos_token"):
        raise ValueError("not a usual tokenizer")
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
