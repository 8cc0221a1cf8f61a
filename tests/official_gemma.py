"""The tiny EmbeddingGemma 2 checkpoint that the official pipeline and ours both read, in the layout of the hub.

It must be importable with the older versions of transformers that `recipes/official` uses for other models.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

GEMMA_TOKENS = {
    "image_token": "<|image|>",
    "video_token": "<|video|>",
    "audio_token": "<|audio|>",
    "boi_token": "<|image>",
    "eoi_token": "<image|>",
    "boa_token": "<|audio>",
    "eoa_token": "<audio|>",
}
SPECIAL = ("<pad>", "<eos>", "<bos>", *GEMMA_TOKENS.values())
MERGES = ("t i", "t l", "ti tl", "titl e", "n o", "n e", "no ne", "q u", "e r", "qu er", "quer y", "Ġ |", "t e", "x t")
PLAIN = {
    "do_convert_rgb": True,
    "do_normalize": False,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": [0.0] * 3,
    "image_std": [1.0] * 3,
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "resample": 3,
    "rescale_factor": 1 / 255,
}


def save_files(folder: Path) -> None:
    """Everything but the weights."""
    save_tokenizer(folder)
    (folder / "config.json").write_text(json.dumps(make_config()))
    video = {"video_processor_type": "EmbeddingGemma2VideoProcessor", "max_soft_tokens": 140, "fps": 1}
    video |= {"max_frames": 32, "overflow_strategy": "uniform", "add_timestamps": False, "do_sample_frames": True}
    settings = {
        "processor_class": "EmbeddingGemma2Processor",
        "image_seq_length": 280,
        "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
        "image_processor": {"image_processor_type": "Gemma4ImageProcessor", "max_soft_tokens": 280, **PLAIN},
        "video_processor": {**video, **PLAIN},
    }
    (folder / "processor_config.json").write_text(json.dumps(settings))


def make_config() -> dict[str, Any]:
    """Three layers, of which the last sees everything and the others 40 tokens to each side."""
    numbers = {name: SPECIAL.index(token) for name, token in GEMMA_TOKENS.items()}
    return {
        "architectures": ["EmbeddingGemma2Model"],
        "model_type": "embedding_gemma2",
        "text_config": {
            "model_type": "embedding_gemma2_text",
            "vocab_size": 320,
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
            "per_layer_config": {"2": {"head_dim": 16, "num_key_value_heads": 1}},
            "sliding_window": 40,
            "hidden_size_per_layer_input": 12,
            "embedding_dim": 24,
        },
        "vision_config": {
            "model_type": "gemma4_vision",
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "patch_size": 16,
            "pooling_kernel_size": 3,
            "position_embedding_size": 1024,
        },
        "audio_config": None,
        **{f"{name}_token_id": numbers[f"{name}_token"] for name in ("image", "video", "audio", "boi", "eoi", "boa")},
        "eoa_token_index": numbers["eoa_token"],
    }


def save_tokenizer(folder: Path) -> None:
    """A written list of merges, and a token before and after every text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(first, second) for first, second in (merge.split(" ") for merge in MERGES)]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet, *(a + b for a, b in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[(token, vocabulary[token]) for token in ("<bos>", "<eos>")]
    )
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        extra_special_tokens=GEMMA_TOKENS,
    )
    fast.save_pretrained(folder)


def all_positions(tokens: np.ndarray, patches: np.ndarray | None) -> np.ndarray:
    """Positions of the tokens of a row (1, S), then col and row of the patches (2, N): (2, S + N)."""
    tokens = np.repeat(tokens, 2, axis=0)
    return tokens if patches is None else np.concatenate([tokens, patches], 1)
