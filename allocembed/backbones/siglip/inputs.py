"""The grids of SigLIP 2 NaFlex, without torch.

The model's own processor brings every picture to the largest size of at most 256 patches: smaller ones are enlarged.
Ours is the same grid, with another filter: bicubic instead of bilinear.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allocembed.budget import Grid
from allocembed.geometry import Geometry
from allocembed.inputs import Inputs

if TYPE_CHECKING:
    import torch

LARGEST_ENLARGEMENT = 100.0  # most by which the model's own processor enlarges a picture
EXACT = 1e-5  # how exactly it finds the factor


@dataclass(frozen=True)
class SiglipGeometry(Geometry):
    """Frames of any size fill their limit. A token is a patch. Pixels have their channels together."""

    frames_per_chunk: int = 1

    def native(self, height: int, width: int, *, frames: int = 1, listed: bool = False) -> Grid:
        """The largest grid within the limit whose sides, rounded up to whole patches, keep the aspect.

        >>> SIGLIP.native(720, 1280), SIGLIP.native(36, 64), SIGLIP.native(10, 4000)
        (Grid(rows=12, cols=21), Grid(rows=12, cols=21), Grid(rows=1, cols=256))
        """
        most = self.max_pixels // self.patch**2
        low, high = EXACT / 10, LARGEST_ENLARGEMENT
        while high - low >= EXACT:
            middle = (low + high) / 2
            low, high = (middle, high) if self._scaled(height, width, middle).tokens <= most else (low, middle)
        return self._scaled(height, width, low)

    def _scaled(self, height: int, width: int, scale: float) -> Grid:
        rows, cols = (max(1, math.ceil(side * scale / self.patch)) for side in (height, width))
        return Grid(rows, cols)

    def patchify(self, frames: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Order: frame, row, col; within a patch y, x, channel."""
        count, channels, height, width = frames.shape
        side = self.patch
        blocks = frames.reshape(count, channels, height // side, side, width // side, side).permute(0, 2, 4, 3, 5, 1)
        if out is None:
            out = frames.new_empty((blocks.shape[:3].numel(), blocks.shape[3:].numel()))
        out.view(blocks.shape).copy_(blocks)
        return out


HALF = (0.5, 0.5, 0.5)
PATCHES = 256  # of a native frame
SIGLIP = SiglipGeometry(16, 1, HALF, HALF, min_pixels=16**2, max_pixels=PATCHES * 16**2)
PIPELINES: dict[str, Inputs] = {"frame-mean": Inputs(SIGLIP)}


def read_inputs(folder: Path, config: Mapping[str, Any], default: Inputs) -> Inputs:
    """The pipeline with the patch size, limit and pixel statistics that a checkpoint states."""
    vision = config.get("vision_config") or {}
    path = folder / "preprocessor_config.json"
    stated: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    patch = vision.get("patch_size", default.geometry.patch)
    most = stated.get("max_num_patches") or PATCHES
    for number in (patch, most):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"patch_size and max_num_patches must be whole numbers above 0, not {number!r}")
    means, spreads = stated.get("image_mean", HALF), stated.get("image_std", HALF)
    if len(set(means)) > 1 or len(set(spreads)) > 1:
        raise ValueError(f"the channels must have one mean and one deviation, not {means} and {spreads}")
    geometry = replace(
        default.geometry,
        patch=patch,
        mean=(float(means[0]),) * 3,
        std=(float(spreads[0]),) * 3,
        min_pixels=patch**2,
        max_pixels=most * patch**2,
    )
    return replace(default, geometry=geometry)
