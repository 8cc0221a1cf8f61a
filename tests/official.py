"""Checkpoints and videos that the official pipelines and ours both read: made of formulas, equal on every machine.

`recipes/official` runs the official code on them and writes `tests/fixtures/official`. The tests make them again and
run ours. Nothing depends on the version of a library: weights are seeded by their names, the tokenizer has a written
list of merges, and video files are uncompressed.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText, PreTrainedTokenizerFast

from tests import official_gemma

FIXTURES = Path(__file__).parent / "fixtures" / "official"
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|vision_start|>", "<|vision_end|>")
SPECIAL += ("<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
MERGES = ("s e", "c o", "co n", "d s", "se con", "secon ds", "i n", "e r", "Ġ t", "h e", "Ġt he", "Ġ a", "v i", "d e")
TEXT = {
    "vocab_size": 320,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 32768,
    "bos_token_id": None,
    "eos_token_id": SPECIAL.index("<|im_end|>"),
}
CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "qwen3-vl-embedding-2b": {"family": "qwen3_vl", "hidden": 32, "layers": 3, "depth": 3, "deepstack": [0, 1]},
    # The larger model has another depth and deepstack. Its tiny form also appends a token, as some tokenizers do.
    "qwen3-vl-embedding-8b": {
        "family": "qwen3_vl",
        "hidden": 48,
        "layers": 4,
        "depth": 4,
        "deepstack": [0, 1, 3],
        "appended": "<|endoftext|>",
    },
    "vlm2vec-v2-2b": {"family": "qwen2_vl", "hidden": 32, "layers": 3, "depth": 2},
    "vlm2vec-qwen2vl-7b": {"family": "qwen2_vl", "hidden": 48, "layers": 4, "depth": 3},
    "gme-qwen2-vl-2b": {"family": "qwen2_vl", "hidden": 32, "layers": 2, "depth": 2, "videos": False},
    "qwen2.5-vl-3b": {"family": "qwen2_5_vl", "hidden": 32, "layers": 3, "depth": 4},
    "embeddinggemma-2": {"family": "embedding_gemma2"},
}
"""Shapes of the tiny checkpoints, by the name of the model they stand for."""

# The layout of the published template for a system text, a user's video or picture, and text: written out, without its
# other cases.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% for part in message.content %}"
    "{% if part.type == 'video' %}<|vision_start|><|video_pad|><|vision_end|>"
    "{% elif part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Qwen2.5-VL's has a system turn in any case.
CHAT_TEMPLATE_25 = (
    "{% if messages[0].role != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    + CHAT_TEMPLATE
)


def save_checkpoint(model: str, folder: Path) -> Path:
    """A tiny checkpoint of a model in the layout of the hub."""
    shape = CHECKPOINTS[model]
    folder.mkdir(parents=True, exist_ok=True)
    if shape["family"] == "embedding_gemma2":
        official_gemma.save_files(folder)
        save_file(make_weights(folder), folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    _save_tokenizer(folder, shape.get("appended"))
    config = _qwen3_config(shape) if shape["family"] == "qwen3_vl" else _qwen2_config(shape)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(make_weights(folder), folder / "model.safetensors", metadata={"format": "pt"})
    if shape["family"] == "qwen3_vl":
        limits = {"size": {"shortest_edge": 65536, "longest_edge": 16777216}, "patch_size": 16}
        settings = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, **limits}
        _write(folder / "preprocessor_config.json", settings, "image_processor_type", "Qwen2VLImageProcessorFast")
        video = settings | {"size": {"shortest_edge": 4096, "longest_edge": 25165824}}
        _write(folder / "video_preprocessor_config.json", video, "video_processor_type", "Qwen3VLVideoProcessor")
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE}))
    else:
        limits = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14}
        settings = {"image_mean": CLIP[0], "image_std": CLIP[1], **limits}
        _write(folder / "preprocessor_config.json", settings, "image_processor_type", "Qwen2VLImageProcessor")
    if shape["family"] == "qwen2_5_vl":
        processor = {"processor_class": "Qwen2_5_VLProcessor"}
        _write(
            folder / "preprocessor_config.json", settings | processor, "image_processor_type", "Qwen2VLImageProcessor"
        )
        limits: dict[str, Any] = {"min_pixels": 128 * 28**2, "max_pixels": 768 * 28**2}
        limits["size"] = {"shortest_edge": limits["min_pixels"], "longest_edge": limits["max_pixels"]}
        video = settings | processor | limits
        _write(folder / "video_preprocessor_config.json", video, "video_processor_type", "Qwen2VLVideoProcessor")
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": CHAT_TEMPLATE_25}))
    return folder


def _write(path: Path, settings: Mapping[str, Any], key: str, kind: str) -> None:
    path.write_text(json.dumps({key: kind, "temporal_patch_size": 2, "merge_size": 2, **settings}))


def _token_ids() -> dict[str, int]:
    names = {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    names |= {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    return {f"{name}_token_id": SPECIAL.index(token) for name, token in names.items()}


def _qwen3_config(shape: Mapping[str, Any]) -> dict[str, Any]:
    hidden = shape["hidden"]
    rope = {"rope_type": "default", "mrope_section": [2, 1, 1], "mrope_interleaved": True}
    text = {"model_type": "qwen3_vl_text", "hidden_size": hidden, "num_hidden_layers": shape["layers"], "head_dim": 8}
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "model_type": "qwen3_vl",
        "tie_word_embeddings": True,
        "text_config": {**TEXT, **text, "rope_scaling": rope, "rope_theta": 5000000},
        "vision_config": {
            "model_type": "qwen3_vl",
            "depth": shape["depth"],
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_heads": 2,
            "out_hidden_size": hidden,
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": shape["deepstack"],
        },
        **_token_ids(),
    }


def _qwen2_config(shape: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, as the hub's files of both families are. `head_dim` is not among its settings: heads share the width."""
    hidden = shape["hidden"]
    tower = {"embed_dim": 32, "hidden_size": hidden, "mlp_ratio": 2}
    if shape["family"] == "qwen2_5_vl":
        tower = {"hidden_size": 32, "intermediate_size": 48, "out_hidden_size": hidden, "hidden_act": "silu"}
        tower |= {"window_size": 112, "fullatt_block_indexes": [1, 3], "tokens_per_second": 2}
    architecture = {"qwen2_vl": "Qwen2VL", "qwen2_5_vl": "Qwen2_5_VL"}[shape["family"]]
    return {
        "architectures": [f"{architecture}ForConditionalGeneration"],
        "model_type": shape["family"],
        **TEXT,
        "hidden_size": hidden,
        "num_attention_heads": hidden // 8,
        "num_hidden_layers": shape["layers"],
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 1, 1]},
        "attention_dropout": 0.0,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "use_cache": True,
        "use_sliding_window": False,
        "sliding_window": 32768,
        "max_window_layers": shape["layers"],
        "vision_config": {
            **tower,
            "depth": shape["depth"],
            "num_heads": 2,
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
        },
        **_token_ids(),
    }


def make_weights(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of the model that `config.json` describes, under the hub's names. Each is seeded by its name."""
    config = AutoConfig.from_pretrained(folder)
    qwen3 = config.model_type == "qwen3_vl"
    with torch.device("meta"):
        kind = AutoModel if config.model_type == "embedding_gemma2" else AutoModelForImageTextToText
        model = kind.from_config(config)
    tensors = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue  # tied to the embeddings
        if not qwen3:  # the hub's files have the module names of before transformers 4.52
            name = name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")
        random = np.random.RandomState(zlib.crc32(name.encode()))
        values = random.standard_normal(tuple(tensor.shape))
        # Larger than an initialisation, so that a wrong position or pixel shows in the vector.
        values = 0.15 * values if tensor.ndim > 1 else values * 0.02 + ("norm" in name and name.endswith("weight"))
        tensors[name] = torch.from_numpy(values.astype(np.float32))
    return tensors


def digest_weights(tensors: Mapping[str, torch.Tensor]) -> str:
    """Digest of names, shapes and values."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(f"{name} {tuple(tensors[name].shape)}".encode())
        total.update(tensors[name].numpy().tobytes())
    return total.hexdigest()[:16]


def _save_tokenizer(folder: Path, appended: str | None) -> None:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = [(first, second) for first, second in (merge.split(" ") for merge in MERGES)]
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet, *(a + b for a, b in pairs)])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if appended:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"$A {appended}", special_tokens=[(appended, vocabulary[appended])]
        )
    tokenizer.add_special_tokens(list(SPECIAL))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(SPECIAL[1:]),
    )
    fast.save_pretrained(folder)


def make_frames(width: int, height: int, indices: Sequence[int]) -> np.ndarray:
    """Frames (n, height, width, 3), uint8: gradients that move, and a fine texture on them."""
    x, y = np.arange(width, dtype=np.int32), np.arange(height, dtype=np.int32)[:, None]
    texture, checks = (x * 7 + y * 13) % 29, 12 * ((x // 5 + y // 7) % 2)
    textures = [(texture + checks).astype(np.int16), (texture + 12 - checks).astype(np.int16)]
    waves = [(2, 1, 11), (1, 3, 46), (3, 2, 15)]  # steps of a channel to the right, down, and in time
    planes = [((across * x + down * y + 40 * i) % 400).astype(np.int16) for i, (across, down, _) in enumerate(waves)]
    frames = np.empty((len(indices), height, width, 3), np.uint8)
    for slot, time in enumerate(indices):
        for channel, (plane, (_, _, step)) in enumerate(zip(planes, waves, strict=True)):
            wave = (plane + np.int16(step * time % 400)) % np.int16(400)
            frames[slot, ..., channel] = np.abs(wave - np.int16(200)) + textures[time % 2]
    return frames


def write_video(path: Path, frames: np.ndarray, rate: str | int) -> Path:
    """An uncompressed file with exactly these pixels at `rate` frames per second, such as "30000/1001"."""
    with av.open(str(path), "w") as file:
        stream: Any = file.add_stream("rawvideo", rate=Fraction(rate))
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "bgr24"
        for image in frames[..., ::-1]:
            file.mux(stream.encode(av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="bgr24")))
        file.mux(stream.encode())
    return path


def make_text(tokens: int) -> str:
    """A text of about as many tokens: words of one to four letters, each letter a token."""
    words = ("ox", "fly", "a", "goat", "my", "pup")
    text, i = [], 0
    while tokens > 0:
        text.append(words[i % len(words)])
        tokens -= len(words[i % len(words)]) + 1
        i += 1
    return " ".join(text)


def summarise_ids(ids: np.ndarray) -> dict[str, Any]:
    """Token ids (S,) as [id, how often] pairs; those of a long text as a digest with their first and last.

    >>> summarise_ids(np.array([7, 7, 3]))
    {'count': 3, 'runs': [[7, 2], [3, 1]]}
    """
    ids = np.ascontiguousarray(ids, dtype=np.int64)
    starts = np.flatnonzero(np.diff(ids, prepend=ids[:1] - 1))
    if len(starts) > 800:
        digest = hashlib.sha256(ids.tobytes()).hexdigest()[:16]
        return {"count": len(ids), "digest": digest, "first": ids[:20].tolist(), "last": ids[-20:].tolist()}
    lengths = np.diff(np.append(starts, len(ids)))
    return {"count": len(ids), "runs": np.stack([ids[starts], lengths], 1).tolist()}


def summarise_positions(positions: np.ndarray) -> dict[str, Any]:
    """Digest of positions (3, S), and their first and last columns."""
    positions = np.ascontiguousarray(positions, dtype=np.int64)
    ends = {"first": positions[:, :6].tolist(), "last": positions[:, -6:].tolist()}
    return {"digest": hashlib.sha256(positions.tobytes()).hexdigest()[:16], **ends}


def summarise_pixels(pixels: np.ndarray) -> dict[str, Any]:
    """Digest, mean and the means of 16 patches of patches (N, values), uint8 and not yet normalised."""
    pixels = np.ascontiguousarray(pixels, dtype=np.uint8)
    rows = np.linspace(0, len(pixels) - 1, 16, dtype=int)
    return {
        "digest": hashlib.sha256(pixels.tobytes()).hexdigest()[:16],
        "patches": len(pixels),
        "mean": round(float(pixels.mean()), 5),
        "rows": [round(float(pixels[row].mean()), 3) for row in rows],
    }
