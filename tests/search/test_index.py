"""Searching an index."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from allocembed.search import SearchError, VideoIndex
from allocembed.search.query import Query

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


def test_queries_without_end_or_content_are_refused(index):
    for bad, words in (("", "empty"), (" \n", "empty"), ("x" * 1_000_000, "1,000,000 characters")):
        with pytest.raises(SearchError, match=words):
            index.search(bad)
    assert len(index.search("ein Hündchen 🐕 \u202e 走る'; drop table videos; --", top=4)) == 4
    assert index.search("anything", min_score=1.0) == []
    scores = [hit.score for hit in index.search("anything", top=100)]
    assert len(scores) == 9 and scores == sorted(scores, reverse=True)


def test_a_vector_must_fit_the_index(index):
    for bad, words in ((np.zeros(3), r"shape \(32,\), not \(3,\)"), (np.full(32, np.nan), "not finite")):
        with pytest.raises(SearchError, match=words):
            index.search_vector(bad)


def test_a_vector_of_any_length_is_searched_by_its_direction(index):
    vector = index.embed_query("a dog")
    plain, long = (index.search_vector(each, top=3) for each in (vector, (16 * vector).tolist()))
    assert [hit.path for hit in plain] == [hit.path for hit in long]
    assert [hit.score for hit in long] == pytest.approx([hit.score for hit in plain], abs=1e-5)
    with pytest.raises(SearchError, match="the vector is zero"):
        index.search_vector(np.zeros(32))


def test_impossible_numbers_of_a_search_are_named(index):
    wrong = (({"top": 10**12}, "top must be from 1 to 100,000"), ({"min_score": float("nan")}, "not nan"))
    for options, words in wrong:
        with pytest.raises(SearchError, match=words):
            index.search("a dog", **options)
    with pytest.raises(TypeError, match=r"texts must be a tuple, such as \('red',\)"):
        Query("red")


def test_a_path_is_not_taken_for_a_list_of_paths(index, folder):
    for change in (index.add, index.remove):
        with pytest.raises(TypeError, match="pass a list of files and folders"):
            change(str(folder))


def test_an_index_is_read_within_the_limits_that_it_was_made_with(tmp_path, config, embedder, folder):
    limited = replace(config, max_pixels=10**9, max_seconds=7.0, decoder="pyav")
    VideoIndex.create(tmp_path / "limited", limited, embedder=embedder.with_config(limited))
    found = VideoIndex.open(tmp_path / "limited", device="cpu").embedder.config
    assert (found.max_pixels, found.max_seconds, found.decoder) == (10**9, 7.0, "auto")
    given = VideoIndex.open(tmp_path / "limited", replace(config, max_pixels=10**6)).embedder.config
    assert (given.max_pixels, given.max_seconds) == (10**6, config.max_seconds)


def test_an_example_finds_itself(index, folder):
    hit = index.search_like(folder / "v3.mp4", top=1)[0]
    assert Path(hit.path).name == "v3.mp4" and hit.score == pytest.approx(1, abs=1e-4)


def test_listing_an_index_imports_no_torch(index):
    script = f"""
import sys
from allocembed.search import VideoIndex
index = VideoIndex.open({index.store.uri!r})
print(len(index.files()), index.info()["vectors"], [name for name in ("torch", "transformers") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "9 11 []\n"
