"""Linear layers with weights of eight bits: close to the layers they replace, and a whole model with them."""

import pickle

import pytest
import torch

from allocembed.backbones.devices import LARGE_MODEL_BYTES, computes_bfloat16, pick_dtype, weight_bytes
from allocembed.backbones.int8 import BLOCK_ROWS, Int8Linear, round_linears
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.text_half import load_text_half
from allocembed.errors import BackboneError
from allocembed.testing.items import text, video

CPU = torch.device("cpu")


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_is_within_two_percent_of_the_one_it_replaces(bias, dtype):
    torch.manual_seed(0)
    layer = torch.nn.Linear(96, 40, bias=bias, dtype=dtype)
    hidden = torch.randn(3, 7, 96, dtype=dtype)
    with torch.inference_mode():
        expected, found = layer(hidden).float(), Int8Linear.of(layer)(hidden)
    assert found.dtype == dtype and found.shape == expected.shape
    assert (found.float() - expected).norm() < 0.02 * expected.norm()


def test_a_token_does_not_depend_on_its_neighbours():
    layer = Int8Linear.of(torch.nn.Linear(32, 8))
    hidden = torch.randn(5, 32)
    louder = torch.cat([hidden[:1], 1000 * hidden[1:]])
    with torch.inference_mode():
        assert torch.equal(layer(hidden)[0], layer(louder)[0])


def test_zeros_stay_zeros():
    layer = Int8Linear.of(torch.nn.Linear(32, 8, bias=False))
    with torch.inference_mode():
        assert not layer(torch.zeros(2, 32)).any()


def test_a_shared_layer_stays_shared():
    shared = torch.nn.Linear(16, 16)
    model = torch.nn.Sequential(shared, torch.nn.ReLU(), shared)
    round_linears(model)
    assert isinstance(model[0], Int8Linear) and model[0] is model[2]


@pytest.mark.parametrize("folder", ["qwen2_folder", "qwen3_folder", "gemma_folder", "siglip_folder"])
def test_vectors_of_a_whole_model_stay_close(folder, request):
    folder = request.getfixturevalue(folder)
    exact, rounded = (load_backbone(folder, device="cpu", dtype=dtype) for dtype in ("float32", "int8"))
    items = [video(exact, [(1, 1), (3, 4), (2, 2)], "what is it?"), text("a red car")]
    cosines = (exact.embed(items) * rounded.embed(items)).sum(-1)
    assert (cosines > 0.99).all() and (cosines < 1).any()
    assert rounded.weights_digest != exact.weights_digest
    again = pickle.loads(pickle.dumps(rounded))
    assert torch.equal(again.embed(items), rounded.embed(items))


def test_a_sentence_is_embedded_by_the_whole_model(qwen3_folder):
    assert load_text_half(str(qwen3_folder), device="cpu", dtype="float32") is not None
    assert load_text_half(str(qwen3_folder), device="cpu", dtype="int8") is None


def test_the_format_that_is_chosen():
    half = torch.bfloat16 if computes_bfloat16() else torch.float32
    assert pick_dtype("auto", CPU) == torch.float32
    assert pick_dtype("auto", CPU, LARGE_MODEL_BYTES + 1) == half == pick_dtype("int8", CPU)
    assert pick_dtype("auto", torch.device("cuda")) == torch.bfloat16
    with pytest.raises(BackboneError, match="int8 is for CPUs"):
        pick_dtype("int8", torch.device("cuda"))
    with pytest.raises(BackboneError, match="or int8"):
        pick_dtype("int7", CPU)


def test_the_bytes_of_weights_are_counted(tmp_path):
    (tmp_path / "model-1.safetensors").write_bytes(b"12345")
    (tmp_path / "config.json").write_bytes(b"12345")
    assert weight_bytes(tmp_path) == 5


@pytest.mark.slow
@torch.inference_mode()
def test_a_compiled_layer_is_one_graph_for_all_numbers_of_tokens():
    torch.manual_seed(0)
    layer = Int8Linear.of(torch.nn.Linear(32, 16))
    compiled = torch.compile(lambda hidden: layer(hidden), dynamic=True, fullgraph=True)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for count in (5, BLOCK_ROWS, BLOCK_ROWS + 1, 3 * BLOCK_ROWS):
        hidden = torch.randn(count, 32)
        assert torch.allclose(compiled(hidden), layer(hidden), atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
