"""Filters: what they mean, and that the best of what they leave is found, however little that is."""

import os
from pathlib import Path

import numpy as np
import pytest

from allocembed.search import Filters, SearchError, searching
from allocembed.search.store import EmbeddedSegment
from allocembed.search.store.lance import LanceStore, store
from tests.search.said.test_reading import write_lines

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


def names(hits) -> set[str]:
    return {Path(hit.path).name for hit in hits}


def test_each_filter_leaves_what_it_says(index, folder):
    (folder / "it's deeper").mkdir()
    (folder / "v1.mp4").rename(folder / "it's deeper" / "v1.mp4")
    os.utime(folder / "v2.mp4", (1e9, 1e9))  # in 2001
    write_lines(folder / "v3.srt", "hello")
    index.add([folder])
    for filters, expected in (
        (Filters(folder=folder / "it's deeper"), {"v1.mp4"}),
        (Filters(folder=folder / "it"), set()),
        (Filters(before="2002-01-01"), {"v2.mp4"}),
        (Filters(after="2001-01-01", before="2001-12-31T23:00"), {"v2.mp4"}),
        (Filters(shortest=10), {"windows.mp4"}),
        (Filters(speech=True), {"v3.mp4"}),
        (Filters(least_height=1000), set()),
    ):
        assert names(index.search("anything", top=20, filters=filters)) == expected, filters
    rest = names(index.search("anything", top=20, filters=Filters(longest=5, speech=False, after="2002-01-01")))
    assert rest == {f"v{number}.mp4" for number in (0, 1, 4, 5, 6, 7)}
    assert names(index.search("hello", said=True, filters=Filters(longest=5))) == {"v3.mp4"}
    assert index.search("hello", said=True, filters=Filters(shortest=5)) == []
    assert len(index.search("anything", top=20, filters=Filters(least_height=48))) == 9


def test_a_copy_in_another_folder_is_shown_where_the_filter_looks(index, folder):
    (folder / "zz").mkdir()
    (folder / "zz" / "copy.mp4").write_bytes((folder / "v1.mp4").read_bytes())
    index.add([folder])
    assert names(index.search("anything", top=20, filters=Filters(folder=folder / "zz"))) == {"copy.mp4"}


@pytest.mark.parametrize(
    "values",
    [
        {"after": "soon"},
        {"shortest": -1},
        {"longest": float("nan")},
        {"before": "2300-01-01"},
        {"after": "0001-01-02"},
        {"least_height": 10**30},
    ],
)
def test_impossible_filters_are_refused(values):
    with pytest.raises(SearchError, match="cannot filter by"):
        Filters(**values)


@pytest.mark.parametrize(("one_by_one", "prefiltered"), [(500, 10_000), (0, 10_000), (0, 0)])
def test_the_best_are_found_with_the_approximate_index_however_selective_the_filter(
    index, monkeypatch, one_by_one, prefiltered
):
    """Thousands of near vectors are excluded by the filter, and the ten that are left are far away."""
    monkeypatch.setattr(LanceStore, "exact_up_to", 100)
    monkeypatch.setattr(store, "PARTITION", 40)
    monkeypatch.setattr(store, "ONE_BY_ONE", one_by_one)
    monkeypatch.setattr(searching, "PREFILTERED", prefiltered)
    vectors = make_large(index, near=2000, far=10)
    query = vectors[0]
    hits = index.search_vector(query, top=5, filters=Filters(folder="/far"))
    expected = sorted(range(2000, 2010), key=lambda number: -vectors[number] @ query)[:5]
    assert [hit.path for hit in hits] == [f"/far/{number}.mp4" for number in expected]


def test_a_filter_that_leaves_few_videos_is_searched_once(index, folder, monkeypatch):
    rounds = []
    nearest = index.store.nearest
    monkeypatch.setattr(index.store, "count", lambda: 10**9)  # as if there were many more
    monkeypatch.setattr(index.store, "nearest", lambda *args, **named: rounds.append(args) or nearest(*args, **named))
    assert len(index.search_vector(index.embed_query("anything"), filters=Filters(longest=5))) == 8
    assert len(rounds) == 1


def test_dates_at_the_ends_of_time_are_searched(index):
    assert len(index.search("anything", filters=Filters(after="1678-01-01", before="2261-12-31", longest=1e9))) == 9


def make_large(index, near: int, far: int) -> np.ndarray:
    """Add one-vector videos straight to the tables: most around one direction, some anywhere."""
    random = np.random.default_rng(0)
    dim = len(index.settings.probe)
    vectors = random.standard_normal((near + far, dim)).astype(np.float32)
    vectors[:near] = vectors[0] + 0.3 * vectors[:near]
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    videos = [f"{number:032x}" for number in range(near + far)]
    segments = [EmbeddedSegment(0, 0.0, 1.0, 1, 1, 1, vector=vector) for vector in vectors]
    index.store.add_videos(zip(videos, ([segment] for segment in segments), strict=True))
    entry = index.files()[0]
    index.store.files_table.add(
        [
            {**vars(entry), "path": f"/{'near' if number < near else 'far'}/{number}.mp4", "video": video}
            for number, video in enumerate(videos)
        ]
    )
    index.store.tidy()
    assert "vector" in index.store.indexed_columns()
    return vectors
