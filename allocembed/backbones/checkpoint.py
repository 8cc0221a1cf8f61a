"""From the name of a model to its checkpoint: its files, family and inputs. The one place that knows. No torch.

A name is a short name of the registry, a local folder, or a hub id. A folder may hold a PEFT adapter instead of a whole
model; its config, tokenizer and first weights are then those of the base model that it names.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

from allocembed.backbones.hub import cached_folder, cannot_load, find_folder
from allocembed.backbones.registry import FAMILIES, REGISTRY, BackboneEntry, Family
from allocembed.errors import AllocEmbedError, BackboneError, ConfigError, did_you_mean
from allocembed.inputs import Inputs, choose_inputs
from allocembed.paths import is_folder
from allocembed.plugins import load_place

ADAPTER = "adapter_config.json"  # in the folder of a PEFT adapter


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model by name, as far as it is known without reading its weights."""

    name: str
    entry: BackboneEntry
    """Its entry in the registry."""
    folder: Path | None = None
    """The folder of its files; None if it is not known yet."""
    base: Path | None = None
    """The folder of config, tokenizer and first weights: another one if this one holds an adapter."""
    model_type: str | None = None
    """The family, by transformers' name."""
    pipeline: str | None = None
    """Name of the inputs."""
    inputs: Inputs | None = None

    @classmethod
    def find(cls, name: str, inputs: str | None = None) -> Self:
        """Facts that are known at once: nothing is downloaded, and only local folders are read.

        >>> Checkpoint.find("qwen3-vl-embedding-2b").inputs.geometry.factor, Checkpoint.find("you/unknown").inputs
        (32, None)
        """
        entry = find_entry(name)
        if is_folder(entry.source):
            try:
                return cls._read(name, entry, Path(entry.source), inputs, _local_folder)
            except AllocEmbedError:
                raise
            except Exception:  # wrong types in these files raise errors of every kind
                return cls(name, entry)  # fetching it says what is wrong
        if entry.family is None:
            return cls(name, entry)
        family = FAMILIES[entry.family]
        pipeline = _pipeline(entry, family, inputs)
        chosen = choose_inputs(family.inputs, pipeline, name)
        return cls(name, entry, model_type=entry.family, pipeline=pipeline, inputs=chosen)

    @classmethod
    def fetch(cls, name: str, inputs: str | None = None) -> Self:
        """Find or download the files of a model, and read what they say. Raise BackboneError if they are damaged."""
        entry = find_entry(name)
        folder = find_folder(entry.source, name)
        try:
            return cls._read(name, entry, folder, inputs, partial(find_folder, name=name))
        except AllocEmbedError:
            raise
        except Exception as error:  # damaged files make libraries raise errors of every kind
            raise BackboneError(cannot_load(name, str(folder), error)) from error

    @classmethod
    def _read(
        cls, name: str, entry: BackboneEntry, folder: Path, inputs: str | None, locate: Callable[[str], Path]
    ) -> Self:
        base, adapter = folder, folder / ADAPTER
        if adapter.is_file():
            base = locate(json.loads(adapter.read_text(encoding="utf-8"))["base_model_name_or_path"])
        config = _read_config(base)
        kind = config["model_type"]
        if kind not in FAMILIES:
            raise BackboneError(
                f"{base} is a {kind} model, and AllocEmbed supports {', '.join(FAMILIES)}: use one of "
                f"{', '.join(REGISTRY)}, or a folder or hub id of a supported kind"
            )
        family = FAMILIES[kind]
        pipeline = _pipeline(entry, family, inputs)
        chosen = choose_inputs(family.inputs, pipeline, name)
        return cls(name, entry, folder, base, kind, pipeline, read_inputs(base, config, family, chosen))

    @cached_property
    def family(self) -> Family:
        """The classes that read it."""
        if self.model_type is None:
            raise BackboneError(f"nothing is known of {self.name} before it is downloaded")
        return FAMILIES[self.model_type]

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its config.json."""
        return _read_config(self.base) if self.base else {}

    @property
    def files(self) -> tuple[Path, Path | None]:
        """The folder of a fetched model, and that of the adapter to merge into it, if there is one."""
        assert self.base is not None
        return self.base, None if self.base == self.folder else self.folder

    def check_version(self, installed: str) -> None:
        """Raise BackboneError if the installed version of transformers is too old for it."""
        needed = self.family.transformers
        if needed is not None and _numbers(installed) < _numbers(needed):
            raise BackboneError(
                f"cannot load {self.base}: {self.model_type} models need transformers {needed} or newer, and "
                f"{installed} is installed; pip install 'transformers>={needed},<6'"
            )

    def check_dim(self, dim: int | None, dimensions: int) -> None:
        """Raise BackboneError if its vectors with this number of `dimensions` may not be cut to `dim`."""
        if dim is not None and dim < dimensions and not self.entry.matryoshka:
            raise BackboneError(
                f"{self.name} was not trained for vectors shorter than {dimensions} (Matryoshka): remove dim, or use "
                "qwen3-vl-embedding-2b"
            )
        if dim is not None and self.entry.dims and dim not in self.entry.dims:
            raise BackboneError(
                f"{self.name} was trained for vectors of {_listed(self.entry.dims)}: choose one of these as dim"
            )


def find_entry(name: str) -> BackboneEntry:
    """The registry's entry for a short name or a hub id, or one that only says where the checkpoint is."""
    if name.lower() in REGISTRY:
        return REGISTRY[name.lower()]
    if (absence := REGISTRY.absence(name.lower())) and not is_folder(name):
        raise BackboneError(absence)
    by_source = {entry.source.lower(): entry for entry in _entries()}
    if name.lower() in by_source:
        return by_source[name.lower()]
    # A copy in a folder of the model's own name, or in the hub's cache, is that model.
    folders = {entry.source.rpartition("/")[2].lower(): entry for entry in by_source.values() if not entry.allocator}
    known = next((folders[part] for part in _folder_names(name) if part in folders), None)
    return BackboneEntry(name) if known is None else replace(known, source=name)


def _entries() -> list[BackboneEntry]:
    """All entries but those of packages that cannot be imported: another model does not depend on them."""
    found = []
    for name in REGISTRY:
        try:
            found.append(REGISTRY[name])
        except ConfigError:
            continue
    return found


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
    entry = Checkpoint.find(name, inputs).entry  # raises if this model does not have such inputs
    if Path(entry.source).is_absolute() and not is_folder(entry.source) and name.lower() in REGISTRY:
        raise BackboneError(
            f"{name} is missing from this installation ({entry.source}): install its package again, or pass the folder "
            "of a copy with --backbone"
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

    >>> same_model("vlm2vec-v2-2b", "VLM2Vec/VLM2Vec-V2.0"), same_model("vlm2vec-v2-2b", "siglip2-base-naflex")
    (True, False)
    """
    sources = [find_entry(name).source for name in (one, other)]
    return sources[0] == sources[1] or len({Path(source).resolve() for source in sources}) == 1


def read_inputs(folder: Path, config: dict[str, Any], family: Family, default: Inputs) -> Inputs:
    """The pipeline with the checkpoint's patch size, statistics and pixel limits, unless those are the stock ones."""
    if family.reader is not None:
        return load_place(family.reader)(folder, config, default)
    vision, geometry = config.get("vision_config") or {}, default.geometry
    patch, merge = vision.get("patch_size", geometry.patch), vision.get("spatial_merge_size", geometry.merge)
    for side in (patch, merge):
        if not isinstance(side, int) or side < 1:
            raise ValueError(f"patch_size and spatial_merge_size must be whole numbers above 0, not {side!r}")
    geometry = replace(geometry, patch=patch, merge=merge)
    if geometry.list_multiple:
        geometry = replace(geometry, list_multiple=2 * patch * merge)
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
    statistics = {}
    for name in ("mean", "std"):
        red, green, blue = map(float, stated.get(f"image_{name}", getattr(geometry, name)))
        statistics[name] = (red, green, blue)
    return replace(default, geometry=replace(geometry, **statistics))


def _pipeline(entry: BackboneEntry, family: Family, inputs: str | None) -> str:
    """Name of the input pipeline that is asked for, or of the usual one of this checkpoint."""
    return inputs or entry.inputs or next(iter(family.inputs))


def _local_folder(source: str) -> Path:
    folder = Path(source) if is_folder(source) else cached_folder(source)
    if folder is None:
        raise LookupError(f"{source} is not on this machine")
    return folder


def _read_config(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


def _listed(numbers: Sequence[int]) -> str:
    return f"{', '.join(map(str, numbers[:-1]))} or {numbers[-1]} dimensions"
