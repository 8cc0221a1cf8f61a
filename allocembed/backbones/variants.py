"""Rows of one video that differ in the size of a single chunk, as `sensitivity` needs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from allocembed.budget import Grid

if TYPE_CHECKING:
    from allocembed.backbones.base import Backbone


@dataclass(frozen=True, eq=False)
class Variants:
    """Rows in which all chunks have the usual size, and then one chunk after the other has another size."""

    prepared: Any
    """What the backbone's `pool` takes. It gives a state for the first row and for each chunk, and may give more."""
    seen: np.ndarray
    """Which visual tokens the rows read, in order, of all chunks at the usual size and then of all at the other."""
    tokens: int
    """Tokens that the language model reads."""


def whole_variants(backbone: Backbone, ids: np.ndarray, usual: Grid, changed: Grid, chunks: int) -> Variants:
    """Every row in full, which works with any attention."""
    grids = variant_grids(usual, changed, chunks)
    rows = backbone.rows([ids] * len(grids), list(grids))
    prepared = backbone.prepare_rows(rows, "pack" if backbone.packs else "pad")
    return Variants(prepared, variant_tokens(usual, changed, chunks), sum(map(len, rows)))


def variant_grids(usual: Grid, changed: Grid, chunks: int) -> np.ndarray:
    """Grids (C + 1, C, 2) of the chunks of each row."""
    grids = np.tile([usual.rows, usual.cols], (chunks + 1, chunks, 1))
    grids[np.arange(chunks) + 1, np.arange(chunks)] = changed.rows, changed.cols
    return grids


def variant_tokens(usual: Grid, changed: Grid, chunks: int) -> np.ndarray:
    """The visual tokens that whole rows read, in order, of all chunks at the usual size and then at the other.

    >>> variant_tokens(Grid(1, 1), Grid(1, 2), 2).tolist()
    [0, 1, 2, 3, 1, 0, 4, 5]
    """
    small = np.arange(chunks * usual.tokens).reshape(chunks, -1)
    large = small.size + np.arange(chunks * changed.tokens).reshape(chunks, -1)
    changed_rows = ([small[:n].ravel(), large[n], small[n + 1 :].ravel()] for n in range(chunks))
    return np.concatenate([small.ravel(), *(part for row in changed_rows for part in row)])
