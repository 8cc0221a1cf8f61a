"""Rows that `recipes/nano_rows.py` trains are those that the backbones compute later."""

from pathlib import Path

import numpy as np
import pytest
import torch

from allocembed.backbones.loading import load_backbone
from allocembed.resize import normalise
from allocembed.testing.items import rows_of, text, video

GRIDS = [(1, 1), (3, 4), (2, 2)]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("family", ["qwen3", "gemma"])
@torch.no_grad()
def test_rows_in_training_give_the_vectors_of_the_backbone_and_one_for_every_chunk(family, request, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "recipes"))
    from nano_rows import make_rows, read_rows

    backbone = load_backbone(request.getfixturevalue(f"{family}_folder"), device="cpu")
    items = [video(backbone, GRIDS, "a red car"), video(backbone, GRIDS[::-1], seed=1)]
    grids = np.stack([item.grids for item in items])
    pixels = torch.cat([normalise(item.patches.pixels, backbone.geometry, torch.float32) for item in items])
    seen = backbone.see(pixels, grids.reshape(-1, 2))
    vectors, chunks = read_rows(backbone, make_rows(backbone, rows_of(backbone, items), grids), seen)
    assert (vectors - backbone.embed(items)).abs().max() < 1e-5
    assert chunks.shape == (6, backbone.dim) and torch.allclose(chunks.norm(dim=-1), torch.ones(6))
    other = video(backbone, [*GRIDS[:2], (1, 2)], "a red car", seed=5)
    if family == "gemma":  # the chunk of a bidirectional model is the mean of its own tokens
        prepared = backbone.prepare_rows(rows_of(backbone, items[:1]))
        states = backbone.states(prepared, seen.select(torch.arange(17)))[prepared.visual].split([1, 12, 4])
        means = backbone.vectors(torch.stack([own.mean(0) for own in states]))
        assert (chunks[:3] - means).abs().max() < 1e-5
    else:  # the chunk of a causal model does not know what follows
        again = backbone.see(normalise(other.patches.pixels, backbone.geometry, torch.float32), other.grids)
        mixed = seen.select(torch.arange(13))
        joined = type(mixed).concat([mixed, again.select(torch.arange(13, 15))])
        _, early = read_rows(backbone, make_rows(backbone, rows_of(backbone, [other]), other.grids[None]), joined)
        assert (early[:2] - chunks[:2]).abs().max() < 1e-5 and (early[2] - chunks[2]).abs().max() > 1e-3
    texts = [text("drives by"), text("a dog")]
    alone, none = read_rows(backbone, make_rows(backbone, rows_of(backbone, texts)))
    assert (alone - backbone.embed(texts)).abs().max() < 1e-5 and len(none) == 0
