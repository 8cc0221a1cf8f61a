"""A batch of noise for rollouts, of any family."""

import numpy as np
import torch

from allocembed.backbones.base import Backbone
from allocembed.rdpo.data.base import VideoBatch


def video_batch(backbone: Backbone, count: int, chunks: int) -> VideoBatch:
    frames = chunks * backbone.geometry.frames_per_chunk
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 255, (count, frames, 3, 64, 96), dtype=torch.uint8, generator=generator)
    times = np.tile(np.arange(frames) * 1.5, (count, 1))
    return VideoBatch(np.arange(count), pixels, times, np.full(count, 100))
