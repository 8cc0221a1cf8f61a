"""CLIP: a class token of every frame, and the mean of the frames.

Frames of one size share a pass, with the learned positions resized by the model's own function. A checkpoint whose
config says `image_only` has no text tower to speak of, and embeds pictures and videos alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.base import Prompt, TowerOutput, Widths
from allocembed.backbones.frame_mean import FrameMeanBackbone
from allocembed.resize import send


@dataclass(frozen=True, eq=False)
class FramesOfOneSize:
    """Places (frames, L) of their patches among all patches, and positions (1, 1 + L, width) of class and patches."""

    places: torch.Tensor
    positions: torch.Tensor


@dataclass(frozen=True, eq=False)
class ClipTowerInputs:
    """Frames by size, and the places of all patches (N,) and frames (C,) among those sorted by size."""

    sizes: tuple[FramesOfOneSize, ...]
    patches: torch.Tensor
    frames: torch.Tensor


class ClipBackbone(FrameMeanBackbone):
    """openai/clip-vit-base-patch16 and other checkpoints of transformers' `CLIPModel`."""

    family = "clip"
    looks = ((0.25, 1.0),)

    def find_widths(self) -> Widths:
        config = self.model.config
        joint = config.projection_dim
        texts = 0 if getattr(config, "image_only", False) else joint
        return Widths(config.vision_config.hidden_size, joint, joint, texts)

    def describe_prompts(self) -> str:
        return "texts as they are, the mean of the frames' vectors"

    def text_ids(self, texts: list[str]) -> Sequence[np.ndarray]:
        found = self.tokenizer(texts, truncation=True, max_length=self.inputs.longest)["input_ids"]
        return [np.asarray(ids, np.int64) for ids in found]

    def embed_texts(self, ids: torch.Tensor) -> torch.Tensor:
        """The model is causal and reads the first end token, so it never sees the padding behind it."""
        return self.model.get_text_features(ids).pooler_output

    def text_states(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Every token as the model projects its last one."""
        found = []
        for ids in self.tokenise([Prompt(text) for text in texts]):
            states = self.model.text_model(send(torch.from_numpy(ids), self.device)[None]).last_hidden_state
            found.append(F.normalize(self.model.text_projection(states)[0], dim=-1).float())
        return found

    def prepare_tower(self, grids: np.ndarray) -> ClipTowerInputs:
        counts = grids.prod(-1)
        starts, sizes, frames = np.cumsum(counts) - counts, [], []
        for rows, cols in np.unique(grids, axis=0).tolist():
            alike = np.flatnonzero((grids == (rows, cols)).all(-1))
            places = torch.from_numpy(starts[alike, None] + np.arange(rows * cols))
            sizes.append(FramesOfOneSize(send(places, self.device), self._positions(rows, cols)))
            frames.append(alike)
        patches = torch.cat([each.places.flatten() for each in sizes]).argsort()
        order = torch.from_numpy(np.argsort(np.concatenate(frames)))
        return ClipTowerInputs(tuple(sizes), patches, send(order, self.device))

    def _positions(self, rows: int, cols: int) -> torch.Tensor:
        embeddings = self.model.vision_model.embeddings
        shape = torch.empty((1, 1 + rows * cols, embeddings.embed_dim), device="meta")  # only its shape is read
        return embeddings.interpolate_pos_encoding(shape, rows * embeddings.patch_size, cols * embeddings.patch_size)

    def run_tower(self, pixels: torch.Tensor, prepared: ClipTowerInputs) -> TowerOutput:
        tower = self.model.vision_model
        patches = F.linear(pixels, tower.embeddings.patch_embedding.weight.flatten(1))
        tokens, frames = [], []
        for each in prepared.sizes:
            own = tower.embeddings.class_embedding.expand(len(each.places), 1, -1)
            hidden = tower.pre_layrnorm(torch.cat([own, patches[each.places]], 1) + each.positions)
            states = tower.post_layernorm(tower.encoder(inputs_embeds=hidden).last_hidden_state)
            tokens.append(states[:, 1:].flatten(0, 1))
            frames.append(self.model.visual_projection(states[:, 0]))
        return TowerOutput(torch.cat(tokens)[prepared.patches], chunks=torch.cat(frames)[prepared.frames])
