"""SigLIP 2 NaFlex, which knows pictures and texts only: the smallest family.

A frame is a chunk of any size. The model's own head makes one vector of each frame; the mean of them is ours.

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

from allocembed.backbones.base import Prompt, TowerOutput, Widths
from allocembed.backbones.frame_mean import FrameMeanBackbone
from allocembed.errors import BackboneError
from allocembed.resize import send

logger = logging.getLogger("allocembed")


@dataclass(frozen=True, eq=False)
class SiglipTowerInputs:
    """Places of N patches of C frames, on the device.

    `positions` (N, width) are the learned positions at the frames' sizes. `alike` has for each number of patches L the
    places (frames, L) of the patches of all frames of L patches, and `back` (N,) where each patch is among them.
    `places` (C, longest) has the patches of each frame, any place where `inside` (C, longest) is False.
    """

    positions: torch.Tensor
    alike: tuple[torch.Tensor, ...]
    back: torch.Tensor
    places: torch.Tensor
    inside: torch.Tensor


class SiglipBackbone(FrameMeanBackbone):
    """google/siglip2-base-patch16-naflex and its larger siblings."""

    family = "siglip2"

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

    def describe_prompts(self) -> str:
        return f"texts in lower case and of {self.longest} tokens, the mean of the frames' vectors"

    def text_ids(self, texts: list[str]) -> list[np.ndarray]:
        """64 ids of each text, as the model's own processor makes them."""
        texts = [text.lower() for text in texts]
        long = [text for text in texts if len(text) > self.longest]  # a token has at least one letter
        for ids in self.tokenizer(long)["input_ids"] if long else ():
            if len(ids) > self.longest:
                logger.warning(f"a text of {len(ids):,} tokens was cut to {self.longest}, as the model's own code does")
        options: dict[str, Any] = {"padding": "max_length", "truncation": True, "max_length": self.longest}
        return list(np.asarray(self.tokenizer(texts, **options)["input_ids"], np.int64))

    def embed_texts(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model.text_model(ids).pooler_output

    def prepare_tower(self, grids: np.ndarray) -> SiglipTowerInputs:
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
        starts, within = np.cumsum(counts) - counts, np.arange(counts.max(initial=0))
        alike = [starts[counts == count, None] + np.arange(count) for count in np.unique(counts)]
        back = np.argsort(np.concatenate([places.ravel() for places in alike]))
        inside = within < counts[:, None]
        places = np.where(inside, starts[:, None] + within, 0)
        back, places, inside = (send(torch.from_numpy(each), self.device) for each in (back, places, inside))
        sent = tuple(send(torch.from_numpy(each), self.device) for each in alike)
        return SiglipTowerInputs(torch.cat([resized[size] for size in sizes]), sent, back, places, inside)

    def run_tower(self, pixels: torch.Tensor, prepared: SiglipTowerInputs) -> TowerOutput:
        hidden = self.tower.embeddings.patch_embedding(pixels) + prepared.positions
        # Frames with equally many patches share a pass, which then needs neither padding nor a mask.
        seen = [self.tower.encoder(inputs_embeds=hidden[places]).last_hidden_state for places in prepared.alike]
        hidden = torch.cat([states.flatten(0, 1) for states in seen])[prepared.back]
        tokens = self.tower.post_layernorm(hidden)
        return TowerOutput(tokens, chunks=self._look(tokens[prepared.places], prepared.inside))

    def _look(self, tokens: torch.Tensor, inside: torch.Tensor) -> torch.Tensor:
        """The model's pooling head on frames (C, L, width), without reading the mask (C, L) back from the device."""
        head = self.tower.head
        probe = head.probe.expand(len(tokens), -1, -1)
        seen = head.attention(probe, tokens, tokens, key_padding_mask=~inside, need_weights=False)[0]
        return (seen + head.mlp(head.layernorm(seen)))[:, 0]

    def text_states(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """The tokens without the padding, and the pooled state."""
        ids = np.stack(self.tokenise([Prompt(text) for text in texts]))
        seen = self.model.text_model(send(torch.from_numpy(ids), self.device))
        pooled = F.normalize(seen.pooler_output, dim=-1)
        real = [torch.from_numpy(np.flatnonzero(row != self.tokenizer.pad_token_id)) for row in ids]
        return [
            torch.cat([states[send(kept, self.device)], own[None]]).float()
            for states, own, kept in zip(seen.last_hidden_state, pooled, real, strict=True)
        ]
