"""A closer look at a moment finds where it begins and ends, within the budget, and never breaks a search."""

import random
from dataclasses import replace

import numpy as np
import pytest

from allocembed import EmbedConfig
from allocembed.search import VideoIndex
from allocembed.search.refine import MOST_LOOKS, look_times, refine
from allocembed.search.store import EmbeddedSegment
from allocembed_nano import world

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


def windows(scores: list[float]) -> list[EmbeddedSegment]:
    """A video of ten seconds a window, whose windows have these scores for the vector (1, 0)."""
    vectors = [np.array([score, np.sqrt(1 - score**2)]) for score in (0.0, *scores)]
    ends = [(0.0, 10.0 * len(scores)), *((10.0 * number, 10.0 * number + 10) for number in range(len(scores)))]
    return [
        EmbeddedSegment(number, start, end, 1, 1, 1, {}, b"", vector)
        for number, ((start, end), vector) in enumerate(zip(ends, vectors, strict=True))
    ]


def test_looks_go_to_the_best_window_and_its_neighbours():
    query = np.array([1.0, 0.0])
    assert look_times(windows([0.1, 0.1, 0.9, 0.1, 0.1]), query) == [12.5, 17.5, 21.25, 23.75, 26.25, 28.75, 32.5, 37.5]
    assert look_times(windows([0.9, 0.1, 0.1]), query) == [1.25, 3.75, 6.25, 8.75, 12.5, 17.5]
    # A moment of several windows: the best, the outermost, and one beyond on each side.
    times = look_times(windows([0.1, 0.1, 0.8, 0.9, 0.8, 0.8, 0.1, 0.1, 0.1]), query)
    assert times[0] == 12.5 and times[-1] == 67.5 and not any(40 <= time < 50 for time in times)
    assert len(times) <= MOST_LOOKS
    assert len(look_times(windows([]), query)) == 8


def test_a_hit_whose_file_is_gone_or_shows_nothing_special_stays(index, folder):
    hit = next(hit for hit in index.search("a dog") if hit.path.endswith("windows.mp4"))
    away = replace(hit, path=str(folder / "nowhere.mp4"))
    (folder / "other.mp4").write_text("no video")
    broken = replace(hit, path=str(folder / "other.mp4"))
    vector = index.embed_query("a dog")
    assert refine(index, [away, broken], vector) == [away, broken]
    assert refine(index, [hit], np.zeros_like(vector)) == [hit], "no frame is more like nothing than another"


@pytest.mark.slow
def test_a_refined_moment_begins_where_the_event_does_within_the_budget(tmp_path):
    timelines = world.draw(1, 77, "short", split="test", config=replace(world.SHORT, duration=(40, 40)))
    world.write_mp4(timelines, 0, tmp_path / "a.mp4", (96, 128), 2)
    index = VideoIndex.create(tmp_path / "index", EmbedConfig(backbone="nano-qwen3", allocator="uniform"))
    index.add([tmp_path / "a.mp4"])
    budget = index.segments(index.files()[0].video)[0].budget
    starts = [timelines.moment(0, event)[0] for event in range(int(timelines.events[0]))]
    edges = [segment.start for segment in index.segments(index.files()[0].video)[1:]]
    # The event whose start is furthest from that of any window.
    event = max(range(len(starts)), key=lambda event: min(abs(starts[event] - edge) for edge in edges))
    vector = index.embed_query(world.describe_moment(timelines, 0, event, random.Random(1)))
    plain = index.search_vector(vector)[0]
    hit = refine(index, [plain], vector)[0]
    start, end = timelines.moment(0, event)
    assert abs(plain.start - start) > 1 >= abs(hit.start - start) and abs(hit.end - end) <= 1, (start, end, plain, hit)
    assert 0 < hit.look_tokens <= budget and replace(hit, start=plain.start, end=plain.end, look_tokens=0) == plain
