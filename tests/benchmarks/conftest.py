"""Small MMEB-V2 datasets and tiny backbones."""

import random
from pathlib import Path

import pytest

from allocembed.backbones.base import Backbone
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import mmeb_v2
from allocembed.benchmarks.tasks import BenchmarkTask
from allocembed_nano import world
from tests.datasets_on_disk import NEW, write_frames, write_lines, write_questions, write_retrieval


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A retrieval task of six videos and five questions about two more."""
    root = tmp_path_factory.mktemp("mmeb")
    write_retrieval(root, "MSR-VTT", 6)
    write_questions(root, 5)
    return root


@pytest.fixture(scope="session")
def tasks(data: Path) -> list[BenchmarkTask]:
    return [mmeb_v2.load_task(name, data) for name in ("MSR-VTT", "NExTQA")]


@pytest.fixture(scope="session")
def backbone(qwen2_folder: Path) -> Backbone:
    return load_backbone(qwen2_folder, device="cpu")


@pytest.fixture(scope="session")
def toy_world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Videos that the nano models know, as MMEB-V2 would publish them."""
    root = tmp_path_factory.mktemp("toy")
    timelines = world.draw(8, 5, "short", split="test", orientation="landscape")
    frames = world.render(timelines, world.sample_fractions(24)).permute(0, 1, 3, 4, 2).numpy()
    lines = []
    for number, pictures in enumerate(frames):
        write_frames(root / NEW.format(kind="video_ret", task="MSR-VTT") / f"video{number}", pictures)
        caption = world.describe_video(timelines, number, random.Random(number))
        lines.append({"video_id": f"video{number}", "video": f"video{number}.mp4", "caption": caption})
    write_lines(root, "MSR-VTT", lines)
    return root
