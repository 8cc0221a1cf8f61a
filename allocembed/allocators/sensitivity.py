"""Sensitivity: give pixels to the chunks whose pixels move the vector. No training, for every backbone.

The video is embedded with every chunk small, and once more for each chunk with that chunk alone at another size. How
far the vector moves says what resolution is worth there. The vector depends on the question, so the allocation does so
too.

How much to give follows from a rate–distortion model. If the error that a chunk of n tokens leaves in the vector is
g · n^−a, the least total error under a budget has n proportional to g^(1 / (1 + a)), so the scale, which is the square
root of tokens, is proportional to g^(1 / (2 + 2a)). We use the measured moves as g.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import torch

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.allocators.registry import parse_looks
from allocembed.backbones.base import Backbone, Prompt
from allocembed.backbones.variants import Look, LookSize, Variants, sizes_of
from allocembed.budget import Grid, chunk_frames
from allocembed.errors import PolicyError
from allocembed.policy.preview import preview_grid
from allocembed.policy.replay import Replay, numbers_of, tensors_of, with_tensors
from allocembed.resize import as_chunks, normalise, prompt_seconds, resize
from allocembed.video.clip import Clip

EXPONENT = 1.5
"""The a of the model."""
LEAST_SHARE = 0.03
"""Smaller moves count as this share of a look's mean: what a small look cannot see may still be there."""
LEAST_MOVE = 1e-6  # below it, moves are rounding
Read = tuple[torch.Tensor, torch.Tensor]
"""Places of visual tokens and of chunk states that rows read."""


@dataclass(frozen=True, eq=False)
class LookResults:
    """How far each look moved the vector of one video, and the tokens read for it."""

    moves: np.ndarray
    """(L, C) how far the vector moves, 1 − cos, for each look and chunk."""
    tokens: int
    tower_tokens: int
    """Tokens read by the language model and by the tower, as in `Plan`."""


@dataclass(frozen=True)
class _PassShape:
    """The key of a captured pass: looks, chunks and numbers that its graph has fixed."""

    looks: tuple[Look, ...]
    chunks: int
    numbers: tuple[Any, ...]
    template: Variants = field(compare=False, repr=False)
    """Prepared rows of such a pass, whose tensors are replaced."""


class Sensitivity(Allocator):
    """Keeps all candidates, and sizes each chunk by what its pixels change in the backbone's own vector.

    All rows of all looks are one packed pass, in which a backbone may share what they have in common. On CUDA the pass
    is one graph per shape.
    """

    name = "sensitivity"
    takes_tensors = True
    needs_backbone = True

    def __init__(
        self, backbone: Backbone, looks: Sequence[tuple[LookSize, LookSize]] | None = None, exponent: float = EXPONENT
    ) -> None:
        """The usual `looks` are those of the backbone's family, which says how they are written."""
        self.backbone, self.exponent = backbone, exponent
        self.looks = tuple(backbone.looks if looks is None else looks)
        self._start()

    @classmethod
    def from_options(cls, options: str, backbone: Backbone | None) -> Self:
        """Looks and an exponent, such as "12-24+25%-100%@1.5", or nothing for the usual ones."""
        if backbone is None or not backbone.has_weights:
            holder = "pass one" if backbone is None else "here another program holds its weights"
            raise PolicyError(f"{cls.name} looks with the backbone ({holder}): use uniform, content or learned")
        looks, exponent = parse_looks(f"{cls.name}:{options}") or (None, None)
        return cls(backbone, looks, EXPONENT if exponent is None else exponent)

    def _start(self) -> None:
        """Create what a pickle cannot hold."""
        device, half = self.backbone.device, self.backbone.dtype != torch.float32  # in float32 attention asks the host
        self._replay = Replay(self._moves, self._prepare, works=self.backbone.packs and half)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # graphs need a stream of their own

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_replay", "_stream")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start()

    def identity(self) -> str:
        return f"{self.name} {self.looks} {self.exponent}"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        looks = self.look(clip, request)
        scales = scales_from(looks.moves, self.exponent)
        return Plan(np.arange(len(clip)), scales, look_tokens=looks.tokens, look_tower_tokens=looks.tower_tokens)

    @torch.inference_mode()
    def look(self, clip: Clip, request: AllocationRequest) -> LookResults:
        """Embed the video at every look, and see how far each chunk moves the vector."""
        if self._stream is None:
            return self._look(clip, request)
        self._stream.wait_stream(torch.cuda.current_stream(self.backbone.device))  # which may still make the frames
        with torch.cuda.stream(self._stream):
            return self._look(clip, request)

    def _look(self, clip: Clip, request: AllocationRequest) -> LookResults:
        backbone, geometry = self.backbone, request.geometry
        frames = chunk_frames(np.arange(len(clip)), geometry.frames_per_chunk)
        native = geometry.native(clip.height, clip.width, frames=len(clip), listed=clip.listed)
        looks = tuple((look_grid(native, usual), look_grid(native, changed)) for usual, changed in self.looks)
        # First, so that a GPU resizes while the host writes the rows.
        pixels = self.shrink(as_chunks(clip.frames, geometry.frames_per_chunk), sizes_of(looks))
        seconds = prompt_seconds(clip, frames, backbone.inputs.list_rate)
        (ids,) = backbone.tokenise([Prompt(request.question, seconds=seconds)])
        variants = backbone.prepare_variants(ids, looks, len(frames))
        kind = _PassShape(looks, len(frames), numbers_of(variants.prepared), variants)
        moves = self._replay(kind, pixels, *tensors_of(variants.prepared)).double().numpy()
        made = len(frames) * sum(grid.tokens for grid in sizes_of(looks))
        return LookResults(moves, variants.tokens if backbone.has_language_model else made, made)

    def shrink(self, chunks: torch.Tensor, sizes: Sequence[Grid]) -> torch.Tensor:
        """Patches of chunks (C, frames, 3, H, W) at one size after the other, on the backbone's device."""
        geometry, patches = self.backbone.geometry, []
        for grid in sizes:
            small = resize(chunks.flatten(0, 1), (grid.rows * geometry.factor, grid.cols * geometry.factor))
            patches.append(geometry.patchify(small))
        return torch.cat(patches).to(self.backbone.device)

    def _prepare(self, kind: _PassShape, *_: torch.Tensor) -> tuple[Any, Read, _PassShape]:
        """Inputs of the tower, and the places of tokens and chunk states that the rows read."""
        grids = np.repeat([[grid.rows, grid.cols] for grid in sizes_of(kind.looks)], kind.chunks, axis=0)
        read = (kind.template.seen, kind.template.chunks)
        tokens, chunks = (torch.from_numpy(places).to(self.backbone.device) for places in read)
        return self.backbone.prepare_tower(grids), (tokens, chunks), kind

    def _moves(self, prepared: tuple[Any, Read, _PassShape], pixels: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        """(L, C) how far the vector moves for each look and chunk."""
        tower, read, kind = prepared
        normalised = normalise(pixels, self.backbone.geometry, self.backbone.dtype)
        features = self.backbone.run_tower(normalised, tower).select(*read)
        pooled = self.backbone.pool(with_tensors(kind.template.prepared, iter(rows)), features)
        count = len(kind.looks) * (1 + kind.chunks)
        vectors = self.backbone.vectors(pooled)[:count].unflatten(0, (len(kind.looks), -1))
        return 1 - (vectors[:, 1:] * vectors[:, :1]).sum(-1)


def look_grid(native: Grid, size: LookSize) -> Grid:
    """The grid of a look: of a number of tokens, or of a share of the native ones.

    >>> look_grid(Grid(14, 14), 0.25), look_grid(Grid(14, 14), 1.0), look_grid(Grid(14, 14), 12)
    (Grid(rows=7, cols=7), Grid(rows=14, cols=14), Grid(rows=3, cols=3))
    """
    return preview_grid(native, size if isinstance(size, int) else max(1, round(size * native.tokens)))


def scales_from(moves: np.ndarray, exponent: float = EXPONENT) -> np.ndarray:
    """Scales (C,) from how far each look and chunk moved the vector, (L, C); the looks count alike.

    >>> scales_from(np.array([[0.01, 0.04]]), exponent=1.0).round(3).tolist()
    [0.795, 1.125]
    """
    moves = np.maximum(moves, LEAST_MOVE)
    error = np.log(np.maximum(moves / moves.mean(1, keepdims=True), LEAST_SHARE)).mean(0)
    return np.exp(error / (2 + 2 * exponent))
