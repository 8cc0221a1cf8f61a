"""The nano architectures, their tokenizers, and the folders they are saved in."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from torch import nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLModel,
    Qwen3VLConfig,
    Qwen3VLModel,
)

from allocembed.backbones.base import Backbone
from allocembed.backbones.gemma.inputs import DOCUMENT, QUERY
from allocembed.backbones.qwen_vl.layouts import INSTRUCTION, VIDEO_TEXT
from allocembed.backbones.registry import FAMILIES
from allocembed_nano import world

PATCH, MERGE = 8, 2
# Native is 128 × 96 pixels or 48 tokens. World videos are larger, so a scale above 1 adds real detail.
MIN_PIXELS, MAX_PIXELS = 4 * 16**2, 48 * 16**2
SPECIAL = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"),
    *("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"),
)
GEMMA_SPECIAL = {
    "image_token": "<|image|>",
    "video_token": "<|video|>",
    "audio_token": "<|audio|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}
VOCABULARY = {"qwen3": 2048, "qwen2": 1792, "gemma": 2048}  # enough for most names and signs to be one token
FAMILY_NAMES = tuple(VOCABULARY)


def build_backbone(family: str, *, tiny: bool = False) -> Backbone:
    """An untrained nano backbone, of the class that will load it later."""
    tokenizer = train_tokenizer(family)
    model = {"qwen3": _qwen3, "qwen2": _qwen2, "gemma": _gemma}[family](tokenizer, tiny)
    kind = FAMILIES[model.config.model_type]
    inputs = next(iter(kind.inputs.values()))
    sizes = replace(inputs.geometry, patch=PATCH, merge=MERGE, min_pixels=MIN_PIXELS, max_pixels=MAX_PIXELS)
    if sizes.list_multiple:
        sizes = replace(sizes, list_multiple=2 * sizes.factor)
    return kind.load()(model, tokenizer, replace(inputs, geometry=sizes), name=f"nano-{family}")


def layers_of(backbone: Backbone) -> list[nn.Module]:
    """The blocks of the tower and the layers of the language model."""
    model: Any = backbone.model
    tower = model.vision_tower.encoder.layers if hasattr(model, "vision_tower") else model.visual.blocks
    return [*tower, *model.language_model.layers]


def fuse_norms(model: nn.Module) -> None:
    """Compute the root-mean-square norms by one kernel each. Written out in eight, they are most of an eager step."""
    for module in model.modules():
        if type(module).__name__ in ("Gemma4RMSNorm", "EmbeddingGemma2RMSNorm"):
            module.forward = partial(_norm, module)


def _norm(module: Any, hidden: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(hidden, hidden.shape[-1:], getattr(module, "weight", None), module.eps)


def train_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Train a small byte-level BPE tokenizer on the world's texts and the prompts around them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    frame = [INSTRUCTION, VIDEO_TEXT, "system\n", "user\n", "assistant\n"]
    kinds = (FAMILIES["qwen2_vl"], FAMILIES["qwen3_vl"])
    frame += [kind.load().find_query_instruction(next(iter(kind.inputs.values()))) or "" for kind in kinds]
    special = list(SPECIAL)
    if family == "gemma":
        frame, special = [DOCUMENT, QUERY], ["<pad>", "<eos>", "<bos>", *GEMMA_SPECIAL.values()]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY[family],
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*world.corpus(20_000, seed=0), *frame * 200], trainer)
    if family == "gemma":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
        )
        return PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            bos_token="<bos>",
            eos_token="<eos>",
            pad_token="<pad>",
            extra_special_tokens=GEMMA_SPECIAL,
            padding_side="right",
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[1:]),
        padding_side="right",
    )


def _qwen3(tokenizer: PreTrainedTokenizerFast, tiny: bool) -> PreTrainedModel:
    width, depth, layers = (64, 2, 1) if tiny else (256, 6, 5)
    config = Qwen3VLConfig(
        text_config={
            "hidden_size": width,
            "intermediate_size": 544 if not tiny else 128,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": width // 4,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 32768,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 1e5,
                "mrope_section": [width // 8 - 2 * (3 * width // 80), 3 * width // 80, 3 * width // 80],
                "mrope_interleaved": True,
            },
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": None,
        },
        vision_config={
            "depth": depth,
            "hidden_size": 192 if not tiny else 64,
            "intermediate_size": 768 if not tiny else 128,
            "num_heads": 3 if not tiny else 1,
            "out_hidden_size": width,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "num_position_embeddings": 256,
            "deepstack_visual_indexes": [2] if not tiny else [0],
        },
        tie_word_embeddings=True,
        **_token_ids(tokenizer),
    )
    return Qwen3VLModel(config)


def _qwen2(tokenizer: PreTrainedTokenizerFast, tiny: bool) -> PreTrainedModel:
    width, depth, layers = (64, 2, 1) if tiny else (320, 5, 4)
    config = Qwen2VLConfig(
        text_config={
            "hidden_size": width,
            "intermediate_size": 656 if not tiny else 128,
            "num_hidden_layers": layers,
            "num_attention_heads": 5 if not tiny else 1,
            "num_key_value_heads": 5 if not tiny else 1,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 32768,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e5, "mrope_section": [8, 12, 12]},
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": None,
        },
        vision_config={
            "depth": depth,
            "embed_dim": 192 if not tiny else 64,
            "hidden_size": width,
            "num_heads": 3 if not tiny else 1,
            "mlp_ratio": 4 if not tiny else 2,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
        },
        tie_word_embeddings=True,
        **_token_ids(tokenizer),
    )
    return Qwen2VLModel(config)


def _gemma(tokenizer: PreTrainedTokenizerFast, tiny: bool) -> PreTrainedModel:
    """EmbeddingGemma 2 in small: every third layer sees the whole video, the others about five native frames."""
    from transformers import EmbeddingGemma2Config, EmbeddingGemma2Model

    width, depth, layers = (64, 2, 2) if tiny else (256, 6, 6)
    ids = tokenizer.convert_tokens_to_ids
    config = EmbeddingGemma2Config(
        text_config={
            "hidden_size": width,
            "intermediate_size": 128 if tiny else 640,
            "num_hidden_layers": layers,
            "num_attention_heads": width // 64,
            "num_key_value_heads": max(1, width // 128),
            "head_dim": 64,
            "num_global_key_value_heads": max(1, width // 128),
            "global_head_dim": 64,
            "sliding_window": 128,
            "sliding_window_pattern": 3 if not tiny else 2,
            "hidden_size_per_layer_input": width // 4,
            "embedding_dim": width,
            "vocab_size": len(tokenizer),
            "max_position_embeddings": 32768,
        },
        vision_config={
            "model_type": "gemma4_vision",
            "hidden_size": 192 if not tiny else 64,
            "intermediate_size": 512 if not tiny else 128,
            "num_hidden_layers": depth,
            "num_attention_heads": 3 if not tiny else 1,
            "num_key_value_heads": 3 if not tiny else 1,
            "head_dim": 64,
            "patch_size": PATCH,
            "pooling_kernel_size": MERGE,
            "position_embedding_size": 256,
        },
        **{f"{name}_token_id": ids(GEMMA_SPECIAL[f"{name}_token"]) for name in ("image", "video", "audio")},
        **{f"{name}_token_id": ids(GEMMA_SPECIAL[f"{name}_token"]) for name in ("boi", "eoi", "boa")},
        eoa_token_index=ids("<audio|>"),
    )
    model = EmbeddingGemma2Model(config)
    with torch.no_grad():
        # The library's values are for weights that will be loaded. Attention has no factor of its own, so the norms of
        # queries and keys have to begin with it; and each of many normalised branches begins as a small part of a sum.
        for name, weight in model.named_parameters():
            if name.endswith(("q_norm.weight", "k_norm.weight")):
                weight.fill_(len(weight) ** -0.25)
            elif "layers." in name and ".post_" in name:
                weight.fill_((2 * layers) ** -0.5)
        model.vision_tower.patch_embedder.position_embedding_table.normal_(std=0.1)
    return model


def _token_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    names = {"vision_start": "vision_start", "vision_end": "vision_end", "image": "image_pad", "video": "video_pad"}
    return {f"{key}_token_id": tokenizer.convert_tokens_to_ids(f"<|{name}|>") for key, name in names.items()}


def save_backbone(backbone: Backbone, folder: Path, facts: dict[str, Any]) -> None:
    """Write a folder in the hub's layout: config, bf16 safetensors, tokenizer, preprocessor settings, model card."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        backbone.model.to(torch.bfloat16).save_pretrained(scratch)
        backbone.tokenizer.save_pretrained(scratch)
        for file in Path(scratch).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
    if backbone.family == "embedding_gemma2":
        sizes = {"patch_size": PATCH, "pooling_kernel_size": MERGE, "max_soft_tokens": MAX_PIXELS // 16**2}
        plain = {**sizes, "do_normalize": False, "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
        kinds = {"image": "Gemma4ImageProcessor", "video": "EmbeddingGemma2VideoProcessor"}
        settings = {f"{kind}_processor": {f"{kind}_processor_type": name, **plain} for kind, name in kinds.items()}
        settings = {"processor_class": "EmbeddingGemma2Processor", **settings}
        (folder / "processor_config.json").write_text(json.dumps(settings, indent=2) + "\n")
        (folder / "README.md").write_text(_model_card(backbone.name, facts))
        return
    preprocessor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "image_mean": list(backbone.geometry.mean),
        "image_std": list(backbone.geometry.std),
        "patch_size": PATCH,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(preprocessor, indent=2) + "\n")
    (folder / "README.md").write_text(_model_card(backbone.name, facts))


def read_model_card(folder: Path) -> dict[str, Any]:
    """The facts in the model card of a folder."""
    return json.loads((folder / "README.md").read_text().split("```json")[1].split("```")[0])


def _model_card(name: str, facts: dict[str, Any]) -> str:
    return f"""---
license: mit
library_name: allocembed
---
# {name}

A nano video embedding model, trained from scratch by `recipes/nano_backbone.py` in the procedural world of
`allocembed_nano.world`. It only knows that world: pictographs, signs and eight places. It is for tests and demos, not
for real videos. Its scores are in `docs/internals/results.md`. How it was trained:

```json
{json.dumps(facts, indent=2)}
```
"""
