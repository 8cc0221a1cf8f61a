"""The text half of a backbone: the same vectors, bit for bit, without the tower and without transformers."""

import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from allocembed.backbones.base import Item, Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.qwen_vl.text_half import SPLIT
from allocembed.backbones.text_half import load_text_half
from tests import official

TEXTS = ("a red car drives by", "x", "it's 12,5 °C 🦊!\n\n", "word " * 200)


FOLDERS = ("qwen2", "qwen25", "qwen3", "gemma")


@pytest.fixture(params=[f"{name}_folder" for name in FOLDERS], ids=FOLDERS)
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_vector_of_a_text_is_that_of_the_whole_backbone_bit_for_bit(folder, dtype, one_thread):
    half, whole = (
        load_text_half(str(folder), dtype=dtype, device="cpu"),
        load_backbone(folder, dtype=dtype, device="cpu"),
    )
    assert half is not None and half.query_instruction == whole.query_instruction
    for text in TEXTS:
        for instruction in (None, half.query_instruction, "Find it"):
            vector = half.vector(text, instruction)
            assert np.array_equal(vector, whole.embed([Item(Prompt(text, instruction))]).numpy()[0])


@pytest.mark.parametrize("model", official.CHECKPOINTS)
def test_checkpoints_in_the_layout_of_the_hub_give_the_same_vectors(model, tmp_path, one_thread):
    folder = official.save_checkpoint(model, tmp_path / model)
    half, whole = load_text_half(str(folder), device="cpu"), load_backbone(folder, device="cpu")
    assert half is not None
    for text in TEXTS:
        vector = half.vector(text, half.query_instruction)
        assert np.array_equal(vector, whole.embed([Item(Prompt(text, whole.query_instruction))]).numpy()[0])


def test_a_shorter_vector_is_that_of_the_whole_backbone(qwen3_folder, one_thread):
    half = load_text_half(str(qwen3_folder), dim=8, device="cpu")
    whole = load_backbone(qwen3_folder, dim=8, device="cpu")
    assert np.array_equal(half.vector("a dog"), whole.embed([Item(Prompt("a dog"))]).numpy()[0])


def test_the_tower_is_not_read(qwen3_folder, tmp_path, one_thread):
    copy = shutil.copytree(qwen3_folder, tmp_path / "model")
    tensors = load_file(copy / "model.safetensors")
    language = {name: tensor for name, tensor in tensors.items() if "visual" not in name}
    assert len(language) < len(tensors)
    save_file(language, copy / "model.safetensors", metadata={"format": "pt"})
    one, other = (load_text_half(str(each), device="cpu").vector("a dog") for each in (qwen3_folder, copy))
    assert np.array_equal(one, other)


def test_weights_in_several_files_are_found(qwen3_folder, tmp_path, one_thread):
    copy = shutil.copytree(qwen3_folder, tmp_path / "model")
    tensors = load_file(copy / "model.safetensors")
    (copy / "model.safetensors").unlink()
    places = {name: f"model-{number % 2}.safetensors" for number, name in enumerate(sorted(tensors))}
    for file in set(places.values()):
        part = {name: tensors[name] for name in tensors if places[name] == file}
        save_file(part, copy / file, metadata={"format": "pt"})
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    one, other = (load_text_half(str(each), device="cpu").vector("a dog") for each in (qwen3_folder, copy))
    assert np.array_equal(one, other)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("config.json", {"text_config": {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1.0}}}),
        ("config.json", {"text_config": {"layer_types": ["sliding_attention"] * 2}}),
        ("config.json", {"text_config": {"hidden_act": "gelu"}}),
        ("config.json", {"quantization_config": {"bits": 4}}),
        ("tokenizer_config.json", {"add_eos_token": True}),
        ("tokenizer_config.json", {"tokenizer_class": "OtherTokenizer"}),
        ("tokenizer_config.json", {"tokenizer_class": "Qwen2Tokenizer"}),
        ("tokenizer_config.json", {"extra_special_tokens": ["<|another|>"]}),
        ("adapter_config.json", {}),
    ],
)
def test_an_unusual_checkpoint_is_left_to_the_whole_backbone(qwen3_folder, tmp_path, file, change):
    copy = shutil.copytree(qwen3_folder, tmp_path / "model")
    path = copy / file
    stated = json.loads(path.read_text()) if path.exists() else {}
    for name, value in change.items():
        stated[name] = stated[name] | value if isinstance(value, dict) and name in stated else value
    path.write_text(json.dumps(stated))
    assert load_text_half(str(qwen3_folder)) is not None and load_text_half(str(copy)) is None


@pytest.mark.parametrize("stated", [{}, {"add_bos_token": False}], ids=["appends", "stated"])
def test_a_tokenizer_that_transformers_rebuilds_gives_the_same_vectors(qwen3_folder, tmp_path, stated, one_thread):
    """As on the hub: Qwen's own class, with a token appended to each text."""
    copy = shutil.copytree(qwen3_folder, tmp_path / "model")
    described = json.loads((copy / "tokenizer.json").read_text())
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    letters = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    described["normalizer"] = {"type": "NFC"}
    described["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, letters]}
    described["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|endoftext|>", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<|endoftext|>": {"id": "<|endoftext|>", "ids": [0], "tokens": ["<|endoftext|>"]}},
    }
    (copy / "tokenizer.json").write_text(json.dumps(described))
    path = copy / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": "Qwen2Tokenizer", **stated}))
    half, whole = load_text_half(str(copy), device="cpu"), load_backbone(copy, device="cpu")
    assert half is not None
    for text in (*TEXTS, "e\u0301te\u0301  we'LL <|im_end|> 2026"):
        assert np.array_equal(half.vector(text), whole.embed([Item(Prompt(text))]).numpy()[0])


def test_what_is_no_checkpoint_is_left_to_the_whole_backbone(tmp_path, siglip_folder):
    (tmp_path / "config.json").write_text("{")
    assert load_text_half(str(tmp_path)) is None
    assert load_text_half(str(tmp_path / "absent")) is None
    assert load_text_half(str(siglip_folder)) is None, "a family without a text half"
    assert load_text_half(str(siglip_folder), device="tpu") is None


def test_a_text_that_the_backbone_refuses_or_cuts_is_left_to_it(qwen3_folder):
    half = load_text_half(str(qwen3_folder), device="cpu")
    for text in ("a <|video_pad|> b", "\ud800", "word " * 9000):
        assert half.vector(text) is None
