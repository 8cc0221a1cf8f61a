"""Queries of more than a sentence: what they may be, how their parts combine, and that they find."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from allocembed.errors import SearchError, VideoError
from allocembed.search import Example, Query, VideoIndex
from allocembed.search.query import combine
from allocembed.video import open_video

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


def test_a_moment_is_written_behind_the_name(tmp_path, monkeypatch):
    for text, name, start, end in (
        ("a.mp4", "a.mp4", None, None),
        ("a@b/c.mp4@1:20-1:30", "a@b/c.mp4", 80.0, 90.0),
        ("a.mp4@1:00:00–1:00:01.5", "a.mp4", 3600.0, 3601.5),
        ("a.mp4@7", "a.mp4", 7.0, 12.0),
        ("a.mp4@7-", "a.mp4", 7.0, None),
        ("me@home", "me@home", None, None),
    ):
        example = Example.parse(text)
        assert (str(example.path), example.start, example.end) == (name, start, end)
    with pytest.raises(SearchError, match="end it later"):
        Example.parse("a.mp4@20-10")
    with pytest.raises(SearchError, match="from 0 s to 0 s: end it later"):
        Example(tmp_path, end=0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "take@12").touch()
    assert Example.parse("take@12") == Example(Example.parse("take@12").path) and Example.parse("take@12").start is None


def test_queries_that_ask_for_nothing_or_too_much_are_refused():
    for query, words in (
        (Query(), "the query is empty"),
        (Query(unlike=("a dog",)), "say what is wanted"),
        (Query(("a dog", " ")), "the query is empty"),
        (Query(("a dog",), unlike=("x" * 3000,)), "shorten it to 2,000"),
        (Query(("a dog",) * 17), "17 parts"),
    ):
        with pytest.raises(SearchError, match=words):
            query.check()


def test_what_is_excluded_loses_and_what_is_wanted_stays():
    axes = np.eye(4)
    both = combine([axes[0], axes[1]])
    assert both @ axes[0] == pytest.approx(both @ axes[1]) and np.linalg.norm(both) == pytest.approx(1)
    away = combine([axes[0], axes[1]], [axes[1]])
    assert away @ axes[0] > both @ axes[0] and away @ axes[1] < both @ axes[1] / 3
    near = (axes[0] + 0.3 * axes[2]) / np.linalg.norm(axes[0] + 0.3 * axes[2])
    assert combine([axes[0]], [near]) @ axes[0] > 0.9, "an exclusion that is nearly the query must not turn it round"
    many = combine([axes[0]], [axes[1], axes[2], axes[3]])
    assert many @ axes[0] == pytest.approx(combine([axes[0]], [axes[1]]) @ axes[0]), "many exclusions drown nothing"
    assert many @ axes[1] < 0 and many @ axes[3] < 0
    with pytest.raises(SearchError, match="cancel"):
        combine([axes[0], -axes[0]])


def test_one_sentence_is_the_query_that_it_always_was(index):
    alone = index.embed_query("a dog")
    assert np.allclose(index.embed_query(Query(("a dog",))), alone, atol=1e-6)
    query = Query(("a dog", "a lake"), unlike=("a cat",))
    expected = combine([alone, index.embed_query("a lake")], [index.embed_query("a cat")])
    assert np.allclose(index.embed_query(query), expected, atol=1e-6)
    assert [hit.video for hit in index.search(query)] == [hit.video for hit in index.search_vector(expected)]


def test_sentences_need_no_vision_tower(index, monkeypatch):
    opened = VideoIndex.open(index.store.uri)
    monkeypatch.setattr("allocembed.search.index._load", lambda config: pytest.fail("the whole model was loaded"))
    vector = opened.embed_query(Query(("a dog", "a lake"), unlike=("a cat",)))
    expected = index.embed_query(Query(("a dog", "a lake"), unlike=("a cat",)))
    assert np.allclose(vector, expected, atol=1e-5)


def test_a_picture_and_a_moment_are_what_the_embedder_makes_of_them(index, embedder, folder):
    with open_video(folder / "v3.mp4") as video:
        frame = video.sample(1).frames[0]
    made = io.BytesIO()
    Image.fromarray(frame).save(made, format="PNG")
    (folder / "a.png").write_bytes(made.getvalue())
    expected = embedder.encode_image(frame).vector
    for image in (folder / "a.png", made.getvalue()):
        assert np.allclose(index.embed_query(Query(images=(image,))), expected, atol=1e-6)
    part = embedder.with_config(replace(embedder.config, start=4.0, end=8.0)).encode_video(folder / "windows.mp4")
    like = Query(like=(Example(folder / "windows.mp4", 4.0, 8.0),))
    assert np.allclose(index.embed_query(like), part.vector, atol=1e-6)
    assert index.search(Query(like=(Example(folder / "v3.mp4"),)))[0].path == str(folder / "v3.mp4")


def test_what_cannot_be_read_is_named(index, folder):
    (folder / "bad.jpg").write_text("no picture")
    for query, words in (
        (Query(images=(folder / "bad.jpg",)), "bad.jpg: cannot read the image"),
        (Query(images=(b"",)), "<picture>: "),
        (Query(like=(Example(folder / "v3.mp4", 100.0, 101.0),)), "v3.mp4: no frames from 100 s"),
        (Query(like=(Example(folder / "nowhere.mp4"),)), "nowhere.mp4: no such file"),
    ):
        with pytest.raises(VideoError, match=words):
            index.search(query)
