"""`embed` over workers: a folder of Parquet files, which is continued."""

from pathlib import Path

import numpy as np
import pytest

from allocembed.bulk import EmbedTask, embed_all
from allocembed.config import EmbedConfig
from allocembed.embedder import VideoEmbedding
from allocembed.errors import OutputError
from allocembed.files import find_videos
from allocembed.output.parts import PartFolder
from allocembed.workers import WorkerOptions, WorkerShare, find_workers
from tests.clips import picture, write_video
from tests.command import run

parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'allocembed[search]'")


@pytest.fixture(scope="module")
def many(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    for number in range(12):
        write_video(folder / f"v{number:02}.mp4", [picture(number * 37 + frame) for frame in range(5)])
    (folder / "bad.mp4").write_bytes(b"no video")
    return folder


def test_parts_of_workers_are_one_table_and_are_continued(many, qwen3_folder, tmp_path, one_thread):
    config = EmbedConfig(backbone=str(qwen3_folder), budget="64", candidates=4)
    files, out = find_videos([many])[0], str(tmp_path / "vectors.parquet")
    good = [file for file in files if "bad" not in file.path]
    task = EmbedTask(config, PartFolder(out), commit=3)
    task.output.settle({**config.settings(), "question": None, "instruction": None})
    worker = task(WorkerShare(cores=1, workers=1, separate=False))
    list(worker.work(files[:6], again=False))
    outcomes = list(worker.work(files, again=True))  # as after a kill
    assert [Path(each.source).name for each in outcomes if each.error] == ["bad.mp4"] and len(outcomes) == 13
    table = parquet.read_table(out).to_pydict()
    assert sorted(table["source"]) == [file.path for file in good]
    for each in worker.embedder.stream([file.path for file in good[:3]]):
        assert isinstance(each, VideoEmbedding)
        assert np.array_equal(table["vector"][table["source"].index(each.source)], each.vector)
    with find_workers("inline", WorkerOptions(commit=3)) as workers:
        again = list(embed_all(iter(good), EmbedTask(config, PartFolder(out), commit=3), workers))
        assert [each.status for each in again] == ["held"] * 12
        other = EmbedTask(EmbedConfig(backbone=config.backbone, budget="32"), PartFolder(out), commit=3)
        with pytest.raises(OutputError, match=r"made with (budget 64, not 32|candidates 4, not 24)"):
            next(embed_all(iter(files), other, workers))


@pytest.mark.slow
def test_a_video_that_has_changed_has_one_row(tmp_path, qwen3_folder):
    videos, out = tmp_path / "videos", tmp_path / "v.parquet"
    videos.mkdir()
    for number in range(3):
        write_video(videos / f"{number}.mp4", [picture(number * 37 + frame) for frame in range(10)])
    words = ("embed", videos, "--recursive", "-b", qwen3_folder, "--devices", "cpu", "-o", out)
    assert run(*words).returncode == 0
    before = dict(zip(*(parquet.read_table(out).to_pydict()[name] for name in ("source", "vector")), strict=True))
    changed = str(write_video(videos / "1.mp4", [picture(200 + frame) for frame in range(12)]))
    result = run(*words)
    assert result.returncode == 0 and "1 of 3 videos embedded, 2 were there" in result.stderr
    after = parquet.read_table(out).to_pydict()
    assert sorted(after["source"]) == sorted(before)
    same = {source: before[source] == vector for source, vector in zip(after["source"], after["vector"], strict=True)}
    assert [source for source, equal in same.items() if not equal] == [changed]
