"""Sensitivity: give pixels to the chunks whose pixels move the vector. No training, for every backbone.

The video is embedded with every chunk small, and once more for each chunk with that chunk alone at another size. How
far the vector moves says what resolution is worth there. The vector depends on the question, so the allocation does so
too.

How much to give follows from a rate–distortion model. If the error that a chunk of n tokens leaves in the vector is
g · n^−a, the least total error under a budget has n proportional to g^(1 / (1 + a)), so the scale, which is the square
root of tokens, is proportional to g^(1 / (2 + 2a)). The moves of a look are taken for the g of the chunks.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.backbones.base import Backbone, Prompt
from allocembed.budget import Allocation, Grid, chunk_frames
from allocembed.policy.preview import preview_grid
from allocembed.policy.replay import Replay, numbers_of, tensors_of, with_tensors
from allocembed.resize import normalise, prompt_seconds, to_patches
from allocembed.video.clip import Clip

LOOKS = ((6, 12), (12, 24))
"""Tokens of all chunks, and of the one that is changed, for each look."""
EXPONENT = 1.5
"""The a of the model."""
LEAST_MOVE = 1e-6  # below it, moves are rounding


@dataclass(frozen=True, eq=False)
class Looks:
    """What the looks at one video found."""

    moves: np.ndarray
    """(L, C) how far the vector moves, 1 − cos, for each look and chunk."""
    tokens: int
    """Tokens that the language model read for it."""


@dataclass(frozen=True)
class _Pass:
    """What is fixed in one pass of a look: its two sizes, its chunks, and whether shared tokens are left out."""

    look: tuple[Grid, Grid]
    chunks: int
    shares: bool
    numbers: tuple[Any, ...]
    template: Any = field(compare=False, repr=False)
    """Prepared rows of such a pass, whose tensors are replaced."""


class Sensitivity(Allocator):
    """Keeps all candidates, and sizes each chunk by what its pixels change in the backbone's own vector.

    All rows of a look are one packed pass. A row differs from the first one in one chunk only, so what stands before
    that chunk is computed once. On CUDA the pass is one graph per shape.
    """

    name = "sensitivity"
    takes_tensors = True

    def __init__(
        self, backbone: Backbone, looks: Sequence[tuple[int, int]] = LOOKS, exponent: float = EXPONENT
    ) -> None:
        self.backbone, self.looks, self.exponent = backbone, tuple(looks), exponent
        self._start()

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
        return Plan(np.arange(len(clip)), scales_from(looks.moves, self.exponent), look_tokens=looks.tokens)

    @torch.inference_mode()
    def look(self, clip: Clip, request: AllocationRequest) -> Looks:
        """Embed the video at every look, and see how far each chunk moves the vector."""
        if self._stream is None:
            return self._look(clip, request)
        self._stream.wait_stream(torch.cuda.current_stream(self.backbone.device))  # which may still make the frames
        with torch.cuda.stream(self._stream):
            return self._look(clip, request)

    def _look(self, clip: Clip, request: AllocationRequest) -> Looks:
        backbone, geometry = self.backbone, request.geometry
        frames = chunk_frames(np.arange(len(clip)), geometry.frames_per_chunk)
        native = geometry.native(clip.height, clip.width, frames=len(clip), listed=clip.listed)
        seconds = prompt_seconds(clip, frames, backbone.inputs.list_rate)
        (tokenised,) = backbone.tokenise([Prompt(request.question, seconds=seconds)])
        moves, tokens = [], 0
        for usual, changed in self.looks:
            look = preview_grid(native, usual), preview_grid(native, changed)
            grids = layouts(look, len(frames))
            rows = backbone.rows([tokenised] * len(grids), list(grids))
            # Each row is the first one up to the chunk that is changed.
            starts = np.flatnonzero(rows[0].visual)[look[0].tokens * np.arange(len(frames))]
            prepared, left_out = backbone.prepare_branches(rows, [0, *starts.tolist()])
            kind = _Pass(look, len(frames), any(left_out), numbers_of(prepared), prepared)
            moves.append(self._replay(kind, self._shrink(clip, look, frames), *tensors_of(prepared)).double().numpy())
            tokens += sum(map(len, rows)) - sum(left_out)
        return Looks(np.stack(moves), tokens)

    def _shrink(self, clip: Clip, look: tuple[Grid, Grid], frames: tuple[tuple[int, ...], ...]) -> torch.Tensor:
        """Pixels of all chunks at the first size, then at the second, on the backbone's device."""
        grids, geometry = tuple(grid for grid in look for _ in frames), self.backbone.geometry
        small = Allocation(frames * 2, (1.0,) * len(grids), grids, look[0], budget=0, base_cost=1)
        canvas = geometry.canvas(clip.height, clip.width, listed=clip.listed)
        return to_patches(clip.frames, small, geometry, canvas=canvas).pixels.to(self.backbone.device)

    def _prepare(self, kind: _Pass, *_: torch.Tensor) -> tuple[Any, torch.Tensor, _Pass]:
        """What the tower needs, and which of its tokens the rows read."""
        usual, changed = ([grid.rows, grid.cols] for grid in kind.look)
        tower = self.backbone.prepare_tower(np.array([usual] * kind.chunks + [changed] * kind.chunks))
        index = torch.from_numpy(tokens_read(kind.look, kind.chunks, shares=kind.shares))
        return tower, index.to(self.backbone.device), kind

    def _moves(
        self, prepared: tuple[Any, torch.Tensor, _Pass], pixels: torch.Tensor, *rows: torch.Tensor
    ) -> torch.Tensor:
        """(C,) how far the vector moves with each chunk."""
        tower, index, kind = prepared
        normalised = normalise(pixels, self.backbone.geometry, self.backbone.dtype)
        features = self.backbone.run_tower(normalised, tower).select(index)
        vectors = self.backbone.vectors(self.backbone.pool(with_tensors(kind.template, iter(rows)), features))
        return 1 - (vectors[1 : 1 + kind.chunks] * vectors[:1]).sum(-1)


def layouts(look: tuple[Grid, Grid], chunks: int) -> np.ndarray:
    """Grids (C + 1, C, 2) of the chunks of each row: all of the first size, then one after the other of the second."""
    usual, changed = ([grid.rows, grid.cols] for grid in look)
    grids = np.tile(usual, (chunks + 1, chunks, 1))
    grids[np.arange(chunks) + 1, np.arange(chunks)] = changed
    return grids


def tokens_read(look: tuple[Grid, Grid], chunks: int, *, shares: bool) -> np.ndarray:
    """The tower's tokens that the rows of a look read, in order. With `shares`, what is before the change is left out.

    >>> tokens_read((Grid(1, 1), Grid(1, 2)), 2, shares=False).tolist()
    [0, 1, 2, 3, 1, 0, 4, 5]
    >>> tokens_read((Grid(1, 1), Grid(1, 2)), 2, shares=True).tolist()
    [0, 1, 2, 3, 1, 4, 5]
    """
    few, many = look[0].tokens, look[1].tokens
    small = np.arange(chunks * few).reshape(chunks, few)
    large = chunks * few + np.arange(chunks * many).reshape(chunks, many)
    rows = [small.ravel()]
    for chunk in range(chunks):
        first = chunk if shares else 0
        rows.append(np.concatenate([small[first:chunk].ravel(), large[chunk], small[chunk + 1 :].ravel()]))
    return np.concatenate(rows)


def scales_from(moves: np.ndarray, exponent: float = EXPONENT) -> np.ndarray:
    """Scales (C,) from how far each look and chunk moved the vector, (L, C); the looks count alike.

    >>> scales_from(np.array([[0.01, 0.04]]), exponent=1.0).round(3).tolist()
    [0.795, 1.125]
    """
    moves = np.maximum(moves, LEAST_MOVE)
    error = np.log(moves / moves.mean(1, keepdims=True)).mean(0)
    return np.exp(error / (2 + 2 * exponent))
