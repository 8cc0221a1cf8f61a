"""What is known of CLIP without loading a model: how it cuts frames, and where its class is. No torch."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allocembed.backbones.registry import BackboneEntry, Family
from allocembed.budget import Grid
from allocembed.geometry import Geometry
from allocembed.inputs import Inputs

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True)
class ClipGeometry(Geometry):
    """Frames fill the area of the checkpoint's square. The model's own code crops them to it; here they keep their
    aspect. A token is a patch."""

    frames_per_chunk: int = 1

    def native(self, height: int, width: int, *, frames: int = 1, listed: bool = False) -> Grid:
        """The grid of the frame's aspect with as many patches as the square, or a few less.

        >>> CLIP.native(480, 480), CLIP.native(720, 1280), CLIP.native(10, 4000)
        (Grid(rows=7, cols=7), Grid(rows=5, cols=9), Grid(rows=1, cols=49))
        """
        most = self.max_pixels // self.patch**2
        rows = min(most, max(1, round(math.sqrt(most * height / width))))
        return Grid(rows, min(most // rows, max(1, round(math.sqrt(most * width / height)))))


def read_inputs(folder: Path, config: Mapping[str, Any], default: Inputs) -> Inputs:
    """The sizes and pixel statistics that a checkpoint states."""
    vision, text = config.get("vision_config") or {}, config.get("text_config") or {}
    patch, side = vision.get("patch_size", 32), vision.get("image_size", 224)
    path = folder / "preprocessor_config.json"
    stated = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    mean, std = tuple(stated.get("image_mean", MEAN)), tuple(stated.get("image_std", STD))
    geometry = replace(
        default.geometry, patch=patch, mean=mean, std=std, min_pixels=patch**2, max_pixels=(side // patch * patch) ** 2
    )
    return replace(default, geometry=geometry, longest=text.get("max_position_embeddings", 77))


CLIP = ClipGeometry(32, 1, MEAN, STD, min_pixels=32**2, max_pixels=224**2)
FAMILY = Family(
    "allocembed_plugin.clip_backbone:ClipBackbone",
    {"frame-mean": Inputs(CLIP, longest=77)},
    reader="allocembed_plugin.clip:read_inputs",
)
BASE = BackboneEntry("openai/clip-vit-base-patch16", "clip", matryoshka=False)
