"""An index of nine small videos, made with a tiny random model."""

import shutil
from pathlib import Path

import pytest

from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.search import VideoIndex
from tests.clips import picture, write_video


@pytest.fixture(scope="session")
def config(qwen3_folder) -> EmbedConfig:
    return EmbedConfig(backbone=str(qwen3_folder), budget="64", candidates=4)


@pytest.fixture(scope="session")
def embedder(config) -> AllocEmbed:
    return AllocEmbed.from_config(config)


@pytest.fixture(scope="session")
def originals(tmp_path_factory) -> list[Path]:
    """Eight different videos of two seconds, and one of twelve, which is cut into windows."""
    folder = tmp_path_factory.mktemp("originals")
    for number in range(8):
        write_video(folder / f"v{number}.mp4", [picture(number * 37 + frame) for frame in range(0, 50, 5)])
    return [*sorted(folder.glob("v*.mp4")), write_video(folder / "windows.mp4", 300)]


@pytest.fixture
def folder(tmp_path, originals) -> Path:
    made = tmp_path / "videos"
    made.mkdir()
    for path in originals:
        shutil.copy2(path, made)
    return made


@pytest.fixture(scope="session")
def finished(tmp_path_factory, originals, config, embedder) -> Path:
    """An index of the originals, to be copied."""
    place = tmp_path_factory.mktemp("finished") / "index"
    VideoIndex.create(place, config, embedder=embedder).add([originals[0].parent])
    return place


@pytest.fixture
def empty(tmp_path, config, embedder) -> VideoIndex:
    return VideoIndex.create(tmp_path / "index", config, embedder=embedder)


@pytest.fixture
def index(tmp_path, finished, folder, embedder) -> VideoIndex:
    """An index of the videos in `folder`: known by their content, so nothing is embedded here."""
    shutil.copytree(finished, tmp_path / "index")
    made = VideoIndex.open(tmp_path / "index", embedder=embedder)
    paths = [file.path for file in made.files()]
    made.add([folder])
    made.remove(paths)
    return made
