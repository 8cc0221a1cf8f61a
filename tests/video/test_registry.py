"""Decoders by name: what `auto` chooses, and names that installed packages add."""

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from allocembed import AllocEmbed, EmbedConfig
from allocembed.errors import ConfigError
from allocembed.search import VideoIndex
from allocembed.testing.decoders import write_gif
from allocembed.video.decoders.pyav import PyAV
from allocembed.video.decoders.registry import DECODERS, find_decoders
from tests.command import run
from tests.gif import PillowGif

ROOT = Path(__file__).parents[2]
NANO = EmbedConfig(backbone="nano-qwen3", allocator="uniform", device="cpu")


@pytest.fixture
def gif(tmp_path: Path) -> Path:
    write_gif(tmp_path / "a.gif")
    return tmp_path / "a.gif"


@pytest.fixture
def registered():
    DECODERS["pillow-gif"] = PillowGif
    yield "pillow-gif"
    del DECODERS["pillow-gif"]


def test_a_named_kind_decodes_for_models_on_any_device_and_for_main_memory(registered):
    for device in ("cpu", "cuda:0", None):
        assert isinstance(find_decoders(registered, device), PillowGif)
        assert find_decoders(registered, device) is find_decoders(registered, device)
        assert isinstance(find_decoders("auto", device if device == "cpu" else None), PyAV)


def test_auto_takes_the_kind_that_offers_itself(monkeypatch):
    class Eager(PillowGif):
        @classmethod
        def find(cls, device, *, named):
            return cls() if device == "cpu" else None

    monkeypatch.setitem(DECODERS, "eager", Eager)
    assert isinstance(find_decoders("auto", "cpu"), Eager)
    assert isinstance(find_decoders("eager", None), PyAV)


def test_unknown_names_are_errors_before_anything_is_loaded(gif):
    with pytest.raises(ConfigError, match=r"decoder must be auto or pyav or nvdec, not 'pyaw' \(did you mean pyav\?\)"):
        AllocEmbed.from_config(replace(NANO, decoder="pyaw"))
    told = run("embed", gif, "--decoder", "pyaw", "--backbone", "nano-qwen3")
    assert told.returncode == 1 and "did you mean pyav?" in told.stderr


def test_the_stages_read_files_through_the_kind_that_is_named(registered, gif):
    embedder = pickle.loads(pickle.dumps(AllocEmbed.from_config(replace(NANO, decoder=registered))))
    plain = AllocEmbed.from_config(NANO)
    assert isinstance(embedder.decoders, PillowGif) and isinstance(plain.decoders, PyAV)
    for on_device in (False, True):
        assert np.array_equal(embedder.read(gif, on_device=on_device).frames, plain.read(gif).frames)
    assert np.array_equal(embedder.encode_video(gif).vector, plain.encode_video(gif).vector)


def test_a_name_survives_the_index_also_where_its_package_is_absent(registered, gif, tmp_path):
    config = EmbedConfig.from_json(replace(NANO, decoder=registered).as_json())
    index = VideoIndex.create(tmp_path / "index", config)
    assert index.add([gif]).embedded == 1
    assert VideoIndex.open(tmp_path / "index", device="cpu").embedder.config.decoder == registered
    del DECODERS[registered]
    try:
        again = VideoIndex.open(tmp_path / "index", replace(NANO, decoder="auto"))
        assert [Path(file.path).name for file in again.files()] == ["a.gif"] and again.embedder.config.decoder == "auto"
        with pytest.raises(ConfigError, match="pillow-gif"):
            _ = VideoIndex.open(tmp_path / "index", device="cpu").embedder
    finally:
        DECODERS[registered] = PillowGif


@pytest.mark.slow
def test_an_installed_package_adds_a_decoder_to_the_command_line(gif, tmp_path):
    about = tmp_path / "site" / "gifs-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: gifs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[allocembed.decoders]\npillow-gif = tests.gif:PillowGif\n")
    command = [sys.executable, "-m", "allocembed", "embed", gif, "--backbone", "nano-qwen3", "--device", "cpu"]
    vectors = []
    for name in ("pillow-gif", "pyav"):
        out = tmp_path / f"{name}.npz"
        environment = os.environ | {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{ROOT}"}
        subprocess.run([*command, "--decoder", name, "--out", out], env=environment, check=True, capture_output=True)
        vectors.append(np.load(out)["vectors"])
    assert np.array_equal(*vectors)
