"""SigLIP 2 NaFlex, which knows pictures and texts only: the smallest family.

A frame is a chunk of any size. The model's own head makes one vector of each frame. What makes one vector of them is
ours: the mean of the frames' unit vectors, so that a large frame weighs as much as a small one. The model cannot read
a question together with a video either: a video with a text is the mean of the video's and the text's unit vectors.

A text is written in lower case, cut to 64 tokens and filled up to as many, and the padding is read like any token: so
the model was trained. An instruction stands before its text; the model was trained without any.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.base import Backbone, Batching, Prompt, TokenRow, TowerOutput, Widths
from allocembed.errors import BackboneError
from allocembed.resize import send

logger = logging.getLogger("allocembed")
FRAME = -1  # the place of a frame among the ids of a text


@dataclass(frozen=True, eq=False)
class TowerInputs:
    """Where N patches of C frames are, on the device.

    `positions` (N, width) are the learned positions at the frames' sizes. `alike` has for each number of patches L the
    places (frames, L) of the patches of all frames of L patches, and `back` (N,) where each patch is among them.
    """

    positions: torch.Tensor
    alike: tuple[torch.Tensor, ...]
    back: torch.Tensor


@dataclass(frozen=True, eq=False)
class RowInputs:
    """Texts and frames of R rows, on the device.

    `ids` (T, 64) are the texts, `said` (T,) the rows they belong to. `places` (C, longest) has the visual tokens of
    each frame, any place where `inside` (C, longest) is False; `shown` (C,) are the rows of the frames and `share` (C,)
    the weight of each in its row.
    """

    ids: torch.Tensor
    said: torch.Tensor
    places: torch.Tensor
    inside: torch.Tensor
    shown: torch.Tensor
    share: torch.Tensor
    rows: int


class SiglipBackbone(Backbone):
    """google/siglip2-base-patch16-naflex and its larger siblings."""

    family = "siglip2"
    has_language_model = False

    def find_widths(self) -> Widths:
        text, vision = self.model.config.text_config, self.model.config.vision_config
        if len({text.hidden_size, text.projection_size, vision.hidden_size}) > 1:
            raise BackboneError(f"the vectors of texts and pictures of {self.name} differ in length: use another model")
        width = vision.hidden_size
        return Widths(width, width, width, width)

    def set_up(self) -> None:
        self.longest: int = self.model.config.text_config.max_position_embeddings

    @property
    def tower(self) -> Any:
        """The vision tower."""
        return self.model.vision_model

    @property
    def text_model(self) -> Any:
        return self.model.text_model

    def describe_prompts(self) -> str:
        return f"texts in lower case and of {self.longest} tokens, the mean of the frames' vectors"

    def token_ids(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        texts = [
            " ".join(filter(None, (prompt.instruction, prompt.text))).lower()
            for prompt in prompts
            if prompt.text is not None
        ]
        ids = iter(self._ids(texts))
        nothing = np.empty(0, np.int64)
        return [
            np.concatenate([nothing if prompt.text is None else next(ids), np.full(_chunks(prompt), FRAME)])
            for prompt in prompts
        ]

    def _ids(self, texts: list[str]) -> np.ndarray:
        """Ids (N, 64) of texts, as the model's own processor makes them."""
        if not texts:
            return np.empty((0, self.longest), np.int64)
        long = [text for text in texts if len(text) > self.longest]  # a token has at least one letter
        for ids in self.tokenizer(long)["input_ids"] if long else ():
            if len(ids) > self.longest:
                logger.warning(f"a text of {len(ids):,} tokens was cut to {self.longest}, as the model's own code does")
        options: dict[str, Any] = {"padding": "max_length", "truncation": True, "max_length": self.longest}
        return np.asarray(self.tokenizer(texts, **options)["input_ids"], np.int64)

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

    def prepare_tower(self, grids: np.ndarray) -> TowerInputs:
        embeddings = self.tower.embeddings
        side = embeddings.position_embedding_size
        table = embeddings.position_embedding.weight.view(side, side, -1)
        sizes = [(rows, cols) for rows, cols in grids.tolist()]
        # Resized once for each size by the model's own function, which reads sizes from the host.
        resized = {
            size: embeddings.resize_positional_embeddings(table, torch.tensor([size]), size[0] * size[1])[0]
            for size in dict.fromkeys(sizes)
        }
        counts = grids.prod(-1)
        starts = np.cumsum(counts) - counts
        alike = [starts[counts == count, None] + np.arange(count) for count in np.unique(counts)]
        back = np.argsort(np.concatenate([places.ravel() for places in alike]))
        return TowerInputs(
            torch.cat([resized[size] for size in sizes]),
            tuple(send(torch.from_numpy(places), self.device) for places in alike),
            send(torch.from_numpy(back), self.device),
        )

    def run_tower(self, pixels: torch.Tensor, prepared: TowerInputs) -> TowerOutput:
        hidden = self.tower.embeddings.patch_embedding(pixels) + prepared.positions
        # Frames with equally many patches share a pass, which then needs neither padding nor a mask.
        seen = [self.tower.encoder(inputs_embeds=hidden[places]).last_hidden_state for places in prepared.alike]
        hidden = torch.cat([states.flatten(0, 1) for states in seen])[prepared.back]
        return TowerOutput(self.tower.post_layernorm(hidden))

    def prepare_rows(self, rows: Sequence[TokenRow], batching: Batching = "pad") -> RowInputs:
        """The same for both kinds of batches: texts have one length, and frames are pooled one by one."""
        texts = [row.ids[~row.visual] for row in rows]
        said = [number for number, ids in enumerate(texts) if len(ids)]
        counts = [np.bincount(row.positions[0, row.visual]) for row in rows]
        frames = np.array([len(each) for each in counts])
        lengths = np.concatenate(counts) if frames.sum() else np.zeros(0, np.int64)
        within = np.arange(lengths.max(initial=0))
        starts = np.cumsum(lengths) - lengths
        shown = np.repeat(np.arange(len(rows)), frames)
        inside = within < lengths[:, None]
        tensors = (
            torch.from_numpy(
                np.stack([texts[number] for number in said]) if said else np.zeros((0, self.longest), int)
            ),
            torch.tensor(said, dtype=torch.long),
            torch.from_numpy(np.where(inside, starts[:, None] + within, 0)),
            torch.from_numpy(inside),
            torch.from_numpy(shown),
            (1 / torch.from_numpy(frames)[shown]).to(self.dtype),
        )
        return RowInputs(*(send(tensor, self.device) for tensor in tensors), rows=len(rows))

    def pool(self, prepared: RowInputs, features: TowerOutput | None = None) -> torch.Tensor:
        pooled = torch.zeros((prepared.rows, self.widths.pooled), dtype=self.dtype, device=self.device)
        if features is not None and len(prepared.shown):
            frames = self._look(features.tokens[prepared.places], prepared.inside)
            frames = F.normalize(frames, dim=-1) * prepared.share[:, None]
            pooled = pooled.index_add(0, prepared.shown, frames)
        if len(prepared.said):
            # A video that has a text: both count alike, whatever the length of the mean over the frames.
            pooled = F.normalize(pooled, dim=-1)
            texts = self.text_model(prepared.ids).pooler_output
            pooled = pooled.index_add(0, prepared.said, F.normalize(texts, dim=-1))
        return pooled

    def _look(self, tokens: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        """The model's pooling head on frames (C, L, width), without reading the mask (C, L) back from the device."""
        head = self.tower.head
        probe = head.probe.expand(len(tokens), -1, -1)
        seen = head.attention(probe, tokens, tokens, key_padding_mask=~inside, need_weights=False)[0]
        return (seen + head.mlp(head.layernorm(seen)))[:, 0]

    def text_states(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """The tokens without the padding, and the pooled state."""
        ids = np.stack(self.tokenise([Prompt(text) for text in texts]))
        seen = self.text_model(send(torch.from_numpy(ids), self.device))
        pooled = F.normalize(seen.pooler_output, dim=-1)
        real = [torch.from_numpy(np.flatnonzero(row != self.tokenizer.pad_token_id)) for row in ids]
        return [
            torch.cat([states[send(kept, self.device)], own[None]]).float()
            for states, own, kept in zip(seen.last_hidden_state, pooled, real, strict=True)
        ]


def _chunks(prompt: Prompt) -> int:
    return 0 if prompt.seconds is None else len(prompt.seconds)
