"""Ray on this machine: the same vectors as in one process, and whatever kills a worker costs only what it worked on."""

import logging
import os
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed, VideoEmbedding
from allocembed.errors import ConfigError, OutputError
from allocembed.files import find_videos
from allocembed.scale import pool
from allocembed.scale.cluster import ClusterOptions, connected
from allocembed.scale.indexing import index_with_ray
from allocembed.scale.vectors import PartFolder, VectorWorker, embed_with_ray
from allocembed.search import VideoIndex
from allocembed.search.verify import verify
from tests.command import run
from tests.scale.doubler import Doubler

pytestmark = pytest.mark.slow  # starts Ray, and processes that load torch


@pytest.fixture(scope="module")
def config(qwen3_folder) -> EmbedConfig:
    return EmbedConfig(backbone=str(qwen3_folder), budget="64", candidates=4)


def test_every_item_gets_one_result_whatever_happens_to_the_workers(cluster, monkeypatch):
    monkeypatch.setattr(pool, "PAUSE", 0.1)
    workers = pool.WorkerPool[int, tuple[int, int | str]](cluster, Doubler)
    results = list(workers.run(iter(range(200)), lambda number, cause: (number, cause)))
    workers.close()
    found = dict(results)
    assert len(results) == len(found) == 200
    assert "died 3 times" in str(found.pop(77)) and "nobody can double" in str(found.pop(99))
    assert found == {number: 2 * number for number in range(200) if number not in (77, 99)}
    assert workers.restarts >= 5


def test_workers_without_a_free_place_say_so_and_work_once_there_is_one(cluster, monkeypatch):
    monkeypatch.setattr(pool, "PATIENCE", 0.5)
    cores = cluster.ray.cluster_resources()["CPU"]
    other = cluster.ray.remote(Doubler).options(num_cpus=cores).remote()
    cluster.ray.get(other.ready.remote())
    said = []

    class Free(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            cluster.ray.kill(other)

    handler = Free()
    pool.logger.addHandler(handler)
    in_any_case = threading.Timer(60, cluster.ray.kill, (other,))
    in_any_case.start()
    try:
        workers = pool.WorkerPool[int, tuple[int, int]](cluster, Doubler)
        assert sorted(workers.run(iter(range(4)), lambda number, cause: (number, -1))) == [(n, 2 * n) for n in range(4)]
        workers.close()
    finally:
        in_any_case.cancel()
        pool.logger.removeHandler(handler)
    (line,) = [each for each in said if "not ready" in each]
    assert "2 of 2 workers are not ready after 0.5 s" in line and "0 CPUs and 0 GPUs of the cluster are free" in line
    assert "lower --workers" in line


def test_a_local_cluster_cannot_be_reached_from_other_machines(cluster):
    listening = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    ours = [line.split()[3] for line in listening if "ray" in line or f"pid={os.getpid()}," in line or "gcs" in line]
    assert len(ours) > 3
    assert all("127.0.0.1" in address or "[::1]" in address for address in ours), ours


def test_ray_gives_the_bits_of_one_process_and_a_bad_file_is_a_row(cluster, many, config, tmp_path):
    embedder = AllocEmbed.from_config(config)
    inline = VideoIndex.create(tmp_path / "inline", config, embedder=embedder)
    inline.add([many])
    VideoIndex.create(tmp_path / "ray", config, embedder=embedder)
    options = ClusterOptions(workers=2, commit=4)
    index, report = index_with_ray(str(tmp_path / "ray"), [many], config, options)
    assert report.embedded == 12 and [Path(path).name for path, _ in report.failed] == ["bad.mp4"]
    assert {file.path: (file.video, file.error) for file in index.files()} == {
        file.path: (file.video, file.error) for file in inline.files()
    }
    assert verify(index) == [] and index.info()["vectors"] == 12
    for file in inline.files():
        if not file.error:
            wanted, found = (each.segments(file.video, "vector")[0].vector for each in (inline, index))
            assert np.array_equal(wanted, found)
    again = run("index", many, "--to", tmp_path / "ray", "--engine", "ray", "--workers", "2")
    assert again.returncode == 1 and "0 embedded, 12 unchanged, 1 left out as before" in again.stderr


def test_parquet_files_of_workers_are_one_table_and_are_continued(many, config, tmp_path, monkeypatch, one_thread):
    from pyarrow import parquet

    monkeypatch.setattr("allocembed.threads._share", None)  # a worker limits its whole process
    out, options = str(tmp_path / "vectors.parquet"), ClusterOptions(workers=1, commit=3)
    files = find_videos([many])[0]
    good = [file for file in files if "bad" not in file.path]
    PartFolder(out).settle({**config.settings(), "question": None, "instruction": None})
    worker = VectorWorker(config, out, cores=1, commit=3, question=None, instruction=None)
    worker.work(files[:6])
    outcomes = worker.work(files, again=True)  # as after a kill
    assert [Path(each.source).name for each in outcomes if each.error] == ["bad.mp4"] and len(outcomes) == 13
    table = parquet.read_table(out).to_pydict()
    assert sorted(table["source"]) == [file.path for file in good]
    for each in worker.embedder.stream([file.path for file in good[:3]]):
        assert isinstance(each, VideoEmbedding)
        assert np.array_equal(table["vector"][table["source"].index(each.source)], each.vector)
    assert list(embed_with_ray(iter(good), out, config, options)) == [None] * 12
    with pytest.raises(OutputError, match=r"made with (budget 64, not 32|candidates 4, not 24)"):
        next(embed_with_ray(iter(files), out, EmbedConfig(backbone=config.backbone, budget="32"), options))


def test_more_gpus_than_there_are_is_an_error(cluster):
    with pytest.raises(ConfigError, match="need more than the 0 GPUs"), connected(ClusterOptions(gpus_per_worker=1)):
        pass
