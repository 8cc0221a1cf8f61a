"""A tiny random CLIP checkpoint in the layout of the hub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import CLIPConfig, CLIPModel, PreTrainedTokenizerFast

SENTENCES = ["a red car drives by", "what is it?", "a much longer text about a dog"]


def save(folder: Path, **changes: Any) -> Path:
    """Frames of 6 × 6 patches, texts of at most 24 tokens, states and vectors of different widths."""
    words = save_tokenizer(folder)
    torch.manual_seed(9)
    shape = {"intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = CLIPConfig(
        text_config={
            **shape,
            "hidden_size": 32,
            "vocab_size": words,
            "max_position_embeddings": 24,
            "eos_token_id": 1,
            "pad_token_id": 0,
        },
        vision_config={**shape, "hidden_size": 40, "patch_size": 16, "image_size": 96},
        projection_dim=24,
        **changes,
    )
    model = CLIPModel(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    settings = {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.3, 0.3, 0.3], "size": {"shortest_edge": 96}}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def save_tokenizer(folder: Path) -> int:
    """A tokenizer that puts a token before and after every text, as CLIP's does; the number of its tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<pad>", "<end>", "<start>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    ends = [("<start>", 2), ("<end>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<start> $A <end>", special_tokens=ends)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<start>", eos_token="<end>", pad_token="<pad>"
    )
    fast.save_pretrained(folder)
    return len(fast)
