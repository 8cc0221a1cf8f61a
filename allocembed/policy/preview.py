"""The inputs of the allocator: frozen features of small previews and of the question, F(P(X), q) in equation 5.

`BackbonePreview` runs a backbone's own vision tower on frames of about a dozen tokens; if it is the backbone in use, no
second model is loaded. `SmolPreview` (in `smol`) runs SmolVLM2, as in the paper. A policy is trained on the features of
one preview model, so its checkpoint names that model, which is then loaded beside any other backbone.

The backbone in use decides how many frames a chunk has. The preview model may read fewer or more frames together.
Then a chunk is cut into groups of its size. The last frame fills the last group, and the features of the groups are
averaged.

Nothing here is trained: features are constants in any graph they enter.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.backbones.base import Backbone, Prompt, TokenRow
from allocembed.backbones.checkpoint import same_model
from allocembed.backbones.loading import load_backbone
from allocembed.budget import Grid
from allocembed.errors import ConfigError
from allocembed.geometry import Geometry
from allocembed.resize import normalise, resize, send

DEFAULT_TASK = "Represent the video for retrieval."
"""The text if there is no question."""
PREVIEW_TOKENS = 12  # of a backbone's preview: 3 × 4 for a 4:3 frame
KINDS = ("backbone", "smolvlm2")
PATCHES_AT_ONCE = 32_768  # per run of a vision tower, so that memory does not grow with the batch
TEXTS_AT_ONCE = 64
TEXTS_KEPT = 1024
NO_TEXTS = 1  # width of the zero that stands for any text where a backbone reads none


class _Cache:
    """Results that a previewer has computed before. A pickle or copy starts empty: locks cannot be pickled."""

    def __init__(self) -> None:
        self.lock = Lock()
        self.texts: OrderedDict[str, torch.Tensor] = OrderedDict()
        self.rows: dict[Grid, TokenRow] = {}
        self.default: torch.Tensor | None = None

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return _Cache, ()


class Previewer(ABC):
    """Frozen features of chunks and of texts, as fp32 constants on `device`."""

    source: str
    """Short name, hub id or folder from which the model can be loaded again."""
    geometry: Geometry
    """The geometry of the preview model."""
    visual_width: int
    text_width: int
    summary: bool = False
    """Whether the first feature of a chunk is its summary, in the space of the text features, and the first feature of
    a text is the last of the default task."""

    def __init__(self, frames_per_chunk: int, model_frames: int) -> None:
        """`frames_per_chunk`: of the backbone in use; `model_frames`: frames that the preview model reads together."""
        self.frames_per_chunk, self.model_frames = frames_per_chunk, model_frames
        self._cache = _Cache()

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the features."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The number format of the model."""

    @abstractmethod
    def identity(self) -> str:
        """A digest of the preview model's weights, and its settings, which decide the features."""

    # Never inference tensors, even if the caller is in inference mode: cached ones could not enter a graph later.
    @torch.inference_mode(False)
    @torch.no_grad()
    def look(self, frames: torch.Tensor, *, asked: bool = True) -> torch.Tensor:
        """Features (N, P, visual_width) of N chunks (N, frames_per_chunk, 3, H, W), uint8, on any device.

        They are the features of a chunk's patches. With a `summary`, it comes first; it is zeros if nothing is `asked`,
        because only a question uses it.
        """
        wanted = (self.frames_per_chunk, 3)
        if frames.ndim != 5 or tuple(frames.shape[1:3]) != wanted or frames.dtype != torch.uint8:
            shape = f"(N, {self.frames_per_chunk}, 3, H, W)"
            raise ValueError(f"chunks must be uint8 {shape}, not {frames.dtype} {tuple(frames.shape)}")
        portions = map(self.shrink, frames.split(self.at_once(frames)))
        return torch.cat([self.features(small, self.prepare(small, asked=asked)) for small in portions])

    def at_once(self, frames: torch.Tensor) -> int:
        """Chunks of such frames (N, frames_per_chunk, 3, H, W) that the vision tower takes at once."""
        height, width = self._size(*frames.shape[-2:])
        patches = height * width // self.geometry.patch**2 * -(-self.frames_per_chunk // self.model_frames)
        return max(1, PATCHES_AT_ONCE // patches)

    def tokens_of(self, height: int, width: int, *, asked: bool) -> tuple[int, int]:
        """Tokens read of a chunk of such frames, as in `Plan`: by a language model, and by the vision tower."""
        high, wide = self._size(height, width)
        groups = -(-self.frames_per_chunk // self.model_frames)
        grid = Grid(high // self.geometry.factor, wide // self.geometry.factor)
        return groups * self._read_tokens(grid, asked), groups * grid.tokens

    @torch.inference_mode(False)
    @torch.no_grad()
    def read(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Features (L_i, text_width) of the tokens of each text; an empty text is read as the default task.

        Recent texts are cached. On a CPU each text is read alone, so that its bits do not depend on the others.
        """
        wanted = [text if asks(text) else DEFAULT_TASK for text in texts]
        cache = self._cache
        with cache.lock:
            found = {text: cache.texts[text] for text in set(wanted) if text in cache.texts}
        missing = sorted({text for text in wanted if text not in found}, key=lambda text: (len(text), text))
        at_once = 1 if self.device.type == "cpu" else TEXTS_AT_ONCE
        for start in range(0, len(missing), at_once):
            part = missing[start : start + at_once]
            found.update(zip(part, self.states(part), strict=True))
        with cache.lock:
            for text in dict.fromkeys(wanted):
                cache.texts[text] = found[text]
                cache.texts.move_to_end(text)
            while len(cache.texts) > TEXTS_KEPT:
                cache.texts.popitem(last=False)
        return [found[text] for text in wanted]

    def shrink(self, frames: torch.Tensor) -> torch.Tensor:
        """Previews (N, frames_per_chunk, 3, h, w), uint8, on `device`; resized first, because small ones move fast."""
        small = resize(frames.flatten(0, 1), self._size(*frames.shape[-2:])).contiguous()
        return send(small.unflatten(0, frames.shape[:2]), self.device)

    def prepare(self, small: torch.Tensor, *, asked: bool = True) -> Any:
        """Prepare the inputs of `features` besides pixels; this part may wait for the device."""
        return self._prepare(split_chunks(small, self.model_frames).flatten(0, 1), asked)

    def features(self, small: torch.Tensor, prepared: Any) -> torch.Tensor:
        """`look` for previews; it never waits for a GPU, so it can be captured as a graph."""
        groups = split_chunks(small, self.model_frames)
        found = self._features(groups.flatten(0, 1), prepared)
        return found if groups.shape[1] == 1 else found.unflatten(0, groups.shape[:2]).mean(1)

    @abstractmethod
    def states(self, texts: list[str]) -> list[torch.Tensor]:
        """`read` without the cache, all texts at once."""

    @abstractmethod
    def _size(self, height: int, width: int) -> tuple[int, int]:
        """Height and width of the preview of such frames."""

    def _read_tokens(self, grid: Grid, asked: bool) -> int:
        """Tokens that a language model reads of a preview."""
        return 0

    @abstractmethod
    def _prepare(self, small: torch.Tensor, asked: bool) -> Any:
        """`prepare` for groups (N, model_frames, 3, h, w)."""

    @abstractmethod
    def _features(self, small: torch.Tensor, prepared: Any) -> torch.Tensor:
        """`features` of groups (N, model_frames, 3, h, w)."""


class BackbonePreview(Previewer):
    """A backbone's own tower on previews of at most `tokens` tokens per chunk, and its language model on texts.

    Visual features are the tower's tokens, without deepstack. A `summary` before them is the backbone's pooled state of
    the chunk as a video of its own. It lies in the space of the model's sentences, so it shows which chunk a question
    is about. Text features are the states of the whole row, including the prompt around the text. With summaries, the
    pooled state of the default task comes first, to separate a fit to this text from a fit to any text, and narrower
    features are filled up with zeros.

    A backbone that reads no texts gives one zero for any text: the policy then decides by the pictures alone.
    """

    def __init__(
        self,
        backbone: Backbone,
        tokens: int = PREVIEW_TOKENS,
        *,
        summary: bool = False,
        frames_per_chunk: int | None = None,
    ) -> None:
        """`frames_per_chunk` is that of the backbone in use, if it is another than this one."""
        if tokens < 1:
            raise ConfigError(f"a preview needs at least 1 token, not {tokens}")
        own = backbone.geometry.frames_per_chunk
        super().__init__(own if frames_per_chunk is None else frames_per_chunk, own)
        self.backbone, self.tokens, self.source, self.summary = backbone, tokens, backbone.name, summary
        self.geometry = backbone.geometry
        widths = backbone.widths
        if summary and not backbone.reads_texts:
            raise ConfigError(
                f"{backbone.name} reads no texts, so a preview has no summary that a question could be compared with: "
                "leave out preview_summary"
            )
        self.visual_width, self.text_width = widths.tokens, widths.texts or NO_TEXTS
        if summary:
            self.visual_width = self.text_width = max(widths.tokens, widths.pooled, widths.texts)

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.dtype

    def identity(self) -> str:
        return f"{self.backbone.weights_digest} {self.tokens} tokens"

    def grid(self, height: int, width: int) -> Grid:
        """The grid of the preview of frames of this size."""
        return preview_grid(self.geometry.native(height, width), self.tokens)

    def _size(self, height: int, width: int) -> tuple[int, int]:
        factor, grid = self.geometry.factor, self.grid(height, width)
        return grid.rows * factor, grid.cols * factor

    def _read_tokens(self, grid: Grid, asked: bool) -> int:
        if not self.backbone.has_language_model:
            return grid.tokens
        return len(self._row(grid)) if self.summary and asked else 0

    def _prepare(self, small: torch.Tensor, asked: bool) -> tuple[Any, Any]:
        backbone, factor = self.backbone, self.geometry.factor
        grid = Grid(small.shape[-2] // factor, small.shape[-1] // factor)
        tower = backbone.prepare_tower(np.tile([grid.rows, grid.cols], (len(small), 1)))
        return tower, backbone.prepare_rows([self._row(grid)] * len(small)) if self.summary and asked else None

    def _features(self, small: torch.Tensor, prepared: tuple[Any, Any]) -> torch.Tensor:
        backbone, (tower, rows) = self.backbone, prepared
        pixels = normalise(self.geometry.patchify(small.flatten(0, 1)), self.geometry, backbone.dtype)
        seen = backbone.run_tower(pixels, tower)
        patches = widen(seen.tokens.float(), self.visual_width).unflatten(0, (len(small), -1))
        if not self.summary:
            return patches
        if rows is None:
            return F.pad(patches, (0, 0, 1, 0))
        return torch.cat([widen(backbone.pool(rows, seen).float(), self.visual_width)[:, None], patches], 1)

    def _row(self, grid: Grid) -> TokenRow:
        """The row of a video of one chunk, the same for all chunks of one grid."""
        rows = self._cache.rows
        with self._cache.lock:
            if grid not in rows:
                tokenised = self.backbone.tokenise([Prompt(seconds=np.zeros(1))])
                (rows[grid],) = self.backbone.rows(tokenised, [np.array([[grid.rows, grid.cols]])])
            return rows[grid]

    def states(self, texts: list[str]) -> list[torch.Tensor]:
        if not self.backbone.reads_texts:
            return [torch.zeros((1, NO_TEXTS), device=self.device)] * len(texts)
        if not self.summary:
            return self.backbone.text_states(texts)
        default = self._cache.default
        if default is None:
            default = self._cache.default = self._wide_states([DEFAULT_TASK])[0]
        # The default task is not read again beside others: its last feature must equal its first, bit for bit.
        others = [text for text in texts if text != DEFAULT_TASK]
        states = dict(zip(others, self._wide_states(others), strict=True)) if others else {}
        return [torch.cat([default[-1:], states.get(text, default)]) for text in texts]

    def _wide_states(self, texts: list[str]) -> list[torch.Tensor]:
        return [widen(states, self.text_width) for states in self.backbone.text_states(texts)]


def load_previewer(
    kind: str,
    source: str = "",
    tokens: int = PREVIEW_TOKENS,
    backbone: Backbone | None = None,
    device: str | torch.device = "auto",
    dtype: str | torch.dtype = "auto",
    *,
    summary: bool = False,
) -> Previewer:
    """Load a previewer of the kind "backbone" or "smolvlm2"; an empty `source` means `backbone`, or SmolVLM2-256M.

    `backbone` is the one in use: it sets the frames per chunk, and if it is the preview model too, the two share one
    model. `tokens` is the size of a backbone's preview; SmolVLM2 has its own. Only a backbone has a `summary`.
    """
    if kind not in KINDS:
        raise ConfigError(f"unknown preview {kind!r}: use one of {', '.join(KINDS)}")
    frames_per_chunk = None if backbone is None else backbone.geometry.frames_per_chunk
    if kind == "smolvlm2":
        from allocembed.policy.smol import SMOLVLM2, SmolPreview

        if summary:
            raise ConfigError("SmolVLM2 has no summary of a preview: use a backbone, which embeds what it sees")
        return SmolPreview(source or SMOLVLM2, device, dtype, frames_per_chunk or 2)
    if backbone is None or (source and not same_model(source, backbone.name)):
        backbone = load_backbone(source, device=device, dtype=dtype)
    return BackbonePreview(backbone, tokens, summary=summary, frames_per_chunk=frames_per_chunk)


def widen(states: torch.Tensor, width: int) -> torch.Tensor:
    """States (..., narrower) filled up with zeros, or as they are if they are that wide."""
    missing = width - states.shape[-1]
    return F.pad(states, (0, missing)) if missing else states


def asks(text: str | None) -> bool:
    """Whether a text says more than the default task, in any case and with or without its full stop.

    >>> asks(None), asks("  "), asks("represent the video for retrieval "), asks("Who is it?")
    (False, False, False, True)
    """
    return _plain(text or "") not in ("", _plain(DEFAULT_TASK))


def _plain(text: str) -> str:
    return text.strip().rstrip(".").rstrip().casefold()


def split_chunks(chunks: torch.Tensor, size: int) -> torch.Tensor:
    """Cut chunks (N, f, 3, h, w) into groups of `size` frames (N, G, size, 3, h, w); the last frame fills the last.

    >>> [split_chunks(torch.zeros(5, frames, 3, 8, 8), size).shape[1:3] for frames, size in ((2, 1), (1, 2), (2, 2))]
    [torch.Size([2, 1]), torch.Size([1, 2]), torch.Size([1, 2])]
    """
    missing = -chunks.shape[1] % size
    if missing:
        chunks = torch.cat([chunks, *[chunks[:, -1:]] * missing], 1)
    return chunks.unflatten(1, (-1, size))


def preview_grid(native: Grid, tokens: int) -> Grid:
    """The grid of at most `tokens` tokens that shows most: many tokens, little distortion; never above native.

    >>> preview_grid(Grid(6, 8), 12), preview_grid(Grid(8, 6), 12), preview_grid(Grid(20, 36), 12)
    (Grid(rows=3, cols=4), Grid(rows=4, cols=3), Grid(rows=3, cols=4))
    >>> preview_grid(Grid(2, 2), 12), preview_grid(Grid(1, 48), 12)
    (Grid(rows=2, cols=2), Grid(rows=1, cols=12))
    """

    def worth(grid: Grid) -> tuple[float, float]:
        stretch = grid.rows * native.cols / (grid.cols * native.rows)
        kept = min(stretch, 1 / stretch)
        return grid.tokens * kept, kept

    every = (
        Grid(rows, cols)
        for rows in range(1, min(native.rows, tokens) + 1)
        for cols in range(1, min(native.cols, tokens // rows) + 1)
    )
    return max(every, key=worth)
