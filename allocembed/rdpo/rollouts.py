"""From sampled scales to vectors: every rollout's grids, and the frozen backbone's reading of them.

The K allocations of one video differ in few sizes, so a chunk goes through the vision tower once for every size that
any of them gives it; rollouts then gather the tokens of their chunks. Layouts are tokenised once a video, because they
don't depend on sizes. The language model reads rollouts of similar length together, right-padded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allocembed.backbones.base import Backbone, Item, group_rows, pad_rows
from allocembed.budget import Budget, base_cost, grids_at, project
from allocembed.rdpo.data import Videos
from allocembed.rdpo.log import Clock
from allocembed.rdpo.rewards import scale_cost, token_cost
from allocembed.resize import Patches, normalise, patchify, resize

SOURCE_VALUES = 2**28  # pixel values resized at a time, as float32 a gigabyte
BLOCK = 4  # so many times `batch_tokens` are in memory as features at once


@dataclass(frozen=True, eq=False)
class Allocations:
    """What K sampled allocations of b videos came to; all on the host."""

    scales: np.ndarray
    """(b, K, C) as they were realised."""
    grids: np.ndarray
    """(b, K, C, 2) merged rows and cols."""
    price: np.ndarray
    """(b, K) the cost that the reward sees, in [0, 1]."""
    relative: np.ndarray
    """(b, K) tokens in units of Base's for the same video."""

    @property
    def tokens(self) -> np.ndarray:
        """(b, K, C) tokens of each chunk."""
        return self.grids.prod(-1)


def allocate(
    scales: np.ndarray,
    videos: Videos,
    backbone: Backbone,
    budget: Budget,
    scale_range: tuple[float, float],
    *,
    mode: str = "projected",
    cost: str = "tokens",
) -> Allocations:
    """Turns sampled scales (b, K, C) into grids: projected onto the budget, or `soft`, as they are."""
    count, k, chunks = scales.shape
    native = backbone.geometry.native(*videos.frames.shape[-2:])
    sides = np.array([native.rows, native.cols])
    limit = np.array([budget.tokens(native, int(total)) for total in videos.totals])
    if mode == "projected":
        flat, grids = project(scales.reshape(count * k, chunks), sides, np.repeat(limit, k), scale_range)
        scales, grids = flat.reshape(scales.shape), grids.reshape(count, k, chunks, 2)
    else:
        grids = grids_at(scales, sides)
    least, most = grids_at(np.array(scale_range), sides).prod(-1) * chunks
    tokens = grids.prod(-1).sum(-1)
    if cost == "scale":
        price = scale_cost(torch.from_numpy(scales), scale_range=scale_range)
    else:
        most = np.minimum(limit, most) if mode == "projected" else np.full(count, most)
        price = token_cost(torch.from_numpy(tokens), torch.from_numpy(most), int(least))
    base = np.array([base_cost(native, budget.base_frames, int(total)) for total in videos.totals])
    return Allocations(scales, grids, price.float().numpy(), tokens / base[:, None])


def concentration(tokens: np.ndarray) -> np.ndarray:
    """Share of the tokens (..., C) that lie on the quarter of the chunks (rounded up) with the most; 0.25 if all alike.

    >>> concentration(np.array([[4, 4, 4, 4], [1, 1, 9, 1]])).tolist()
    [0.25, 0.75]
    """
    top = -(-tokens.shape[-1] // 4)
    return np.sort(tokens, -1)[..., -top:].sum(-1) / tokens.sum(-1)


class Reader:
    """Embeds allocations of videos with a frozen backbone, and texts."""

    def __init__(
        self, backbone: Backbone, batch_tokens: int = 65536, *, share: bool = True, clock: Clock | None = None
    ) -> None:
        self.backbone, self.batch_tokens, self.share = backbone, batch_tokens, share
        self.clock = clock or (lambda part: nullcontext())
        backbone.by_product = True

    def texts(self, texts: Sequence[str], queries: Sequence[bool]) -> Tensor:
        """Unit vectors (N, dim) fp32 on the device; queries are introduced by the backbone's query instruction."""
        instruction = self.backbone.query_instruction
        items = [
            Item(text, instruction=instruction if query else None) for text, query in zip(texts, queries, strict=True)
        ]
        vectors = self.backbone.embed(items, batch_tokens=self.batch_tokens)
        return vectors.to(self.backbone.device)

    @torch.no_grad()
    def embed(self, videos: Videos, texts: Sequence[str | None], grids: np.ndarray) -> Tensor:
        """Unit vectors (b, K, dim) fp32 of b videos, each with its task text, under the grids (b, K, C, 2)."""
        layouts = self.backbone.tokenise(
            [Item(text, self._hollow(seconds)) for text, seconds in zip(texts, videos.seconds, strict=True)]
        )
        vectors = torch.empty((*grids.shape[:2], self.backbone.dim), device=self.backbone.device)
        for block in self._blocks(grids):
            with self.clock("vision"):
                features, starts = self._see(videos, block, grids[block])
            with self.clock("language"):
                vectors[block] = self._read(
                    [layouts[i] for i in range(block.start, block.stop)], grids[block], features, starts
                )
        return vectors

    def _hollow(self, seconds: np.ndarray) -> Patches:
        """Chunks and their times without pixels or sizes: all that a layout depends on."""
        nothing = torch.empty(0, dtype=torch.uint8)
        return Patches(nothing, torch.zeros((len(seconds), 3), dtype=torch.long), seconds, self.backbone.geometry)

    def _blocks(self, grids: np.ndarray) -> Iterator[slice]:
        """Runs of videos whose rollouts' tokens fit into memory, one video at least."""
        tokens = grids.prod(-1).sum((1, 2))
        start, total = 0, 0
        for end, more in enumerate(tokens.tolist()):
            if end > start and total + more > BLOCK * self.batch_tokens:
                yield slice(start, end)
                start, total = end, 0
            total += more
        yield slice(start, len(tokens))

    def _see(self, videos: Videos, block: slice, grids: np.ndarray) -> tuple[SimpleNamespace, np.ndarray]:
        """Vision tokens of every different (video, chunk, grid), and where those of each chunk (b, K, C) start."""
        count, k, chunks, _ = grids.shape
        video = np.broadcast_to(np.arange(count)[:, None, None] + block.start, (count, k, chunks))
        chunk = np.broadcast_to(np.arange(chunks), (count, k, chunks))
        # Sorted by size first, so that chunks of one size lie together and are resized together.
        keys = np.stack([grids[..., 0], grids[..., 1], video, chunk], -1).reshape(-1, 4)
        if self.share:
            code = np.ravel_multi_index(keys.T, keys.max(0) + 1)
            _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
            different = keys[first]
        else:
            order = np.lexsort(keys.T[::-1])
            different, inverse = keys[order], np.argsort(order)
        tokens = different[:, :2].prod(-1)
        starts = np.cumsum(tokens) - tokens
        parts = [self._look(videos, part) for part in _portions(different, tokens, self.batch_tokens)]
        deep = zip(*(getattr(part, "deepstack_features", None) or () for part in parts), strict=True)
        features = SimpleNamespace(
            pooler_output=torch.cat([part.pooler_output for part in parts]),
            deepstack_features=[torch.cat(layer) for layer in deep],
        )
        return features, starts[inverse].reshape(count, k, chunks)

    def _look(self, videos: Videos, different: np.ndarray) -> object:
        """The vision tower on chunks (n, 4): rows, cols, video, chunk; those of one grid lie together."""
        geometry, device = self.backbone.geometry, self.backbone.device
        edges = np.flatnonzero(np.diff(different[:, :2], axis=0).any(1)) + 1
        pixels = []
        for alike in np.split(different, edges):
            rows, cols = (int(side) for side in alike[0, :2])
            at_once = max(1, SOURCE_VALUES // (2 * videos.frames[0, 0].numel()))
            for first in range(0, len(alike), at_once):
                chosen = alike[first : first + at_once]
                video = torch.from_numpy(np.repeat(chosen[:, 2], 2))
                frame = torch.from_numpy(videos.pairs[chosen[:, 3]].reshape(-1))
                frames = videos.frames[video.to(videos.frames.device), frame.to(videos.frames.device)].to(device)
                pixels.append(patchify(resize(frames, (rows * geometry.factor, cols * geometry.factor)), geometry))
        sizes = np.concatenate([np.ones((len(different), 1), int), different[:, :2] * geometry.merge], 1)
        patches = normalise(torch.cat(pixels), geometry, self.backbone.dtype)
        return self.backbone.see(patches, torch.from_numpy(sizes))

    def _read(
        self, layouts: Sequence[np.ndarray], grids: np.ndarray, features: SimpleNamespace, starts: np.ndarray
    ) -> Tensor:
        """The language model on every rollout of a block: (b, K, dim)."""
        count, k, chunks, _ = grids.shape
        device, flat = self.backbone.device, grids.reshape(count * k, chunks, 2)
        rows = self.backbone.expand([layout for layout in layouts for _ in range(k)], list(flat))
        tokens = flat.prod(-1)
        ends = np.cumsum(tokens.ravel())
        where = np.repeat(starts.ravel() - (ends - tokens.ravel()), tokens.ravel()) + np.arange(ends[-1])
        of_row = np.split(where, np.cumsum(tokens.sum(-1))[:-1])
        vectors = torch.empty((count * k, self.backbone.dim), device=device)
        for batch in group_rows([len(row) for row in rows], self.batch_tokens, padded=True):
            ids, positions, (_, last) = pad_rows([rows[i] for i in batch])
            index = torch.from_numpy(np.concatenate([of_row[i] for i in batch])).to(device)
            gathered = SimpleNamespace(
                pooler_output=features.pooler_output[index],
                deepstack_features=[layer[index] for layer in features.deepstack_features],
            )
            hidden = self.backbone.read(ids, positions, gathered)
            pooled = hidden[torch.arange(len(batch), device=device), last.to(device)]
            vectors[torch.tensor(batch, device=device)] = F.normalize(pooled[:, : self.backbone.dim].float(), dim=-1)
        return vectors.view(count, k, -1)


def _portions(rows: np.ndarray, tokens: np.ndarray, limit: int) -> list[np.ndarray]:
    """Cuts rows in order into portions of at most `limit` tokens each, one row at least.

    >>> [len(part) for part in _portions(np.zeros((4, 1)), np.array([5, 5, 3, 20]), 10)]
    [2, 1, 1]
    """
    edges, total = [], 0
    for number, count in enumerate(tokens.tolist()):
        if number and total + count > limit:
            edges.append(number)
            total = 0
        total += count
    return np.split(rows, edges)
