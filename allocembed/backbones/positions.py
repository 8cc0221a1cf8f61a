"""Position rules, by name. They are explicit because the library's own guess differs between versions.

- `sequential`: 0, 1, 2, … on all three axes, what VLM2Vec's models saw in training: their prompts hold a bare
  `<|video_pad|>`, so their own position code finds no video and counts through.
- `interleaved`: Qwen3-VL's rule. Text counts on; the tokens of a chunk share the time of its start and count rows
  and cols from there; text goes on after the longer side.
"""

from __future__ import annotations

import numpy as np


def sequential(ids: np.ndarray, video_token: int, grids: np.ndarray) -> np.ndarray:
    """(S,) ids to (3, S) positions.

    >>> sequential(np.array([5, 9, 9]), 9, np.array([[1, 2]])).tolist()
    [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """
    return np.broadcast_to(np.arange(len(ids)), (3, len(ids)))


def interleaved(ids: np.ndarray, video_token: int, grids: np.ndarray) -> np.ndarray:
    """(S,) ids and (C, 2) merged grids, in the order of the runs of video tokens, to (3, S) positions.

    >>> interleaved(np.array([5, 9, 9, 9, 9, 6]), 9, np.array([[2, 2]])).tolist()
    [[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]]
    """
    pieces, here, position = [], 0, 0
    starts = np.flatnonzero((ids == video_token) & (np.concatenate([[-1], ids[:-1]]) != video_token))
    for start, (rows, cols) in zip(starts, grids, strict=True):
        text = np.arange(start - here) + position
        position += len(text)
        row, col = np.divmod(np.arange(rows * cols), cols)
        pieces += [np.stack([text] * 3), np.stack([np.zeros_like(row), row, col]) + position]
        here = start + rows * cols
        position += max(rows, cols)
    pieces.append(np.stack([np.arange(len(ids) - here) + position] * 3))
    return np.concatenate(pieces, 1)


RULES = {"sequential": sequential, "interleaved": interleaved}
