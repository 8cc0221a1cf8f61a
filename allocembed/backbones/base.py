"""What every backbone shares: rows of tokens with explicit positions, batched, read by a frozen model.

A family adds two things: the layout (the string its checkpoints were trained on) and the name of its position
rule. Rows are right-padded or packed. Right padding needs no mask: attention is causal and the pooled token is
the last real one, so nothing it reads comes after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from allocembed.backbones.attention import use_row_attention
from allocembed.backbones.language import find_lines, run_language, run_layer
from allocembed.backbones.positions import RULES
from allocembed.backbones.tower import Seen, find_places, run_block, run_tower
from allocembed.resize import Geometry, Patches, normalise, send

Batching = Literal["pad", "pack"]
VIDEO_PAD = "<|video_pad|>"
LONGEST_TEXT = 100_000  # characters: some 25,000 tokens, more than any of the models is made for


class BackboneError(RuntimeError):
    """A backbone can't be had or can't be used; the message says what to do."""


@dataclass(frozen=True, eq=False)
class Item:
    """One thing to embed: a text, a video, or a video with a text; `instruction` is None for the default."""

    text: str | None = None
    patches: Patches | None = None
    instruction: str | None = None

    def __post_init__(self) -> None:
        if self.text is None and self.patches is None:
            raise ValueError("nothing to embed: give a text, a video, or both")


@dataclass(frozen=True, eq=False)
class Row:
    """Tokens of one item: ids (S,), positions (3, S), and the item's patches."""

    ids: np.ndarray
    positions: np.ndarray
    patches: Patches | None

    def __len__(self) -> int:
        return len(self.ids)


class Backbone(ABC):
    """A frozen embedding model. `embed` is all the rest of the package needs of it."""

    family: str
    position_rule: str
    query_instruction: str | None  # what a search sentence is introduced with

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        geometry: Geometry,
        *,
        name: str,
        dim: int | None = None,
        notice: str | None = None,
        allocator: str | None = None,
        compile: bool = False,
    ) -> None:
        self.model = model.eval().requires_grad_(False)
        self.tokenizer, self.geometry, self.name, self.notice = tokenizer, geometry, name, notice
        self.allocator = allocator  # folder of the one shipped for this backbone
        self.video_token = model.config.video_token_id
        width = model.config.text_config.hidden_size
        if dim is not None and not 1 <= dim <= width:
            raise BackboneError(f"{name} has {width} dimensions, so dim must be 1 to {width}, not {dim}")
        self.dim = dim or width
        # Whether the patch embedding is the matrix product it is. The convolution is slow, but on a CPU bit-equal to
        # the model's own path, so there only training asks for the product.
        self.by_product = self.device.type == "cuda"
        use_row_attention(model.visual)
        sliding = "sliding_attention" in (getattr(model.config.text_config, "layer_types", None) or ())
        if self.device.type == "cuda" and self.dtype in (torch.bfloat16, torch.float16) and not sliding:
            use_row_attention(model.language_model)
        self.block, self.layer, self.compiled = run_block, run_layer, compile
        if compile:
            # One graph serves all blocks and all sizes. Rounded where the model rounds, so that vectors stay the same.
            how = {"dynamic": True, "options": {"emulate_precision_casts": True}}
            self.block, self.layer = torch.compile(run_block, **how), torch.compile(run_layer, **how)

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    @abstractmethod
    def layout(self, item: Item) -> str:
        """The string the tokenizer reads, with one `<|video_pad|>` for every chunk."""

    def check_text(self, text: str) -> None:
        """Refuses a text that can't be embedded: one that stands for video, is no valid Unicode, or has no end."""
        if VIDEO_PAD in text:
            raise BackboneError(f"the text holds {VIDEO_PAD}, which stands for video: take it out of the text")
        if len(text) > LONGEST_TEXT:
            raise BackboneError(f"the text has {len(text):,} characters; shorten it to {LONGEST_TEXT:,}")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BackboneError("the text is not valid Unicode: write it in UTF-8") from error

    def rows(self, items: Sequence[Item]) -> list[Row]:
        """Tokenises items; each chunk's placeholder becomes as many tokens as the chunk costs."""
        merge = self.geometry.merge
        none = np.empty((0, 2), int)
        grids = [none if item.patches is None else item.patches.grids[:, 1:].numpy() // merge for item in items]
        rows = self.expand(self.tokenise(items), grids)
        return [replace(row, patches=item.patches) for row, item in zip(rows, items, strict=True)]

    def tokenise(self, items: Sequence[Item]) -> list[np.ndarray]:
        """Ids of the items' layouts, with one placeholder for every chunk, however large it will be."""
        if not items:
            return []
        for item in items:
            for text in filter(None, (item.text, item.instruction)):
                self.check_text(text)
        # Special tokens as the checkpoint's own tokenizer adds them: some append an end-of-text token to pool.
        tokenised = self.tokenizer([self.layout(item) for item in items])["input_ids"]
        return [np.asarray(ids, np.int64) for ids in tokenised]

    def expand(self, layouts: Sequence[np.ndarray], grids: Sequence[np.ndarray]) -> list[Row]:
        """Rows of tokenised layouts whose chunks have the merged grids (C, 2), without patches.

        All rows are made in one go, because training makes thousands: position rules only ever count on, so a row's
        positions are those of all rows in a line, less where it began.
        """
        if not layouts:
            return []
        line, merged = np.concatenate(layouts), np.concatenate(grids)
        counts = np.where(line == self.video_token, 0, 1)
        counts[counts == 0] = merged.prod(-1)
        ids = np.repeat(line, counts)
        ends = np.concatenate([[0], np.cumsum(counts)])[np.cumsum([len(layout) for layout in layouts])]
        starts = np.concatenate([[0], ends[:-1]])
        positions = RULES[self.position_rule](ids, self.video_token, merged)
        began = positions[:, np.minimum(starts, len(ids) - 1)]
        positions = positions - np.repeat(began, ends - starts, axis=1)
        bounds = zip(starts.tolist(), ends.tolist(), strict=True)
        return [Row(ids[start:end], positions[:, start:end], None) for start, end in bounds]

    @torch.inference_mode()
    def embed(self, items: Sequence[Item], *, batching: Batching = "pad", batch_tokens: int = 16384) -> torch.Tensor:
        """Embeds items as (N, dim) fp32 unit vectors, on the CPU, in the order given."""
        if batching not in ("pad", "pack"):
            raise ValueError(f"batching must be pad or pack, not {batching!r}")
        rows = self.rows(items)
        vectors = torch.empty((len(rows), self.dim))
        for batch in group_rows([len(row) for row in rows], batch_tokens, padded=batching == "pad"):
            vectors[batch] = self.forward([rows[i] for i in batch], batching).cpu()
        return vectors

    def forward(self, rows: Sequence[Row], batching: Batching = "pad") -> torch.Tensor:
        """One forward pass over rows: (N, dim) fp32 unit vectors on the model's device, for which nothing waits."""
        packed = batching == "pack"
        ids, positions, (line, last) = (pack_rows if packed else pad_rows)(rows)
        videos = [row.patches for row in rows if row.patches is not None]
        features = None
        if videos:
            pixels = torch.cat([send(patches.pixels, self.device) for patches in videos])
            grids = torch.cat([patches.grids for patches in videos])
            features = self.see(normalise(pixels, self.geometry, self.dtype), grids)
        lengths = [len(row) for row in rows] if packed else None
        pooled = self.read(ids, positions, features, lengths=lengths, at=line * ids.shape[1] + last)
        return F.normalize(pooled[:, : self.dim].float(), dim=-1)

    def see(self, pixels: torch.Tensor, grids: torch.Tensor) -> Seen:
        """The vision tower on normalised patches (N, 3 · 2 · patch²) of chunks with grids (C, 3), best on the host.

        `pooler_output` are the merged tokens (N / merge², width); Qwen3-VL adds `deepstack_features`.
        """
        places = find_places(self.model.visual, grids.cpu(), self.device)
        return run_tower(self.model.visual, pixels, places, by_product=self.by_product, block=self.block)

    def read(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        features: Seen | None = None,
        *,
        lengths: Sequence[int] | None = None,
        at: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The language model on ids (N, S), best on the host, with video tokens replaced by `features` in order.

        `lengths` are those of rows packed into one. Gives hidden states (N, S, width), or (K, width) of the places `at`
        (K,) among the N · S alone.
        """
        lines = find_lines(ids, positions, self.video_token, self.device, lengths)
        at = None if at is None else send(at, self.device)
        return run_language(self.model.language_model, lines, features, layer=self.layer, at=at)


def pad_rows(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """Right-padded ids (N, S), positions (3, N, S) and the index of every row's last token."""
    longest = max(len(row) for row in rows)
    ids = np.zeros((len(rows), longest), np.int64)
    positions = np.zeros((3, len(rows), longest), np.int64)
    for i, row in enumerate(rows):
        ids[i, : len(row)], positions[:, i, : len(row)] = row.ids, row.positions
    last = torch.tensor([len(row) - 1 for row in rows])
    return torch.from_numpy(ids), torch.from_numpy(positions), (torch.arange(len(rows)), last)


def pack_rows(rows: Sequence[Row]) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
    """All rows in one sequence: ids (1, S), positions (4, 1, S), whose first row keeps the sequences apart."""
    ids = np.concatenate([row.ids for row in rows])[None]
    apart = np.concatenate([np.arange(len(row)) for row in rows])
    positions = np.concatenate([apart[None], np.concatenate([row.positions for row in rows], 1)])[:, None]
    last = torch.tensor(np.cumsum([len(row) for row in rows]) - 1)
    return torch.from_numpy(ids), torch.from_numpy(positions), (torch.zeros_like(last), last)


def group_rows(lengths: Sequence[int], batch_tokens: int, *, padded: bool) -> list[list[int]]:
    """Batches of rows of similar length, of at most `batch_tokens` tokens each (one row at least).

    >>> group_rows([5, 90, 6, 4], 20, padded=True)
    [[3, 0, 2], [1]]
    """
    batches: list[list[int]] = []
    total = 0
    for i in sorted(range(len(lengths)), key=lambda index: lengths[index]):
        # Sorted by length, the newest row is the longest, so it sets the padded size of its batch.
        total = lengths[i] * (len(batches[-1]) + 1) if batches and padded else total + lengths[i]
        if batches and total <= batch_tokens:
            batches[-1].append(i)
        else:
            batches.append([i])
            total = lengths[i]
    return batches
