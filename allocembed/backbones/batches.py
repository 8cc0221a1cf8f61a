"""Batches of rows, and their vectors while a GPU still works on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from allocembed.backbones.base import Item


@dataclass(frozen=True, eq=False)
class PendingVectors:
    """Items whose vectors a GPU may still be working on. It reads the items, so they are kept here until then."""

    items: Sequence[Item]
    batches: list[list[int]]
    made: list[torch.Tensor]
    dim: int
    done: torch.cuda.Event | None

    def ready(self) -> bool:
        """Whether `vectors` need not wait."""
        return self.done is None or self.done.query()

    def vectors(self) -> torch.Tensor:
        """Wait for unit vectors (N, dim), fp32 on the CPU, in the order of the items."""
        if self.done is not None:
            self.done.synchronize()
        found = torch.empty((len(self.items), self.dim))
        for batch, vectors in zip(self.batches, self.made, strict=True):
            found[batch] = vectors
        return found


def group_rows(lengths: Sequence[int], batch_tokens: int, *, padded: bool) -> list[list[int]]:
    """Batches of rows of similar length, at most `batch_tokens` tokens each (but at least one row).

    >>> group_rows([5, 90, 6, 4], 20, padded=True)
    [[3, 0, 2], [1]]
    """
    batches: list[list[int]] = []
    total = 0
    for i in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        # Sorted by length, the newest row is the longest, so it sets the padded size of its batch.
        total = lengths[i] * (len(batches[-1]) + 1) if batches and padded else total + lengths[i]
        if batches and total <= batch_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
            total = lengths[i]
    return batches
