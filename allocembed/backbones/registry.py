"""Backbones by name, and their geometry. Importing this does not import torch.

A registered name says which family reads a checkpoint, where the checkpoint is, and how it cuts frames, so that an
allocation can be computed without loading any weights. A new family adds a line to `FAMILIES` and a package beside
this file; nothing else changes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocembed.backbones.gemma.inputs import PIPELINES as GEMMA_PIPELINES
from allocembed.backbones.siglip.inputs import PIPELINES as SIGLIP_PIPELINES
from allocembed.errors import BackboneError, did_you_mean
from allocembed.geometry import Geometry, WholeTokenGeometry
from allocembed.inputs import Inputs, choose_inputs
from allocembed.paths import is_folder

if TYPE_CHECKING:
    from allocembed.backbones.base import Backbone
    from allocembed.backbones.text_half import TextHalf

ASSETS = Path(__file__).parent.parent / "assets"
ADAPTER = "adapter_config.json"  # in the folder of a PEFT adapter
DEFAULT_BACKBONE = "qwen3-vl-embedding-2b"


@dataclass(frozen=True)
class Family:
    """A kind of model: the class that runs it, as "module:class", and its input pipelines, the default first.

    `stock` are the pixel limits, (lowest, highest), that published checkpoints of the family state for images, but that
    their own video pipelines do not use. Any other limits in a checkpoint are its own.
    """

    backbone: str
    inputs: Mapping[str, Inputs]
    stock: tuple[int, int] | None = None
    text_half: str | None = None
    """Class that embeds sentences without the rest of the model, as "module:class"; see `text_half`."""
    reader: str | None = None
    """Function that reads the inputs a checkpoint states, as "module:function", if `read_inputs` cannot."""
    transformers: str | None = None
    """First version of transformers that has the model, if it is newer than the oldest supported one."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further arguments of transformers' `from_pretrained`."""

    @property
    def geometry(self) -> Geometry:
        """How the default pipeline cuts frames."""
        return next(iter(self.inputs.values())).geometry

    def load(self) -> type[Backbone]:
        """Import the class."""
        return _import(self.backbone)

    def load_text_half(self) -> Callable[..., TextHalf]:
        """Import the class that embeds sentences."""
        return _import(self.text_half or "")


CLIP_MEAN, CLIP_STD, HALF = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), (0.5, 0.5, 0.5)
# 4 to 1,280 tokens of 28² pixels per frame: VLM2Vec-V2's evaluation.
VLM2VEC = Geometry(14, 2, CLIP_MEAN, CLIP_STD, min_pixels=4 * 28**2, max_pixels=1280 * 28**2)
# VLM2Vec-V1's evaluation brings every frame to a square of 1344 pixels first, then under the limit: 35 × 35 tokens.
VLM2VEC_V1 = replace(VLM2VEC, square=1344)
# The demos of both generations read files with qwen-vl-utils, at most 360 × 420 pixels.
DEMO = Inputs(
    replace(VLM2VEC, min_pixels=128 * 28**2, max_pixels=360 * 420),
    rounds=True,
    picture_pixels=(4 * 28**2, 1280 * 28**2),
)
# GME's and Ops-MM-embedding's own code: 256 to 1,280 tokens. GME resizes twice, and cuts prompts at 1,800 tokens.
OPS_MM = Inputs(replace(VLM2VEC, min_pixels=256 * 28**2), layout="ops-mm")
GME = Inputs(
    WholeTokenGeometry(14, 2, CLIP_MEAN, CLIP_STD, 256 * 28**2, VLM2VEC.max_pixels), layout="gme", longest=1_800
)
# Qwen2.5-VL's stock video processor, with 2 frames a second, and the limits of pictures that its checkpoints state.
QWEN25 = Inputs(
    replace(VLM2VEC, min_pixels=128 * 28**2, max_pixels=768 * 28**2),
    layout="qwen2-chat",
    rounds=True,
    list_rate=2.0,
    picture_pixels=(4 * 28**2, 16384 * 28**2),
)
# 128 to 768 tokens of 32² pixels per frame, from qwen-vl-utils. The limit of lists is that of the model's own code.
QWEN3 = Inputs(
    Geometry(
        16,
        2,
        HALF,
        HALF,
        min_pixels=128 * 32**2,
        max_pixels=768 * 32**2,
        file_tokens=115_200,
        list_tokens=7_680,
        list_multiple=64,
    ),
    layout="transformers-4.57",
    rounds=True,
    list_rate=2.0,
    longest=8_192,
    picture_pixels=(4 * 32**2, 1800 * 32**2),
)
# Qwen3-VL and Qwen3.5 without an embedder's own code: the limits of qwen-vl-utils, and the stated ones for pictures.
QWEN3_STOCK = Inputs(
    replace(QWEN3.geometry, list_tokens=115_200, list_multiple=None),
    layout="qwen3-chat",
    rounds=True,
    list_rate=2.0,
    picture_pixels=(64 * 32**2, 16384 * 32**2),
)
FAMILIES: dict[str, Family] = {
    "qwen2_vl": Family(
        "allocembed.backbones.qwen_vl.qwen2:Qwen2VLBackbone",
        {
            "vlm2vec-v2": Inputs(VLM2VEC),
            "vlm2vec-v1": Inputs(VLM2VEC_V1),
            "vlm2vec-demo": DEMO,
            "gme": GME,
            "ops-mm": OPS_MM,
        },
        stock=(3136, 12_845_056),
        text_half="allocembed.backbones.qwen_vl.text_half:QwenTextHalf",
    ),
    "qwen2_5_vl": Family(
        "allocembed.backbones.qwen_vl.qwen2:Qwen25VLBackbone",
        {"transformers-4.57": QWEN25, "transformers-5": replace(QWEN25, layout="qwen2-chat-5")},
        stock=(3136, 12_845_056),
        text_half="allocembed.backbones.qwen_vl.text_half:QwenTextHalf",
    ),
    "qwen3_vl": Family(
        "allocembed.backbones.qwen_vl.qwen3:Qwen3VLBackbone",
        {"transformers-4.57": QWEN3, "transformers-5.10": replace(QWEN3, layout="transformers-5.10")},
        stock=(65_536, 16_777_216),
        text_half="allocembed.backbones.qwen_vl.text_half:QwenTextHalf",
    ),
    "qwen3_vl_moe": Family(
        "allocembed.backbones.qwen_vl.qwen3:Qwen3VLMoeBackbone",
        {"transformers-5.10": QWEN3_STOCK},
        stock=(65_536, 16_777_216),
    ),
    "qwen3_5": Family(
        "allocembed.backbones.qwen_vl.qwen3:Qwen35Backbone",
        {"transformers-5.10": QWEN3_STOCK},
        stock=(65_536, 16_777_216),
    ),
    "embedding_gemma2": Family(
        "allocembed.backbones.gemma.backbone:GemmaBackbone",
        GEMMA_PIPELINES,
        text_half="allocembed.backbones.gemma.text_half:GemmaTextHalf",
        reader="allocembed.backbones.gemma.inputs:read_inputs",
        transformers="5.19",
        options={"audio_config": None},  # the audio tower is not loaded
    ),
    "siglip2": Family(
        "allocembed.backbones.siglip.backbone:SiglipBackbone",
        SIGLIP_PIPELINES,
        reader="allocembed.backbones.siglip.inputs:read_inputs",
    ),
}
"""Families by transformers' model type."""


@dataclass(frozen=True)
class BackboneEntry:
    """A short name: where its weights are, and what is known of the model."""

    source: str
    family: str | None = None
    """Model type; None if only the checkpoint tells."""
    notice: str | None = None
    """Logged when a user loads the model."""
    allocator: str | None = None
    """Folder of the bundled allocator."""
    inputs: str | None = None
    """Name of the input pipeline, if it is not the family's first."""
    matryoshka: bool = True
    """Whether the first dimensions of a vector may be used alone. False only if it is known that they may not."""
    dims: tuple[int, ...] = ()
    """The lengths of vectors that the model was trained for, if only some are."""


def _nano(name: str, family: str) -> BackboneEntry:
    # They never saw a picture in training, but find more by one in the family's image layout than as a still video.
    notice = f"{name} knows only its own toy world (allocembed.world); its vectors of real videos mean nothing."
    return BackboneEntry(str(ASSETS / name), family, notice, str(ASSETS / "nano-allocator"))


REGISTRY = {
    "qwen3-vl-embedding-2b": BackboneEntry("Qwen/Qwen3-VL-Embedding-2B", "qwen3_vl"),
    "qwen3-vl-embedding-8b": BackboneEntry("Qwen/Qwen3-VL-Embedding-8B", "qwen3_vl"),
    "vlm2vec-v2-2b": BackboneEntry("VLM2Vec/VLM2Vec-V2.0", "qwen2_vl", matryoshka=False),
    "vlm2vec-qwen2vl-7b": BackboneEntry(
        "TIGER-Lab/VLM2Vec-Qwen2VL-7B", "qwen2_vl", inputs="vlm2vec-v1", matryoshka=False
    ),
    "gme-qwen2-vl-2b": BackboneEntry("Alibaba-NLP/gme-Qwen2-VL-2B-Instruct", "qwen2_vl", inputs="gme"),
    "gme-qwen2-vl-7b": BackboneEntry("Alibaba-NLP/gme-Qwen2-VL-7B-Instruct", "qwen2_vl", inputs="gme"),
    # UniME-V2 is evaluated with VLM2Vec-V1's code: its prompts, and its squares of 1344 pixels.
    "unime-v2-2b": BackboneEntry("TianchengGu/UniME-V2-Qwen2VL-2B", "qwen2_vl", inputs="vlm2vec-v1"),
    "unime-v2-7b": BackboneEntry("TianchengGu/UniME-V2-Qwen2VL-7B", "qwen2_vl", inputs="vlm2vec-v1"),
    "ops-mm-embedding-v1-2b": BackboneEntry("OpenSearch-AI/Ops-MM-embedding-v1-2B", "qwen2_vl", inputs="ops-mm"),
    "ops-mm-embedding-v1-7b": BackboneEntry("OpenSearch-AI/Ops-MM-embedding-v1-7B", "qwen2_vl", inputs="ops-mm"),
    "embeddinggemma-2": BackboneEntry("google/embeddinggemma-2", "embedding_gemma2", dims=(768, 512, 256, 128)),
    "siglip2-base-naflex": BackboneEntry("google/siglip2-base-patch16-naflex", "siglip2", matryoshka=False),
    "nano-qwen3": _nano("nano-qwen3", "qwen3_vl"),
    "nano-qwen2": _nano("nano-qwen2", "qwen2_vl"),
    "nano-gemma": _nano("nano-gemma", "embedding_gemma2"),
}


def _import(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)


def find_entry(name: str) -> BackboneEntry:
    """The registry's entry for a short name or a hub id, or one that only says where the checkpoint is."""
    if name.lower() in REGISTRY:
        return REGISTRY[name.lower()]
    by_source = {entry.source.lower(): entry for entry in REGISTRY.values()}
    if name.lower() in by_source:
        return by_source[name.lower()]
    # A copy in a folder of the model's own name, or in the hub's cache, is that model.
    folders = {entry.source.rpartition("/")[2].lower(): entry for entry in by_source.values() if not entry.allocator}
    known = next((folders[part] for part in _folder_names(name) if part in folders), None)
    return BackboneEntry(name) if known is None else replace(known, source=name)


def _folder_names(name: str) -> list[str]:
    """Names that the folder of a checkpoint may have from its hub id.

    >>> _folder_names("/models/VLM2Vec-V2.0"), _folder_names("/hub/models--VLM2Vec--VLM2Vec-V2.0/snapshots/0123")
    (['vlm2vec-v2.0'], ['0123', 'vlm2vec-v2.0'])
    """
    parts = Path(name).parts
    cached = [part.rpartition("--")[2].lower() for part in parts if part.startswith("models--")]
    return [*(part.lower() for part in parts[-1:]), *cached]


def check_backbone(name: str, inputs: str | None = None) -> None:
    """Raise BackboneError for a name or inputs that cannot be a model's, before anything is loaded or downloaded."""
    entry = find_entry(name)
    known_inputs(name, inputs)  # raises if this model does not have them
    if Path(entry.source).is_relative_to(ASSETS) and not Path(entry.source).is_dir():
        raise BackboneError(
            f"{name} is missing from this installation ({entry.source}): reinstall allocembed, or make the model with "
            "recipes/nano_backbone.py and pass its folder with --backbone"
        )
    if name.lower() in REGISTRY or (name and is_folder(name)):
        return
    organisation, slash, repository = name.partition("/")
    if organisation and slash and repository and "/" not in repository:
        return  # a hub id
    missing = f"there is no folder {name}" if "/" in name else f"unknown backbone {name!r}"
    hint = did_you_mean(name.lower(), REGISTRY)
    raise BackboneError(f"{missing}{hint}: use one of {', '.join(REGISTRY)}, a local folder, or a hub id (owner/name)")


def split_inputs(name: str) -> tuple[str, str | None]:
    """A backbone and the input pipeline that stands behind it, if any, as benchmarks take them: NAME:INPUTS.

    >>> split_inputs("vlm2vec-qwen2vl-7b:vlm2vec-v2"), split_inputs("you/unknown"), split_inputs("C:/models/mine")
    (('vlm2vec-qwen2vl-7b', 'vlm2vec-v2'), ('you/unknown', None), ('C:/models/mine', None))
    """
    model, colon, inputs = name.rpartition(":")
    if not colon or set(inputs) & set("/\\") or is_folder(name):
        return name, None
    return model, inputs


def same_model(one: str, other: str) -> bool:
    """Whether two names mean one model: equal sources, or names of one folder.

    >>> same_model("nano-qwen3", str(ASSETS / "nano-qwen3")), same_model("nano-qwen3", "nano-qwen2")
    (True, False)
    """
    sources = [find_entry(name).source for name in (one, other)]
    return sources[0] == sources[1] or len({Path(source).resolve() for source in sources}) == 1


def known_inputs(name: str, pipeline: str | None = None) -> Inputs | None:
    """The inputs of a backbone as far as they are known without weights; None if the checkpoint must be downloaded.

    >>> known_inputs("qwen3-vl-embedding-2b").geometry.factor, known_inputs("you/unknown")
    (32, None)
    """
    entry = find_entry(name)
    folder = Path(entry.source)
    if is_folder(folder):
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            family = FAMILIES[config["model_type"]]
            return read_inputs(folder, config, family, choose_inputs(family.inputs, pipeline or entry.inputs, name))
        except BackboneError:
            raise
        except Exception:  # wrong types in these files raise errors of every kind
            return None  # loading it says what is wrong
    if entry.family is None:
        return None
    return choose_inputs(FAMILIES[entry.family].inputs, pipeline or entry.inputs, name)


def default_inputs(name: str, family: str) -> str:
    """The name of the inputs that a model has without further words.

    >>> default_inputs("vlm2vec-qwen2vl-7b", "qwen2_vl"), default_inputs("you/unknown", "qwen3_vl")
    ('vlm2vec-v1', 'transformers-4.57')
    """
    return find_entry(name).inputs or next(iter(FAMILIES[family].inputs))


def read_inputs(folder: Path, config: dict[str, Any], family: Family, default: Inputs) -> Inputs:
    """The pipeline with the checkpoint's patch size, statistics and pixel limits, unless those are the stock ones."""
    if family.reader is not None:
        return _import(family.reader)(folder, config, default)
    vision, geometry = config.get("vision_config") or {}, default.geometry
    patch, merge = vision.get("patch_size", geometry.patch), vision.get("spatial_merge_size", geometry.merge)
    for side in (patch, merge):
        if not isinstance(side, int) or side < 1:
            raise ValueError(f"patch_size and spatial_merge_size must be whole numbers above 0, not {side!r}")
    geometry = replace(geometry, patch=patch, merge=merge)
    if geometry.list_multiple:
        geometry = replace(geometry, list_multiple=2 * geometry.factor)
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return replace(default, geometry=geometry)
    stated = json.loads(path.read_text(encoding="utf-8"))
    size = stated.get("size") or {}
    lowest = stated.get("min_pixels") or size.get("shortest_edge")
    highest = stated.get("max_pixels") or size.get("longest_edge")
    if (lowest, highest) not in (family.stock, (None, None)):
        lowest, highest = lowest or geometry.min_pixels, highest or geometry.max_pixels
        geometry = replace(geometry, min_pixels=min(lowest, highest), max_pixels=highest, square=None)
        default = replace(default, picture_pixels=None)
    mean, std = (_triple(stated.get(f"image_{name}", getattr(geometry, name))) for name in ("mean", "std"))
    return replace(default, geometry=replace(geometry, mean=mean, std=std))


def _triple(values: Sequence[float]) -> tuple[float, float, float]:
    red, green, blue = (float(value) for value in values)
    return red, green, blue
