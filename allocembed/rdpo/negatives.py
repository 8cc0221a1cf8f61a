"""The candidate set of equation 12, and which of its texts are negatives of which query.

All queries of a step share one set of targets: the targets of the batch, then texts drawn from the training corpus.
`allowed_negatives` excludes for each query its positive, other targets of its own sample, and targets with the same
text, because each of those would be a correct answer.
"""

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TextPool:
    """Target texts and the samples they belong to: the targets of a batch, the corpus, or a draw from it.

    >>> batch = TextPool(("v1", "v2"), ("a red car", "a blue car"))
    >>> corpus = TextPool(("v1", "v2", "v3", "v4"), ("a red car", "a blue car", "a dog", "a cat"))
    >>> candidates = batch + corpus.draw(2, seed=0, step=7, beyond=batch.texts)
    >>> candidates.sample_ids[:2], sorted(candidates.texts[2:])
    (('v1', 'v2'), ['a cat', 'a dog'])
    """

    sample_ids: Sequence[Hashable]
    texts: Sequence[str]

    def __post_init__(self) -> None:
        if len(self.sample_ids) != len(self.texts):
            raise ValueError(
                f"each text needs the id of its sample: got {len(self.sample_ids)} ids and {len(self.texts)} texts"
            )

    def __len__(self) -> int:
        return len(self.texts)

    def __add__(self, other: Self) -> Self:
        return type(self)((*self.sample_ids, *other.sample_ids), (*self.texts, *other.texts))

    def draw(self, count: int, *, seed: int, step: int, beyond: Collection[str] = ()) -> Self:
        """Draw `count` random entries with distinct texts, none of them in `beyond`; fewer if the pool is exhausted.

        The draw depends on its arguments alone, so it is the same on every process and in a resumed run. A `count` of 0
        is the paper's "w/o Global Negatives".

        >>> pool = TextPool((1, 2, 3), ("yes", "yes", "no"))
        >>> sorted(pool.draw(9, seed=0, step=0).texts), pool.draw(9, seed=0, step=0, beyond=["yes"])
        (['no', 'yes'], TextPool(sample_ids=(3,), texts=('no',)))
        """
        seen = set(beyond)
        drawn: list[int] = []
        for index in map(int, np.random.default_rng([seed, step]).permutation(len(self))):
            if len(drawn) >= count:
                break
            if self.texts[index] not in seen:
                seen.add(self.texts[index])
                drawn.append(index)
        return type(self)(tuple(self.sample_ids[i] for i in drawn), tuple(self.texts[i] for i in drawn))


class VectorQueue:
    """The newest full-resolution vectors of videos, as rivals of later ones. The backbone is frozen, so none grow old.

    >>> queue = VectorQueue(2, dim=1)
    >>> queue.add(["a", "b", "c"], torch.tensor([[1.0], [2.0], [3.0]]))
    >>> queue.samples, queue.vectors.tolist()
    (['b', 'c'], [[2.0], [3.0]])
    """

    def __init__(self, size: int, dim: int) -> None:
        self.size = size
        self.samples: list[Hashable] = []
        self.vectors = torch.empty((0, dim))

    def add(self, samples: Sequence[Hashable], vectors: Tensor) -> None:
        """Add vectors (N, dim) on the end; the oldest leave."""
        if self.size:
            self.samples = [*self.samples, *samples][-self.size :]
            self.vectors = torch.cat([self.vectors.to(vectors.device), vectors])[-self.size :]

    def rivals(self, beyond: Collection[Hashable]) -> tuple[list[Hashable], Tensor]:
        """Samples and vectors of the queue that are not of the given samples."""
        kept = [place for place, sample in enumerate(self.samples) if sample not in beyond]
        return [self.samples[place] for place in kept], self.vectors[kept]


def allowed_negatives(positives: TextPool, candidates: TextPool) -> Tensor:
    """Mask (B, N) of the candidates that are negatives of each query, for B positives and N candidates.

    False if the candidate has the positive's sample id or its exact text; the positive itself has both. Texts are
    compared exactly, including case and spaces.

    >>> positives = TextPool(("v1", "v2"), ("a car", "a dog"))
    >>> candidates = positives + TextPool(("v3", "v1", "v4"), ("a car", "a red car", "A dog"))
    >>> allowed_negatives(positives, candidates).int()
    tensor([[0, 1, 0, 0, 1],
            [1, 0, 1, 1, 1]], dtype=torch.int32)
    """
    same_sample = _equal(positives.sample_ids, candidates.sample_ids)
    return ~(same_sample | _equal(positives.texts, candidates.texts))


def _equal(rows: Sequence[Hashable], columns: Sequence[Hashable]) -> Tensor:
    """Mask (rows, columns) of equal values. Numbering the values first makes it one integer comparison."""
    numbers: dict[Hashable, int] = {}
    row, column = (
        torch.tensor([numbers.setdefault(value, len(numbers)) for value in values], dtype=torch.int64)
        for values in (rows, columns)
    )
    return row[:, None] == column[None, :]
