"""Content-Aware Allocation and the frame score it shares with Content-Aware Selection.

The score is a heuristic over small grey previews, without learning and without text. It has four parts in [0, 1]:

- **sharpness**: mean absolute Laplacian; low for blurred transitions;
- **change**: distance to the nearer neighbour in time; low for repeated shots;
- **text-likeness**: share of small tiles with strong steps along a row and a bimodal histogram, as writing has;
- **liveliness**: spread of grey levels; it multiplies the rest, so a black frame scores almost nothing.

Sharpness, change and text-likeness are divided by the video's own maximum, then averaged. Tokens are proportional to
the score, so scales are proportional to its square root.
"""

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.budget import chunk_frames
from allocembed.video.clip import Clip

PREVIEW_SIDE = 128  # pixels of the longer side of a preview
TILE = 8  # side of the tiles in which writing is detected
LEAST_SCORE = 0.1  # smallest score of a frame, so that every chunk requests something


class ContentAware(Allocator):
    """All candidates kept; tokens proportional to a frame-importance heuristic."""

    name = "content"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        scores = frame_scores(clip.pixels)
        # A chunk scores as its best frame does: the others share its size anyway.
        chunk_scores = scores[np.array(chunk_frames(np.arange(len(clip)), request.geometry.frames_per_chunk))].max(1)
        return Plan(np.arange(len(clip)), np.sqrt(chunk_scores / chunk_scores.mean()))


def previews(frames: np.ndarray) -> torch.Tensor:
    """Frames (T, H, W, 3), uint8, to grey levels (T, h, w) in [0, 1], the longer side at most PREVIEW_SIDE."""
    height, width = frames.shape[1:3]
    shrink = min(1.0, PREVIEW_SIDE / max(height, width))
    size = (max(TILE, round(height * shrink)), max(TILE, round(width * shrink)))
    video = torch.from_numpy(np.ascontiguousarray(frames)).permute(0, 3, 1, 2)
    small = torch.cat([F.interpolate(frame[None], size=size, mode="bilinear", antialias=True) for frame in video])
    weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1) / 255
    return (small * weights).sum(1)


def frame_scores(frames: np.ndarray) -> np.ndarray:
    """Importance (T,) of frames (T, H, W, 3), in [LEAST_SCORE, 1].

    >>> rng = np.random.default_rng(0)
    >>> black, noise = np.zeros((1, 64, 64, 3), np.uint8), rng.integers(0, 255, (1, 64, 64, 3), np.uint8)
    >>> scores = frame_scores(np.concatenate([black, noise]))
    >>> bool(scores[0] == LEAST_SCORE), bool(scores[1] > 0.5)
    (True, True)
    """
    grey = previews(frames)
    parts = [_relative(part) for part in (_sharpness(grey), _change(grey), _text_likeness(grey))]
    lively = (grey.flatten(1).std(1) / 0.1).clamp(max=1)
    return np.maximum((torch.stack(parts).mean(0) * lively).numpy().astype(np.float64), LEAST_SCORE)


def _relative(values: torch.Tensor) -> torch.Tensor:
    return values / values.max().clamp(min=1e-6)


def _sharpness(grey: torch.Tensor) -> torch.Tensor:
    kernel = torch.tensor([[0.0, 1, 0], [1, -4, 1], [0, 1, 0]]).view(1, 1, 3, 3)
    return F.conv2d(grey[:, None], kernel).abs().mean((1, 2, 3))


def _change(grey: torch.Tensor) -> torch.Tensor:
    if len(grey) == 1:
        return torch.ones(1)
    steps = grey.diff(dim=0).abs().mean((1, 2))
    return torch.minimum(torch.cat([steps[:1], steps]), torch.cat([steps, steps[-1:]]))


def _text_likeness(grey: torch.Tensor) -> torch.Tensor:
    step = F.pad((grey.diff(dim=2).abs() > 0.25).float(), (0, 1))
    tiles = F.avg_pool2d(step[:, None], TILE)[:, 0]
    spread = F.max_pool2d(grey[:, None], TILE)[:, 0] + F.max_pool2d(-grey[:, None], TILE)[:, 0]
    return ((tiles > 0.15) & (tiles < 0.6) & (spread > 0.5)).float().mean((1, 2))
