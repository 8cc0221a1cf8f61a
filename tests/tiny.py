"""Tiny random checkpoints in the genuine hub layout: config, safetensors, tokenizer, preprocessor settings."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    PreTrainedTokenizerFast,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    SmolVLMConfig,
    SmolVLMForConditionalGeneration,
)

from tests.official_gemma import GEMMA_TOKENS

SPECIAL = [
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
]
SENTENCES = ["a red car drives by", "Represent the user's input.", "<12.5 seconds> system user assistant"]
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}

TOWER = {"depth": 2, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
TOWER |= {"spatial_merge_size": 2, "temporal_patch_size": 2}
QWEN3_TOWER = TOWER | {"patch_size": 16, "num_position_embeddings": 64}


def save_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=SPECIAL, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=SPECIAL[1:],
    )
    fast.save_pretrained(folder)
    return fast


def save_qwen2(folder: Path, *, old_names: bool = True) -> Path:
    """A Qwen2-VL checkpoint; the hub's ones keep the module names of before transformers 4.52."""
    tokenizer = save_tokenizer(folder)
    torch.manual_seed(0)
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e6}
    config = Qwen2VLConfig(
        text_config={**TEXT, "vocab_size": len(tokenizer), "rope_parameters": rope},
        vision_config={
            "depth": 2,
            "embed_dim": 32,
            "hidden_size": 32,
            "num_heads": 2,
            "mlp_ratio": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        **_token_ids(tokenizer),
        tie_word_embeddings=True,
    )
    _save(Qwen2VLForConditionalGeneration(config), folder)
    if old_names:
        tensors = load_file(folder / "model.safetensors")
        renamed = {
            name.replace("model.visual.", "visual.").replace("model.language_model.", "model."): tensor
            for name, tensor in tensors.items()
        }
        save_file(renamed, folder / "model.safetensors", metadata={"format": "pt"})
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    _save_preprocessor(folder, "Qwen2VLImageProcessor", mean, std, {"min_pixels": 3136, "max_pixels": 12845056})
    return folder


def save_qwen3(folder: Path, *, stock: bool = False) -> Path:
    """A Qwen3-VL checkpoint, by default with limits of its own: 4 to 768 tokens a frame, which keeps tests quick."""
    tokenizer = save_tokenizer(folder)
    torch.manual_seed(1)
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True, "rope_theta": 5e6}
    config = Qwen3VLConfig(
        text_config={**TEXT, "vocab_size": len(tokenizer), "head_dim": 8, "rope_parameters": rope},
        vision_config={
            "depth": 3,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": 32,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [0, 1],
        },
        **_token_ids(tokenizer),
        tie_word_embeddings=True,
    )
    _save(Qwen3VLForConditionalGeneration(config), folder)
    lowest, highest = (65536, 16777216) if stock else (4 * 32**2, 768 * 32**2)
    size = {"size": {"shortest_edge": lowest, "longest_edge": highest}}
    _save_preprocessor(folder, "Qwen2VLImageProcessorFast", [0.5] * 3, [0.5] * 3, size)
    return folder


def save_qwen25(folder: Path) -> Path:
    """A Qwen2.5-VL checkpoint, with windows of 2 × 2 tokens, so that chunks of tests have several."""
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    tokenizer = save_tokenizer(folder)
    torch.manual_seed(5)
    windows = {"window_size": 56, "fullatt_block_indexes": [2]}
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e6}
    config = Qwen2_5_VLConfig(
        text_config={**TEXT, "vocab_size": len(tokenizer), "rope_parameters": rope},
        vision_config=TOWER | windows | {"patch_size": 14, "depth": 3, "tokens_per_second": 2},
        **_token_ids(tokenizer),
        tie_word_embeddings=True,
    )
    _save(Qwen2_5_VLForConditionalGeneration(config), folder)
    mean, std = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    limits = {"min_pixels": 4 * 28**2, "max_pixels": 768 * 28**2}
    _save_preprocessor(folder, "Qwen2VLImageProcessor", mean, std, limits)
    return folder


def save_qwen3_moe(folder: Path) -> Path:
    """A Qwen3-VL checkpoint with a mixture of experts in every second layer."""
    from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

    tokenizer = save_tokenizer(folder)
    torch.manual_seed(6)
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True, "rope_theta": 5e6}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 2}
    config = Qwen3VLMoeConfig(
        text_config={**TEXT, **experts, "vocab_size": len(tokenizer), "head_dim": 8, "rope_parameters": rope},
        vision_config=QWEN3_TOWER | {"deepstack_visual_indexes": [0]},
        **_token_ids(tokenizer),
        tie_word_embeddings=True,
    )
    _save(Qwen3VLMoeForConditionalGeneration(config), folder)
    size = {"size": {"shortest_edge": 4 * 32**2, "longest_edge": 768 * 32**2}}
    _save_preprocessor(folder, "Qwen2VLImageProcessorFast", [0.5] * 3, [0.5] * 3, size)
    return folder


def save_qwen35(folder: Path) -> Path:
    """A Qwen3.5 checkpoint: two recurrent layers, then one with attention."""
    from transformers import Qwen3_5Config, Qwen3_5ForConditionalGeneration

    tokenizer = save_tokenizer(folder)
    torch.manual_seed(7)
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True, "rope_theta": 1e7}
    recurrent = {"linear_num_key_heads": 2, "linear_num_value_heads": 4}
    recurrent |= {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4}
    config = Qwen3_5Config(
        text_config={
            **TEXT,
            **recurrent,
            "num_hidden_layers": 3,
            "vocab_size": len(tokenizer),
            "head_dim": 16,
            "rope_parameters": rope | {"partial_rotary_factor": 0.5},
            "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        },
        vision_config={**QWEN3_TOWER, "depth": 2},
        **_token_ids(tokenizer),
        tie_word_embeddings=True,
    )
    _save(Qwen3_5ForConditionalGeneration(config), folder)
    size = {"size": {"shortest_edge": 4 * 32**2, "longest_edge": 768 * 32**2}}
    _save_preprocessor(folder, "Qwen2VLImageProcessorFast", [0.5] * 3, [0.5] * 3, size)
    return folder


def save_smol(folder: Path) -> Path:
    """A SmolVLM2 checkpoint, as the hub has it: the whole model with its head. 16 tokens for a frame of 64 pixels."""
    tokenizer = save_tokenizer(folder)
    torch.manual_seed(2)
    text = {**TEXT, "model_type": "llama", "vocab_size": len(tokenizer), "hidden_size": 24, "head_dim": 6}
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = SmolVLMConfig(
        text_config=text | {"pad_token_id": tokenizer.pad_token_id},
        vision_config=vision | {"image_size": 64, "patch_size": 8},
        scale_factor=2,
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        tie_word_embeddings=True,
    )
    _save(SmolVLMForConditionalGeneration(config), folder)
    settings = {"image_processor_type": "SmolVLMImageProcessor", "image_mean": [0.4, 0.5, 0.6], "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def _token_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    ids = tokenizer.convert_tokens_to_ids
    return {
        "vision_start_token_id": ids("<|vision_start|>"),
        "vision_end_token_id": ids("<|vision_end|>"),
        "image_token_id": ids("<|image_pad|>"),
        "video_token_id": ids("<|video_pad|>"),
    }


def _save(model: torch.nn.Module, folder: Path) -> None:
    # Larger weights than the initialisation's, so that a wrong position or a leak shows in the vector.
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)


def _save_preprocessor(folder: Path, kind: str, mean: list, std: list, limits: dict) -> None:
    patch = {"patch_size": 14 if "min_pixels" in limits else 16, "merge_size": 2, "temporal_patch_size": 2}
    settings = {"image_processor_type": kind, "image_mean": mean, "image_std": std, **patch, **limits}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def save_gemma(folder: Path, *, frame_tokens: int = 70) -> Path:
    """An EmbeddingGemma 2 checkpoint with its audio tower. Its window is short, so that rows of tests exceed it."""
    from transformers import EmbeddingGemma2Config, EmbeddingGemma2Model

    tokenizer = save_gemma_tokenizer(folder)
    torch.manual_seed(4)
    ids = tokenizer.convert_tokens_to_ids
    config = EmbeddingGemma2Config(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "sliding_window": 6,
            "num_global_key_value_heads": 1,
            "global_head_dim": 16,
            "sliding_window_pattern": 3,
            "hidden_size_per_layer_input": 12,
            "embedding_dim": 24,
            "max_position_embeddings": 32768,
        },
        vision_config={
            "model_type": "gemma4_vision",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "position_embedding_size": 1024,
        },
        audio_config={
            "model_type": "gemma4_audio",
            "hidden_size": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "output_proj_dims": 16,
            "subsampling_conv_channels": [8, 4],
        },
        **{
            f"{name}_token_id": ids(GEMMA_TOKENS[f"{name}_token"]) for name in ("image", "video", "audio", "boi", "eoi")
        },
        boa_token_id=ids("<|audio>"),
        eoa_token_index=ids("<audio|>"),
    )
    _save(EmbeddingGemma2Model(config), folder)
    plain = {"do_normalize": False, "image_mean": [0.0] * 3, "image_std": [1.0] * 3, "patch_size": 16}
    plain |= {"pooling_kernel_size": 3}
    video = {"video_processor_type": "EmbeddingGemma2VideoProcessor", "max_soft_tokens": frame_tokens, **plain}
    image = {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 140, **plain}
    settings = {"processor_class": "EmbeddingGemma2Processor", "image_processor": image, "video_processor": video}
    (folder / "processor_config.json").write_text(json.dumps(settings))
    return folder


def save_gemma_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A tokenizer that puts a token before and after every text, as Gemma's does."""
    special = ["<pad>", "<eos>", "<bos>", *GEMMA_TOKENS.values()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator([*SENTENCES, "title: none | text: ", "task: search result | query: "], trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", 2), ("<eos>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        extra_special_tokens=GEMMA_TOKENS,
    )
    fast.save_pretrained(folder)
    return fast
