"""Load a backbone by short name, hub id or local folder; merged weights or a PEFT adapter.

transformers' own classes load everything. A checkpoint with missing weights is refused, because a half-loaded model
still returns vectors, only meaningless ones.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from allocembed.backbones import float8, int8
from allocembed.backbones.base import Backbone
from allocembed.backbones.devices import FLOAT8, INT8, pick_device, pick_dtype, weight_bytes
from allocembed.backbones.hub import FILES, cached_folder
from allocembed.backbones.registry import (
    ADAPTER,
    DEFAULT_BACKBONE,
    FAMILIES,
    REGISTRY,
    check_backbone,
    find_entry,
    read_inputs,
)
from allocembed.errors import BackboneError, MissingDependency
from allocembed.inputs import choose_inputs
from allocembed.paths import is_folder


def load_backbone(
    name: str | Path = DEFAULT_BACKBONE,
    *,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    inputs: str | None = None,
    dim: int | None = None,
    compile: bool = False,
) -> Backbone:
    """Load a backbone by short name, hub id or local folder.

    `device="auto"` is CUDA if available; `dtype="auto"` is bfloat16 there, and for large models on CPUs that compute in
    it, else float32. `dtype="int8"` rounds the weights of linear layers, for CPUs. `dtype="float8"` multiplies
    in eight bits, on NVIDIA cards from Ada on. The modules of these names say how. `inputs` names one of the model's
    own input pipelines; the default is the first in the registry. `dim` keeps the first dimensions of the vector
    (Matryoshka) and normalises again. `compile` compiles the model's blocks at the first video: half a minute that pays
    off after some hundred videos. It needs a C++ compiler.
    """
    name = str(name)
    check_backbone(name, inputs)
    entry = find_entry(name)
    chosen = pick_device(device)
    folder = base = find_folder(entry.source, name)
    transformers_logging.disable_progress_bar()
    try:
        adapter = folder / ADAPTER
        if adapter.is_file():
            base = find_folder(json.loads(adapter.read_text())["base_model_name_or_path"], name)
        check_transformers(base, transformers.__version__)
        config = AutoConfig.from_pretrained(base)
        if config.model_type not in FAMILIES:
            raise BackboneError(
                f"{base} is a {config.model_type} model, and AllocEmbed supports {', '.join(FAMILIES)}: use one of "
                f"{', '.join(REGISTRY)}, or a folder or hub id of a supported kind"
            )
        family, dimensions = FAMILIES[config.model_type], config.get_text_config().hidden_size
        if dim is not None and dim < dimensions and not entry.matryoshka:
            raise BackboneError(
                f"{name} was not trained for vectors shorter than {dimensions} (Matryoshka): remove dim, or use "
                "qwen3-vl-embedding-2b"
            )
        if dim is not None and entry.dims and dim not in entry.dims:
            raise BackboneError(f"{name} was trained for vectors of {_listed(entry.dims)}: choose one of these as dim")
        pipeline = choose_inputs(family.inputs, inputs or entry.inputs, name)
        pipeline = read_inputs(base, config.to_dict(), family, pipeline)
        model = load_model(base, pick_dtype(dtype, chosen, weight_bytes(base)), family.options)
        tokenizer = AutoTokenizer.from_pretrained(base)
        if base != folder:
            model = _merge_adapter(model, folder)
    except (BackboneError, MissingDependency):
        raise
    except Exception as error:  # damaged files make these libraries raise errors of every kind
        raise BackboneError(_cannot_load(name, str(folder), error)) from error
    if dtype == INT8:
        int8.round_linears(model)
    if dtype == FLOAT8:
        float8.round_linears(model, chosen)
    backbone = family.load()(
        model.to(chosen),  # pyright: ignore[reportArgumentType] (transformers' stub of `to`)
        tokenizer,
        pipeline,
        name=name,
        dim=dim,
        notice=entry.notice,
        allocator=entry.allocator,
        compile=compile,
    )
    arguments = {"name": name, "device": device, "dtype": dtype, "inputs": inputs, "dim": dim, "compile": compile}
    backbone.load_arguments = arguments
    if entry.family is None and backbone.notice is None:
        backbone.notice = assumed(backbone)
    return backbone


def assumed(backbone: Backbone) -> str:
    """What is said of a model that the registry does not know: how it is read."""
    geometry = backbone.geometry
    lowest, highest = (limit // geometry.factor**2 for limit in (geometry.min_pixels, geometry.max_pixels))
    return (
        f"{backbone.name} is not in the registry and is read as any {backbone.family} model: "
        f"{backbone.describe_prompts()}, {lowest:,} to {highest:,} tokens a frame. "
        "If it was trained otherwise, its vectors are worse than they could be."
    )


def reload_backbone(arguments: dict[str, Any], patch_product: bool) -> Backbone:
    """Load a backbone again in another process: what its pickle holds."""
    backbone = load_backbone(**arguments)
    backbone.patch_product = patch_product or backbone.patch_product
    return backbone


def find_folder(source: str, name: str) -> Path:
    """The local folder of a model: the folder itself, the hub cache's copy, or a new download.

    A cached model is used as it is, without a request to the network. Without a network the error comes at once: the
    hub client alone would retry each file for half a minute.
    """
    if is_folder(source):
        return Path(source)
    try:
        validate_repo_id(source)
    except HFValidationError:
        missing = ValueError(f"there is no folder {source}")
        raise BackboneError(_cannot_load(name, source, missing)) from missing
    try:
        if (cached := cached_folder(source)) is not None:
            return cached
        HfApi().model_info(source, timeout=10)
        return Path(snapshot_download(source, allow_patterns=FILES))
    except Exception as error:  # the hub client raises its own errors and those of its HTTP library
        raise BackboneError(_cannot_load(name, source, error)) from error


def check_transformers(folder: Path, installed: str) -> None:
    """Raise BackboneError if the installed transformers is too old for the model in a folder."""
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    needed = FAMILIES[kind].transformers if kind in FAMILIES else None
    if needed is not None and _version(installed) < _version(needed):
        raise BackboneError(
            f"cannot load {folder}: {kind} models need transformers {needed} or newer, and {installed} is installed; "
            f"pip install 'transformers>={needed},<6'"
        )


def load_model(folder: Path, dtype: torch.dtype, options: Mapping[str, Any] | None = None) -> PreTrainedModel:
    """transformers' own model in a folder, without its head. Missing weights are an error."""
    model, report = AutoModel.from_pretrained(folder, dtype=dtype, output_loading_info=True, **(options or {}))
    if missing := sorted(report["missing_keys"]):
        raise BackboneError(
            f"{folder} has no values for {len(missing)} weights of {type(model).__name__}, such as {missing[0]}: "
            "the download is incomplete, or this is another model"
        )
    return model


def _merge_adapter(model: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """Merge a PEFT adapter, with either generation of module names."""
    try:
        from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
        from peft.utils import load_peft_weights
    except ImportError as error:
        raise MissingDependency(f"the adapter {folder}", "peft", "peft") from error
    # Before transformers 4.52, adapters were saved on the model with its head, under the old module names.
    renamed = {
        re.sub(
            r"^base_model\.model\.(?:model\.)?(?:language_model\.)?(?=layers|norm|embed_tokens)",
            "base_model.model.language_model.",
            re.sub(r"^base_model\.model\.model\.(?=visual|language_model)", "base_model.model.", key),
        ): tensor
        for key, tensor in load_peft_weights(str(folder), device="cpu").items()
    }
    peft_model = get_peft_model(model, PeftConfig.from_pretrained(str(folder)))
    result = set_peft_model_state_dict(peft_model, renamed)
    unfilled = [key for key in result.missing_keys if "lora_" in key]
    if result.unexpected_keys or unfilled:
        stray = (list(result.unexpected_keys) + unfilled)[0]
        raise BackboneError(f"the adapter {folder} does not fit its base model: {stray} has no counterpart")
    return cast(PreTrainedModel, peft_model.merge_and_unload())


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]} dimensions"


def _cannot_load(name: str, source: str, error: Exception) -> str:
    cause = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if is_folder(source):
        return (
            f"cannot load the backbone in {source} ({type(error).__name__}: {cause}): the folder is incomplete or "
            "broken; download or save it again"
        )
    local = Path(source).is_absolute() or source.startswith(".")
    fetch = "" if local else f"  hf download {source}   where the network allows it\n"
    return (
        f"cannot load backbone {name!r} ({cause}). Options:\n"
        f"  --backbone /path/to/folder   a local copy of it\n{fetch}"
        f"  --backbone nano-qwen3        a toy model, to try things out\n"
        f"known names: {', '.join(REGISTRY)}"
    )
