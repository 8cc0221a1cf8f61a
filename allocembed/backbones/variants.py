"""Rows of one video that differ in the size of a single chunk, as `sensitivity` needs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from allocembed.budget import Grid

if TYPE_CHECKING:
    from allocembed.backbones.base import Backbone

LookSize = int | float
"""Tokens of a chunk, or as a float a share of its native ones."""
Look = tuple[Grid, Grid]
"""The usual size of chunks, and the size of the one that is changed."""


@dataclass(frozen=True, eq=False)
class Variants:
    """For each look, a row in which all chunks have the usual size, and one for each chunk that has the other size."""

    prepared: Any
    """Rows for the backbone's `pool`, which gives a state for each of them in order, and may give more."""
    seen: np.ndarray
    """Visual tokens that the rows read, in order: of all chunks at the first of the sizes, then at the next."""
    tokens: int
    """Tokens that the language model reads."""
    chunks: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    """Chunk states that the rows read, counted in that order, in families that have them."""


def sizes_of(looks: Sequence[Look]) -> list[Grid]:
    """The sizes in some looks, each once, so that the vision tower sees a size only once.

    >>> sizes_of([(Grid(3, 4), Grid(4, 6)), (Grid(4, 6), Grid(2, 3))])
    [Grid(rows=3, cols=4), Grid(rows=4, cols=6), Grid(rows=2, cols=3)]
    """
    return list(dict.fromkeys(grid for look in looks for grid in look))


def tokens_of(looks: Sequence[Look], chunks: int) -> dict[Grid, np.ndarray]:
    """Places (C, n) of the visual tokens of each size among those of all sizes.

    >>> tokens_of([(Grid(1, 1), Grid(1, 2))], 2)[Grid(1, 2)].tolist()
    [[2, 3], [4, 5]]
    """
    places, start = {}, 0
    for grid in sizes_of(looks):
        places[grid] = start + np.arange(chunks * grid.tokens).reshape(chunks, -1)
        start += places[grid].size
    return places


def states_of(looks: Sequence[Look], chunks: int) -> dict[Grid, np.ndarray]:
    """Places (C, 1) of the chunk states of each size among those of all sizes."""
    return {grid: number * chunks + np.arange(chunks)[:, None] for number, grid in enumerate(sizes_of(looks))}


def whole_variants(backbone: Backbone, ids: np.ndarray, looks: Sequence[Look], chunks: int) -> Variants:
    """Every row in full, which works with any attention."""
    grids = np.concatenate([variant_grids(*look, chunks) for look in looks])
    rows = backbone.rows([ids] * len(grids), list(grids))
    prepared = backbone.prepare_rows(rows, "pack" if backbone.packs else "pad")
    tokens, states = (
        np.concatenate([variant_tokens(places[usual], places[changed]) for usual, changed in looks])
        for places in (tokens_of(looks, chunks), states_of(looks, chunks))
    )
    return Variants(prepared, tokens, sum(map(len, rows)), states)


def variant_grids(usual: Grid, changed: Grid, chunks: int) -> np.ndarray:
    """Grids (C + 1, C, 2) of the chunks of each row."""
    grids = np.tile([usual.rows, usual.cols], (chunks + 1, chunks, 1))
    grids[np.arange(chunks) + 1, np.arange(chunks)] = changed.rows, changed.cols
    return grids


def variant_tokens(usual: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """The visual tokens that whole rows read, in order, from those (C, n) of all chunks at either size.

    >>> variant_tokens(np.array([[0], [1]]), np.array([[2, 3], [4, 5]])).tolist()
    [0, 1, 2, 3, 1, 0, 4, 5]
    """
    rows = ([usual[:n].ravel(), changed[n], usual[n + 1 :].ravel()] for n in range(len(usual)))
    return np.concatenate([usual.ravel(), *(part for row in rows for part in row)])
