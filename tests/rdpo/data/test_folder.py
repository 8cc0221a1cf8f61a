"""Videos without texts: a folder, or lines of a .jsonl that only name a video."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from allocembed import AllocEmbed, EmbedConfig
from allocembed.backbones.loading import load_backbone
from allocembed.budget import Budget
from allocembed.errors import DataError
from allocembed.rdpo.data.base import TRAINING, VALIDATION
from allocembed.rdpo.data.folder import FolderSource
from allocembed.rdpo.data.jsonl import JsonlSource
from allocembed.rdpo.rollouts import RolloutEncoder, footage_of
from tests.clips import write_video


@pytest.fixture
def videos(tmp_path):
    for name in ("a.mp4", "deep/b.mp4", ".hidden/c.mp4"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        write_video(tmp_path / name, 12)
    (tmp_path / "notes.txt").write_text("no video")
    return tmp_path


def test_a_folder_gives_every_video_once_with_its_own_vector_as_target(videos):
    source = FolderSource(videos, videos, validation=0)
    batch = source.finish(source.prepare(TRAINING, 0, 2, Budget(), 4, range(2)), torch.device("cpu"))
    assert sorted(str(example.sample) for example in batch.examples) == ["a.mp4", "deep/b.mp4"]
    assert all(example.own for example in batch.examples) and not len(source.corpus)
    assert len(set(batch.targets.texts)) == 2


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(DataError, match="there is no video in"):
        FolderSource(tmp_path, tmp_path)


def test_large_frames_are_shrunk_when_read(videos):
    source = FolderSource(videos, videos, validation=0, pixels=600)
    batch = source.finish(source.prepare(TRAINING, 0, 2, Budget(), 4, range(2)), torch.device("cpu"))
    height, width = batch.videos[0].frames.shape[-2:]
    assert 400 < height * width <= 600 and abs(width / height - 64 / 48) < 0.1


def test_frames_that_would_fill_the_device_stay_on_the_host(videos, monkeypatch):
    monkeypatch.setattr("allocembed.rdpo.data.jsonl.ON_DEVICE", 100)
    source = FolderSource(videos, videos, validation=0)
    prepared = source.prepare(TRAINING, 0, 2, Budget(), 4, range(2))
    assert source.finish(prepared, torch.device("meta")).videos[0].frames.device.type == "cpu"


def test_a_file_of_its_own_holds_the_validation_and_none_of_it_is_trained_on(videos):
    (videos / "held.jsonl").write_text(json.dumps({"video": "deep/../deep/b.mp4", "caption": "a ramp"}))
    source = FolderSource(videos, videos, held=videos / "held.jsonl")
    assert [record.video for record in source.records] == ["a.mp4"]
    assert [record.target for record in source.held] == ["a ramp"]


def test_as_many_validation_examples_of_a_file_are_used_as_are_decoded(videos):
    lines = [{"video": f"deep/../deep/{'b' if number < 2 else 'c'}.mp4", "caption": str(number)} for number in range(4)]
    (videos / "held.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = FolderSource(videos, videos, held=videos / "held.jsonl")
    batch = source.prepare(VALIDATION, 0, 2, Budget(), 4, range(2))
    assert [example.target for example in batch.examples] == ["0", "1"] and list(batch.clips) == [0, 1]


@pytest.mark.parametrize("texts", [True, False])
def test_lines_with_and_without_texts_mix(videos, texts):
    lines = [{"video": "a.mp4", "caption": "a ramp"}, {"video": "deep/b.mp4"}]
    (videos / "train.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = JsonlSource(videos / "train.jsonl", videos, validation=0, texts=texts)
    batch = source.finish(source.prepare(TRAINING, 0, 2, Budget(), 4, range(2)), torch.device("cpu"))
    own = {str(example.sample): example.own for example in batch.examples}
    assert own == {"a.mp4": not texts, "deep/b.mp4": True}
    assert list(source.corpus.texts) == (["a ramp"] if texts else [])


def test_frame_folders_are_sized_and_numbered_as_in_use(tmp_path, qwen3_folder):
    frames = tmp_path / "one"
    frames.mkdir()
    for number in range(5):
        Image.fromarray(np.full((70, 100, 3), 40 * number, np.uint8)).save(frames / f"{number}.png")
    (tmp_path / "train.jsonl").write_text(json.dumps({"video": "one"}))
    backbone = load_backbone(qwen3_folder, device="cpu")
    source = JsonlSource(tmp_path / "train.jsonl", tmp_path, validation=0, inputs=backbone.inputs)
    (videos,) = source.finish(source.prepare(TRAINING, 0, 1, Budget(), 5, range(1)), torch.device("cpu")).videos
    embedder = AllocEmbed(backbone, "full", EmbedConfig(candidates=5))
    allocation, item = embedder.prepare(embedder.read(frames))
    assert videos.listed and videos.seconds(2).tolist() == [item.prompt.seconds.tolist()]
    native = footage_of(videos).native(backbone.geometry)
    assert native == allocation.native
    grids = np.tile([native.rows, native.cols], (1, 1, 3, 1))
    vector = RolloutEncoder(backbone).embed(videos, [None], grids)[0, 0]
    assert torch.allclose(vector, torch.from_numpy(embedder.encode_video(frames).vector), atol=1e-5)


def test_too_few_videos_to_hold_some_out_are_refused_at_once(videos):
    with pytest.raises(DataError, match=r"2 videos are too few .*at least 5"):
        FolderSource(videos, videos, validation=128)
