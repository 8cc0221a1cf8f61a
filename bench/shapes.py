"""Models of the exact shapes of the real ones with random weights, made where they run: latency needs no download.

    python bench/shapes.py            checks the parameter counts, without memory for the weights

A small tokenizer stands in for the real ones; a prompt becomes a few tokens more or fewer, of some five thousand.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen3VLConfig,
    SmolVLMConfig,
)

from allocembed.allocators.learned import Learned
from allocembed.backbones import Backbone
from allocembed.backbones.loading import FAMILIES
from allocembed.policy.preview import BackbonePreview, SmolPreview
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy, module_config

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>")
PADS = ("<|image_pad|>", "<|video_pad|>")
SENTENCES = ["Understand the content of the provided video.", "Represent the user's input.", "<12.5 seconds> assistant"]


@dataclass(frozen=True)
class Shape:
    """Sizes of one model, as its config.json states them, and the parameters it has with its head."""

    kind: str
    text: dict
    vision: dict
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
    "qwen3_vl": {
        "rope_type": "default",
        "rope_theta": 5e6,
        "mrope_section": [24, 20, 20],
        "mrope_interleaved": True,
    },
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
    """A byte-level tokenizer that knows the models' special tokens."""
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


def make_config(name: str, tokenizer: PreTrainedTokenizerFast, *, tiny: bool = False):
    """The config of a model by name; `tiny` keeps its kind and makes it run anywhere."""
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


def make_model(name: str, config, device: torch.device | str, dtype: torch.dtype, *, tiny: bool = False):
    """The model without its head, its weights random and made on the device; refused where their number is wrong."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModel.from_config(config, dtype=dtype).eval()
    if not tiny:
        check_parameters(name, model)
    return model


def check_parameters(name: str, model: PreTrainedModel) -> int:
    """The number of parameters, head included, which must be the published one."""
    shape, text = SHAPES[name], SHAPES[name].text
    head = 0 if shape.tied else text["vocab_size"] * text["hidden_size"]
    found = sum(parameter.numel() for parameter in model.parameters()) + head
    if found != shape.parameters:
        raise ValueError(f"{name} has {found:,} parameters here and {shape.parameters:,} in fact: its shape is wrong")
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
    """A backbone by the name of its shape, on `model` where one of that shape is there already."""
    tokenizer = make_tokenizer()
    family = FAMILIES[SHAPES[name].kind]
    if model is None:
        model = make_model(name, make_config(name, tokenizer, tiny=tiny), device, dtype, tiny=tiny)
    return family(model, tokenizer, family.default_geometry, name=name, compile=compile)


def make_smol(
    device: torch.device | str = "cuda", dtype: torch.dtype = torch.bfloat16, *, tiny: bool = False
) -> SmolPreview:
    """SmolVLM2 as a previewer, by way of a folder, as it is always loaded."""
    tokenizer = make_tokenizer()
    config = make_config("smolvlm2-256m", tokenizer, tiny=tiny)
    with tempfile.TemporaryDirectory() as folder:
        make_model("smolvlm2-256m", config, device, dtype, tiny=tiny).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return SmolPreview(folder, device, dtype)


def make_allocator(previewer: BackbonePreview | SmolPreview, *, tiny: bool = False) -> Learned:
    """An untrained policy of the paper's size (or nano's) on a previewer's features."""
    torch.manual_seed(1)
    kind = "backbone" if isinstance(previewer, BackbonePreview) else "smolvlm2"
    module = module_config("nano" if tiny else "paper", previewer)
    with torch.device(previewer.device):
        return Learned(ScalePolicy(PolicyConfig(module, kind, previewer.source)), previewer)


def main() -> None:
    tokenizer = make_tokenizer()
    for name in SHAPES:
        model = make_model(name, make_config(name, tokenizer), "meta", torch.bfloat16)
        print(f"{name:15} {check_parameters(name, model):>14,} parameters, as published")


if __name__ == "__main__":
    main()
