"""From a name to a frozen backbone: short names, hub ids, local folders; merged weights or a PEFT adapter.

transformers' own classes load everything, untouched. A checkpoint that leaves weights unfilled is refused, because
a half-loaded model still returns vectors, only meaningless ones.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging
from transformers.utils.hub import cached_file

from allocembed.backbones.base import Backbone, BackboneError
from allocembed.backbones.qwen2_vl import Qwen2VLBackbone
from allocembed.backbones.qwen3_vl import Qwen3VLBackbone
from allocembed.resize import Geometry

ASSETS = Path(__file__).parent.parent / "assets"
FAMILIES: dict[str, type[Backbone]] = {cls.family: cls for cls in (Qwen2VLBackbone, Qwen3VLBackbone)}
DEFAULT_BACKBONE = "qwen3-vl-embedding-2b"


@dataclass(frozen=True)
class Entry:
    """A short name: where its weights are, and a line to say whenever it meets a video."""

    source: str
    notice: str | None = None


REGISTRY = {
    "qwen3-vl-embedding-2b": Entry("Qwen/Qwen3-VL-Embedding-2B"),
    "qwen3-vl-embedding-8b": Entry("Qwen/Qwen3-VL-Embedding-8B"),
    "vlm2vec-v2-2b": Entry("VLM2Vec/VLM2Vec-V2.0"),
    "vlm2vec-qwen2vl-7b": Entry("TIGER-Lab/VLM2Vec-Qwen2VL-7B"),
}


def load_backbone(
    name: str | Path = DEFAULT_BACKBONE,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    dim: int | None = None,
) -> Backbone:
    """Loads a backbone by short name, hub id or local folder.

    `device="auto"` takes CUDA where there is one; `dtype="auto"` means bfloat16 there and float32 on a CPU; `dim` cuts
    the vector to its first dimensions (Matryoshka) and normalises again.
    """
    entry = REGISTRY.get(str(name).lower(), Entry(str(name)))
    device = pick_device(device)
    dtype = pick_dtype(dtype, device)
    transformers_logging.disable_progress_bar()
    adapter = _find(entry.source, "adapter_config.json")
    weights = json.loads(adapter.read_text())["base_model_name_or_path"] if adapter else entry.source
    try:
        config = AutoConfig.from_pretrained(weights)
        if config.model_type not in FAMILIES:
            raise BackboneError(
                f"{weights} is a {config.model_type} model; AllocEmbed reads {' and '.join(FAMILIES)} models: "
                f"{', '.join(REGISTRY)}, or a folder or hub id of that kind"
            )
        model = _load_model(weights, dtype)
        tokenizer = AutoTokenizer.from_pretrained(weights)
    except (OSError, ValueError) as error:
        raise BackboneError(_cannot_have(str(name), weights, error)) from error
    if adapter:
        model = _merge_adapter(model, entry.source)
    family = FAMILIES[config.model_type]
    return family(
        model.to(device),
        tokenizer,
        _geometry(weights, model, family.default_geometry),
        name=str(name),
        dim=dim,
        notice=entry.notice,
    )


def pick_device(device: str | torch.device) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise BackboneError(f"there is no device {device!r}: write auto, cpu, cuda or cuda:1") from error
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise BackboneError("torch sees no CUDA device here: use --device cpu, or install a CUDA build of torch")
    return chosen


def pick_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and float32 on the CPU."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in named:
        raise BackboneError(f"there is no dtype {dtype!r}: write auto, {', '.join(named)}")
    return named[dtype]


def _load_model(source: str, dtype: torch.dtype) -> PreTrainedModel:
    model, report = AutoModel.from_pretrained(source, dtype=dtype, output_loading_info=True)
    if missing := sorted(report["missing_keys"]):
        raise BackboneError(
            f"{source} lacks {len(missing)} weights of {type(model).__name__}, such as {missing[0]}: "
            "the download is incomplete, or this is another model"
        )
    return model


def _find(source: str, filename: str) -> Path | None:
    """A file of a local folder or a hub repository, or None where it isn't there."""
    if Path(source).is_dir():
        path = Path(source) / filename
        return path if path.is_file() else None
    try:
        found = cached_file(
            source,
            filename,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            _raise_exceptions_for_gated_repo=False,
        )
    except (OSError, ValueError):
        return None
    return Path(found) if found else None


def _merge_adapter(model: PreTrainedModel, source: str) -> PreTrainedModel:
    """Merges a PEFT adapter, whichever generation of module names it was saved with."""
    try:
        from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
        from peft.utils import load_peft_weights
    except ImportError as error:
        raise BackboneError(f"{source} is a PEFT adapter: pip install 'allocembed[peft]'") from error
    # Adapters from before transformers 4.52 were saved on the model with its head, under the old module names.
    renamed = {
        re.sub(
            r"^base_model\.model\.(?:model\.)?(?:language_model\.)?(?=layers|norm|embed_tokens)",
            "base_model.model.language_model.",
            re.sub(r"^base_model\.model\.model\.(?=visual|language_model)", "base_model.model.", key),
        ): tensor
        for key, tensor in load_peft_weights(source, device="cpu").items()
    }
    peft_model = get_peft_model(model, PeftConfig.from_pretrained(source))
    result = set_peft_model_state_dict(peft_model, renamed)
    unfilled = [key for key in result.missing_keys if "lora_" in key]
    if result.unexpected_keys or unfilled:
        stray = (list(result.unexpected_keys) + unfilled)[0]
        raise BackboneError(f"the adapter {source} does not fit its base model: {stray} has no counterpart")
    return peft_model.merge_and_unload()


def _geometry(source: str, model: PreTrainedModel, default: Geometry) -> Geometry:
    """The family's geometry, with the checkpoint's patch size, statistics and (only tighter) pixel limits."""
    vision = model.config.vision_config
    geometry = replace(default, patch=vision.patch_size, merge=vision.spatial_merge_size)
    path = _find(source, "preprocessor_config.json")
    if path is None:
        return geometry
    stated = json.loads(path.read_text())
    size = stated.get("size") or {}
    low = stated.get("min_pixels") or size.get("shortest_edge") or default.min_pixels
    high = stated.get("max_pixels") or size.get("longest_edge") or default.max_pixels
    return replace(
        geometry,
        mean=tuple(stated.get("image_mean", default.mean)),
        std=tuple(stated.get("image_std", default.std)),
        min_pixels=min(low, default.min_pixels),
        max_pixels=min(high, default.max_pixels),
    )


def _cannot_have(name: str, source: str, error: Exception) -> str:
    cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return (
        f"the backbone {name!r} can't be had ({cause}). Give one of:\n"
        f"  --backbone /path/to/folder   a local copy of {source}\n"
        f"  huggingface-cli download {source}   fills the hub cache, where the network allows it\n"
        f"  --backbone nano-qwen3        a bundled toy-world model, to try things out\n"
        f"known names: {', '.join(REGISTRY)}"
    )
