"""Optional packages that are missing are named before anything is loaded."""

import sys

import pytest

from allocembed.embedder import AllocEmbed
from tests.clips import write_video
from tests.command import run


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("lancedb", [], "search"),
        ("pyarrow", [], "search"),
        ("filelock", [], "search"),
        ("watchfiles", ["--watch"], "search"),
        ("faster_whisper", ["--speech"], "speech"),
        ("obstore", ["s3://bucket/videos"], "cloud"),
        ("ray", ["--engine", "ray"], "ray"),
    ],
)
def test_index_names_what_is_missing_before_it_loads_a_model(tmp_path, monkeypatch, qwen3_folder, module, words, extra):
    video = write_video(tmp_path / "one.mp4", 4)
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.setattr(AllocEmbed, "from_config", lambda config: pytest.fail("a model was loaded"))
    result = run("index", video, *words, "--to", tmp_path / "index", "--backbone", qwen3_folder)
    assert result.returncode == 1 and f"pip install 'allocembed[{extra}]'" in result.stderr, result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["one.mp4"]


def test_embed_names_what_is_missing_before_it_loads_a_model(tmp_path, monkeypatch, qwen3_folder):
    video = write_video(tmp_path / "one.mp4", 4)
    monkeypatch.setattr(AllocEmbed, "from_config", lambda config: pytest.fail("a model was loaded"))
    for module, words, extra in (("pyarrow", [], "search"), ("ray", ["--engine", "ray"], "ray")):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            result = run("embed", video, *words, "--out", tmp_path / "v.parquet", "--backbone", qwen3_folder)
        assert result.returncode == 1 and f"pip install 'allocembed[{extra}]'" in result.stderr, result.stderr
