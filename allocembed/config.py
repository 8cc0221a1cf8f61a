"""The path from file to vector as a value: every setting that decides which vector a video gets.

The command line, the index, the benchmark cache, model cards and exports all hold an `EmbedConfig`. Its `settings` are
the only definition of "the same settings". `AllocEmbed.identity` adds what only the loaded models know.
"""

import json
import math
import numbers
import types
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, Union, get_args, get_origin, get_type_hints

from allocembed.allocators.registry import check_allocator, is_method, split_looks
from allocembed.backbones.checkpoint import check_backbone
from allocembed.backbones.registry import DEFAULT_BACKBONE, REGISTRY
from allocembed.budget import CANDIDATES, Budget, check_range
from allocembed.errors import ConfigError, did_you_mean
from allocembed.paths import is_folder
from allocembed.video import DecodeLimits, Decoders, Seek, Source, VideoSource, open_video
from allocembed.video.decoders.registry import check_decoder, find_decoders

DType = Literal["auto", "float32", "bfloat16", "float16", "float8", "int8"]
RUN_ONLY = {"run_only": True}
"""Metadata of fields that say where and how to compute. They change a vector by rounding only."""

Config = TypeVar("Config")


@dataclass(frozen=True)
class EmbedConfig:
    """How videos are embedded."""

    backbone: str = DEFAULT_BACKBONE
    """Embedding model: short name, hub id or local folder."""
    inputs: str | None = None
    """Which of the model's own input pipelines to follow, such as transformers-5.10 for Qwen3-VL-Embedding,
    vlm2vec-demo for VLM2Vec or 70-tokens for EmbeddingGemma 2; docs/models.md lists all. Default: the model's first
    one there."""
    allocator: str = "auto"
    """How the budget is spent: base, full, uniform, content, select, sensitivity, learned, the folder or hub id of a
    learned allocator, or auto (learned if one is bundled for the backbone, else uniform). learned+sensitivity and
    FOLDER+sensitivity multiply the two. sensitivity:24-48 looks with 24 and 48 tokens a chunk,
    sensitivity:25%-100% with shares of its native size."""
    budget: str = "8f"
    """Most visual tokens per video: 8f for the cost of 8 native frames, or a number of tokens."""
    candidates: int = CANDIDATES
    """Frames sampled from each video before allocation."""
    scale_range: tuple[float, float] | None = None
    """Smallest and largest scale of a frame. Default: the allocator's own, usually 0.2 1.8."""
    seek: Seek = "exact"
    """exact decodes the very frames; keyframe takes the nearest keyframe if it is close, which is much faster."""
    start: float | None = None
    """Embed the video from this second on."""
    end: float | None = None
    """Embed the video up to this second."""
    rate: float | None = None
    """Frames per second of a folder of images or of frames in memory. Default: the model's own clock, which for
    Qwen3-VL-Embedding is two sampled frames a second. Video files have their own times."""
    dim: int | None = None
    """Keep only the first dimensions of the vector, if the model was trained for it (Matryoshka). Default: all."""
    device: str = field(default="auto", metadata=RUN_ONLY)
    """auto (CUDA if available), cpu, cuda, cuda:1 and so on."""
    dtype: DType = field(default="auto", metadata=RUN_ONLY)
    """auto is bfloat16 on CUDA, and for large models on CPUs that compute in it, else float32. int8 is for CPUs:
    linear layers multiply in eight bits, which is faster. float8 is the same for NVIDIA GPUs from Ada on (compute
    capability 8.9), and meant for large models."""
    compile: bool = field(default=False, metadata=RUN_ONLY)
    """Compile the model's layers first: takes half a minute, saves about a quarter of the time per video on a GPU."""
    decoder: str = field(default="auto", metadata=RUN_ONLY)
    """pyav decodes on the CPU, nvdec on the GPU that holds the model. auto uses both if the model is on an NVIDIA GPU
    and the extra [gpu] works there, else pyav. Packages can add others. With seek=exact, all give the same frames."""
    max_pixels: int = field(default=DecodeLimits.max_pixels, metadata=RUN_ONLY)
    """Most pixels of a frame; a video with larger ones is left out."""
    max_seconds: float = field(default=DecodeLimits.max_seconds, metadata=RUN_ONLY)
    """Most seconds spent on reading one video; one that takes longer is left out."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__
        for name in ("backbone", "allocator"):
            if isinstance(getattr(self, name), Path):
                set_field(self, name, str(getattr(self, name)))
        set_field(self, "budget", str(Budget.parse(self.budget)))
        hints = get_type_hints(type(self))
        for item in fields(self):
            set_field(self, item.name, _typed(item.name, getattr(self, item.name), hints[item.name]))
        set_field(self, "backbone", _absolute(self.backbone, self.backbone.lower() in REGISTRY))
        learned, looks = split_looks(self.allocator)
        where = _absolute(learned, is_method(learned))
        set_field(self, "allocator", f"{where}+{looks}" if looks else where)
        if self.scale_range is not None:
            set_field(self, "scale_range", check_range(self.scale_range))
        for name, known in (("seek", Seek), ("dtype", DType)):
            if getattr(self, name) not in get_args(known):
                raise ConfigError(f"{name} must be {' or '.join(get_args(known))}, not {getattr(self, name)!r}")
        for name in ("candidates", "dim", "max_pixels"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, not {value}")
        for name in ("rate", "start", "end", "max_seconds"):
            value = getattr(self, name)
            if value is not None and not math.isfinite(value):
                raise ConfigError(f"{name} must be a finite number, not {value}")
        if self.rate is not None and not self.rate > 0:
            raise ConfigError(f"rate must be more than 0 frames per second, not {self.rate:g}")
        if not self.max_seconds > 0:
            raise ConfigError(f"max_seconds must be more than 0, not {self.max_seconds:g}")
        if self.start is not None and self.start < 0:
            raise ConfigError(f"start must be 0 or more seconds, not {self.start:g}")
        if self.end is not None and self.end <= (self.start or 0):
            raise ConfigError(f"end must be later than start ({self.start or 0:g} s), not {self.end:g} s")

    @property
    def limits(self) -> DecodeLimits:
        """What reading one video may cost."""
        return DecodeLimits(max_pixels=self.max_pixels, max_seconds=self.max_seconds)

    def open_video(
        self,
        source: Source,
        limits: DecodeLimits | None = None,
        *,
        rounds: bool = False,
        decoders: Decoders | None = None,
    ) -> VideoSource:
        """Open a source as the settings say. Close it, or use it in a `with` block. `rounds` is the model's."""
        part = {"rate": self.rate, "start": self.start, "end": self.end}
        decoders = decoders or find_decoders(self.decoder)
        return open_video(source, limits=limits or self.limits, rounds=rounds, decoders=decoders, **part)

    def check(self) -> None:
        """Raise if the backbone, the allocator or the decoder cannot exist, before anything is loaded."""
        check_backbone(self.backbone, self.inputs)
        check_allocator(self.allocator)
        check_decoder(self.decoder)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}

    def as_json(self) -> str:
        """One line of JSON; `from_json` reads it back.

        >>> config = EmbedConfig(backbone="nano-qwen3", scale_range=(0.3, 1.5))
        >>> EmbedConfig.from_json(config.as_json()) == config
        True
        """
        return json.dumps(self.as_dict())

    @classmethod
    def from_dict(cls, stated: Mapping[str, Any]) -> Self:
        """Read what `as_dict` gives."""
        return make(cls, stated)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `as_json` wrote."""
        stated = json.loads(text)
        if not isinstance(stated, dict):
            raise ConfigError(f"settings are a JSON object, not {text[:40]!r}")
        return cls.from_dict(stated)

    def settings(self) -> dict[str, Any]:
        """The fields that decide which vector a video gets, as plain JSON values. Equal for configs that give the same
        vectors, up to rounding.

        >>> EmbedConfig(device="cpu").settings() == EmbedConfig().settings() != EmbedConfig(budget="4f").settings()
        True
        """
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self) if not item.metadata}

    def run_as(self, other: Self) -> Self:
        """These settings, with the fields of another config that say where and how to compute."""
        names = [item.name for item in fields(self) if item.metadata]
        return replace(self, **{name: getattr(other, name) for name in names})

    def differences(self, other: Self) -> dict[str, tuple[Any, Any]]:
        """The settings in which two configs differ, with both values."""
        mine, theirs = self.settings(), other.settings()
        return {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}


def make(cls: type[Config], stated: Mapping[str, Any]) -> Config:
    """Build a config dataclass from JSON or TOML values, checking names and types.

    >>> make(EmbedConfig, {"candidate": 8})
    Traceback (most recent call last):
    allocembed.errors.ConfigError: unknown option candidate (did you mean candidates?)
    >>> make(EmbedConfig, {"candidates": "eight"})
    Traceback (most recent call last):
    allocembed.errors.ConfigError: candidates must be of type int, not 'eight'
    """
    hints = get_type_hints(cls)
    names = [item.name for item in fields(cls)]  # pyright: ignore[reportArgumentType] (any dataclass)
    for name in stated:
        if name not in names:
            raise ConfigError(f"unknown option {name}{did_you_mean(name, names, cutoff=0.4)}")
    return cls(**{name: _typed(name, value, hints[name]) for name, value in stated.items()})


def _typed(name: str, value: Any, kind: Any) -> Any:
    """A JSON value as the field's type; lists become tuples, whole numbers become floats where wanted."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        if value is None and type(None) in inner:
            return None
        return _typed(name, value, next(each for each in inner if each is not type(None)))
    if origin is tuple and isinstance(value, list | tuple):
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) == len(value):
            return tuple(_typed(name, each, one) for each, one in zip(value, kinds, strict=True))
    if origin is Literal:
        return value  # the class itself says which values are known
    if kind is int and isinstance(value, numbers.Integral) and not isinstance(value, bool):
        return int(value)
    if kind is float and isinstance(value, numbers.Real) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and isinstance(value, kind) and (kind is bool) == isinstance(value, bool):
        return value
    wanted = kind.__name__ if isinstance(kind, type) and origin is None else str(kind)
    raise ConfigError(f"{name} must be of type {wanted}, not {value!r}")


def _absolute(name: str, known: bool) -> str:
    """The absolute path if the name is a local folder and not a known short name."""
    return str(Path(name).resolve()) if name and not known and is_folder(name) else str(name)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
