"""Rows that differ in one chunk, at a fraction of their cost: only what the change reaches directly is computed.

The first row of a look is computed in full. Of each other row, only two parts are: the chunk of another size, which
sees what stands before it, and the text after the video, which sees everything. The chunks in between keep the keys and
values of the first row. What the change does to the vector through them is left out. All looks are one packed pass.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch

from allocembed.backbones.attention.branches import BranchKeys
from allocembed.backbones.base import TokenRow
from allocembed.backbones.qwen_vl.language import LanguageInputs, prepare_language
from allocembed.backbones.variants import Look, tokens_of
from allocembed.budget import Grid
from allocembed.resize import send

ROUND_TO = 64  # tokens and keys in all, so that few CUDA graphs serve all videos
LONGEST_TO = 256  # the longest row, which costs nothing


class _PackedLine:
    """Parts of rows in one line, and which tokens of the line each part sees."""

    def __init__(self) -> None:
        self.ids: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.lengths: list[int] = []
        self.keys: list[np.ndarray] = []
        self.tokens = 0

    def add(self, ids: np.ndarray, positions: np.ndarray, sees: Sequence[np.ndarray] = ()) -> np.ndarray:
        """Append a part that sees other tokens and itself; return the places of its tokens."""
        own = self.tokens + np.arange(len(ids))
        self.ids.append(ids)
        self.positions.append(positions)
        self.lengths.append(len(ids))
        self.keys.append(np.concatenate([*sees, own]))
        self.tokens += len(ids)
        return own


def direct_variants(
    rows: Mapping[Grid, TokenRow], looks: Sequence[Look], chunks: int, video_token: int, device: torch.device
) -> tuple[LanguageInputs, torch.Tensor, np.ndarray, int]:
    """Inputs of the language model, the places of the pooled tokens, C + 1 for each look, the visual tokens that are
    read, and the number of all tokens.

    `rows` has for each size the row in which all chunks have it.
    """
    line, places = _PackedLine(), tokens_of(looks, chunks)
    pooled, read = [], []
    for usual, changed in looks:
        ends, again = _add_look(line, rows[usual], rows[changed], chunks)
        pooled += ends
        read += [places[usual].ravel(), places[changed].ravel(), np.tile(places[usual].ravel()[again], chunks)]

    # A last row of no meaning makes the totals round.
    tokens, more = line.tokens, 1 + -(line.tokens + 1) % ROUND_TO
    filler = np.zeros(-(sum(map(len, line.keys)) + more) % ROUND_TO, np.int64)
    line.add(np.zeros(more, np.int64), np.zeros((3, more), np.int64), [filler])
    within = np.concatenate([np.arange(length) for length in line.lengths])
    inputs = prepare_language(
        torch.from_numpy(np.concatenate(line.ids))[None],
        torch.from_numpy(np.concatenate([within[None], np.concatenate(line.positions, 1)]))[:, None],
        video_token,
        device,
        line.lengths,
    )
    branches = BranchKeys(
        send(torch.from_numpy(np.concatenate(line.keys)), device),
        send(torch.tensor([0, *accumulate(map(len, line.keys))], dtype=torch.int32), device),
        _rounded(map(len, line.keys)),
    )
    language = replace(inputs, longest=_rounded(line.lengths), keys=branches)
    return language, send(torch.tensor(pooled), device), np.concatenate(read), tokens


def _add_look(line: _PackedLine, first: TokenRow, changed: TokenRow, chunks: int) -> tuple[list[int], np.ndarray]:
    """Append the parts of one look; return the places of its pooled tokens, and which visual tokens of the first row
    are read once more for each chunk."""
    seen, other = (np.flatnonzero(row.visual).reshape(chunks, -1) for row in (first, changed))
    starts, few = seen[:, 0], seen.shape[1]
    # A chunk that changes alone begins where it begins in the first row.
    moved = changed.positions[:, other] + (first.positions[:, starts] - changed.positions[:, other[:, 0]])[..., None]
    after = np.arange(min(seen[-1, -1] + 1, len(first) - 1), len(first))  # the pooled token in any case
    whole = line.add(first.ids, first.positions)
    before = [whole[:start] for start in starts]
    between = [whole[start + few : after[0]] for start in starts]
    large = [line.add(changed.ids[other[n]], moved[:, n], [before[n]]) for n in range(chunks)]
    ends = [
        line.add(first.ids[after], first.positions[:, after], [before[n], large[n], between[n]]) for n in range(chunks)
    ]
    # Where the prompt ends with the video, its last token is read once more for each chunk.
    return [int(part[-1]) for part in (whole, *ends)], np.flatnonzero(np.isin(seen.ravel(), after))


def _rounded(lengths: Iterable[int]) -> int:
    return -(-max(lengths) // LONGEST_TO) * LONGEST_TO
