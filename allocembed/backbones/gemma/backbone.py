"""EmbeddingGemma 2 behind the interface of backbones.

The layout is the published one: a prompt for queries or documents, then the frames, then the text, between the
tokenizer's own first and last tokens. Each frame stands between two tokens of its own. All tokens of a row are averaged
and projected. The model is bidirectional, so rows are never padded: both kinds of batches put them one after the other.
The audio tower is not loaded.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.attention.rows import use_row_attention
from allocembed.backbones.base import Batching, Prompt, TokenRow, TowerOutput, Widths
from allocembed.backbones.gemma.inputs import QUERY, TIMESTAMPS, GemmaInputs, Pooling, lay_out, lay_out_frames
from allocembed.backbones.gemma.language import GemmaRowInputs, mean_rows, prepare_rows, run_language, run_layer
from allocembed.backbones.gemma.tower import GemmaTowerInputs, prepare_tower, run_block, run_tower
from allocembed.backbones.layerwise import LayerwiseBackbone, Run
from allocembed.errors import BackboneError

VIDEO = "<|video|>"
logger = logging.getLogger("allocembed")


class GemmaBackbone(LayerwiseBackbone):
    """EmbeddingGemma 2."""

    family = "embedding_gemma2"
    query_instruction = QUERY

    def set_up(self) -> None:
        if self.dtype == torch.float16:
            raise BackboneError(f"{self.name} overflows in float16: use bfloat16 or float32")
        if not isinstance(self.inputs, GemmaInputs):
            raise BackboneError(f"{self.name} cannot use {self.inputs!r}: choose inputs of its own family")
        self.pooling: Pooling = self.inputs.pooling
        config: Any = self.model.config
        tokenizer: Any = self.tokenizer
        if VIDEO not in tokenizer.get_added_vocab():  # the model's own processor adds it, too
            tokenizer.add_special_tokens({"additional_special_tokens": [VIDEO]})
        numbers = (config.video_token_id, config.image_token_id, config.boi_token_id, config.eoi_token_id)
        video, image, begin, end = tokenizer.convert_ids_to_tokens(list(numbers))
        if video != VIDEO or None in (image, begin, end):
            raise BackboneError(
                f"the tokenizer of {self.name} lacks {VIDEO}: its tokenizer files are missing or another model's"
            )
        self.video_token, self.image_token = numbers[:2]
        self._frame, self._picture = f"{begin}{VIDEO}{end}", f"{begin}{image}{end}"
        # A token for sounds would be read as padding.
        audio = [] if config.audio_token_id is None else tokenizer.convert_ids_to_tokens([config.audio_token_id])
        self._reserved: tuple[str, ...] = (VIDEO, image, *filter(None, audio))
        self._widest = max(layer.self_attn.head_dim for layer in self.language_model.layers)
        use_row_attention(self.tower)
        use_row_attention(self.language_model)
        self.set_functions()

    @property
    def tower(self) -> Any:
        """The vision tower."""
        return self.model.vision_tower

    @property
    def language_model(self) -> Any:
        return self.model.language_model

    def find_functions(self) -> tuple[Run, Run]:
        return run_block, run_layer

    def find_widths(self) -> Widths:
        text = self.model.config.text_config
        return Widths(text.hidden_size, text.hidden_size, text.embedding_dim, text.hidden_size)

    def project(self, pooled: torch.Tensor) -> torch.Tensor:
        # The model projects every token; the mean of projections is the projection of the mean.
        layer = self.language_model.embedding_projection
        rounded = not layer.weight.is_floating_point()  # to eight bits
        return layer(pooled.float()) if rounded else F.linear(pooled.float(), layer.weight.float())

    def reserved_words(self) -> Sequence[str]:
        return self._reserved

    def describe_prompts(self) -> str:
        return "the prompts of google/embeddinggemma-2, positions that count the tokens, the mean of all tokens"

    def prompt_string(self, prompt: Prompt) -> str:
        """The string that the tokenizer reads, with one placeholder per frame."""
        frames = ""
        if prompt.picture:
            frames = self._picture
        elif prompt.seconds is not None and self.inputs.layout == TIMESTAMPS:
            frames = lay_out_frames(self._frame, prompt.seconds.tolist())
        elif prompt.seconds is not None:
            frames = self._frame * len(prompt.seconds)
        return lay_out(f"{frames}{prompt.text or ''}", prompt.instruction)

    def token_ids(self, prompts: Sequence[Prompt]) -> list[np.ndarray]:
        tokenised = self.tokenizer([self.prompt_string(prompt) for prompt in prompts])["input_ids"]
        # Without a prompt and special tokens, an empty text has no token to pool.
        return [np.asarray(ids or [self._filler], np.int64) for ids in tokenised]

    @property
    def _filler(self) -> int:
        return self.model.config.text_config.pad_token_id or 0

    def rows(self, tokenised: Sequence[np.ndarray], grids: Sequence[np.ndarray]) -> list[TokenRow]:
        if not tokenised:
            return []
        tokenised = [self._cut(ids, sizes) for ids, sizes in zip(tokenised, grids, strict=True)]
        line, sizes = np.concatenate(tokenised), np.concatenate(grids)
        frame = self._is_visual(line)
        counts = np.ones(len(line), np.int64)
        counts[frame] = sizes.prod(-1)
        ids, visual = np.repeat(line, counts), np.repeat(frame, counts)
        ends = np.cumsum(counts)[np.cumsum([len(each) for each in tokenised]) - 1]
        bounds = zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True)
        return [TokenRow(ids[start:end], np.arange(end - start)[None], visual[start:end]) for start, end in bounds]

    def _is_visual(self, ids: np.ndarray) -> np.ndarray:
        return (ids == self.video_token) | (ids == self.image_token)

    def _cut(self, ids: np.ndarray, grids: np.ndarray) -> np.ndarray:
        """The prompt cut at the model's limit, before its last token. A video over the limit by itself is not cut."""
        visual, longest = int(grids.prod(-1).sum()) - len(grids), self.inputs.longest
        keep = longest - visual - 1
        frames = np.flatnonzero(self._is_visual(ids))
        if len(ids) + visual <= longest or keep <= (frames[-1] + 1 if len(frames) else 0):
            return ids
        logger.warning(f"a prompt of {len(ids) + visual:,} tokens was cut to {longest:,}, which the model can read")
        return np.concatenate([ids[:keep], ids[-1:]])

    def prepare_tower(self, grids: np.ndarray) -> GemmaTowerInputs:
        return prepare_tower(self.tower, grids, self.device)

    def run_tower(self, pixels: torch.Tensor, prepared: GemmaTowerInputs) -> TowerOutput:
        return run_tower(self.tower, self.model.embed_vision, pixels, prepared, block=self.block)

    def prepare_rows(self, rows: Sequence[TokenRow], batching: Batching = "pad") -> GemmaRowInputs:
        return self.rows_on(rows, self.device)

    def rows_on(self, rows: Sequence[TokenRow], device: torch.device) -> GemmaRowInputs:
        """Rows on a device, which need not be the model's."""
        return prepare_rows(rows, self._filler, self.pooling, self._widest, device)

    def states(self, prepared: GemmaRowInputs, features: TowerOutput | None = None) -> torch.Tensor:
        """Last hidden states (S, width) of the tokens of all rows, one after the other."""
        return run_language(self.language_model, prepared, features, layer=self.layer)

    def pool(self, prepared: GemmaRowInputs, features: TowerOutput | None = None) -> torch.Tensor:
        return mean_rows(self.states(prepared, features), prepared)

    def text_states(self, texts: Sequence[str]) -> list[torch.Tensor]:
        rows = self.rows(self.tokenise([Prompt(text) for text in texts]), [np.empty((0, 2), np.int64)] * len(texts))
        prepared = self.prepare_rows(rows)
        states = self.states(prepared).float()
        pooled = mean_rows(states, prepared)
        lengths = [len(row) for row in rows]
        return [torch.cat([own, one[None]]) for own, one in zip(states.split(lengths), pooled, strict=True)]
