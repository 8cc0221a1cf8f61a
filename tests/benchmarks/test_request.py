"""Requests: usual names are filled in, wrong ones are named before anything heavy is imported."""

import subprocess
import sys
from pathlib import Path

import pytest

from allocembed import EmbedConfig
from allocembed.benchmarks.paper import BENCHMARKS
from allocembed.benchmarks.request import BenchmarkRequest
from allocembed.errors import AllocEmbedError, DataError

METHODS = ("base", "full", "uniform", "content", "select", "sensitivity", "learned")


def test_usual_names_are_filled_in():
    request = BenchmarkRequest(benchmark="mmeb-v2", data=Path("x"))
    assert request.tasks == BENCHMARKS["mmeb-v2"].tasks and tuple(request.methods) == METHODS
    assert tuple(request.backbones) == ("vlm2vec-v2-2b",)
    request = BenchmarkRequest(benchmark="longret", data=Path("x"), transfer=True, tasks=["VRIPT-video"])
    assert list(request.tasks) == ["Vript-Video"] and tuple(request.methods) == ("base", "learned")
    assert len(request.backbones) == 4
    assert BenchmarkRequest(benchmark="longret", data=Path("x")).tasks == BENCHMARKS["longret"].tasks
    sweep = BenchmarkRequest(benchmark="mmeb-v2", data=Path("x"), sweep="frames")
    assert tuple(sweep.methods) == ("full", "uniform", "learned")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ["UCF101"]}, "unknown task 'UCF101'"),
        ({"tasks": ["MSVDD"]}, "did you mean MSVD?"),
        ({"methods": ["uniforn"]}, "did you mean uniform?"),
        ({"backbones": ["vlm2vec-v2-2c"]}, "did you mean vlm2vec-v2-2b?"),
        ({"backbones": ["vlm2vec-qwen2vl-7b:vlm2vec-v3"]}, "did you mean vlm2vec-v"),
        ({"backbones": ["qwen3-vl-embedding-2b:gme"]}, "has no inputs 'gme'"),
        ({"benchmark": "mmeb"}, "unknown benchmark 'mmeb'"),
        ({"sweep": "frames", "transfer": True}, "separate runs"),
        ({"shard": "3/2"}, "write I/N, with I from 1 to N"),
        ({"shard": "first"}, "write I/N, with I from 1 to N"),
        ({"transfer": True, "methods": ["uniform"]}, "compares with Base"),
        ({"sweep": "frames", "config": EmbedConfig(candidates=8)}, "leave out --candidates"),
        ({"sweep": "budgets", "config": EmbedConfig(budget="4f")}, "leave out --budget"),
    ],
)
def test_wrong_names_are_named(settings, message):
    with pytest.raises(AllocEmbedError) as error:
        BenchmarkRequest(**({"benchmark": "mmeb-v2", "data": Path("x")} | settings))
    assert message in str(error.value)


def test_missing_data_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="hf download VLM2Vec/MSVD"):
        BenchmarkRequest(benchmark="mmeb-v2", data=tmp_path, tasks=["MSVD"]).load_tasks()


def test_requests_do_not_import_torch():
    code = "import sys, allocembed.benchmarks.request; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
