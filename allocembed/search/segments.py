"""Windows of a long video, so that a hit has a time: how many there are, and what each may cost.

A window gets a sixth of the candidates and a quarter of the budget of the whole video: by default four frames and the
tokens of two. The usual twelve windows therefore cost three times as much as the whole video.
"""

import math
from dataclasses import replace

from allocembed.budget import Budget
from allocembed.config import EmbedConfig
from allocembed.errors import SearchError

WINDOWS = 12  # of a video of usual length: most events take a twelfth of their video or more
SHORTEST_WINDOW = 5.0  # seconds: a shorter window says no more than the whole video
LONGEST_WINDOW = 60.0  # seconds: in a longer one, the user would have to search again
MOST_WINDOWS = 2000  # windows of one video, whatever is requested
CANDIDATE_SHARE = 6
BUDGET_SHARE = 4


def parse_segments(text: str) -> float | None:
    """Seconds of a window; 0 for no windows, None if the length of the video decides.

    >>> parse_segments("auto"), parse_segments("off"), parse_segments("30")
    (None, 0.0, 30.0)
    """
    if text in ("auto", "off"):
        return None if text == "auto" else 0.0
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0.5 <= seconds < math.inf:
        raise SearchError(f"segments must be auto, off, or at least 0.5 seconds, as in --segments 30; not {text!r}")
    return seconds


def window_count(duration: float, segments: str) -> int:
    """Number of windows of a video of `duration` seconds; 0 if it stays whole.

    >>> [window_count(seconds, "auto") for seconds in (8, 30, 120, 3600)]
    [0, 6, 12, 60]
    >>> window_count(100, "30"), window_count(100, "off"), window_count(20, "30")
    (4, 0, 0)
    """
    seconds = parse_segments(segments)
    if seconds is None:
        count = max(min(WINDOWS, int(duration / SHORTEST_WINDOW)), math.ceil(duration / LONGEST_WINDOW))
    else:
        count = math.ceil(duration / seconds) if seconds else 0
    return min(count, MOST_WINDOWS) if count > 1 else 0


def window_config(config: EmbedConfig, frames_per_chunk: int = 2) -> EmbedConfig:
    """The config for one window, from that of whole videos.

    >>> whole = EmbedConfig(budget="8f", candidates=24), EmbedConfig(budget="2048", candidates=4)
    >>> [(each.budget, each.candidates) for each in map(window_config, whole)]
    [('2f', 4), ('512', 2)]
    """
    budget = Budget.parse(config.budget)
    if budget.limit is None:
        share = Budget(frames=max(frames_per_chunk, budget.base_frames // BUDGET_SHARE))
    else:
        share = Budget(frames=None, limit=max(1, budget.limit // BUDGET_SHARE))
    candidates = max(frames_per_chunk, config.candidates // CANDIDATE_SHARE)
    return replace(config, budget=str(share), candidates=candidates)
