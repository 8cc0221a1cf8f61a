"""CLIP: a class token of every frame, and the mean of the frames.

Frames of one size share a pass, with the learned positions resized by the model's own function. A video is the mean of
its frames' unit vectors; a video with a text is the mean of the video's and the text's. A checkpoint whose config says
`image_only` has no text tower to speak of, and embeds pictures and videos alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.base import Backbone, Batching, Prompt, TokenRow, TowerOutput, Widths
from allocembed.resize import send

FRAME = -1  # the place of a frame among the ids of a text


@dataclass(frozen=True, eq=False)
class FramesOfOneSize:
    """Places (frames, L) of their patches among all patches, and positions (1, 1 + L, width) of class and patches."""

    places: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, eq=False)
class TowerInputs:
    """Frames by size, and the places of all patches (N,) and frames (C,) among those sorted by size."""

    sizes: tuple[FramesOfOneSize, ...]
    patches: torch.Tensor
    frames: torch.Tensor


@dataclass(frozen=True, eq=False)
class RowInputs:
    """Texts `ids` (T, longest) of the rows `said` (T,); the rows `shown` (C,) of the frames, and each one's share."""

    ids: torch.Tensor
    said: torch.Tensor
    shown: torch.Tensor
    share: torch.Tensor
    rows: int


class ClipBackbone(Backbone):
    """openai/clip-vit-base-patch16 and other checkpoints of transformers' `CLIPModel`."""

    family = "clip"
    has_language_model = False
    looks = ((0.25, 1.0),)

    def find_widths(self) -> Widths:
        config = self.model.config
        joint = config.projection_dim
        texts = 0 if getattr(config, "image_only", False) else joint
        return Widths(config.vision_config.hidden_size, joint, joint, texts)

    def describe_prompts(self) -> str:
        return "texts as they are, the mean of the frames' vectors"

    def token_ids(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        found = []
        for prompt in prompts:
            frames = np.full(0 if prompt.seconds is None else len(prompt.seconds), FRAME)
            found.append(frames if prompt.text is None else np.concatenate([self._text_ids(prompt), frames]))
        return found

    def _text_ids(self, prompt: Prompt) -> np.ndarray:
        text = " ".join(filter(None, (prompt.instruction, prompt.text)))
        return np.asarray(self.tokenizer(text, truncation=True, max_length=self.inputs.longest)["input_ids"], np.int64)

    def rows(self, tokenised: Sequence[np.ndarray], grids: Sequence[np.ndarray]) -> list[TokenRow]:
        """The position of a visual token is the number of its frame."""
        rows = []
        for ids, sizes in zip(tokenised, grids, strict=True):
            words, counts = ids[ids != FRAME], sizes.prod(-1)
            places = [np.arange(len(words)), np.repeat(np.arange(len(sizes)), counts)]
            row = np.concatenate([words, np.full(counts.sum(), FRAME)])
            rows.append(TokenRow(row, np.concatenate(places)[None], row == FRAME))
        return rows

    def prepare_tower(self, grids: np.ndarray) -> TowerInputs:
        counts = grids.prod(-1)
        starts, sizes, frames = np.cumsum(counts) - counts, [], []
        for rows, cols in np.unique(grids, axis=0).tolist():
            alike = np.flatnonzero((grids == (rows, cols)).all(-1))
            places = torch.from_numpy(starts[alike, None] + np.arange(rows * cols))
            sizes.append(FramesOfOneSize(send(places, self.device), self._positions(rows, cols)))
            frames.append(alike)
        patches = torch.cat([each.places.flatten() for each in sizes]).argsort()
        order = torch.from_numpy(np.argsort(np.concatenate(frames)))
        return TowerInputs(tuple(sizes), patches, send(order, self.device))

    def _positions(self, rows: int, cols: int) -> torch.Tensor:
        embeddings = self.model.vision_model.embeddings
        shape = torch.empty((1, 1 + rows * cols, embeddings.embed_dim), device="meta")  # only its shape is read
        return embeddings.interpolate_pos_encoding(shape, rows * embeddings.patch_size, cols * embeddings.patch_size)

    def run_tower(self, pixels: torch.Tensor, prepared: TowerInputs) -> TowerOutput:
        tower = self.model.vision_model
        patches = F.linear(pixels, tower.embeddings.patch_embedding.weight.flatten(1))
        tokens, frames = [], []
        for each in prepared.sizes:
            own = tower.embeddings.class_embedding.expand(len(each.places), 1, -1)
            hidden = tower.pre_layrnorm(torch.cat([own, patches[each.places]], 1) + each.positions)
            states = tower.post_layernorm(tower.encoder(inputs_embeds=hidden).last_hidden_state)
            tokens.append(states[:, 1:].flatten(0, 1))
            frames.append(states[:, 0])
        return TowerOutput(torch.cat(tokens)[prepared.patches], chunks=torch.cat(frames)[prepared.frames])

    def prepare_rows(self, rows: Sequence[TokenRow], batching: Batching = "pad") -> RowInputs:
        texts = [torch.from_numpy(row.ids[~row.visual]) for row in rows]
        said = [number for number, ids in enumerate(texts) if len(ids)]
        frames = np.array([row.positions[0, row.visual].max(initial=-1) + 1 for row in rows])
        shown = torch.from_numpy(np.repeat(np.arange(len(rows)), frames))
        ids = torch.nn.utils.rnn.pad_sequence([texts[number] for number in said] or texts[:1], batch_first=True)
        share = 1 / torch.from_numpy(frames)[shown].to(self.dtype)
        tensors = (ids, torch.tensor(said, dtype=torch.long), shown, share)
        return RowInputs(*(send(tensor, self.device) for tensor in tensors), rows=len(rows))

    def pool(self, prepared: RowInputs, features: TowerOutput | None = None) -> torch.Tensor:
        pooled = torch.zeros((prepared.rows, self.widths.pooled), dtype=self.dtype, device=self.device)
        if features is not None and features.chunks is not None and len(prepared.shown):
            frames = F.normalize(self.model.visual_projection(features.chunks), dim=-1)
            pooled = pooled.index_add(0, prepared.shown, frames * prepared.share[:, None])
        if len(prepared.said):
            texts = F.normalize(self.model.get_text_features(prepared.ids).pooler_output, dim=-1)
            pooled = F.normalize(pooled, dim=-1).index_add(0, prepared.said, texts)
        return pooled

    def text_states(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """The tokens of each text as the model projects its last one."""
        found = []
        for ids in self.tokenise([Prompt(text) for text in texts]):
            states = self.model.text_model(send(torch.from_numpy(ids), self.device)[None]).last_hidden_state
            found.append(F.normalize(self.model.text_projection(states)[0], dim=-1).float())
        return found
