"""The base of the Qwen-VL families: rows with explicit positions, run block by block and layer by layer.

The inputs name the prompt layout that a checkpoint was trained on, and the layout its position rule. Rows are
right-padded or packed. Right padding needs no mask: attention is causal and the pooled token is the last real one, so
it never sees the padding.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from allocembed.backbones.attention.rows import use_row_attention, uses_row_attention
from allocembed.backbones.base import Batching, Prompt, TokenRow, TowerOutput
from allocembed.backbones.layerwise import LayerwiseBackbone, Run
from allocembed.backbones.qwen_vl.language import LanguageInputs, prepare_language, run_language, run_layer
from allocembed.backbones.qwen_vl.layouts import FIRST, VIDEO_PAD, find_layout
from allocembed.backbones.qwen_vl.positions import RULES, TIMED
from allocembed.backbones.qwen_vl.tower import QwenTowerInputs, prepare_tower, run_block, run_tower
from allocembed.backbones.qwen_vl.variants import direct_variants
from allocembed.backbones.variants import Look, Variants, sizes_of
from allocembed.errors import BackboneError
from allocembed.inputs import Inputs
from allocembed.resize import send

logger = logging.getLogger("allocembed")


@dataclass(frozen=True, eq=False)
class QwenRowInputs:
    """Rows on the device, and the place (N,) of each row's pooled token among all tokens."""

    language: LanguageInputs
    last: torch.Tensor


class QwenVLBackbone(LayerwiseBackbone):
    """A Qwen-VL embedding model."""

    def set_up(self) -> None:
        layout = find_layout(self.inputs.layout, self.family)
        self.position_rule, self.query_instruction = layout.positions, layout.query
        self.video_token: int = self.model.config.video_token_id
        if self.tokenizer.convert_tokens_to_ids(VIDEO_PAD) != self.video_token:
            raise BackboneError(
                f"the tokenizer of {self.name} lacks {VIDEO_PAD}: its tokenizer files are missing or another model's"
            )
        stated = getattr(self.model.config.text_config, "rope_parameters", None) or {}
        sections = stated.get("mrope_section", [1, 1, 1])
        if not (
            isinstance(sections, list | tuple)
            and len(sections) == 3
            and all(isinstance(each, int) for each in sections)
        ):
            raise BackboneError(
                f"the config of {self.name} is damaged: mrope_section must be three whole numbers, not {sections!r}; "
                "download or save it again"
            )
        use_row_attention(self.tower)
        sliding = "sliding_attention" in (getattr(self.model.config.text_config, "layer_types", None) or ())
        if not sliding:
            use_row_attention(self.language_model)
        self.set_functions()

    @property
    def tower(self) -> Any:
        """The vision tower."""
        return self.model.visual

    @property
    def language_model(self) -> Any:
        return self.model.language_model

    def find_functions(self) -> tuple[Run, Run]:
        return run_block, run_layer

    @classmethod
    def find_query_instruction(cls, inputs: Inputs) -> str | None:
        return find_layout(inputs.layout, cls.family).query

    def describe_prompts(self) -> str:
        layout = self.inputs.layout or FIRST[self.family]
        return f"the prompt layout {layout}, {self.position_rule} positions, the last token"

    def layout(self, prompt: Prompt) -> str:
        """The string that the tokenizer reads, with one `<|video_pad|>` per chunk."""
        return find_layout(self.inputs.layout, self.family).write(prompt)

    def reserved_words(self) -> Sequence[str]:
        return (VIDEO_PAD,)

    def token_ids(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        # Special tokens as the checkpoint's own tokenizer adds them: some append an end-of-text token to pool.
        tokenised = self.tokenizer([self.layout(prompt) for prompt in prompts])["input_ids"]
        # An empty text has no token to pool, so it is read as the padding token alone.
        ids = [np.asarray(ids or [self.tokenizer.pad_token_id or 0], np.int64) for ids in tokenised]
        if self.position_rule in TIMED:
            for row, prompt in zip(ids, prompts, strict=True):
                # The placeholder of a chunk holds its time, which its positions need: -1 - steps.
                row[row == self.video_token] = -1 - self._steps(prompt)
        return ids

    def _steps(self, prompt: Prompt) -> np.ndarray:
        """The time steps (C,) of a video's chunks since the first one."""
        seconds = np.zeros(0) if prompt.seconds is None else prompt.seconds
        rate: int = self.model.config.vision_config.tokens_per_second
        # Cut off as the library does, but not where a product is a hair below a whole number.
        return np.floor((seconds - seconds[:1]) * rate + 1e-4).astype(np.int64)

    def rows(self, tokenised: Sequence[np.ndarray], grids: Sequence[np.ndarray]) -> list[TokenRow]:
        """All rows at once, because training makes thousands.

        Position rules only count upwards, so the positions of a row are those of all rows in a line, minus the
        position at which the row starts.
        """
        if not tokenised:
            return []
        tokenised = [self._cut(ids, sizes) for ids, sizes in zip(tokenised, grids, strict=True)]
        line, sizes = np.concatenate(tokenised), np.concatenate(grids)
        held = self._places(line)
        counts = np.ones(len(line), np.int64)
        counts[held] = sizes.prod(-1)
        ids = np.repeat(np.where(held, self.video_token, line), counts)
        ends = np.concatenate([[0], np.cumsum(counts)])[np.cumsum([len(each) for each in tokenised])]
        starts = np.concatenate([[0], ends[:-1]])
        positions = RULES[self.position_rule](ids, self.video_token, sizes, -1 - line[held])
        first = positions[:, np.minimum(starts, len(ids) - 1)]
        positions = positions - np.repeat(first, ends - starts, axis=1)
        visual = ids == self.video_token
        bounds = zip(starts.tolist(), ends.tolist(), strict=True)
        return [TokenRow(ids[start:end], positions[:, start:end], visual[start:end]) for start, end in bounds]

    def _places(self, ids: np.ndarray) -> np.ndarray:
        """Mask (L,) of the tokenised ids that stand for chunks, bool."""
        return (ids == self.video_token) | (ids < 0)

    def _cut(self, ids: np.ndarray, grids: np.ndarray) -> np.ndarray:
        """The prompt cut at the model's limit, as its own tokenizer call does, which keeps tokens that it appends.

        A video that is over the limit by itself is not cut: the own code refuses it, ours embeds it.
        """
        visual, longest = int(grids.prod(-1).sum()) - len(grids), self.inputs.longest
        if len(ids) + visual <= longest:
            return ids
        appended = self.tokenizer.num_special_tokens_to_add()
        keep = longest - visual - appended
        chunks = np.flatnonzero(self._places(ids))
        if keep <= (chunks[-1] if len(chunks) else 0):
            return ids
        logger.warning(f"a prompt of {len(ids) + visual:,} tokens was cut to {longest:,}, as the model's own code does")
        return np.concatenate([ids[:keep], ids[len(ids) - appended :]])

    def prepare_tower(self, grids: np.ndarray) -> QwenTowerInputs:
        patches = np.concatenate([np.ones((len(grids), 1), np.int64), grids * self.geometry.merge], 1)
        return prepare_tower(self.tower, torch.from_numpy(patches), self.device)

    def run_tower(self, pixels: torch.Tensor, prepared: QwenTowerInputs) -> TowerOutput:
        return run_tower(self.tower, pixels, prepared, patch_product=self.patch_product, block=self.block)

    def prepare_rows(self, rows: Sequence[TokenRow], batching: Batching = "pad") -> QwenRowInputs:
        ids, positions, last = (pack_rows if batching == "pack" else pad_rows)(rows)
        lengths = [len(row) for row in rows] if batching == "pack" else None
        language = prepare_language(ids, positions, self.video_token, self.device, lengths)
        return QwenRowInputs(language, send(last, self.device))

    def prepare_variants(self, ids: np.ndarray, looks: Sequence[Look], chunks: int) -> Variants:
        if not uses_row_attention(self.language_model):
            return super().prepare_variants(ids, looks, chunks)
        sizes = sizes_of(looks)
        rows = self.rows([ids] * len(sizes), [np.tile([grid.rows, grid.cols], (chunks, 1)) for grid in sizes])
        by_size = dict(zip(sizes, rows, strict=True))
        language, last, read, tokens = direct_variants(by_size, looks, chunks, self.video_token, self.device)
        return Variants(QwenRowInputs(language, last), read, tokens)

    def pool(self, prepared: QwenRowInputs, features: TowerOutput | None = None) -> torch.Tensor:
        return run_language(self.language_model, prepared.language, features, layer=self.layer, at=prepared.last)

    def text_states(self, texts: Sequence[str]) -> list[torch.Tensor]:
        rows = self.rows(self.tokenise([Prompt(text) for text in texts]), [np.empty((0, 2), np.int64)] * len(texts))
        inputs = self.prepare_rows(rows).language
        hidden = run_language(self.language_model, inputs, layer=self.layer)
        # Copies, so that no row keeps the whole padded batch in memory.
        return [states[: len(row)].to(torch.float32, copy=True) for states, row in zip(hidden, rows, strict=True)]


def pad_rows(rows: Sequence[TokenRow]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Right-padded ids (N, S), positions (3, N, S), and the place (N,) of each row's last token among the N · S."""
    longest = max(len(row) for row in rows)
    ids = np.zeros((len(rows), longest), np.int64)
    positions = np.zeros((3, len(rows), longest), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], positions[:, i, : len(row)] = row.ids, row.positions
    last = torch.tensor([i * longest + len(row) - 1 for i, row in enumerate(rows)])
    return torch.from_numpy(ids), torch.from_numpy(positions), last


def pack_rows(rows: Sequence[TokenRow]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """All rows in one sequence: ids (1, S), positions (4, 1, S) whose first axis counts from each row's start, and the
    place (N,) of each row's last token."""
    ids = np.concatenate([row.ids for row in rows])[None]
    within = np.concatenate([np.arange(len(row)) for row in rows])
    positions = np.concatenate([within[None], np.concatenate([row.positions for row in rows], 1)])[:, None]
    last = torch.tensor(np.cumsum([len(row) for row in rows]) - 1)
    return torch.from_numpy(ids), torch.from_numpy(positions), last
