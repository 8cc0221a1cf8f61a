"""From sampled scales to vectors: the grids of every rollout, and their embeddings by the frozen backbone.

The K allocations of one video differ in few sizes. So a chunk goes through the vision tower once for each size that any
of them gives it, and each rollout selects the tokens of its chunks. Prompts are tokenised once per video, because they
do not depend on sizes. The language model reads rollouts of similar length together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from allocembed.allocators.base import AllocationRequest, Footage, allocate
from allocembed.backbones.base import Backbone, Item, Prompt, TowerOutput
from allocembed.backbones.batches import group_rows
from allocembed.budget import grids_at
from allocembed.rdpo.data.base import VideoBatch
from allocembed.rdpo.log import StepTimer
from allocembed.rdpo.rewards import scale_cost, token_cost
from allocembed.resize import normalise, resize

SOURCE_VALUES = 2**28  # pixel values resized at a time; a gigabyte as float32
BLOCK_BATCHES = 4  # tower outputs in memory at a time, as a multiple of `batch_tokens`


@dataclass(frozen=True, eq=False)
class Allocations:
    """K sampled allocations of each of b videos, on the host."""

    scales: np.ndarray
    """(b, K, C) realised scales."""
    grids: np.ndarray
    """(b, K, C, 2) token rows and cols."""
    price: np.ndarray
    """(b, K) the cost in the reward, in [0, 1]."""
    relative: np.ndarray
    """(b, K) tokens in units of Base's cost for the same video."""

    @property
    def tokens(self) -> np.ndarray:
        """(b, K, C) tokens of each chunk."""
        return self.grids.prod(-1)

    def select(self, rows: Tensor) -> Self:
        """The allocations of some of the videos."""
        host = rows.cpu().numpy()
        return type(self)(self.scales[host], self.grids[host], self.price[host], self.relative[host])


@dataclass(frozen=True, eq=False)
class PolicyInputs:
    """The policy's inputs for videos of equal size: frozen features, computed once."""

    visual: Tensor  # (b, C, P, width)
    text: Tensor  # (b, L, width)
    text_mask: Tensor  # (b, L)

    def __len__(self) -> int:
        return len(self.visual)

    def select(self, rows: Tensor) -> Self:
        """The inputs of some of the videos."""
        return type(self)(self.visual[rows], self.text[rows], self.text_mask[rows])


@dataclass(frozen=True, eq=False)
class Rollouts:
    """K sampled allocations of each of b videos, and their advantages."""

    members: np.ndarray  # (b,) numbers of the examples
    inputs: PolicyInputs
    actions: Tensor  # (b, K, C)
    log_prob: Tensor  # (b, K, C), under the policy that sampled them
    advantage: Tensor  # (b, K)


def allocate_rollouts(
    scales: np.ndarray,
    videos: VideoBatch,
    request: AllocationRequest,
    *,
    mode: str = "projected",
    cost: str = "tokens",
    rungs: int = 0,
) -> Allocations:
    """Turn sampled scales (b, K, C) into grids, and their cost into a price.

    `mode`: projected, onto the budget; capped, only made smaller where they exceed it; soft, as they are. `rungs` puts
    projected scales on a ladder.
    """
    count, _, chunks = scales.shape
    footage, soft = footage_of(videos), mode == "soft"
    fitted = allocate(scales, footage, request, grow=mode == "projected", bounded=not soft, rungs=rungs)
    native = footage.native(request.geometry)
    least, most = grids_at(np.array(request.scale_range), np.array([native.rows, native.cols])).prod(-1) * chunks
    tokens = fitted.grids.prod(-1).sum(-1)
    if cost == "scale":
        price = scale_cost(torch.from_numpy(fitted.scales), scale_range=request.scale_range)
    else:
        most = np.full(count, most) if soft else np.minimum(fitted.limits, most)
        price = token_cost(torch.from_numpy(tokens), torch.from_numpy(most), int(least))
    return Allocations(fitted.scales, fitted.grids, price.float().numpy(), tokens / fitted.base_costs[:, None])


def footage_of(videos: VideoBatch) -> Footage:
    """The sizes of some videos."""
    frames, _, height, width = videos.frames.shape[1:]
    return Footage(height, width, frames, tuple(videos.totals.tolist()), videos.listed)


def concentration(tokens: np.ndarray) -> np.ndarray:
    """Fraction of the tokens (..., C) on the quarter of the chunks (rounded up) with the most; 0.25 if all are equal.

    >>> concentration(np.array([[4, 4, 4, 4], [1, 1, 9, 1]])).tolist()
    [0.25, 0.75]
    """
    top = -(-tokens.shape[-1] // 4)
    return np.sort(tokens, -1)[..., -top:].sum(-1) / tokens.sum(-1)


class RolloutEncoder:
    """Embeds allocations of videos, and texts, with a frozen backbone."""

    def __init__(
        self,
        backbone: Backbone,
        batch_tokens: int = 65536,
        *,
        query_instruction: str | None = None,
        share: bool = True,
        timer: StepTimer | None = None,
    ) -> None:
        """Queries are embedded with `query_instruction`. `share=False` runs the vision tower for every rollout on its
        own; for comparison only."""
        self.on_videos: Callable[[int], None] = lambda count: None  # called with the number of videos embedded at once
        self.backbone, self.batch_tokens, self.share = backbone, batch_tokens, share
        self.query_instruction = query_instruction
        self.timer = timer or StepTimer(backbone.device)

    def texts(self, texts: Sequence[str], queries: Sequence[bool]) -> Tensor:
        """Unit vectors (N, dim), fp32 on the device; queries get the query instruction."""
        instruction = self.query_instruction
        items = [Item(Prompt(text, instruction if query else None)) for text, query in zip(texts, queries, strict=True)]
        return self.backbone.embed(items, batch_tokens=self.batch_tokens).to(self.backbone.device)

    @torch.no_grad()
    def embed(
        self,
        videos: VideoBatch,
        questions: Sequence[str | None],
        grids: np.ndarray,
        instructions: Sequence[str | None] | None = None,
    ) -> Tensor:
        """Unit vectors (b, K, dim), fp32, of b videos with their questions under the grids (b, K, C, 2)."""
        seconds = videos.seconds(self.backbone.geometry.frames_per_chunk)
        orders = [None] * len(videos) if instructions is None else instructions
        prompts = [Prompt(*said) for said in zip(questions, orders, seconds, strict=True)]
        tokenised = self.backbone.tokenise(prompts)
        vectors = torch.empty((*grids.shape[:2], self.backbone.dim), device=self.backbone.device)
        for block in self._blocks(grids):
            with self.timer("vision"):
                features, starts, states = self._see(videos, block, grids[block])
            with self.timer("language"):
                vectors[block] = self._read(tokenised[block], grids[block], features, starts, states)
            self.on_videos(block.stop - block.start)
        return vectors

    def _blocks(self, grids: np.ndarray) -> Iterator[slice]:
        """Ranges of videos whose rollouts fit into memory together, at least one video each."""
        tokens = grids.prod(-1).sum((1, 2))
        start, total = 0, 0
        for end, more in enumerate(tokens.tolist()):
            if end > start and total + more > BLOCK_BATCHES * self.batch_tokens:
                yield slice(start, end)
                start, total = end, 0
            total += more
        yield slice(start, len(tokens))

    def _see(self, videos: VideoBatch, block: slice, grids: np.ndarray) -> tuple[TowerOutput, np.ndarray, np.ndarray]:
        """Run the tower once for every distinct (video, chunk, grid). Return its output, and for each chunk (b, K, C)
        where its tokens start and where its chunk state is."""
        count, k, chunks, _ = grids.shape
        video = np.broadcast_to(np.arange(count)[:, None, None] + block.start, (count, k, chunks))
        chunk = np.broadcast_to(np.arange(chunks), (count, k, chunks))
        # Sorted by size first, so that chunks of one size are adjacent and resized together.
        keys = np.stack([grids[..., 0], grids[..., 1], video, chunk], -1).reshape(-1, 4)
        if self.share:
            code = np.ravel_multi_index(tuple(keys.T), tuple(keys.max(0) + 1))
            _, first, inverse = np.unique(code, return_index=True, return_inverse=True)
            distinct = keys[first]
        else:
            order = np.lexsort(keys.T[::-1])
            distinct, inverse = keys[order], np.argsort(order)
        tokens = distinct[:, :2].prod(-1)
        starts = np.cumsum(tokens) - tokens
        parts = [self._run_tower(videos, part) for part in _portions(distinct, tokens, self.batch_tokens)]
        shape = (count, k, chunks)
        return TowerOutput.concat(parts), starts[inverse].reshape(shape), inverse.reshape(shape)

    def _run_tower(self, videos: VideoBatch, distinct: np.ndarray) -> TowerOutput:
        """The vision tower on chunks (n, 4): rows, cols, video, chunk; those of one grid are adjacent."""
        geometry, device = self.backbone.geometry, self.backbone.device
        together = geometry.frames_per_chunk
        frames_of = videos.chunks(together)
        edges = np.flatnonzero(np.diff(distinct[:, :2], axis=0).any(1)) + 1
        at_once = max(1, SOURCE_VALUES // (together * videos.frames[0, 0].numel()))
        pixels = []
        for alike in np.split(distinct, edges):
            rows, cols = (int(side) for side in alike[0, :2])
            for first in range(0, len(alike), at_once):
                chosen = alike[first : first + at_once]
                video = torch.from_numpy(np.repeat(chosen[:, 2], together))
                frame = torch.from_numpy(frames_of[chosen[:, 3]].reshape(-1))
                frames = videos.frames[video.to(videos.frames.device), frame.to(videos.frames.device)].to(device)
                frames = resize(frames, geometry.canvas(*frames.shape[-2:], listed=videos.listed))
                pixels.append(geometry.patchify(resize(frames, (rows * geometry.factor, cols * geometry.factor))))
        return self.backbone.see(normalise(torch.cat(pixels), geometry, self.backbone.dtype), distinct[:, :2])

    def _read(
        self,
        tokenised: Sequence[np.ndarray],
        grids: np.ndarray,
        features: TowerOutput,
        starts: np.ndarray,
        states: np.ndarray,
    ) -> Tensor:
        """The language model on every rollout of a block: (b, K, dim)."""
        count, k, chunks, _ = grids.shape
        device, flat = self.backbone.device, grids.reshape(count * k, chunks, 2)
        rows = self.backbone.rows([ids for ids in tokenised for _ in range(k)], list(flat))
        tokens = flat.prod(-1)
        ends = np.cumsum(tokens.ravel())
        where = np.repeat(starts.ravel() - (ends - tokens.ravel()), tokens.ravel()) + np.arange(ends[-1])
        of_row, whole = np.split(where, np.cumsum(tokens.sum(-1))[:-1]), states.reshape(count * k, chunks)
        vectors = torch.empty((count * k, self.backbone.dim), device=device)
        for batch in group_rows([len(row) for row in rows], self.batch_tokens, padded=True):
            index = (np.concatenate([of_row[i] for i in batch]), whole[batch].ravel())
            read = self.backbone.read([rows[i] for i in batch], features.select(*_on(device, *index)))
            vectors[torch.tensor(batch, device=device)] = read
        return vectors.view(count, k, -1)


def _on(device: torch.device, *places: np.ndarray) -> Iterator[Tensor]:
    return (torch.from_numpy(each).to(device) for each in places)


def join(rollouts: Sequence[Rollouts]) -> list[Rollouts]:
    """Join rollouts that the policy can see in one pass: those with equally many chunks and patches."""
    alike: dict[tuple[int, ...], list[Rollouts]] = defaultdict(list)
    for each in rollouts:
        alike[tuple(each.inputs.visual.shape[1:3])].append(each)
    return [_joined(parts) if len(parts) > 1 else parts[0] for parts in alike.values()]


def _joined(parts: Sequence[Rollouts]) -> Rollouts:
    longest = max(part.inputs.text.shape[1] for part in parts)

    def padded(tensor: Tensor) -> Tensor:
        return F.pad(tensor, (0,) * (2 * tensor.ndim - 3) + (longest - tensor.shape[1],))

    inputs = PolicyInputs(
        torch.cat([part.inputs.visual for part in parts]),
        torch.cat([padded(part.inputs.text) for part in parts]),
        torch.cat([padded(part.inputs.text_mask) for part in parts]),
    )
    tensors = (torch.cat([getattr(part, name) for part in parts]) for name in ("actions", "log_prob", "advantage"))
    return Rollouts(np.concatenate([part.members for part in parts]), inputs, *tensors)


def _portions(rows: np.ndarray, tokens: np.ndarray, limit: int) -> list[np.ndarray]:
    """Split rows in order into portions of at most `limit` tokens, at least one row each.

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
