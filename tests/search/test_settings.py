"""The settings of an index, and those that it refuses."""

import json
from dataclasses import replace

import pytest

from allocembed.allocators.registry import METHODS
from allocembed.allocators.sensitivity import Sensitivity
from allocembed.allocators.uniform import Uniform
from allocembed.embedder import AllocEmbed
from allocembed.search import IndexSettings, SearchError, VideoIndex

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


@pytest.mark.parametrize(
    ("changes", "flag"),
    [
        ({"budget": "128"}, "--budget 64, not 128"),
        ({"allocator": "content"}, "--allocator uniform, not content"),
        ({"scale_range": (0.5, 1.0)}, "--scale-range 0.2 1.8, not 0.5 1.0"),
        ({"seek": "keyframe"}, "--seek exact, not keyframe"),
        ({"start": 3.0}, "--start None, not 3.0"),
    ],
)
def test_settings_that_contradict_the_index_are_named_as_options(index, config, changes, flag):
    with pytest.raises(SearchError, match=flag):
        VideoIndex.open(index.store.uri, replace(config, **changes))


def test_an_index_refuses_to_be_mixed(index, config, qwen2_folder):
    place = index.store.uri
    with pytest.raises(SearchError, match="--segments auto, not 3"):
        VideoIndex.open(place, segments="3")
    with pytest.raises(SearchError, match="--backbone"):
        VideoIndex.open(place, replace(config, backbone=str(qwen2_folder)))
    with pytest.raises(SearchError, match="gives other vectors"):
        VideoIndex.open(place, embedder=AllocEmbed.from_config(replace(config, backbone=str(qwen2_folder))))
    with pytest.raises(SearchError, match="--budget 64, not 32"):
        VideoIndex.open(place, embedder=AllocEmbed.from_config(replace(config, budget="32")))
    assert VideoIndex.open(place, replace(config, allocator="uniform")).info() == VideoIndex.open(place).info()


def test_another_name_of_the_same_model_is_accepted(tmp_path, index, config, qwen3_folder):
    (tmp_path / "link").symlink_to(qwen3_folder)
    VideoIndex.open(index.store.uri, replace(config, backbone=str(tmp_path / "link"), allocator="auto"))


def test_settings_of_another_format_or_damaged_ones_are_refused():
    with pytest.raises(SearchError, match=r"has format 9.*use the version that made it \(5.0\)"):
        IndexSettings.from_json(json.dumps({"format": 9, "version": "5.0"}))
    for damaged in ("", "[]", '{"format": 2}', '{"format": 2, "config": {"candidates": "many"}}'):
        with pytest.raises(SearchError, match="damaged"):
            IndexSettings.from_json(damaged)


def test_an_index_made_with_other_inputs_is_refused(index, embedder):
    other = replace(index.settings, inputs="another pipeline")
    with pytest.raises(SearchError, match="other inputs of the model"):
        other.check(embedder)
    index.settings.check(embedder)


def test_an_index_of_an_older_version_is_searched_but_does_not_grow(index, folder, monkeypatch):
    monkeypatch.setattr(index, "settings", replace(index.settings, inputs="", version="0.2.0"))
    assert index.search("anything", top=1)
    with pytest.raises(SearchError, match=r"made by allocembed 0\.2\.0"):
        index.add([folder])


class Mine(Uniform):
    name = "mine"


class Disguised(Uniform):
    """Has the name of another one."""


def test_an_allocator_that_no_name_leads_back_to_makes_no_index(tmp_path, embedder, config):
    wished = replace(config, allocator="auto")
    for allocator in (Mine(), Disguised(), Sensitivity(embedder.backbone, [(2, 4)])):
        made = AllocEmbed(embedder.backbone, allocator, wished)
        with pytest.raises(SearchError, match=f"does not stand for this {type(allocator).__name__}: add"):
            VideoIndex.create(tmp_path / "index", wished, embedder=made)
        assert not (tmp_path / "index").exists()


def test_an_allocator_that_is_registered_by_name_is_found_again(tmp_path, embedder, config, monkeypatch, folder):
    monkeypatch.setitem(METHODS, "mine", Mine)
    wished = replace(config, allocator="auto")
    VideoIndex.create(tmp_path / "index", wished, embedder=AllocEmbed(embedder.backbone, Mine(), wished))
    opened = VideoIndex.open(tmp_path / "index", device="cpu")
    assert opened.add([folder / "v1.mp4"]).embedded == 1 and isinstance(opened.embedder.allocator, Mine)
