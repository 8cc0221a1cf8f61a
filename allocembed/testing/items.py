"""Items to embed, made from noise, for any family."""

import numpy as np
import torch

from allocembed.backbones.base import Backbone, Item, Prompt, TokenRow
from allocembed.budget import Allocation, Grid, chunk_frames
from allocembed.rdpo.data.base import VideoBatch
from allocembed.resize import chunk_seconds, to_patches

STEP = 2.5  # seconds between frames


def video_batch(backbone: Backbone, count: int, chunks: int) -> VideoBatch:
    """A batch of noise for rollouts."""
    frames = chunks * backbone.geometry.frames_per_chunk
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 255, (count, frames, 3, 64, 96), dtype=torch.uint8, generator=generator)
    times = np.tile(np.arange(frames) * 1.5, (count, 1))
    return VideoBatch(np.arange(count), pixels, times, np.full(count, 100))


def make_allocation(backbone: Backbone, grids: list[tuple[int, int]]) -> Allocation:
    per_chunk = backbone.geometry.frames_per_chunk
    frames = chunk_frames(np.arange(per_chunk * len(grids)), per_chunk)
    return Allocation(frames, (1.0,) * len(grids), tuple(Grid(*grid) for grid in grids), Grid(2, 3), 10**6, 1)


def noise(backbone: Backbone, chunks: int, seed: int = 0, height: int = 64, width: int = 96) -> np.ndarray:
    count = backbone.geometry.frames_per_chunk * chunks
    return np.random.default_rng(seed).integers(0, 255, (count, height, width, 3), np.uint8)


def video(
    backbone: Backbone,
    grids: list[tuple[int, int]],
    text: str | None = None,
    *,
    seed: int = 0,
    instruction: str | None = None,
) -> Item:
    frames, allocation = noise(backbone, len(grids), seed), make_allocation(backbone, grids)
    seconds = chunk_seconds(np.arange(len(frames)) * STEP, allocation.frames)
    return Item(Prompt(text, instruction, seconds), to_patches(frames, allocation, backbone.geometry))


def text(words: str, instruction: str | None = None) -> Item:
    return Item(Prompt(words, instruction))


def rows_of(backbone: Backbone, items: list[Item]) -> list[TokenRow]:
    return backbone.rows(backbone.tokenise([item.prompt for item in items]), [item.grids for item in items])


def mixed(backbone: Backbone) -> list[Item]:
    """Videos with and without text, and a text, all of different sizes. Videos alone if the backbone reads no texts."""
    said = ["a red car", "user"] if backbone.reads_texts else [None, None]
    return [
        video(backbone, [(1, 1), (3, 4), (2, 2)], said[0], seed=1),
        video(backbone, [(4, 2), (1, 2)], seed=2),
        text("drives by") if backbone.reads_texts else video(backbone, [(1, 3)], seed=4),
        video(backbone, [(2, 3)], said[1], seed=3),
    ]
