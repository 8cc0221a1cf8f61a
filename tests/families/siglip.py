"""A tiny SigLIP 2 NaFlex checkpoint in the layout of the hub, and the model's ordinary path: frames with a mask."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, Siglip2Config, Siglip2Model

from allocembed.backbones.base import Backbone, Item
from allocembed.resize import normalise
from tests.tiny import SENTENCES


def save(folder: Path) -> Path:
    """A random checkpoint: texts of 24 tokens, frames of at most 48 patches."""
    words = save_tokenizer(folder)
    torch.manual_seed(8)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = Siglip2Config(
        text_config={**shape, "vocab_size": words, "max_position_embeddings": 24, "projection_size": 32},
        vision_config={**shape, "patch_size": 16, "num_patches": 16},
    )
    model = Siglip2Model(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    settings = {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 48, "patch_size": 16}
    settings |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    return folder


def save_tokenizer(folder: Path) -> int:
    """A tokenizer that appends a token and gives no mask, as the published one; the number of its tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    trainer = trainers.BpeTrainer(vocab_size=320, special_tokens=special, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(single="$A <eos>", special_tokens=[("<eos>", 1)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        padding_side="right",
        model_input_names=["input_ids"],
    )
    fast.save_pretrained(folder)
    return len(fast)


@torch.no_grad()
def plain_vector(backbone: Backbone, item: Item) -> torch.Tensor:
    """The vector (1, dim) of an item with frames."""
    assert item.patches is not None
    counts = item.patches.grids.prod(-1)
    pixels = normalise(item.patches.pixels, backbone.geometry, torch.float32).split(counts.tolist())
    padded = torch.stack([F.pad(own, (0, 0, 0, int(counts.max()) - len(own))) for own in pixels])
    mask = torch.arange(int(counts.max())) < torch.from_numpy(counts)[:, None]
    shapes = torch.from_numpy(item.patches.grids)
    frames = backbone.model.get_image_features(padded, pixel_attention_mask=mask.int(), spatial_shapes=shapes)
    vector = F.normalize(F.normalize(frames.pooler_output, dim=-1).mean(0, keepdim=True), dim=-1)
    if item.prompt.text is None:
        return vector
    options = {"padding": "max_length", "truncation": True, "max_length": 24, "return_tensors": "pt"}
    words = backbone.tokenizer([item.prompt.text.lower()], **options)
    text = F.normalize(backbone.model.get_text_features(**words).pooler_output, dim=-1)
    return F.normalize(vector + text, dim=-1)
