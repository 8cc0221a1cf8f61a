"""How a backbone cuts frames into tokens. Plain numbers: nothing here needs torch or a loaded model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allocembed.budget import Grid

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Geometry:
    """Patch and merge sizes, frames per chunk, pixel statistics, and the size that counts as native.

    The patch order is that of the Qwen processors. A family with another order, or another idea of native size,
    subclasses this.
    """

    patch: int
    """Pixels along one side of a patch."""
    merge: int
    """Patches along one side of a token."""
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    min_pixels: int
    """Fewest pixels of a native frame."""
    max_pixels: int
    """Most pixels of a native frame."""
    frames_per_chunk: int = 2
    """Frames that share one grid: the temporal patch of the vision tower."""
    file_tokens: int | None = None
    """Most tokens of all native chunks of a video file together."""
    list_tokens: int | None = None
    """Most tokens of all native chunks of a list of frames together."""
    list_multiple: int | None = None
    """Frames of a list are first brought to sides that are a multiple of this number of pixels."""
    square: int | None = None
    """Every frame is first brought to a square of this side, whatever its aspect."""

    @property
    def factor(self) -> int:
        """Pixels along one side of a token."""
        return self.patch * self.merge

    @property
    def patches_per_token(self) -> int:
        return self.merge**2

    @property
    def patch_values(self) -> int:
        """Values of one patch: channels × frames × pixels."""
        return 3 * self.frames_per_chunk * self.patch**2

    def canvas(self, height: int, width: int, *, listed: bool = False) -> tuple[int, int]:
        """Height and width to which the model's own pipeline brings a frame before it applies the pixel limits.

        >>> v1 = Geometry(14, 2, (0.5,) * 3, (0.5,) * 3, 4 * 28**2, 1280 * 28**2, square=1344)
        >>> v1.canvas(720, 1280)
        (1344, 1344)
        """
        if self.square:
            return self.square, self.square
        if listed and self.list_multiple:
            high, wide = (max(1, round(side / self.list_multiple)) for side in (height, width))
            return high * self.list_multiple, wide * self.list_multiple
        return height, width

    def native(self, height: int, width: int, *, frames: int = 1, listed: bool = False) -> Grid:
        """Grid of a frame at scale 1: its own size, aligned, within the pixel limits, aspect kept.

        `frames` are embedded together, and `listed` says that they are a list of frames instead of a video file:
        some models have a limit for the whole video.

        >>> qwen3 = Geometry(16, 2, (0.5,) * 3, (0.5,) * 3, 128 * 32**2, 768 * 32**2, list_tokens=7680)
        >>> qwen3.native(720, 1280), qwen3.native(2160, 3840), qwen3.native(8, 8)
        (Grid(rows=20, cols=36), Grid(rows=20, cols=36), Grid(rows=12, cols=12))
        >>> qwen3.native(720, 1280, frames=24, listed=True)
        Grid(rows=18, cols=33)
        """
        height, width = self.canvas(height, width, listed=listed)
        highest = self._most_pixels(frames, listed)
        rows, cols = (max(1, round(side / self.factor)) for side in (height, width))
        if rows * cols * self.factor**2 > highest:
            shrink = math.sqrt(highest / (height * width))
            rows, cols = (max(1, math.floor(side * shrink / self.factor)) for side in (height, width))
        elif rows * cols * self.factor**2 < self.min_pixels:
            enlarge = math.sqrt(self.min_pixels / (height * width))
            rows, cols = (math.ceil(side * enlarge / self.factor) for side in (height, width))
        # The short side of a strip cannot go below one token, so its long side must give way.
        most = max(1, int(highest) // self.factor**2)
        if rows > cols:
            return Grid(min(rows, max(1, most // cols)), cols)
        return Grid(rows, min(cols, max(1, most // rows)))

    def _most_pixels(self, frames: int, listed: bool) -> float:
        """Most pixels of a native frame among `frames`. A limit for the whole video never goes below the floor."""
        total = self.list_tokens if listed else self.file_tokens
        if total is None:
            return self.max_pixels
        chunks = -(-frames // self.frames_per_chunk)
        return max(min(self.max_pixels, total * self.factor**2 / chunks), int(self.min_pixels * 1.05))

    def patchify(self, frames: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Cut resized frames (C · frames_per_chunk, 3, H, W) of C chunks into patches (patches, patch_values).

        Order: chunk, token row, token col, row and col within the token; within a patch channel, frame, y, x.

        >>> import torch
        >>> qwen2 = Geometry(14, 2, (0.5,) * 3, (0.5,) * 3, 1, 10**6)
        >>> qwen2.patchify(torch.zeros(4, 3, 56, 84, dtype=torch.uint8)).shape
        torch.Size([48, 1176])
        """
        count, channels, height, width = frames.shape
        patch, merge, factor, together = self.patch, self.merge, self.factor, self.frames_per_chunk
        shape = (count // together, together, channels)
        blocks = frames.reshape(*shape, height // factor, merge, patch, width // factor, merge, patch)
        blocks = blocks.permute(0, 3, 6, 4, 7, 2, 1, 5, 8)
        if out is None:
            out = frames.new_empty((blocks.shape[:5].numel(), blocks.shape[5:].numel()))
        out.view(blocks.shape).copy_(blocks)
        return out


@dataclass(frozen=True)
class WholeTokenGeometry(Geometry):
    """Every frame is first brought to the nearest whole number of tokens, and only then within the pixel limits."""

    def canvas(self, height: int, width: int, *, listed: bool = False) -> tuple[int, int]:
        """
        >>> WholeTokenGeometry(14, 2, (0.5,) * 3, (0.5,) * 3, 256 * 28**2, 1280 * 28**2).native(240, 320)
        Grid(rows=15, cols=18)
        """
        rows, cols = (max(1, round(side / self.factor)) for side in (height, width))
        return rows * self.factor, cols * self.factor
