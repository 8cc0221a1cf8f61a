"""The scale-aware operator R(x, s): frames in, mixed-resolution patches out (equations 8 and 9 of the paper).

Every chunk is resized to its own grid (bicubic with antialias, sides aligned to patch × merge) and cut into the
backbone's own patch order. The stock video processors can't do this: they stack frames of one size, and their
pixel floors undo small scales. Patches stay uint8 until they are on the device, a quarter of the bytes to move.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.budget import FRAMES_PER_CHUNK, Allocation, Grid


@dataclass(frozen=True)
class Geometry:
    """How a backbone cuts frames: patch and merge sizes, pixel statistics, and the size it calls native."""

    patch: int
    merge: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    min_pixels: int
    max_pixels: int

    @property
    def factor(self) -> int:
        """Pixels along one side of a merged token."""
        return self.patch * self.merge

    def native(self, height: int, width: int) -> Grid:
        """The grid of a frame at scale 1: its own size, aligned, within the pixel range, aspect kept.

        >>> qwen3 = Geometry(16, 2, (0.5,) * 3, (0.5,) * 3, 4 * 32**2, 768 * 32**2)
        >>> qwen3.native(720, 1280), qwen3.native(2160, 3840), qwen3.native(8, 8)
        (Grid(rows=20, cols=36), Grid(rows=20, cols=36), Grid(rows=2, cols=2))
        """
        rows, cols = (max(1, round(side / self.factor)) for side in (height, width))
        if rows * cols * self.factor**2 > self.max_pixels:
            shrink = math.sqrt(self.max_pixels / (height * width))
            rows, cols = (max(1, math.floor(side * shrink / self.factor)) for side in (height, width))
        elif rows * cols * self.factor**2 < self.min_pixels:
            enlarge = math.sqrt(self.min_pixels / (height * width))
            rows, cols = (math.ceil(side * enlarge / self.factor) for side in (height, width))
        # A strip's short side can't go below one token, so its long side must give way.
        most = max(1, self.max_pixels // self.factor**2)
        return (
            Grid(min(rows, max(1, most // cols)), cols) if rows > cols else Grid(rows, min(cols, max(1, most // rows)))
        )


@dataclass(frozen=True, eq=False)
class Patches:
    """Pixels of all chunks in the backbone's patch order, not yet normalised.

    `pixels` is (N, 3 · 2 · patch²) uint8 with N the patches of all chunks in order, `grids` (C, 3) the rows
    `[1, h, w]` in patches, `seconds` (C,) the mean time of each chunk's two frames.
    """

    pixels: torch.Tensor
    grids: torch.Tensor
    seconds: np.ndarray
    geometry: Geometry

    @property
    def tokens(self) -> list[int]:
        """Merged tokens of each chunk."""
        return (self.grids.prod(-1) // self.geometry.merge**2).tolist()

    def normalised(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The pixels as the vision tower expects them, converted where they are used."""
        return normalise(self.pixels.to(device, non_blocking=True), self.geometry, dtype)


def normalise(pixels: torch.Tensor, geometry: Geometry, dtype: torch.dtype) -> torch.Tensor:
    """(N, 3 · 2 · patch²) uint8 patches to `(x / 255 − mean) / std`, computed in fp32, returned in `dtype`."""
    mean = torch.tensor(geometry.mean, device=pixels.device).view(1, 3, 1)
    std = torch.tensor(geometry.std, device=pixels.device).view(1, 3, 1)
    # Converted first, then in place: one operation over two dtypes leaves the vectorised path.
    scaled = _empty(pixels.shape, torch.float32, pixels.device).copy_(pixels).view(len(pixels), 3, -1)
    return scaled.mul_(1 / (255 * std)).sub_(mean / std).view(len(pixels), -1).to(dtype)


def _empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Uninitialised memory. On the CPU numpy's, which asks for huge pages: touching fresh small ones costs more than
    the arithmetic on them."""
    if torch.device(device).type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(tuple(shape), np.uint8 if dtype == torch.uint8 else np.float32))


def to_patches(frames: np.ndarray, times: np.ndarray, allocation: Allocation, geometry: Geometry) -> Patches:
    """Applies an allocation to the frames (T, H, W, 3) and times (T,) of a clip."""
    video = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)
    ends = np.cumsum([grid.tokens * geometry.merge**2 for grid in allocation.grids])
    pixels = _empty((ends[-1], 3 * FRAMES_PER_CHUNK * geometry.patch**2), torch.uint8)
    start = 0
    for pair, grid, end in zip(allocation.frames, allocation.grids, ends, strict=True):
        height, width = grid.rows * geometry.factor, grid.cols * geometry.factor
        resized = _empty((FRAMES_PER_CHUNK, 3, height, width), torch.uint8)
        for slot, frame in enumerate(pair):
            resized[slot] = resize(video[frame][None], (height, width))[0]
        patchify(resized, geometry, out=pixels[start:end])
        start = end
    grids = torch.tensor([[1, g.rows * geometry.merge, g.cols * geometry.merge] for g in allocation.grids])
    seconds = np.array([(times[first] + times[second]) / 2 for first, second in allocation.frames])
    return Patches(pixels, grids, seconds, geometry)


def resize(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Bicubic with antialias on uint8 (N, 3, H, W); fastest on the CPU when the memory is channels-last."""
    if tuple(frames.shape[-2:]) == tuple(size):
        return frames
    if frames.device.type == "cpu":
        return F.interpolate(frames, size=size, mode="bicubic", antialias=True)
    # CUDA's kernel has no uint8 form and walks the batch in series; the same filter as two matrix products.
    down, across = (_filter(old, new, frames.device) for old, new in zip(frames.shape[-2:], size, strict=True))
    with torch.autocast(frames.device.type, enabled=False):
        return _as_matrices(frames.float(), down, across).to(torch.uint8)


def _as_matrices(frames: torch.Tensor, down: torch.Tensor, across: torch.Tensor) -> torch.Tensor:
    """Across, then down, rounded to grey levels after each, as PIL and torch's CPU kernel do."""
    wide = (frames @ across.T).round_().clamp_(0, 255)
    return (down @ wide).round_().clamp_(0, 255)


@lru_cache(maxsize=1024)
def _filter(old: int, new: int, device: torch.device) -> torch.Tensor:
    """(new, old) weights of the bicubic antialias filter along one side: the filter's answer to an identity."""
    identity = torch.eye(old)[None, None]
    return F.interpolate(identity, size=(new, old), mode="bicubic", antialias=True)[0, 0].to(device)


def patchify(frames: torch.Tensor, geometry: Geometry, out: torch.Tensor | None = None) -> torch.Tensor:
    """(2C, 3, H, W) frames of C chunks to (C · patches, 3 · 2 · patch²), merge blocks kept together.

    The order of the Qwen processors: chunk, block row, block col, row and col in the block; in each patch
    channel, frame, y, x.

    >>> qwen2 = Geometry(14, 2, (0.5,) * 3, (0.5,) * 3, 1, 10**6)
    >>> patchify(torch.zeros(4, 3, 56, 84, dtype=torch.uint8), qwen2).shape
    torch.Size([48, 1176])
    """
    count, channels, height, width = frames.shape
    patch, merge, factor = geometry.patch, geometry.merge, geometry.factor
    shape = (count // FRAMES_PER_CHUNK, FRAMES_PER_CHUNK, channels)
    blocks = frames.reshape(*shape, height // factor, merge, patch, width // factor, merge, patch)
    blocks = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
    if out is None:
        out = frames.new_empty((blocks.shape[:5].numel(), blocks.shape[5:].numel()))
    out.view(blocks.shape).copy_(blocks)
    return out
