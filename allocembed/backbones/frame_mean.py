"""Families without a language model: a vector of each frame and of each text, and the mean of the frames.

A video is the mean of its frames' unit vectors, so that a large frame weighs as much as a small one. Such models cannot
read a question together with a video either: a video with a text is the mean of both unit vectors.

A family implements how texts become ids (`text_ids`) and vectors (`embed_texts`), and a tower whose chunk states are
the vectors of the frames.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.base import Backbone, Batching, Prompt, TokenRow, TowerOutput
from allocembed.resize import send

FRAME = -1  # the place of a frame among the ids of a text


@dataclass(frozen=True, eq=False)
class FrameMeanRowInputs:
    """Texts and frames of R rows, on the device.

    `ids` (T, longest) are the texts, padded with zeros, and `said` (T,) the rows they belong to. `shown` (C,) are the
    rows of the frames and `share` (C,) the weight of each in its row.
    """

    ids: torch.Tensor
    said: torch.Tensor
    shown: torch.Tensor
    share: torch.Tensor
    rows: int


class FrameMeanBackbone(Backbone):
    """A model of pictures and texts."""

    has_language_model = False

    @abstractmethod
    def text_ids(self, texts: list[str]) -> Sequence[np.ndarray]:
        """Ids (L_i,) of at least one text; an instruction stands before its text."""

    @abstractmethod
    def embed_texts(self, ids: torch.Tensor) -> torch.Tensor:
        """Vectors (T, pooled) of texts (T, longest), not normalised."""

    def token_ids(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        texts = [" ".join(filter(None, (each.instruction, each.text))) for each in prompts if each.text is not None]
        ids, nothing = iter(self.text_ids(texts) if texts else ()), np.empty(0, np.int64)
        return [
            np.concatenate([nothing if prompt.text is None else next(ids), np.full(_chunks(prompt), FRAME)])
            for prompt in prompts
        ]

    def rows(self, tokenised: Sequence[np.ndarray], grids: Sequence[np.ndarray]) -> list[TokenRow]:
        """Positions are those of a text's tokens, and the number of the frame for visual tokens."""
        rows = []
        for ids, sizes in zip(tokenised, grids, strict=True):
            counts = np.ones(len(ids), np.int64)
            counts[ids == FRAME] = sizes.prod(-1)
            places = np.concatenate([np.arange((ids != FRAME).sum()), np.arange(len(sizes))])
            row = np.repeat(ids, counts)
            rows.append(TokenRow(row, np.repeat(places, counts)[None], row == FRAME))
        return rows

    def prepare_rows(self, rows: Sequence[TokenRow], batching: Batching = "pad") -> FrameMeanRowInputs:
        """Rows on the device. Both kinds of batches give equal inputs, because no row is read as a whole."""
        texts = [torch.from_numpy(row.ids[~row.visual]) for row in rows]
        said = [number for number, ids in enumerate(texts) if len(ids)]
        frames = np.array([row.positions[0, row.visual].max(initial=-1) + 1 for row in rows])
        shown = torch.from_numpy(np.repeat(np.arange(len(rows)), frames))
        tensors = (
            torch.nn.utils.rnn.pad_sequence([texts[number] for number in said] or texts[:1], batch_first=True),
            torch.tensor(said, dtype=torch.long),
            shown,
            (1 / torch.from_numpy(frames)[shown]).to(self.dtype),
        )
        return FrameMeanRowInputs(*(send(tensor, self.device) for tensor in tensors), rows=len(rows))

    def pool(self, prepared: FrameMeanRowInputs, features: TowerOutput | None = None) -> torch.Tensor:
        pooled = torch.zeros((prepared.rows, self.widths.pooled), dtype=self.dtype, device=self.device)
        if features is not None and features.chunks is not None and len(prepared.shown):
            frames = F.normalize(features.chunks, dim=-1) * prepared.share[:, None]
            pooled = pooled.index_add(0, prepared.shown, frames)
        if len(prepared.said):
            # A video that has a text: both count alike, whatever the length of the mean over the frames.
            pooled = F.normalize(pooled, dim=-1)
            pooled = pooled.index_add(0, prepared.said, F.normalize(self.embed_texts(prepared.ids), dim=-1))
        return pooled


def _chunks(prompt: Prompt) -> int:
    return 0 if prompt.seconds is None else len(prompt.seconds)
