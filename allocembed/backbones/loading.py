"""Load a backbone by short name, hub id or local folder; merged weights or a PEFT adapter.

transformers' own classes load everything. A checkpoint with missing weights is refused, because a half-loaded model
still returns vectors, only meaningless ones.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from allocembed.backbones import float8, int8
from allocembed.backbones.base import Backbone
from allocembed.backbones.checkpoint import Checkpoint, check_backbone
from allocembed.backbones.devices import FLOAT8, INT8, pick_device, pick_dtype, weight_bytes
from allocembed.backbones.hub import cannot_load
from allocembed.backbones.registry import DEFAULT_BACKBONE
from allocembed.errors import AllocEmbedError, BackboneError, MissingDependency

OWN_CODE: dict[str, Any] = {"trust_remote_code": False}
"""For all of transformers' loaders: no code of a model folder is run, and transformers does not ask on stdin."""


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
    in eight bits, on NVIDIA GPUs from Ada on. The modules of these names say how. `inputs` names one of the model's
    own input pipelines; the default is the first in the registry. `dim` keeps the first dimensions of the vector
    (Matryoshka) and normalises again. `compile` compiles the model's blocks at the first video: half a minute that pays
    off after some hundred videos. It needs a C++ compiler.
    """
    check_backbone(str(name), inputs)
    chosen, found = pick_device(device), Checkpoint.fetch(str(name), inputs)
    transformers_logging.disable_progress_bar()
    with _described(found):
        base, adapter = found.files
        found.check_version(transformers.__version__)
        found.check_dim(dim, AutoConfig.from_pretrained(base, **OWN_CODE).get_text_config().hidden_size)
        model = load_model(base, pick_dtype(dtype, chosen, weight_bytes(base)), found.family.options)
        tokenizer = AutoTokenizer.from_pretrained(base, **OWN_CODE) if found.family.tokenizer else None
        if adapter is not None:
            model = _merge_adapter(model, adapter)
    if dtype == INT8:
        int8.round_linears(model)
    if dtype == FLOAT8:
        float8.round_linears(model, chosen)
    model = model.to(chosen)  # pyright: ignore[reportArgumentType] (transformers' stub of `to`)
    backbone = _build(found, model, tokenizer, dim=dim, compile=compile)
    backbone.load_arguments = {
        "name": str(name),
        "device": device,
        "dtype": dtype,
        "inputs": found.pipeline,
        "dim": dim,
        "compile": compile,
    }
    if found.entry.family is None and backbone.notice is None:
        backbone.notice = assumed(backbone)
    return backbone


def load_skeleton(name: str, *, device: str = "auto", dtype: str = "auto", inputs: str | None = None) -> Backbone:
    """A backbone whose weights have a shape and no content. It writes prompts, for a program that has the weights."""
    check_backbone(name, inputs)
    found = Checkpoint.fetch(name, inputs)
    with _described(found):
        base, _ = found.files
        with torch.device("meta"):
            model = AutoModel.from_config(AutoConfig.from_pretrained(base, **OWN_CODE), **OWN_CODE)
        tokenizer = AutoTokenizer.from_pretrained(base, **OWN_CODE) if found.family.tokenizer else None
    backbone = _build(found, model, tokenizer)
    backbone.load_arguments = {"name": name, "device": device, "dtype": dtype, "inputs": found.pipeline, "dim": None}
    return backbone


@contextmanager
def _described(found: Checkpoint) -> Iterator[None]:
    """Damaged files make libraries raise errors of every kind: say which checkpoint, and what to do."""
    try:
        yield
    except AllocEmbedError:
        raise
    except Exception as error:
        raise BackboneError(cannot_load(found.name, str(found.folder), error)) from error


def _build(
    found: Checkpoint, model: PreTrainedModel, tokenizer: Any, *, dim: int | None = None, compile: bool = False
) -> Backbone:
    assert found.inputs is not None
    about = {"name": found.name, "notice": found.entry.notice, "allocator": found.entry.allocator}
    return found.family.load()(model, tokenizer, found.inputs, dim=dim, compile=compile, **about)


def assumed(backbone: Backbone) -> str:
    """A warning about a model that the registry does not know: how it is read."""
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


def load_model(folder: Path, dtype: torch.dtype, options: Mapping[str, Any] | None = None) -> PreTrainedModel:
    """transformers' own model in a folder, without its head. Missing weights are an error."""
    model, report = AutoModel.from_pretrained(
        folder, dtype=dtype, output_loading_info=True, **OWN_CODE, **(options or {})
    )
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
