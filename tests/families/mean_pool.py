"""A tiny family that is nothing like Qwen-VL: one frame per chunk, bidirectional attention, mean pooling, a projection.

It exists to show that the interface of backbones, and everything built on it, assumes none of Qwen-VL's habits. Its
checkpoints are ordinary folders that transformers loads. Patches are in plain row-major order with channels last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoConfig, AutoModel, PretrainedConfig, PreTrainedModel

from allocembed.backbones.base import Backbone, Batching, Prompt, TokenRow, TowerOutput, Widths
from allocembed.backbones.registry import FAMILIES, Family
from allocembed.geometry import Geometry
from allocembed.inputs import Inputs
from allocembed.resize import send

FRAME = "<|image_pad|>"
MODEL_TYPE = "tiny_mean"


class TinyMeanConfig(PretrainedConfig):
    model_type = MODEL_TYPE

    def __init__(self, vocab_size: int = 320, hidden_size: int = 32, dimensions: int = 24, patch: int = 16, **rest):
        self.vocab_size, self.hidden_size, self.dimensions, self.patch = vocab_size, hidden_size, dimensions, patch
        self.vision_config = {"patch_size": patch, "spatial_merge_size": 1}
        super().__init__(**rest)


class Layer(nn.Module):
    """Pre-norm bidirectional attention with two heads, and a feed-forward layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.forward_norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, 48), nn.Linear(48, width)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """(N, S, width) with a mask (N, 1, S or 1, S), True where a token may be looked at."""
        parts = self.qkv(self.norm(hidden)).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts, attn_mask=mask)
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        return hidden + self.down(F.gelu(self.up(self.forward_norm(hidden))))


class TinyMeanModel(PreTrainedModel):
    config_class = TinyMeanConfig

    def __init__(self, config: TinyMeanConfig) -> None:
        super().__init__(config)
        width = config.hidden_size
        self.patch_embed = nn.Linear(3 * config.patch**2, width)
        self.tower = Layer(width)
        self.words = nn.Embedding(config.vocab_size, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(2))
        self.head = nn.Linear(width, config.dimensions)
        self.post_init()

    def see(self, pixels: torch.Tensor, places: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.tower((self.patch_embed(pixels) + waves(places, self.config.hidden_size))[None], mask)[0]

    def read(self, hidden: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = hidden + waves(positions[..., None].float(), self.config.hidden_size)
        for layer in self.layers:
            hidden = layer(hidden, mask)
        return hidden


def waves(places: torch.Tensor, width: int) -> torch.Tensor:
    """Sines of places (..., axes), summed over the axes: (..., width)."""
    rates = 1.7 ** -torch.arange(width, device=places.device)
    return sum((places[..., axis, None] * (axis + 1) * rates).sin() for axis in range(places.shape[-1]))


@dataclass(frozen=True)
class RowMajor(Geometry):
    """Patches row by row, pixels with channels last."""

    def patchify(self, frames: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        count, channels, height, width = frames.shape
        side = self.patch
        blocks = frames.reshape(count, channels, height // side, side, width // side, side).permute(0, 2, 4, 3, 5, 1)
        out = frames.new_empty((blocks.shape[:3].numel(), blocks.shape[3:].numel())) if out is None else out
        out.view(blocks.shape).copy_(blocks)
        return out


GEOMETRY = RowMajor(16, 1, (0.5,) * 3, (0.5,) * 3, 4 * 16**2, 48 * 16**2, frames_per_chunk=1)


@dataclass(frozen=True, eq=False)
class Rows:
    ids: torch.Tensor
    positions: torch.Tensor
    visual: torch.Tensor
    mask: torch.Tensor
    owner: torch.Tensor
    """(N · S,) the row of each token, -1 for padding."""
    count: int


class TinyMeanBackbone(Backbone):
    family = MODEL_TYPE
    query_instruction = "query:"

    @property
    def frame_token(self) -> int:
        return self.tokenizer.convert_tokens_to_ids(FRAME)

    def find_widths(self) -> Widths:
        width = self.model.config.hidden_size
        return Widths(width, width, self.model.config.dimensions, width)

    def project(self, pooled: torch.Tensor) -> torch.Tensor:
        return self.model.head(pooled)

    def reserved_words(self) -> Sequence[str]:
        return (FRAME,)

    def token_ids(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        for prompt in prompts:
            for text in filter(None, (prompt.text, prompt.instruction)):
                self.check_text(text)
        layouts = [
            f"<|im_start|>{prompt.instruction or ''}{FRAME * (0 if prompt.seconds is None else len(prompt.seconds))}"
            f"{prompt.text or ''}"
            for prompt in prompts
        ]
        return [np.asarray(ids, np.int64) for ids in self.tokenizer(layouts)["input_ids"]] if layouts else []

    def rows(self, tokenised: Sequence[np.ndarray], grids: Sequence[np.ndarray]) -> list[TokenRow]:
        rows = []
        for ids, sizes in zip(tokenised, grids, strict=True):
            counts = np.ones(len(ids), int)
            counts[ids == self.frame_token] = sizes.prod(-1)
            ids = np.repeat(ids, counts)
            rows.append(TokenRow(ids, np.arange(len(ids))[None], ids == self.frame_token))
        return rows

    def prepare_tower(self, grids: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        places = [np.indices(grid).reshape(2, -1).T / grid for grid in grids.tolist()]
        chunk = np.repeat(np.arange(len(grids)), grids.prod(-1))
        mask = torch.from_numpy(chunk[:, None] == chunk)[None, None]
        return send(torch.from_numpy(np.concatenate(places)).float(), self.device), send(mask, self.device)

    def run_tower(self, pixels: torch.Tensor, prepared: tuple[torch.Tensor, torch.Tensor]) -> TowerOutput:
        return TowerOutput(self.model.see(pixels, *prepared))

    def prepare_rows(self, rows: Sequence[TokenRow], batching: Batching = "pad") -> Rows:
        lengths = [len(row) for row in rows]
        longest = max(lengths)
        if batching == "pack":
            owner = np.repeat(np.arange(len(rows)), lengths)[None]
            mask = (owner[0][:, None] == owner[0])[None, None]
            fields = [np.concatenate(part)[None] for part in zip(*map(_fields, rows), strict=True)]
        else:
            owner = np.where(np.arange(longest) < np.array(lengths)[:, None], np.arange(len(rows))[:, None], -1)
            mask = (owner >= 0)[:, None, None]
            padded = [[np.pad(each, (0, longest - len(row))) for each in _fields(row)] for row in rows]
            fields = [np.stack(part) for part in zip(*padded, strict=True)]
        ids, positions, visual, mask, owner = (
            send(torch.from_numpy(each), self.device) for each in (*fields, mask, owner.ravel())
        )
        return Rows(ids, positions, visual, mask, owner, len(rows))

    def pool(self, prepared: Rows, features: TowerOutput | None = None) -> torch.Tensor:
        hidden = self._states(prepared, features).flatten(0, 1)
        inside = prepared.owner >= 0
        sums = hidden.new_zeros((prepared.count, hidden.shape[-1]))
        sums = sums.index_add(0, prepared.owner[inside], hidden[inside])
        return sums / prepared.owner[inside].bincount(minlength=prepared.count)[:, None]

    def text_states(self, texts: Sequence[str]) -> list[torch.Tensor]:
        rows = self.rows(self.tokenise([Prompt(text) for text in texts]), [np.empty((0, 2), int)] * len(texts))
        prepared = self.prepare_rows(rows)
        states, pooled = self._states(prepared, None), self.pool(prepared)
        return [torch.cat([own[: len(row)], one[None]]) for own, row, one in zip(states, rows, pooled, strict=True)]

    def _states(self, prepared: Rows, features: TowerOutput | None) -> torch.Tensor:
        hidden = self.model.words(prepared.ids)
        if features is not None:
            hidden = hidden.masked_scatter(prepared.visual[..., None], features.tokens.to(hidden.dtype))
        return self.model.read(hidden, prepared.positions, prepared.mask)


def _fields(row: TokenRow) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return row.ids, row.positions[0], row.visual


def register() -> None:
    """Make transformers and the registry know the family."""
    AutoConfig.register(MODEL_TYPE, TinyMeanConfig, exist_ok=True)
    AutoModel.register(TinyMeanConfig, TinyMeanModel, exist_ok=True)
    FAMILIES[MODEL_TYPE] = Family("tests.families.mean_pool:TinyMeanBackbone", {"own": Inputs(GEOMETRY)})


def save(folder: Path) -> Path:
    """A random checkpoint."""
    from tests.tiny import save_tokenizer

    register()
    torch.manual_seed(3)
    model = TinyMeanModel(TinyMeanConfig(vocab_size=len(save_tokenizer(folder))))
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return folder
