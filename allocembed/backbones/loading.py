"""From a name to a frozen backbone: short names, hub ids, local folders; merged weights or a PEFT adapter.

transformers' own classes load everything, untouched. A checkpoint that leaves weights unfilled is refused, because
a half-loaded model still returns vectors, only meaningless ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import validate_repo_id
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from allocembed.backbones.base import VIDEO_PAD, Backbone, BackboneError
from allocembed.backbones.qwen2_vl import Qwen2VLBackbone
from allocembed.backbones.qwen3_vl import Qwen3VLBackbone
from allocembed.resize import Geometry

ASSETS = Path(__file__).parent.parent / "assets"
FAMILIES: dict[str, type[Backbone]] = {cls.family: cls for cls in (Qwen2VLBackbone, Qwen3VLBackbone)}
DEFAULT_BACKBONE = "qwen3-vl-embedding-2b"
# What a broken or incomplete folder makes json, safetensors, torch and transformers raise.
BROKEN = (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, SafetensorError)


@dataclass(frozen=True)
class Entry:
    """A short name: where its weights are, a line to say whenever it meets a video, and the allocator made for it."""

    source: str
    notice: str | None = None
    allocator: str | None = None
    """Folder of the allocator that is shipped for this backbone."""


REGISTRY = {
    "qwen3-vl-embedding-2b": Entry("Qwen/Qwen3-VL-Embedding-2B"),
    "qwen3-vl-embedding-8b": Entry("Qwen/Qwen3-VL-Embedding-8B"),
    "vlm2vec-v2-2b": Entry("VLM2Vec/VLM2Vec-V2.0"),
    "vlm2vec-qwen2vl-7b": Entry("TIGER-Lab/VLM2Vec-Qwen2VL-7B"),
    **{
        name: Entry(
            str(ASSETS / name),
            notice=f"{name} knows only its own toy world (allocembed.world); its vectors of real videos mean nothing.",
            allocator=str(ASSETS / "nano-allocator"),
        )
        for name in ("nano-qwen3", "nano-qwen2")
    },
}


def load_backbone(
    name: str | Path = DEFAULT_BACKBONE,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    dim: int | None = None,
    compile: bool = False,
) -> Backbone:
    """Loads a backbone by short name, hub id or local folder.

    `device="auto"` takes CUDA where there is one; `dtype="auto"` means bfloat16 there and float32 on a CPU; `dim` cuts
    the vector to its first dimensions (Matryoshka) and normalises again. `compile` has torch compile the models' blocks
    when the first video comes, half a minute that pays from some hundred videos on; it needs a C++ compiler.
    """
    entry = REGISTRY.get(str(name).lower(), Entry(str(name)))
    if Path(entry.source).is_relative_to(ASSETS) and not Path(entry.source).is_dir():
        raise BackboneError(
            f"{name} is missing from this installation ({entry.source}): install allocembed again, or make the model "
            "with recipes/nano_backbone.py and give its folder with --backbone"
        )
    device = pick_device(device)
    dtype = pick_dtype(dtype, device)
    folder = base = find_folder(entry.source, str(name))
    transformers_logging.disable_progress_bar()
    try:
        adapter = folder / "adapter_config.json"
        if adapter.is_file():
            base = find_folder(json.loads(adapter.read_text())["base_model_name_or_path"], str(name))
        config = AutoConfig.from_pretrained(base)
        if config.model_type not in FAMILIES:
            raise BackboneError(
                f"{base} is a {config.model_type} model; AllocEmbed reads {' and '.join(FAMILIES)} models: "
                f"{', '.join(REGISTRY)}, or a folder or hub id of that kind"
            )
        model = load_model(base, dtype)
        tokenizer = AutoTokenizer.from_pretrained(base)
        if tokenizer.convert_tokens_to_ids(VIDEO_PAD) != config.video_token_id:
            raise BackboneError(
                f"{base} has no tokenizer that knows {VIDEO_PAD}: tokenizer files are missing or others'"
            )
        if base != folder:
            model = _merge_adapter(model, folder)
        geometry = _geometry(base, model, FAMILIES[config.model_type].default_geometry)
    except BackboneError:
        raise
    except BROKEN as error:
        raise BackboneError(_cannot_have(str(name), str(folder), error)) from error
    family = FAMILIES[config.model_type]
    about = {"name": str(name), "dim": dim, "notice": entry.notice, "allocator": entry.allocator}
    return family(model.to(device), tokenizer, geometry, **about, compile=compile)


def same(one: str, other: str) -> bool:
    """Whether two names mean one model: equal names, or names of one folder.

    >>> same("nano-qwen3", str(ASSETS / "nano-qwen3")), same("nano-qwen3", "nano-qwen2")
    (True, False)
    """
    sources = [REGISTRY.get(name.lower(), Entry(name)).source for name in (one, other)]
    return sources[0] == sources[1] or len({Path(source).resolve() for source in sources}) == 1


def find_folder(source: str, name: str) -> Path:
    """The local folder of a model: itself, the hub cache's copy, or a fresh download.

    A model in the cache is used as it is, without asking the network. Where there is no network, that is said at once:
    the hub client alone would retry every file for half a minute.
    """
    if not source:
        raise BackboneError(f"the name of the backbone is empty: take one of {', '.join(REGISTRY)}, or a folder")
    if Path(source).is_dir():
        return Path(source)
    try:
        validate_repo_id(source)
        cached = Path(snapshot_download(source, local_files_only=True))
        if any(cached.glob("*.safetensors")) or any(cached.glob("*.bin")):
            return cached
    except LocalEntryNotFoundError:
        pass
    except HFValidationError:
        missing = ValueError(f"there is no folder {source}")
        raise BackboneError(_cannot_have(name, source, missing)) from missing
    try:
        HfApi().model_info(source, timeout=10)
        return Path(snapshot_download(source, allow_patterns=["*.json", "*.txt", "*.jinja", "*.safetensors", "*.bin"]))
    except Exception as error:  # whatever the hub client and its HTTP library of the day raise
        raise BackboneError(_cannot_have(name, source, error)) from error


def pick_device(device: str | torch.device) -> torch.device:
    """`auto` is CUDA where there is one, else the CPU."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise BackboneError(f"there is no device {device!r}: write auto, cpu, cuda or cuda:1") from error
    if chosen.type not in ("cpu", "cuda"):
        raise BackboneError(f"device {device!r} is not supported: write auto, cpu, cuda or cuda:1")
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


def load_model(folder: Path, dtype: torch.dtype) -> PreTrainedModel:
    """transformers' own model in a folder, without its head; refused where weights are missing."""
    model, report = AutoModel.from_pretrained(folder, dtype=dtype, output_loading_info=True)
    if missing := sorted(report["missing_keys"]):
        raise BackboneError(
            f"{folder} lacks {len(missing)} weights of {type(model).__name__}, such as {missing[0]}: "
            "the download is incomplete, or this is another model"
        )
    return model


def _merge_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merges a PEFT adapter, whichever generation of module names it was saved with."""
    try:
        from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
        from peft.utils import load_peft_weights
    except ImportError as error:
        raise BackboneError(f"{folder} is a PEFT adapter: pip install -e '.[peft]'") from error
    # Adapters from before transformers 4.52 were saved on the model with its head, under the old module names.
    renamed = {
        re.sub(
            r"^base_model\.model\.(?:model\.)?(?:language_model\.)?(?=layers|norm|embed_tokens)",
            "base_model.model.language_model.",
            re.sub(r"^base_model\.model\.model\.(?=visual|language_model)", "base_model.model.", key),
        ): tensor
        for key, tensor in load_peft_weights(str(folder), device="cpu").items()
    }
    peft_model = get_peft_model(model, PeftConfig.from_pretrained(folder))
    result = set_peft_model_state_dict(peft_model, renamed)
    unfilled = [key for key in result.missing_keys if "lora_" in key]
    if result.unexpected_keys or unfilled:
        stray = (list(result.unexpected_keys) + unfilled)[0]
        raise BackboneError(f"the adapter {folder} does not fit its base model: {stray} has no counterpart")
    return peft_model.merge_and_unload()


def _geometry(folder: Path, model: PreTrainedModel, default: Geometry) -> Geometry:
    """The family's geometry, with the checkpoint's patch size, statistics and (only tighter) pixel limits."""
    vision = model.config.vision_config
    geometry = replace(default, patch=vision.patch_size, merge=vision.spatial_merge_size)
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return geometry
    stated = json.loads(path.read_text())
    size = stated.get("size") or {}
    low = stated.get("min_pixels") or size.get("shortest_edge") or default.min_pixels
    high = stated.get("max_pixels") or size.get("longest_edge") or default.max_pixels
    return replace(
        geometry,
        mean=_triple(stated.get("image_mean", default.mean)),
        std=_triple(stated.get("image_std", default.std)),
        min_pixels=min(low, default.min_pixels),
        max_pixels=min(high, default.max_pixels),
    )


def _triple(values: Sequence[float]) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue


def _cannot_have(name: str, source: str, error: Exception) -> str:
    cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if Path(source).is_dir():
        return (
            f"the backbone in {source} can't be loaded ({type(error).__name__}: {cause}): the folder is incomplete or "
            f"broken; download or save it again"
        )
    fetch = "" if Path(source).is_absolute() else f"  hf download {source}   where the network allows it\n"
    return (
        f"the backbone {name!r} can't be had ({cause}). Give one of:\n"
        f"  --backbone /path/to/folder   a local copy of it\n{fetch}"
        f"  --backbone nano-qwen3        a toy-world model, to try things out\n"
        f"known names: {', '.join(REGISTRY)}"
    )
