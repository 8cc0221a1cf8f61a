"""Models of exact shape with random weights, created on the device: latency needs no download.

    python bench/shapes.py            check the parameter counts, without memory for the weights

A small tokenizer replaces the real ones. A prompt has a few tokens more or fewer with it, of about five thousand.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModel,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen3VLConfig,
    SmolVLMConfig,
)

from allocembed.allocators.learned import Learned
from allocembed.backbones.base import Backbone
from allocembed.backbones.registry import FAMILIES
from allocembed.policy.preview import BackbonePreview, Previewer
from allocembed.policy.scale_policy import SIZES, PolicyConfig, ScalePolicy
from allocembed.policy.smol import SmolPreview

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")
PADS = ("<|image_pad|>", "<|video_pad|>")
SENTENCES = ["Understand the content of the provided video.", "Represent the user's input.", "<12.5 seconds> assistant"]


@dataclass(frozen=True)
class Shape:
    """Sizes of one model from its config.json, and its number of parameters including the head."""

    kind: str
    text: dict[str, Any]
    vision: dict[str, Any]
    parameters: int
    tied: bool = True


QWEN2_TOWER = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "patch_size": 14}
SHAPES = {
    "qwen2-vl-2b": Shape(
        "qwen2_vl",
        {"hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 28, "num_attention_heads": 12}
        | {"num_key_value_heads": 2, "vocab_size": 151936},
        QWEN2_TOWER | {"hidden_size": 1536},
        2_208_985_600,
    ),
    "qwen2-vl-7b": Shape(
        "qwen2_vl",
        {"hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
        | {"num_key_value_heads": 4, "vocab_size": 152064},
        QWEN2_TOWER | {"hidden_size": 3584},
        8_291_375_616,
        tied=False,
    ),
    "qwen3-vl-2b": Shape(
        "qwen3_vl",
        {"hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28, "num_attention_heads": 16}
        | {"num_key_value_heads": 8, "vocab_size": 151936, "head_dim": 128},
        {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16, "out_hidden_size": 2048}
        | {"patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [5, 11, 17]},
        2_127_532_032,
    ),
    "qwen3-vl-8b": Shape(
        "qwen3_vl",
        {"hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32}
        | {"num_key_value_heads": 8, "vocab_size": 151936, "head_dim": 128},
        {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16, "out_hidden_size": 4096}
        | {"patch_size": 16, "num_position_embeddings": 2304, "deepstack_visual_indexes": [8, 16, 24]},
        8_767_123_696,
        tied=False,
    ),
    "smolvlm2-256m": Shape(
        "smolvlm",
        {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9}
        | {"num_key_value_heads": 3, "vocab_size": 49280, "rope_theta": 1e5},
        {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12}
        | {"image_size": 512, "patch_size": 16},
        256_484_928,
        tied=False,
    ),
}
ROPE = {
    "qwen2_vl": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
    "qwen3_vl": {"rope_type": "default", "rope_theta": 5e6, "mrope_section": [24, 20, 20], "mrope_interleaved": True},
}
TINY_TEXT = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4, "num_attention_heads": 4}
TINY_TEXT |= {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512, "bos_token_id": 0, "eos_token_id": 2}
TINY_VISION = {
    "qwen2_vl": {"depth": 3, "embed_dim": 64, "num_heads": 4, "hidden_size": 64},
    "qwen3_vl": {"depth": 4, "hidden_size": 64, "intermediate_size": 96, "num_heads": 4, "out_hidden_size": 64}
    | {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 2]},
    "smolvlm": {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    | {"image_size": 64},
}


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level tokenizer with the special tokens of the models."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=[*SPECIAL, *PADS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES * 4, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=[*SPECIAL[1:], *PADS],
    )


def make_config(name: str, tokenizer: PreTrainedTokenizerFast, *, tiny: bool = False) -> PreTrainedConfig:
    """The config of a model by name; a `tiny` one of the same kind runs anywhere."""
    shape, ids = SHAPES[name], tokenizer.convert_tokens_to_ids
    text = TINY_TEXT if tiny else shape.text
    vision = shape.vision | TINY_VISION[shape.kind] if tiny else shape.vision
    if shape.kind == "smolvlm":
        text = {"model_type": "llama", "max_position_embeddings": 8192, "pad_token_id": 0} | text
        text["head_dim"] = text["hidden_size"] // text["num_attention_heads"]
        return SmolVLMConfig(
            text_config=text, vision_config=vision, scale_factor=4 if not tiny else 2, image_token_id=ids(PADS[0])
        )
    rope = ROPE[shape.kind] | ({"mrope_section": [4, 2, 2]} if tiny else {})
    config = {"qwen2_vl": Qwen2VLConfig, "qwen3_vl": Qwen3VLConfig}[shape.kind]
    return config(
        text_config=text | {"rope_parameters": rope, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6},
        vision_config=vision | {"spatial_merge_size": 2, "temporal_patch_size": 2},
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
        image_token_id=ids(PADS[0]),
        video_token_id=ids(PADS[1]),
        tie_word_embeddings=shape.tied,
    )


def make_model(
    name: str, config: PreTrainedConfig, device: torch.device | str, dtype: torch.dtype, *, tiny: bool = False
) -> PreTrainedModel:
    """The model without its head, with random weights created on the device. Their number is checked."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModel.from_config(config, dtype=dtype).eval()
    if not tiny:
        check_parameters(name, model)
    return model


def check_parameters(name: str, model: PreTrainedModel) -> int:
    """Count the parameters, including the head; raise ValueError if it is not the published number."""
    shape, text = SHAPES[name], SHAPES[name].text
    head = 0 if shape.tied else text["vocab_size"] * text["hidden_size"]
    found = sum(parameter.numel() for parameter in model.parameters()) + head
    if found != shape.parameters:
        raise ValueError(f"{name} has {found:,} parameters here, published are {shape.parameters:,}: fix its shape")
    return found


def make_backbone(
    name: str,
    device: torch.device | str = "cuda",
    dtype: torch.dtype = torch.bfloat16,
    *,
    tiny: bool = False,
    compile: bool = False,
    model: PreTrainedModel | None = None,
) -> Backbone:
    """A backbone by the name of its shape; `model` is used if given, and must have that shape."""
    tokenizer = make_tokenizer()
    family = FAMILIES[SHAPES[name].kind]
    if model is None:
        model = make_model(name, make_config(name, tokenizer, tiny=tiny), device, dtype, tiny=tiny)
    return family.load()(model, tokenizer, next(iter(family.inputs.values())), name=name, compile=compile)


def make_smol(
    device: torch.device | str = "cuda", dtype: torch.dtype = torch.bfloat16, *, tiny: bool = False
) -> SmolPreview:
    """SmolVLM2 as a previewer, saved to a temporary folder and loaded from it."""
    tokenizer = make_tokenizer()
    config = make_config("smolvlm2-256m", tokenizer, tiny=tiny)
    with tempfile.TemporaryDirectory() as folder:
        make_model("smolvlm2-256m", config, device, dtype, tiny=tiny).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return SmolPreview(folder, device, dtype)


def make_allocator(previewer: Previewer, *, tiny: bool = False) -> Learned:
    """An untrained policy of the paper's size, or of nano's if `tiny`, for a previewer's features."""
    torch.manual_seed(1)
    kind = "backbone" if isinstance(previewer, BackbonePreview) else "smolvlm2"
    widths = {"visual_width": previewer.visual_width, "text_width": previewer.text_width}
    module = replace(SIZES["nano" if tiny else "paper"], **widths, summary=previewer.summary)
    with torch.device(previewer.device):
        return Learned(ScalePolicy(PolicyConfig(module, kind, previewer.source)), previewer)


def main() -> None:
    tokenizer = make_tokenizer()
    for name in SHAPES:
        model = make_model(name, make_config(name, tokenizer), "meta", torch.bfloat16)
        print(f"{name:15} {check_parameters(name, model):>14,} parameters, as published")


if __name__ == "__main__":
    main()
