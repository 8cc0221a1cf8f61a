"""What training needs beside the model and inference does not: heads that make vision tokens and vectors name things.

Every merged token that lies on an object must name it and its colour, every token on a sign the word and the letters
under it, every token the place. Labels come from where the world put things, at token precision: a pooled label for a
whole chunk took ten times as long to start, because nothing told the tower where to look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from nano_data import CONCEPT_COUNTS
from torch import nn

from allocembed.world import vocabulary as vocab
from allocembed.world.timeline import PLATE_HEIGHT

OBJECT, COLOUR, WORD, PLACE = range(4)
LETTERS, LONGEST = 26, max(len(word) for word in vocab.WORDS)
BACKGROUND_SHARE = 0.04  # tokens on nothing that must say so


@dataclass(frozen=True, eq=False)
class TokenPlaces:
    """Where every merged token lies: its chunk (N,), its centre (N, 2) and half its sides (N, 2), in short sides."""

    chunk: torch.Tensor
    centre: torch.Tensor
    half: torch.Tensor

    @classmethod
    def of(cls, grids: torch.Tensor, sides: torch.Tensor) -> TokenPlaces:
        """For chunks with merged grids (C, 2) rows and cols, of frames with `sides` (C, 2) height and width."""
        counts = grids.prod(-1)
        chunk = torch.repeat_interleave(torch.arange(len(grids), device=grids.device), counts)
        inside = torch.arange(len(chunk), device=grids.device) - (counts.cumsum(0) - counts)[chunk]
        cols = grids[chunk, 1]
        index = torch.stack([inside // cols, inside % cols], -1)
        cell = (sides / grids)[chunk]
        return cls(chunk, (index + 0.5) * cell, cell / 2)


class Heads(nn.Module):
    """Token names, concepts of vectors, and the logit scale."""

    def __init__(self, width: int, word_aspects: torch.Tensor) -> None:
        super().__init__()
        # Two slots, one for each frame of a chunk; one class more than there are names, for nothing.
        self.names = nn.ModuleList(nn.Linear(width, 2 * (count + 1)) for count in CONCEPT_COUNTS)
        self.letters = nn.Linear(width, 2 * LETTERS)
        self.concept = nn.Linear(width, sum(CONCEPT_COUNTS))
        self.concept_scale = nn.Parameter(torch.tensor(2.5))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(14.0)))
        spelled = [[ord(letter) - 65 for letter in word] + [-1] * (LONGEST - len(word)) for word in vocab.WORDS]
        self.register_buffer("spelled", torch.tensor(spelled), persistent=False)
        self.register_buffer("aspects", word_aspects[: len(vocab.WORDS)].clone(), persistent=False)

    def dense_losses(
        self, tokens: torch.Tensor, places: TokenPlaces, labels: torch.Tensor, marks: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Tokens (N, width), labels (C, 2, 4), marks (C, 2, 6) to losses, and to the accuracy on objects and words.

        Marks are x, y and half the size of the object, then x, y and height of the word, in short sides.
        """
        tokens = tokens.float()
        sums: dict[str, list[torch.Tensor]] = {}
        for slot in range(2):
            label, mark = labels[places.chunk, slot], marks[places.chunk, slot]
            offset = (places.centre.flip(-1)[:, None] - torch.stack([mark[:, :2], mark[:, 3:5]], 1)).abs()
            half = places.half.flip(-1)
            word = label[:, WORD].clamp(min=0)
            sign = torch.stack([self.aspects[word] * mark[:, 5], PLATE_HEIGHT * mark[:, 5]], -1) / 2
            shown = label[:, OBJECT] >= 0
            on_object = shown & (offset[:, 0] < mark[:, 2:3] + 0.3 * half).all(-1)
            on_sign = shown & (offset[:, 1] < sign + 0.3 * half).all(-1)
            off = ~(on_object | on_sign) & (torch.rand(len(shown), device=shown.device) < BACKGROUND_SHARE)
            for name, kind, where in (
                ("object", OBJECT, on_object),
                ("colour", COLOUR, on_object),
                ("word", WORD, on_sign),
            ):
                count = CONCEPT_COUNTS[kind]
                chosen = (where | off).nonzero()[:, 0]
                target = torch.where(where[chosen], label[chosen, kind], count)
                logits = self.names[kind](tokens[chosen]).view(-1, 2, count + 1)[:, slot]
                loss = F.cross_entropy(logits, target, reduction="none")
                hit = where[chosen]
                sums.setdefault(name, []).append(_mean(loss, hit) + 0.2 * _mean(loss, ~hit))
                sums.setdefault(f"{name}@1", []).append(_mean((logits.argmax(-1) == target).float(), hit))
            seen = (shown & (torch.rand(len(shown), device=shown.device) < 0.2)).nonzero()[:, 0]
            place = self.names[PLACE](tokens[seen]).view(-1, 2, CONCEPT_COUNTS[PLACE] + 1)[:, slot]
            sums.setdefault("place", []).append(F.cross_entropy(place, label[seen, PLACE]))
            sums.setdefault("letter", []).append(self._letter_loss(tokens, places, word, mark, on_sign, slot))
        return {name: torch.stack(values).mean() for name, values in sums.items()}

    def _letter_loss(self, tokens, places, word, mark, on_sign, slot: int) -> torch.Tensor:
        """Which letters overlap each token on a sign, taking all letters of a word to be equally wide."""
        chosen = on_sign.nonzero()[:, 0]
        spelled = self.spelled[word[chosen]]
        wide = self.aspects[word[chosen]] * mark[chosen, 5]
        letter = wide / (spelled >= 0).sum(-1)
        order = torch.arange(LONGEST, device=tokens.device)
        centre = (mark[chosen, 3] - wide / 2)[:, None] + (order + 0.5) * letter[:, None]
        near = (centre - places.centre[chosen, 1:2]).abs() < places.half[chosen, 1:2] + 0.2 * letter[:, None]
        target = torch.zeros(len(chosen), LETTERS + 1, device=tokens.device)
        target.scatter_(1, torch.where(near & (spelled >= 0), spelled, LETTERS), 1.0)
        logits = self.letters(tokens[chosen]).view(-1, 2, LETTERS)[:, slot]
        return F.binary_cross_entropy_with_logits(logits, target[:, :LETTERS]) * 10

    def concept_loss(self, vectors: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """Unit vectors (N, width) must rank the concepts they hold, (N, V) bool, above all others."""
        scores = self.concept(vectors * self.concept_scale.exp()).log_softmax(-1)
        return -((scores * present).sum(-1) / present.sum(-1).clamp(min=1)).mean()


def _mean(values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    return (values * where).sum() / where.sum().clamp(min=1)
