"""Stored embeddings belong to their video, model, method and settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from allocembed import AllocEmbed, EmbedConfig
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks.cache import EmbeddingCache, video_digest
from allocembed.errors import DataError
from tests.datasets_on_disk import NEW, write_frames

QUICK = EmbedConfig(budget="2f", candidates=4)


def test_a_cache_belongs_to_its_model_method_and_settings(backbone, qwen3_folder, tmp_path):
    def folder(embedder: AllocEmbed) -> Path:
        return EmbeddingCache.for_videos(tmp_path, embedder).folder

    base = folder(AllocEmbed(backbone, "base", QUICK))
    others = [
        AllocEmbed(backbone, "uniform", QUICK),
        AllocEmbed(backbone, "base", replace(QUICK, budget="4f")),
        AllocEmbed(backbone, "base", replace(QUICK, scale_range=(0.5, 1.0))),
        AllocEmbed(backbone, "base", replace(QUICK, seek="keyframe")),
        AllocEmbed(backbone, "base", replace(QUICK, start=1.0)),
        AllocEmbed(load_backbone(qwen3_folder, device="cpu"), "base", QUICK),
    ]
    assert len({base, *map(folder, others)}) == 7
    assert folder(AllocEmbed(backbone, "base", replace(QUICK, candidates=9))) == base, "Base samples no candidates"


def test_another_version_of_the_code_has_its_own_cache(backbone, tmp_path, monkeypatch):
    embedder = AllocEmbed(backbone, "base", QUICK)
    videos, texts = EmbeddingCache.for_videos(tmp_path, embedder), EmbeddingCache.for_texts(tmp_path, embedder)
    monkeypatch.setattr("allocembed.embedder.__version__", "99.0")
    assert EmbeddingCache.for_videos(tmp_path, embedder).folder != videos.folder
    assert EmbeddingCache.for_texts(tmp_path, embedder).folder != texts.folder


def test_texts_belong_to_the_model_alone(backbone, qwen3_folder, tmp_path):
    models = [backbone, backbone, load_backbone(qwen3_folder, device="cpu")]
    methods = ("base", "uniform", "base")
    embedders = [AllocEmbed(model, method, QUICK) for model, method in zip(models, methods, strict=True)]
    one, same, other = (EmbeddingCache.for_texts(tmp_path, embedder).folder for embedder in embedders)
    assert one == same != other


def test_a_video_is_known_by_its_content(data, tmp_path):
    frames = data / NEW.format(kind="video_ret", task="MSR-VTT")
    moved = write_frames(tmp_path / "elsewhere", first=0)
    assert video_digest(frames / "v0") == video_digest(moved) != video_digest(frames / "v1")
    (moved / "frame_0001.jpg").unlink()
    assert video_digest(frames / "v0") != video_digest(moved)


def test_every_image_of_a_folder_counts(tmp_path):
    folder = write_frames(tmp_path / "v", first=0)
    images = sorted(folder.iterdir())
    digests = {video_digest(folder)}
    for image in images:
        content = bytearray(image.read_bytes())
        content[len(content) // 2] ^= 1
        image.write_bytes(content)
        digests.add(video_digest(folder))
    assert len(digests) == len(images) + 1


def test_a_fifo_is_not_waited_for(tmp_path, make_fifo):
    make_fifo(tmp_path / "x.mp4")
    with pytest.raises(OSError, match="not a regular file"):
        video_digest(tmp_path / "x.mp4")
    make_fifo(tmp_path / "x.jpg")
    video_digest(tmp_path)


def test_a_damaged_cache_is_named(tmp_path):
    EmbeddingCache(tmp_path, {})
    (tmp_path / "x.npz").write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(DataError, match="delete that file"):
        EmbeddingCache(tmp_path, {})
