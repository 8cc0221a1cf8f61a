"""Searching by a sentence with the text half of the model: the same answers, and the whole model only when needed."""

import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from allocembed.errors import BackboneError
from allocembed.search import SearchError, VideoIndex
from allocembed.search.query import Query
from allocembed.search.sentences import SentenceReader

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


@pytest.fixture
def no_whole_model(monkeypatch):
    """Loading the whole model fails."""

    def refuse(*args: object, **named: object) -> None:
        raise AssertionError("the whole model was loaded")

    monkeypatch.setattr("allocembed.embedder.AllocEmbed.from_config", refuse)


def test_sentences_are_embedded_as_by_the_whole_model_which_is_not_loaded(finished, embedder, no_whole_model):
    index, whole = VideoIndex.open(finished, device="cpu"), VideoIndex.open(finished, embedder=embedder)
    for query in ("a dog jumps", Query(texts=("a dog", "a lake"), unlike=("a cat",))):
        assert np.allclose(index.embed_query(query), whole.embed_query(query), atol=1e-6)
        assert [hit.video for hit in index.search(query)] == [hit.video for hit in whole.search(query)]


def test_a_video_as_an_example_loads_the_rest_and_sentences_stay_the_same(finished, originals):
    index = VideoIndex.open(finished, device="cpu")
    before = index.embed_query("a dog")
    assert index.search_like(originals[0])[0].score > 0.99
    assert np.allclose(index.embed_query("a dog"), before, atol=1e-6)


@pytest.mark.parametrize("damage", ["other weights", "no weights", "other sizes"])
def test_a_model_that_is_not_that_of_the_index_is_refused(finished, qwen3_folder, tmp_path, damage):
    model = shutil.copytree(qwen3_folder, tmp_path / "model")
    place = tmp_path / "index"
    shutil.copytree(finished, place)
    tensors = load_file(model / "model.safetensors")
    name = next(name for name in tensors if name.endswith("layers.1.mlp.up_proj.weight"))
    if damage == "other weights":
        tensors = {name: -tensor if tensor.ndim > 1 else tensor for name, tensor in tensors.items()}
    elif damage == "no weights":
        del tensors[name]
    else:
        tensors[name] = tensors[name][:, :5].contiguous()
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    store = VideoIndex.open(place).store
    with pytest.raises((SearchError, BackboneError), match=r"gives other vectors|cannot load|no values"):
        VideoIndex(store, replace(store.settings.config, backbone=str(model), device="cpu")).search("a dog")


@pytest.mark.slow
def test_the_command_imports_neither_transformers_nor_the_compiler(finished):
    code = (
        "import sys; from allocembed.cli.main import run\n"
        f"assert run(['search', {str(finished)!r}, 'a dog', '--device', 'cpu']) == 0\n"
        "assert 'torch' in sys.modules\n"
        "assert not {'transformers', 'torch._dynamo', 'matplotlib', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "score" in done.stdout, done.stderr


@pytest.mark.parametrize("whole", [False, True])
def test_threads_that_search_at_once_load_the_model_once(finished, embedder, monkeypatch, whole):
    loaded = []

    def load(*args: object) -> object:
        loaded.append(args)
        time.sleep(0.05)
        return embedder if whole else None

    index = VideoIndex.open(finished, device="cpu")
    monkeypatch.setattr("allocembed.search.index._load", load)
    monkeypatch.setattr(SentenceReader, "_open", load)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: index.embedder if whole else index._sentences.vector("a dog"), range(4)))
    assert len(loaded) == 1
