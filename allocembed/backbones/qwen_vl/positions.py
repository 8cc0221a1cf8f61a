"""Position rules, by name. They are explicit because the library's own rule differs between versions.

- `sequential`: 0, 1, 2, … on all three axes, as VLM2Vec's models saw in training: their prompts have a bare
  `<|video_pad|>`, so their own position code finds no video and counts straight through.
- `interleaved`: Qwen3-VL's rule. Each text token adds one. The tokens of a chunk share the time of its start and count
  rows and cols from there; the text after it continues past the longer side.
- `timed`: Qwen2.5-VL's rule, as transformers 4 has it. All chunks of a video count rows and cols from its start, and
  their time from there in steps of a fraction of a second. The text after it continues past the largest number.
- `timed-5`: the same as transformers 5 has it. The text continues past the longer side and leaves the time out.
"""

from collections.abc import Callable

import numpy as np


def sequential(ids: np.ndarray, video_token: int, grids: np.ndarray, steps: np.ndarray | None = None) -> np.ndarray:
    """Ids (S,) to positions (3, S).

    >>> sequential(np.array([5, 9, 9]), 9, np.array([[1, 2]])).tolist()
    [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """
    return np.broadcast_to(np.arange(len(ids)), (3, len(ids)))


def interleaved(ids: np.ndarray, video_token: int, grids: np.ndarray, steps: np.ndarray | None = None) -> np.ndarray:
    """Ids (S,) and grids (C, 2), in the order of the video tokens, to positions (3, S).

    >>> interleaved(np.array([5, 9, 9, 9, 9, 6]), 9, np.array([[2, 2]])).tolist()
    [[0, 1, 1, 1, 1, 3], [0, 1, 1, 2, 2, 3], [0, 1, 2, 1, 2, 3]]
    """
    visual = ids == video_token
    chunk = np.repeat(np.arange(len(grids)), grids.prod(-1))
    # A chunk advances the count by its longer side, a text token by one.
    moved = np.concatenate([[0], np.cumsum(grids.max(-1, initial=0))])
    done = np.searchsorted(np.cumsum(grids.prod(-1)), np.cumsum(visual), side="right")
    done[visual] = chunk
    start = np.cumsum(~visual) - ~visual + moved[done]
    inside = np.arange(len(chunk)) - np.concatenate([[0], np.cumsum(grids.prod(-1))])[chunk]
    positions = np.tile(start, (3, 1))
    positions[1, visual] += inside // grids[chunk, 1]
    positions[2, visual] += inside % grids[chunk, 1]
    return positions


def timed(ids: np.ndarray, video_token: int, grids: np.ndarray, steps: np.ndarray | None = None) -> np.ndarray:
    """Ids (S,), grids (C, 2) and time steps (C,) of the chunks to positions (3, S).

    >>> timed(np.array([5, 9, 9, 9, 6]), 9, np.array([[1, 2], [1, 1]]), np.array([0, 4])).tolist()
    [[0, 1, 1, 5, 6], [0, 1, 1, 1, 6], [0, 1, 2, 1, 6]]
    """
    steps = np.zeros(len(grids), np.int64) if steps is None else steps
    return _count_videos(ids == video_token, grids, steps, np.maximum(grids.max(-1, initial=0), steps + 1))


def timed_5(ids: np.ndarray, video_token: int, grids: np.ndarray, steps: np.ndarray | None = None) -> np.ndarray:
    """As `timed`.

    >>> timed_5(np.array([5, 9, 9, 9, 6]), 9, np.array([[1, 2], [1, 1]]), np.array([0, 4])).tolist()
    [[0, 1, 1, 5, 3], [0, 1, 1, 1, 3], [0, 1, 2, 1, 3]]
    """
    steps = np.zeros(len(grids), np.int64) if steps is None else steps
    return _count_videos(ids == video_token, grids, steps, grids.max(-1, initial=0))


def _count_videos(visual: np.ndarray, grids: np.ndarray, steps: np.ndarray, extents: np.ndarray) -> np.ndarray:
    """Positions (3, S) where chunks without text between them are one video, which counts from its start.

    A video advances the count by the largest of the extents (C,) of its chunks.
    """
    begins = visual & ~np.concatenate([[False], visual[:-1]])
    begun = np.cumsum(begins)
    tokens = grids.prod(-1)
    chunk = np.repeat(np.arange(len(grids)), tokens)
    inside = np.arange(len(chunk)) - (np.cumsum(tokens) - tokens)[chunk]
    advance = np.zeros(begins.sum(), np.int64)
    np.maximum.at(advance, begun[visual][np.cumsum(tokens) - tokens] - 1, extents)
    moved = np.concatenate([[0], np.cumsum(advance)])
    positions = np.tile(np.cumsum(~visual) - ~visual + moved[begun - visual], (3, 1))
    positions[0, visual] += steps[chunk]
    positions[1, visual] += inside // grids[chunk, 1]
    positions[2, visual] += inside % grids[chunk, 1]
    return positions


Rule = Callable[..., np.ndarray]
RULES: dict[str, Rule] = {"sequential": sequential, "interleaved": interleaved, "timed": timed, "timed-5": timed_5}
TIMED = ("timed", "timed-5")
"""Rules that need the time steps of the chunks."""
