"""Against whom a positive is ranked: equation 12's candidate set, and who in it may be a query's negative.

One set of targets serves every query of a step: the batch's own targets, then text targets drawn from the
training corpus. `allowed_negatives` says for each query which of them count: not its positive, not another
target of its own sample, not a target with the very same text, for each of those would be a right answer.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class TextPool:
    """Target texts and the samples they belong to: a batch's targets, the corpus, or what is drawn from it.

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
                f"every text needs the id of its sample: got {len(self.sample_ids)} ids and {len(self.texts)} texts"
            )

    def __len__(self) -> int:
        return len(self.texts)

    def __add__(self, other: TextPool) -> TextPool:
        return TextPool((*self.sample_ids, *other.sample_ids), (*self.texts, *other.texts))

    def draw(self, count: int, *, seed: int, step: int, beyond: Collection[str] = ()) -> TextPool:
        """`count` entries at random, of different texts, none of them in `beyond`; fewer where there are no more.

        The draw depends on its arguments alone, so every process of a run makes the same one, and so does a run
        that is resumed. A `count` of 0 is the paper's "w/o Global Negatives".

        >>> pool = TextPool((1, 2, 3), ("yes", "yes", "no"))
        >>> sorted(pool.draw(9, seed=0, step=0).texts), pool.draw(9, seed=0, step=0, beyond=["yes"])
        (['no', 'yes'], TextPool(sample_ids=(3,), texts=('no',)))
        """
        seen, drawn = set(beyond), []
        for index in np.random.default_rng([seed, step]).permutation(len(self)).tolist():
            if len(drawn) >= count:
                break
            if self.texts[index] not in seen:
                seen.add(self.texts[index])
                drawn.append(index)
        return TextPool(tuple(self.sample_ids[i] for i in drawn), tuple(self.texts[i] for i in drawn))


def allowed_negatives(positives: TextPool, candidates: TextPool) -> Tensor:
    """Which candidates are negatives of which query: bool (B, N) for B positives and N candidates.

    False where the candidate has the positive's sample id or its exact text; the positive itself has both. Texts
    are compared as they are: another case or one more space makes another text.

    >>> positives = TextPool(("v1", "v2"), ("a car", "a dog"))
    >>> candidates = positives + TextPool(("v3", "v1", "v4"), ("a car", "a red car", "A dog"))
    >>> allowed_negatives(positives, candidates).int()
    tensor([[0, 1, 0, 0, 1],
            [1, 0, 1, 1, 1]], dtype=torch.int32)
    """
    same_sample = _equal(positives.sample_ids, candidates.sample_ids)
    return ~(same_sample | _equal(positives.texts, candidates.texts))


def _equal(rows: Sequence[Hashable], columns: Sequence[Hashable]) -> Tensor:
    """Bool (rows, columns): which are equal. Numbering the values first makes it one comparison of integers."""
    numbers: dict[Hashable, int] = {}
    row, column = (
        torch.tensor([numbers.setdefault(value, len(numbers)) for value in values], dtype=torch.int64)
        for values in (rows, columns)
    )
    return row[:, None] == column[None, :]
