"""What the allocator sees: frozen features of small previews and of the task text, F(P(X), q) in equation 5.

Two sources behind one interface. `BackbonePreview` is the tower of an embedding backbone on frames of a dozen tokens:
no second model where it is the backbone in use anyway. `SmolPreview` is SmolVLM2, the paper's. A policy is trained on
the features of one of them, so a checkpoint names it and brings it along on every other backbone.

Nothing here is trained: features are constants in whatever graph they enter.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock

import numpy as np
import torch
import torch.nn.functional as F
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from allocembed.backbones.base import Backbone, BackboneError, Item, pad_rows
from allocembed.backbones.language import Lines, find_lines, run_language
from allocembed.backbones.loading import BROKEN, find_folder, load_backbone, load_model, pick_device, pick_dtype, same
from allocembed.backbones.tower import Places, find_places, run_tower
from allocembed.budget import FRAMES_PER_CHUNK, Grid
from allocembed.resize import Geometry, Patches, normalise, patchify, resize, send

DEFAULT_TASK = "Represent the video for retrieval."
"""The task text where the user gives none."""
PREVIEW_TOKENS = 12  # of a backbone's preview: 3 × 4 for a frame of 4:3
SMOLVLM2 = "HuggingFaceTB/SmolVLM2-256M-Video-Instruct"
KINDS = ("backbone", "smolvlm2")
PATCHES_AT_ONCE = 32_768  # that a vision tower is given, so that memory does not grow with the batch
TEXTS_AT_ONCE = 64
TEXTS_KEPT = 1024


class Previewer(ABC):
    """Frozen features of chunks and of texts, as fp32 constants on `device`."""

    source: str
    """Short name, hub id or folder from which the model can be loaded again."""
    visual_width: int
    text_width: int
    summary: bool = False
    """Whether the first feature of a chunk sums it up, in the space of the texts' features, and the first of a text is
    the last of the default task."""

    def __init__(self) -> None:
        self._texts: OrderedDict[str, torch.Tensor] = OrderedDict()
        self._lock = Lock()

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the features are."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """What the model computes in."""

    # Never inference tensors, even where the caller is in inference mode: those kept could enter no graph later.
    @torch.inference_mode(False)
    @torch.no_grad()
    def look(self, frames: torch.Tensor, *, asked: bool = True) -> torch.Tensor:
        """Features (N, P, visual_width) of N chunks (N, 2, 3, H, W), uint8, on any device.

        They are those of a chunk's patches; where there is a `summary`, it is the first, or zeros where nothing is
        `asked`, for which it would be of no use.
        """
        if frames.ndim != 5 or tuple(frames.shape[1:3]) != (FRAMES_PER_CHUNK, 3) or frames.dtype != torch.uint8:
            raise ValueError(f"chunks must be uint8 (N, 2, 3, H, W), not {frames.dtype} {tuple(frames.shape)}")
        return torch.cat([self._look(part, asked) for part in frames.split(self.at_once(frames))])

    def at_once(self, frames: torch.Tensor) -> int:
        """How many chunks of such frames (N, 2, 3, H, W) the vision tower is given at once."""
        return max(1, PATCHES_AT_ONCE // self._patches(*frames.shape[-2:]))

    def _look(self, frames: torch.Tensor, asked: bool) -> torch.Tensor:
        small = self.shrink(frames)
        return self.features(small, self.prepare(small, asked=asked))

    @torch.inference_mode(False)
    @torch.no_grad()
    def read(self, texts: Sequence[str]) -> list[torch.Tensor]:
        """Features (L_i, text_width) of the tokens of each text; an empty text is read as the default task.

        The newest texts are kept. On a CPU each is read alone, so that what comes out does not depend, not even in
        its last bit, on what was read beside it.
        """
        wanted = [text if asks(text) else DEFAULT_TASK for text in texts]
        with self._lock:
            found = {text: self._texts[text] for text in set(wanted) if text in self._texts}
        missing = sorted({text for text in wanted if text not in found}, key=lambda text: (len(text), text))
        at_once = 1 if self.device.type == "cpu" else TEXTS_AT_ONCE
        for start in range(0, len(missing), at_once):
            part = missing[start : start + at_once]
            found.update(zip(part, self._read(part), strict=True))
        with self._lock:
            for text in dict.fromkeys(wanted):
                self._texts[text] = found[text]
                self._texts.move_to_end(text)
            while len(self._texts) > TEXTS_KEPT:
                self._texts.popitem(last=False)
        return [found[text] for text in wanted]

    @abstractmethod
    def _patches(self, height: int, width: int) -> int:
        """Patches the vision tower is given for one chunk of such frames."""

    @abstractmethod
    def shrink(self, frames: torch.Tensor) -> torch.Tensor:
        """Previews (N, 2, 3, h, w), uint8, on `device`. Resized where the frames are: small ones move quicker."""

    @abstractmethod
    def prepare(self, small: torch.Tensor, *, asked: bool = True) -> object:
        """What `features` of previews of this shape need besides their pixels, made where the host may still wait."""

    @abstractmethod
    def features(self, small: torch.Tensor, prepared: object) -> torch.Tensor:
        """`look` for previews; on a GPU it asks for nothing and so can be captured as a graph."""

    @abstractmethod
    def _read(self, texts: list[str]) -> list[torch.Tensor]:
        """`read` for as many texts as go at once."""


class BackbonePreview(Previewer):
    """A backbone's own tower on previews of at most `tokens` merged tokens a chunk, and its language model on texts.

    Visual features are the tower's merged tokens, without Qwen3-VL's deepstack. A `summary` before them is what the
    language model makes of the chunk, read as a video of its own: it lies where the model's sentences lie, so it says
    which chunk a question is about. Text features are the last hidden states of the whole row, the prompt around the
    text included; where there are summaries, the last state of the default task comes first, to tell what fits this
    text from what fits any.
    """

    def __init__(self, backbone: Backbone, tokens: int = PREVIEW_TOKENS, *, summary: bool = False) -> None:
        super().__init__()
        if tokens < 1:
            raise ValueError(f"a preview has at least 1 token, not {tokens}")
        self.backbone, self.tokens, self.source, self.summary = backbone, tokens, backbone.name, summary
        self.visual_width = self.text_width = backbone.model.config.text_config.hidden_size
        self._rows: dict[Grid, tuple[torch.Tensor, torch.Tensor]] = {}
        self._plain: torch.Tensor | None = None
        # A tokenizer may change its settings on its first call, which must not happen in two threads at once.
        backbone.rows([Item(DEFAULT_TASK)])

    @property
    def device(self) -> torch.device:
        return self.backbone.device

    @property
    def dtype(self) -> torch.dtype:
        return self.backbone.dtype

    def grid(self, height: int, width: int) -> Grid:
        """The grid of a preview of frames of this size."""
        return preview_grid(self.backbone.geometry.native(height, width), self.tokens)

    def _patches(self, height: int, width: int) -> int:
        return self.grid(height, width).tokens * self.backbone.geometry.merge**2

    def shrink(self, frames: torch.Tensor) -> torch.Tensor:
        factor, grid = self.backbone.geometry.factor, self.grid(*frames.shape[-2:])
        small = resize(frames.flatten(0, 1), (grid.rows * factor, grid.cols * factor))
        return send(small.unflatten(0, (-1, FRAMES_PER_CHUNK)), self.device)

    def prepare(self, small: torch.Tensor, *, asked: bool = True) -> tuple[Places, Lines | None]:
        merge, grid = self.backbone.geometry.merge, self._grid_of(small)
        grids = torch.tensor([1, grid.rows * merge, grid.cols * merge]).repeat(len(small), 1)
        places = find_places(self.backbone.model.visual, grids, self.device)
        if not (self.summary and asked):
            return places, None
        ids, positions = self._row(grid)
        rows = ids.expand(len(small), -1), positions.expand(3, len(small), -1)
        return places, find_lines(*rows, self.backbone.video_token, self.device, None)

    def features(self, small: torch.Tensor, prepared: tuple[Places, Lines | None]) -> torch.Tensor:
        backbone, (places, lines) = self.backbone, prepared
        pixels = normalise(patchify(small.flatten(0, 1), backbone.geometry), backbone.geometry, backbone.dtype)
        seen = run_tower(backbone.model.visual, pixels, places, by_product=backbone.by_product, block=backbone.block)
        patches = seen.pooler_output.float().unflatten(0, (len(small), -1))
        if not self.summary:
            return patches
        if lines is None:
            return F.pad(patches, (0, 0, 1, 0))
        summary = run_language(backbone.model.language_model, lines, seen, layer=backbone.layer)[:, -1:]
        return torch.cat([summary.float(), patches], 1)

    def _grid_of(self, small: torch.Tensor) -> Grid:
        return Grid(*(side // self.backbone.geometry.factor for side in small.shape[-2:]))

    def _row(self, grid: Grid) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids (1, S) and positions (3, 1, S) of a video of one chunk: the same for all chunks of one grid."""
        with self._lock:
            if grid not in self._rows:
                merge = self.backbone.geometry.merge
                shape = torch.tensor([[1, grid.rows * merge, grid.cols * merge]])
                chunk = Patches(torch.empty(0), shape, np.zeros(1), self.backbone.geometry)
                self._rows[grid] = pad_rows(self.backbone.rows([Item(patches=chunk)]))[:2]
            return self._rows[grid]

    def _read(self, texts: list[str]) -> list[torch.Tensor]:
        if not self.summary:
            return self._states(texts)
        if self._plain is None:
            self._plain = self._states([DEFAULT_TASK])[0]
        # The default task is not read again beside others: it must end in exactly what it begins with.
        others = [text for text in texts if text != DEFAULT_TASK]
        states = dict(zip(others, self._states(others), strict=True)) if others else {}
        return [torch.cat([self._plain[-1:], states.get(text, self._plain)]) for text in texts]

    def _states(self, texts: list[str]) -> list[torch.Tensor]:
        rows = self.backbone.rows([Item(text) for text in texts])
        ids, positions, _ = pad_rows(rows)
        hidden = self.backbone.read(ids, positions)
        return _cut(hidden, [len(row) for row in rows])


class SmolPreview(Previewer):
    """SmolVLM2: its vision tower and connector on every frame, its language model on texts.

    Frames fill the checkpoint's own square, without its splitting into tiles: 64 tokens a frame for 512 pixels. The two
    frames of a chunk are averaged.
    """

    def __init__(self, source: str = SMOLVLM2, device: str | torch.device = "auto", dtype: str | torch.dtype = "auto"):
        super().__init__()
        chosen = pick_device(device)
        self.source = source
        model, self.tokenizer, self.geometry = _load_smol(source, pick_dtype(dtype, chosen))
        self.model = model.to(chosen).eval().requires_grad_(False)
        self.side = model.config.vision_config.image_size
        self.visual_width = self.text_width = model.config.text_config.hidden_size
        self._places = self._find_places()

    @property
    def device(self) -> torch.device:
        return self.model.device

    @property
    def dtype(self) -> torch.dtype:
        return self.model.dtype

    def _patches(self, height: int, width: int) -> int:
        return FRAMES_PER_CHUNK * (self.side // self.geometry.patch) ** 2

    def shrink(self, frames: torch.Tensor) -> torch.Tensor:
        small = resize(frames.flatten(0, 1), (self.side, self.side)).contiguous()
        return send(small.unflatten(0, (-1, FRAMES_PER_CHUNK)), self.device)

    def prepare(self, small: torch.Tensor, *, asked: bool = True) -> None:
        return None

    def features(self, small: torch.Tensor, prepared: None) -> torch.Tensor:
        frames = small.flatten(0, 1)
        pixels = normalise(frames.flatten(1), self.geometry, self.dtype).view(frames.shape)
        # What get_image_features does, less its search for padding, for which a GPU would have to be waited for.
        tower = self.model.vision_model
        hidden = self._embed(pixels) + tower.embeddings.position_embedding(self._places)
        hidden = tower.post_layernorm(tower.encoder(inputs_embeds=hidden, attention_mask=None).last_hidden_state)
        return self.model.connector(hidden).float().unflatten(0, (len(small), FRAMES_PER_CHUNK)).mean(1)

    def _embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """(N, 3, side, side) frames to (N, patches, width): by a product on CUDA, elsewhere by the convolution."""
        kernel, patch = self.model.vision_model.embeddings.patch_embedding, self.geometry.patch
        if not pixels.is_cuda:
            return kernel(pixels).flatten(2).transpose(1, 2)
        cut = pixels.unflatten(3, (-1, patch)).unflatten(2, (-1, patch)).permute(0, 2, 4, 1, 3, 5)
        return F.linear(cut.flatten(3).flatten(1, 2), kernel.weight.flatten(1), kernel.bias)

    @torch.no_grad()
    def _find_places(self) -> torch.Tensor:
        """Ids (1, patches) of the learned positions of a frame, as the library's own code finds them."""
        embeddings, found = self.model.vision_model.embeddings, []
        hook = embeddings.position_embedding.register_forward_pre_hook(lambda _, ids: found.append(ids[0]))
        across = self.side // self.geometry.patch
        blank = torch.zeros((1, 3, self.side, self.side), device=self.device, dtype=self.dtype)
        embeddings(blank, torch.ones((1, across, across), device=self.device, dtype=torch.bool))
        hook.remove()
        return found[0]

    def _read(self, texts: list[str]) -> list[torch.Tensor]:
        rows = [torch.tensor(ids) for ids in self.tokenizer(texts)["input_ids"]]
        # Padded on the right and causal, so no token sees the padding.
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(self.device)
        hidden = self.model.text_model(input_ids=ids, use_cache=False).last_hidden_state
        return _cut(hidden, [len(row) for row in rows])


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
    """The previewer of a kind, "backbone" or "smolvlm2"; an empty `source` is the backbone in use, or SmolVLM2-256M.

    Where it is the very `backbone` in use the two share one model; else it is loaded beside it. `tokens` is the size of
    a backbone's preview; SmolVLM2 has its own. Only a backbone has a `summary`.
    """
    if kind not in KINDS:
        raise ValueError(f"there is no preview {kind!r}: take one of {', '.join(KINDS)}")
    if kind == "smolvlm2":
        if summary:
            raise ValueError("SmolVLM2's previews have no summary: it takes a backbone, which embeds what it sees")
        return SmolPreview(source or SMOLVLM2, device, dtype)
    if backbone is not None and (not source or same(source, backbone.name)):
        return BackbonePreview(backbone, tokens, summary=summary)
    return BackbonePreview(load_backbone(source, device=device, dtype=dtype), tokens, summary=summary)


def asks(text: str | None) -> bool:
    """Whether there is a task text that says more than the default does."""
    return text is not None and bool(text.strip()) and text != DEFAULT_TASK


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


def _cut(hidden: torch.Tensor, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Rows of padded states (N, S, width) at their own lengths, each a copy that does not hold on to the rest."""
    return [row[:length].to(torch.float32, copy=True) for row, length in zip(hidden, lengths, strict=True)]


def _load_smol(source: str, dtype: torch.dtype) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, Geometry]:
    try:
        folder = find_folder(source, source)
    except BackboneError as error:
        cause = str(error.__cause__ or error).strip().splitlines()[0]
        raise BackboneError(
            f"the preview model {source!r} can't be had ({cause}): fetch it where the network allows it, with "
            f"hf download {SMOLVLM2}, or give its folder"
        ) from error
    try:
        model = load_model(folder, dtype)
        if model.config.model_type != "smolvlm":
            raise BackboneError(f"{folder} is a {model.config.model_type} model; the preview smolvlm2 reads SmolVLM2's")
        stated = folder / "preprocessor_config.json"
        settings = json.loads(stated.read_text()) if stated.is_file() else {}
        # SigLIP's statistics, where the checkpoint says nothing.
        mean, std = (tuple(map(float, settings.get(key, (0.5,) * 3))) for key in ("image_mean", "image_std"))
        vision = model.config.vision_config
        side, patch, merge = vision.image_size, vision.patch_size, model.config.scale_factor
        geometry = Geometry(patch, merge, mean, std, side**2, side**2)
        return model, AutoTokenizer.from_pretrained(folder), geometry
    except BackboneError:
        raise
    except BROKEN as error:
        raise BackboneError(
            f"the preview model in {folder} can't be loaded ({type(error).__name__}: {error}): the folder is "
            "incomplete or broken; download or save it again"
        ) from error
