"""The order of hits by what was said."""

import time

from allocembed.search.ranking import rank_lines
from allocembed.search.store import FoundLine


def line(start: float, words: str, relevance: float = 1.0) -> FoundLine:
    return FoundLine("video", start, start + 1, words, words, relevance)


def test_the_words_of_ten_seconds_before_and_after_count():
    lines = [line(0, "a"), line(10, "b"), line(20.5, "c"), line(30.4, "a d"), line(60, "b", 9.0)]
    share, best = rank_lines(["a", "b", "c", "d"], lines)["video"]
    assert (share, best.start) == (0.75, 20.5)
    assert rank_lines(["b"], lines)["video"] == (1.0, lines[-1])


def test_many_lines_at_one_time_are_ranked_quickly():
    started = time.process_time()
    share, _ = rank_lines(["a", "b"], [line(5.0, "a")] * 20_000 + [line(6.0, "b")])["video"]
    assert share == 1 and time.process_time() - started < 2
