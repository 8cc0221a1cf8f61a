"""Rows that differ in one chunk, at a fraction of their cost: only what the change reaches directly is computed.

The first row is computed in full. Of each other row, only two parts are: the chunk of another size, which sees what
stands before it, and the text after the video, which sees everything. The chunks in between keep the keys and values of
the first row. What the change does to the vector through them is left out.
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate

import numpy as np
import torch

from allocembed.backbones.base import TokenRow
from allocembed.backbones.qwen_vl.attention import BranchKeys
from allocembed.backbones.qwen_vl.language import LanguageInputs, prepare_language
from allocembed.resize import send

ROUND_TO = 256  # tokens and keys in all, so that few CUDA graphs serve all videos


def direct_variants(
    first: TokenRow, changed: TokenRow, chunks: int, video_token: int, device: torch.device
) -> tuple[LanguageInputs, torch.Tensor, np.ndarray, int]:
    """Inputs of the language model, the places (C + 1,) of the pooled tokens, the visual tokens that are read, and the
    number of all tokens.

    `first` has all chunks at the usual size, `changed` all at the other size.
    """
    seen, other = (np.flatnonzero(row.visual).reshape(chunks, -1) for row in (first, changed))
    starts, few, many = seen[:, 0], seen.shape[1], other.shape[1]
    # A chunk that changes alone begins where it begins in the first row.
    moved = changed.positions[:, other] + (first.positions[:, starts] - changed.positions[:, other[:, 0]])[..., None]
    after = np.arange(min(seen[-1, -1] + 1, len(first) - 1), len(first))  # the pooled token in any case
    ids = [first.ids, changed.ids[other.ravel()], np.tile(first.ids[after], chunks)]
    positions = [first.positions, moved.reshape(3, -1), np.tile(first.positions[:, after], chunks)]

    lengths = [len(first), *[many] * chunks, *[len(after)] * chunks]
    rows = [np.arange(end - length, end) for end, length in zip(accumulate(lengths), lengths, strict=True)]
    large, last = rows[1 : 1 + chunks], rows[1 + chunks :]
    before = [np.arange(start) for start in starts]
    between = [np.arange(start + few, after[0]) for start in starts]
    keys = [rows[0], *(np.concatenate(each) for each in zip(before, large, strict=True))]
    keys += [np.concatenate(each) for each in zip(before, large, between, last, strict=True)]
    pooled = [row[-1] for row in (rows[0], *last)]

    # A last row of no meaning makes the totals round.
    tokens = sum(lengths)
    more = 1 + -(tokens + 1) % ROUND_TO
    own = tokens + np.arange(more)
    keys.append(np.concatenate([np.zeros(-(sum(map(len, keys)) + more) % ROUND_TO, np.int64), own]))
    lengths.append(more)
    ids.append(np.zeros(more, np.int64))
    positions.append(np.zeros((3, more), np.int64))
    within = np.concatenate([np.arange(length) for length in lengths])
    inputs = prepare_language(
        torch.from_numpy(np.concatenate(ids))[None],
        torch.from_numpy(np.concatenate([within[None], np.concatenate(positions, 1)]))[:, None],
        video_token,
        device,
        lengths,
    )
    branches = BranchKeys(
        send(torch.from_numpy(np.concatenate(keys)), device),
        send(torch.tensor([0, *accumulate(map(len, keys))], dtype=torch.int32), device),
        _rounded(map(len, keys)),
    )
    language = replace(inputs, longest=_rounded(lengths), keys=branches)
    # Where the prompt ends with the video, its last token is read once more for each chunk.
    again = np.flatnonzero(np.isin(seen.ravel(), after))
    read = np.concatenate([np.arange(chunks * (few + many)), np.tile(again, chunks)])
    return language, send(torch.tensor(np.array(pooled)), device), read, tokens


def _rounded(lengths: Iterable[int]) -> int:
    return -(-max(lengths) // ROUND_TO) * ROUND_TO
