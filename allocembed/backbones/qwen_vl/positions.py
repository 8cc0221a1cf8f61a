"""Position rules, by name. They are explicit because the library's own rule differs between versions.

- `sequential`: 0, 1, 2, … on all three axes, as VLM2Vec's models saw in training: their prompts have a bare
  `<|video_pad|>`, so their own position code finds no video and counts straight through.
- `interleaved`: Qwen3-VL's rule. Each text token adds one. The tokens of a chunk share the time of its start and count
  rows and cols from there; the text after it continues past the longer side.
"""

import numpy as np


def sequential(ids: np.ndarray, video_token: int, grids: np.ndarray) -> np.ndarray:
    """Ids (S,) to positions (3, S).

    >>> sequential(np.array([5, 9, 9]), 9, np.array([[1, 2]])).tolist()
    [[0, 1, 2], [0, 1, 2], [0, 1, 2]]
    """
    return np.broadcast_to(np.arange(len(ids)), (3, len(ids)))


def interleaved(ids: np.ndarray, video_token: int, grids: np.ndarray) -> np.ndarray:
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


RULES = {"sequential": sequential, "interleaved": interleaved}
