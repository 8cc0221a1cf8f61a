"""Heads that only training needs: visual tokens and vectors must name what is shown.

Each visual token on an object must name it and its colour, each token on a sign the word and the letters under it, each
token the place. Labels come from the positions in the world, per token: one pooled label per chunk would not show the
tower where to look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from nano_data import CONCEPT_COUNTS, CONCEPT_STARTS
from torch import nn

from allocembed_nano.world import vocabulary as vocab
from allocembed_nano.world.timeline import PLATE_HEIGHT

OBJECT, COLOUR, WORD, PLACE = range(4)
LETTERS, LONGEST_WORD = 26, max(len(word) for word in vocab.WORDS)
LABELLED = 12_288  # tokens per batch that must name things, including some on nothing


@dataclass(frozen=True, eq=False)
class TokenPositions:
    """Chunk (N,), centre (N, 2) and half the sides (N, 2) of every visual token, in short sides of the frame."""

    chunk: torch.Tensor
    centre: torch.Tensor
    half: torch.Tensor

    @classmethod
    def of(cls, grids: torch.Tensor, sides: torch.Tensor, total: int) -> TokenPositions:
        """Positions of the `total` tokens of chunks with grids (C, 2), of frames with `sides` (C, 2)."""
        counts = grids.prod(-1)
        chunk = torch.repeat_interleave(torch.arange(len(grids), device=grids.device), counts, output_size=total)
        inside = torch.arange(len(chunk), device=grids.device) - (counts.cumsum(0) - counts)[chunk]
        cols = grids[chunk, 1]
        index = torch.stack([inside // cols, inside % cols], -1)
        cell = (sides / grids)[chunk]
        return cls(chunk, (index + 0.5) * cell, cell / 2)


class Heads(nn.Module):
    """Names of tokens, concepts of vectors, and the logit scale."""

    def __init__(self, width: int, word_aspects: torch.Tensor, frames: int = 2) -> None:
        super().__init__()
        self.frames = frames
        # One slot per frame of a chunk; one additional class for nothing.
        self.names = nn.ModuleList(nn.Linear(width, frames * (count + 1)) for count in CONCEPT_COUNTS)
        self.letters = nn.Linear(width, frames * LETTERS)
        self.concept = nn.Linear(width, sum(CONCEPT_COUNTS))
        self.concept_scale = nn.Parameter(torch.tensor(2.5))
        self.logit_scale = nn.Parameter(torch.tensor(math.log(14.0)))
        spelled = [[ord(letter) - 65 for letter in word] + [-1] * (LONGEST_WORD - len(word)) for word in vocab.WORDS]
        self.register_buffer("spelled", torch.tensor(spelled), persistent=False)
        self.register_buffer("starts", torch.tensor(CONCEPT_STARTS), persistent=False)
        self.register_buffer("aspects", word_aspects[: len(vocab.WORDS)].clone(), persistent=False)

    def dense_losses(
        self, tokens: torch.Tensor, places: TokenPositions, labels: torch.Tensor, marks: torch.Tensor
    ) -> dict[str, torch.Tensor]:
        """Losses and accuracies of tokens (N, width) with labels (C, frames, 4) and marks (C, frames, 6).

        Marks are x, y and half the size of the object, then x, y and height of the word, in short sides. The number of
        labelled tokens is fixed, those on things first, so that the host need not wait for a count.
        """
        label, mark = labels[places.chunk], marks[places.chunk]  # (N, frames, …)
        centre, half = places.centre.flip(-1)[:, None], places.half.flip(-1)[:, None]
        word = label[..., WORD].clamp(min=0)
        sign = torch.stack([self.aspects[word] * mark[..., 5], PLATE_HEIGHT * mark[..., 5]], -1) / 2
        shown = label[..., OBJECT] >= 0
        on_object = shown & ((centre - mark[..., :2]).abs() < mark[..., 2:3] + 0.3 * half).all(-1)
        on_sign = shown & ((centre - mark[..., 3:5]).abs() < sign + 0.3 * half).all(-1)
        urgency = (on_object | on_sign).any(-1) + torch.rand(len(tokens), device=tokens.device)
        chosen = urgency.topk(min(LABELLED, len(tokens)), sorted=False).indices
        seen = tokens[chosen].float()
        label, mark, word = label[chosen], mark[chosen], word[chosen]
        shown, on_object, on_sign = shown[chosen], on_object[chosen], on_sign[chosen]

        results = {}
        for name, kind, where in (
            ("object", OBJECT, on_object),
            ("colour", COLOUR, on_object),
            ("word", WORD, on_sign),
        ):
            count = CONCEPT_COUNTS[kind]
            logits = self.names[kind](seen).view(-1, self.frames, count + 1)
            target = torch.where(where, label[..., kind], count)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(where.shape)
            results[name] = _mean(loss, where) + 0.2 * _mean(loss, ~where)
            results[f"{name}@1"] = _mean((logits.argmax(-1) == target).float(), where)
        place = self.names[PLACE](seen).view(-1, self.frames, CONCEPT_COUNTS[PLACE] + 1)
        loss = F.cross_entropy(place.flatten(0, 1), label[..., PLACE].clamp(min=0).flatten(), reduction="none")
        results["place"] = _mean(loss.view(shown.shape), shown)
        results["letter"] = self._letter_loss(
            seen, places.centre[chosen, 1], places.half[chosen, 1], word, mark, on_sign
        )
        return results

    def _letter_loss(
        self,
        seen: torch.Tensor,
        x: torch.Tensor,
        half: torch.Tensor,
        word: torch.Tensor,
        mark: torch.Tensor,
        on_sign: torch.Tensor,
    ) -> torch.Tensor:
        """Each token on a sign must name the letters it overlaps; all letters of a word count as equally wide."""
        spelled = self.spelled[word]  # (K, frames, LONGEST_WORD)
        wide = self.aspects[word] * mark[..., 5]
        letter = wide / (spelled >= 0).sum(-1)
        order = torch.arange(LONGEST_WORD, device=seen.device) + 0.5
        centre = (mark[..., 3] - wide / 2)[..., None] + order * letter[..., None]
        near = (centre - x[:, None, None]).abs() < half[:, None, None] + 0.2 * letter[..., None]
        target = torch.zeros(*word.shape, LETTERS + 1, device=seen.device)
        target.scatter_(-1, torch.where(near & (spelled >= 0), spelled, LETTERS), 1.0)
        logits = self.letters(seen).view(-1, self.frames, LETTERS)
        loss = F.binary_cross_entropy_with_logits(logits, target[..., :LETTERS], reduction="none").mean(-1)
        return 10 * _mean(loss, on_sign)

    def concept_loss(self, vectors: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
        """Unit vectors (N, width) must rank their concepts, (N, V) bool, above all others."""
        scores = self.concept(vectors * self.concept_scale.exp()).log_softmax(-1)
        return -((scores * present).sum(-1) / present.sum(-1).clamp(min=1)).mean()

    def chunk_losses(self, vectors: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The vector (C, width) of each chunk must name what the chunk shows, labels (C, frames, 4)."""
        width = sum(CONCEPT_COUNTS)
        numbers = torch.where(labels >= 0, labels + self.starts, width).flatten(1)
        present = torch.zeros(len(labels), width + 1, device=labels.device).scatter_(1, numbers, 1.0)[:, :width]
        scores = self.concept(vectors * self.concept_scale.exp())
        results = {"chunk": self.concept_loss(vectors, present)}
        for kind, name in ((OBJECT, "chunk object@1"), (WORD, "chunk word@1")):
            start = CONCEPT_STARTS[kind]
            best = scores[:, start : start + CONCEPT_COUNTS[kind]].argmax(-1, keepdim=True)
            shown = labels[:, :, kind]
            results[name] = _mean((best == shown).any(-1).float(), (shown >= 0).any(-1))
        return results


def _mean(values: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
    return (values * where).sum() / where.sum().clamp(min=1)
