"""The scale-aware operator R(x, s): frames in, mixed-resolution patches out (equations 8 and 9 of the paper).

Every chunk is resized to its own grid (bicubic with antialias, sides aligned to patch × merge) and cut into the
backbone's own patch order. The stock video processors can't do this: they stack frames of one size, and their
pixel floors undo small scales. Patches stay uint8 until they are on the device, a quarter of the bytes to move; frames
that are on a GPU already are resized and cut there.
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

VALUES_AT_ONCE = 2**27  # pixel values of the source that a GPU resizes at a time, as float32 half a gigabyte


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
        return normalise(send(self.pixels, torch.device(device)), self.geometry, dtype)


def normalise(pixels: torch.Tensor, geometry: Geometry, dtype: torch.dtype) -> torch.Tensor:
    """(N, 3 · 2 · patch²) uint8 patches to `(x / 255 − mean) / std`, computed in fp32, returned in `dtype`."""
    factor, offset = _statistics(geometry.mean, geometry.std, pixels.device)
    # Converted first, then in place: one operation over two dtypes leaves the vectorised path.
    scaled = _empty(pixels.shape, torch.float32, pixels.device).copy_(pixels).view(len(pixels), 3, -1)
    return scaled.mul_(factor).sub_(offset).view(len(pixels), -1).to(dtype)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _statistics(mean: tuple, std: tuple, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """What pixels are multiplied by and what is then taken off, (1, 3, 1) each; kept, so that a GPU never waits."""
    means, spreads = (torch.tensor(values).view(1, 3, 1) for values in (mean, std))
    return (1 / (255 * spreads)).to(device), (means / spreads).to(device)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """A tensor on a device, without waiting for that: a GPU fetches it from pinned memory when its turn comes."""
    if device.type != "cuda" or tensor.is_cuda or not tensor.numel():
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.contiguous().pin_memory()).to(device, non_blocking=True)


def _empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Uninitialised memory. On the CPU numpy's, which asks for huge pages: touching fresh small ones costs more than
    the arithmetic on them."""
    if torch.device(device).type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(tuple(shape), np.uint8 if dtype == torch.uint8 else np.float32))


def to_patches(
    frames: np.ndarray | torch.Tensor,
    times: np.ndarray,
    allocation: Allocation,
    geometry: Geometry,
    device: torch.device | str | None = None,
) -> Patches:
    """Applies an allocation to the frames (T, H, W, 3), uint8, and times (T,) of a clip.

    The patches are made on `device`, by default where the frames are; an array is on the CPU.
    """
    video = torch.from_numpy(np.ascontiguousarray(frames)) if isinstance(frames, np.ndarray) else frames
    video = send(video, video.device if device is None else torch.device(device)).permute(0, 3, 1, 2)
    ends = np.cumsum([grid.tokens * geometry.merge**2 for grid in allocation.grids])
    pixels = _empty((ends[-1], 3 * FRAMES_PER_CHUNK * geometry.patch**2), torch.uint8, video.device)
    cut = _cut_alone if video.device.type == "cpu" else _cut_together
    cut(video, allocation, geometry, [pixels[start:end] for start, end in zip([0, *ends], ends, strict=False)])
    grids = torch.tensor([[1, g.rows * geometry.merge, g.cols * geometry.merge] for g in allocation.grids])
    seconds = np.array([(times[first] + times[second]) / 2 for first, second in allocation.frames])
    return Patches(pixels, grids, seconds, geometry)


def _cut_alone(video: torch.Tensor, allocation: Allocation, geometry: Geometry, out: list[torch.Tensor]) -> None:
    """Frame by frame, which is fastest where the filter is sparse and the cache small: on a CPU."""
    for pair, grid, patches in zip(allocation.frames, allocation.grids, out, strict=True):
        height, width = grid.rows * geometry.factor, grid.cols * geometry.factor
        resized = _empty((FRAMES_PER_CHUNK, 3, height, width), torch.uint8)
        for slot, frame in enumerate(pair):
            resized[slot] = resize(video[frame][None], (height, width))[0]
        patchify(resized, geometry, out=patches)


def _cut_together(video: torch.Tensor, allocation: Allocation, geometry: Geometry, out: list[torch.Tensor]) -> None:
    """All chunks of one size in one go, in portions that fit into memory."""
    alike: dict[Grid, list[int]] = {}
    for chunk, grid in enumerate(allocation.grids):
        alike.setdefault(grid, []).append(chunk)
    at_once = max(1, VALUES_AT_ONCE // (FRAMES_PER_CHUNK * video[0].numel()))
    for grid, chunks in alike.items():
        size = (grid.rows * geometry.factor, grid.cols * geometry.factor)
        for start in range(0, len(chunks), at_once):
            portion = chunks[start : start + at_once]
            # Stacked from views: an index would have to be moved to the device first.
            frames = torch.stack([video[frame] for chunk in portion for frame in allocation.frames[chunk]])
            resized = resize(frames, size)
            for chunk, pair in zip(portion, resized.split(FRAMES_PER_CHUNK), strict=True):
                patchify(pair, geometry, out=out[chunk])


def resize(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Bicubic with antialias on uint8 (N, 3, H, W); fastest on the CPU when the memory is channels-last."""
    if tuple(frames.shape[-2:]) == tuple(size):
        return frames
    if frames.device.type == "cpu":
        return F.interpolate(frames, size=size, mode="bicubic", antialias=True)
    # CUDA's kernel has no uint8 form and walks the batch in series; the same filter as two matrix products.
    down, across = (_filter(old, new, frames.device) for old, new in zip(frames.shape[-2:], size, strict=True))
    with torch.autocast(frames.device.type, enabled=False):
        planes = frames.to(torch.float32, memory_format=torch.contiguous_format)
        return _as_matrices(planes, down, across).to(torch.uint8)


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
