"""Near-duplicates: groups of an index, and folded in hits."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from allocembed.search import duplicates, ranking, searching
from allocembed.search.duplicates import connected, find_duplicates
from tests.search.said.test_reading import write_lines

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


@pytest.fixture
def copied(index):
    """The index with three near-duplicates of v1 and one of v2, larger than these."""
    files = {Path(file.path).stem: file for file in index.files()}
    random = np.random.default_rng(0)
    for number, name in enumerate(["v1", "v1", "v1", "v2"]):
        file, video = files[name], f"{number:032x}"
        (whole,) = index.segments(file.video, "vector", "film", "picture")
        vector = whole.vector + 0.1 * random.standard_normal(len(whole.vector)) / np.sqrt(len(whole.vector))
        vector = (vector / np.linalg.norm(vector)).astype(np.float32)
        index.store.add_videos([(video, [replace(whole, vector=vector)])])
        index.store.put_files([replace(file, path=f"/copies/{name}-{number}.mp4", video=video, width=999)])
    return index


def names(group) -> list[str]:
    return [Path(each.file.path).stem for each in group]


def test_groups_are_listed_with_the_best_file_first(copied, folder):
    (folder / "v3-copy.mp4").write_bytes((folder / "v3.mp4").read_bytes())
    copied.store.put_files(
        [replace(file, path=str(folder / "v3-copy.mp4")) for file in copied.files() if file.path.endswith("v3.mp4")]
    )
    groups = find_duplicates(copied, 0.99)
    assert sorted(map(names, groups)) == [["v1-0", "v1-1", "v1-2", "v1"], ["v2-3", "v2"], ["v3-copy", "v3"]]
    assert len(groups[0]) == 4 and all(0.98 < each.score <= 1.001 for group in groups for each in group)
    assert find_duplicates(copied, 1.0)[0][0].file.path.endswith("v3-copy.mp4")


def test_near_duplicates_of_better_hits_are_folded_and_others_take_their_place(copied, monkeypatch):
    monkeypatch.setattr(ranking, "SAME_VIDEO", 0.99)  # to the random model, all videos look alike
    vector = copied.segments(f"{0:032x}", "vector")[0].vector
    plain = copied.search_vector(vector, top=3)
    assert all("v1" in hit.path for hit in plain)
    hits = copied.search_vector(vector, top=3, dedupe=True)
    assert len(hits) == 3 and hits[0].copies == 3 and "v1" in hits[0].path
    assert sum("v1" in hit.path for hit in hits) == 1


def test_many_vectors_are_grouped_without_comparing_all_pairs():
    """Most are found by looking around few pivots only."""
    random = np.random.default_rng(1)
    vectors = random.standard_normal((3000, 64))
    vectors = np.concatenate([vectors, vectors[:200] + 0.01 * random.standard_normal((200, 64))])
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float16)
    compared = sum(len(visitors) * len(members) for visitors, members in duplicates._cells(vectors))
    assert compared < 0.2 * len(vectors) ** 2
    groups = [group for group in connected(vectors, 0.98) if len(group) > 1]
    assert groups == [[number, 3000 + number] for number in range(200)]


def test_a_thousand_equal_videos_are_one_group():
    vectors = np.repeat(np.eye(4, dtype=np.float16), [1000, 1, 1, 2500], axis=0)
    assert sorted(map(len, connected(vectors, 0.9))) == [1, 1, 1000, 2500]


def test_a_chain_of_a_small_index_is_one_group():
    """The link in its middle leads neither to the nearest nor to the first for either end."""
    angles = np.radians([0, 30, 21, 9])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    assert connected(vectors, np.cos(np.radians(12.5))) == [[0, 1, 2, 3]]
    assert connected(vectors, np.cos(np.radians(11))) == [[0, 3], [1, 2]]


def test_an_index_of_copies_is_not_loaded_whole_to_fold_them(copied, monkeypatch):
    vector = copied.segments(f"{0:032x}", "vector")[0].vector
    monkeypatch.setattr(ranking, "SAME_VIDEO", -1.0)  # all are copies, so there never are two different ones
    monkeypatch.setattr(searching, "MOST_FOLDED", 5)
    taken, segments_of = [], copied.store.segments_of
    monkeypatch.setattr(copied.store, "segments_of", lambda *args: taken.append(len(args[0])) or segments_of(*args))
    (hit,) = copied.search_vector(vector, top=2, dedupe=True)
    assert taken == [2 + searching.SPARE, 5 + searching.SPARE] and hit.copies == 4 + searching.SPARE


def test_copies_are_folded_in_what_was_said(index, folder, monkeypatch):
    for name in ("v1", "v2", "v3"):
        write_lines(folder / f"{name}.srt", "a needle")
    index.add([folder])
    wholes = dict(zip(*index.store.whole_vectors(), strict=True))
    first, second, third = [wholes[file.video] for file in index.files() if Path(file.path).stem in ("v1", "v2", "v3")]
    monkeypatch.setattr(ranking, "SAME_VIDEO", min(first @ second, first @ third) - 0.01)
    (hit,) = index.search("needle", said=True, dedupe=True)
    assert hit.copies == 2
    monkeypatch.setattr(ranking, "SAME_VIDEO", 1.01)
    assert len(index.search("needle", said=True, dedupe=True)) == 3
