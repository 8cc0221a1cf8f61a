"""Backbones by name, and their geometry. Importing this does not import torch.

A registered name says which family reads a checkpoint, where the checkpoint is, and how it cuts frames, so that an
allocation can be computed without loading any weights. A new family adds a line to `FAMILIES` and a package beside
this file; nothing else changes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocembed.errors import BackboneError, did_you_mean
from allocembed.geometry import Geometry

if TYPE_CHECKING:
    from allocembed.backbones.base import Backbone

ASSETS = Path(__file__).parent.parent / "assets"
DEFAULT_BACKBONE = "qwen3-vl-embedding-2b"


@dataclass(frozen=True)
class Family:
    """A kind of model: the class that runs it, as "module:class", and how it cuts frames by default."""

    backbone: str
    geometry: Geometry

    def load(self) -> type[Backbone]:
        """Import the class."""
        module, name = self.backbone.split(":")
        return getattr(import_module(module), name)


CLIP_MEAN, CLIP_STD, HALF = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711), (0.5, 0.5, 0.5)
FAMILIES: dict[str, Family] = {
    # 4 to 1,280 tokens of 28² pixels per frame: VLM2Vec-V2's video setting.
    "qwen2_vl": Family(
        "allocembed.backbones.qwen_vl.qwen2:Qwen2VLBackbone",
        Geometry(14, 2, CLIP_MEAN, CLIP_STD, min_pixels=4 * 28**2, max_pixels=1280 * 28**2),
    ),
    # 4 to 768 tokens of 32² pixels per frame: the upper limit is the model's own for video files (qwen-vl-utils).
    "qwen3_vl": Family(
        "allocembed.backbones.qwen_vl.qwen3:Qwen3VLBackbone",
        Geometry(16, 2, HALF, HALF, min_pixels=4 * 32**2, max_pixels=768 * 32**2),
    ),
}
"""Families by transformers' model type."""


@dataclass(frozen=True)
class BackboneEntry:
    """A short name: where its weights are, its family, a notice for users, and the allocator bundled for it."""

    source: str
    family: str | None = None
    """Model type; None if only the checkpoint tells."""
    notice: str | None = None
    """Logged when a user loads the model."""
    allocator: str | None = None
    """Folder of the bundled allocator."""


def _nano(name: str, family: str) -> BackboneEntry:
    notice = f"{name} knows only its own toy world (allocembed.world); its vectors of real videos mean nothing."
    return BackboneEntry(str(ASSETS / name), family, notice, str(ASSETS / "nano-allocator"))


REGISTRY = {
    "qwen3-vl-embedding-2b": BackboneEntry("Qwen/Qwen3-VL-Embedding-2B", "qwen3_vl"),
    "qwen3-vl-embedding-8b": BackboneEntry("Qwen/Qwen3-VL-Embedding-8B", "qwen3_vl"),
    "vlm2vec-v2-2b": BackboneEntry("VLM2Vec/VLM2Vec-V2.0", "qwen2_vl"),
    "vlm2vec-qwen2vl-7b": BackboneEntry("TIGER-Lab/VLM2Vec-Qwen2VL-7B", "qwen2_vl"),
    "nano-qwen3": _nano("nano-qwen3", "qwen3_vl"),
    "nano-qwen2": _nano("nano-qwen2", "qwen2_vl"),
}


def find_entry(name: str) -> BackboneEntry:
    """The registry's entry, or one that only says where the checkpoint is."""
    return REGISTRY.get(name.lower(), BackboneEntry(name))


def check_backbone(name: str) -> None:
    """Raise BackboneError for a name that cannot be a model's, before anything is loaded or downloaded."""
    entry = find_entry(name)
    if Path(entry.source).is_relative_to(ASSETS) and not Path(entry.source).is_dir():
        raise BackboneError(
            f"{name} is missing from this installation ({entry.source}): reinstall allocembed, or make the model with "
            "recipes/nano_backbone.py and pass its folder with --backbone"
        )
    if name.lower() in REGISTRY or (name and Path(name).is_dir()):
        return
    organisation, slash, repository = name.partition("/")
    if organisation and slash and repository and "/" not in repository:
        return  # a hub id
    missing = f"there is no folder {name}" if "/" in name else f"unknown backbone {name!r}"
    hint = did_you_mean(name.lower(), REGISTRY)
    raise BackboneError(f"{missing}{hint}: use one of {', '.join(REGISTRY)}, a local folder, or a hub id (owner/name)")


def same_model(one: str, other: str) -> bool:
    """Whether two names mean one model: equal sources, or names of one folder.

    >>> same_model("nano-qwen3", str(ASSETS / "nano-qwen3")), same_model("nano-qwen3", "nano-qwen2")
    (True, False)
    """
    sources = [find_entry(name).source for name in (one, other)]
    return sources[0] == sources[1] or len({Path(source).resolve() for source in sources}) == 1


def known_geometry(name: str) -> Geometry | None:
    """The geometry of a backbone as far as it is known without weights; None if the checkpoint must be downloaded.

    >>> known_geometry("qwen3-vl-embedding-2b").factor, known_geometry("you/unknown")
    (32, None)
    """
    entry = find_entry(name)
    folder = Path(entry.source)
    if folder.is_dir():
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            return read_geometry(folder, config, FAMILIES[config["model_type"]].geometry)
        except (OSError, ValueError, LookupError, TypeError):
            return None  # loading it says what is wrong
    return FAMILIES[entry.family].geometry if entry.family else None


def read_geometry(folder: Path, config: dict[str, Any], default: Geometry) -> Geometry:
    """The family's geometry with the checkpoint's patch size, statistics and (only tighter) pixel limits."""
    vision = config.get("vision_config") or {}
    geometry = replace(
        default, patch=vision.get("patch_size", default.patch), merge=vision.get("spatial_merge_size", default.merge)
    )
    path = folder / "preprocessor_config.json"
    if not path.is_file():
        return geometry
    stated = json.loads(path.read_text(encoding="utf-8"))
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
