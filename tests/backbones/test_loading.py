"""Loading: names, folders, the hub's cache, adapters, and checkpoints that must be refused."""

import io
import json
import pickle
import shutil
import sys
from unittest import mock

import pytest
import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from allocembed.backbones.checkpoint import Checkpoint, check_backbone
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.text_half import load_text_half
from allocembed.errors import BackboneError
from allocembed.policy.smol import SmolPreview
from allocembed.testing.items import rows_of, text


@pytest.fixture(params=["qwen2_folder", "qwen3_folder"], ids=["qwen2", "qwen3"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def backbone(folder):
    return load_backbone(folder, device="cpu")


def test_a_checkpoint_with_missing_weights_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "broken")
    tensors = load_file(tmp_path / "broken/model.safetensors")
    del tensors[next(name for name in tensors if "layers.1.mlp.up_proj" in name)]
    save_file(tensors, tmp_path / "broken/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackboneError, match="no values for 1 weights"):
        load_backbone(tmp_path / "broken")


@pytest.mark.parametrize("load", [load_backbone, SmolPreview], ids=["backbone", "preview"])
def test_no_code_of_a_model_folder_is_run_and_nobody_is_asked(folder, tmp_path, monkeypatch, load):
    """transformers would ask on standard input, which may hold a list of videos."""
    copy, marker = shutil.copytree(folder, tmp_path / "stranger"), tmp_path / "was-run"
    (copy / "own.py").write_text(f"open({str(marker)!r}, 'w')\nclass Own: pass\n")
    own = {"model_type": "own", "auto_map": {"AutoConfig": "own.Own", "AutoModel": "own.Own"}}
    (copy / "config.4.0.0.json").write_text(json.dumps(own))
    usual = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(usual | {"configuration_files": ["config.4.0.0.json"]}))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\n"))
    with pytest.raises(BackboneError, match=r"AllocEmbed runs none|custom code"):
        load(str(copy))
    assert not marker.exists()
    assert sys.stdin.read() == "y\ny\n"


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("model.safetensors", "half", "cannot load"),
        ("config.json", "{", "cannot load"),
        ("config.json", '{"model_type": "llama"}', "is a llama model"),
        ("adapter_config.json", "{}", "cannot load"),
        ("preprocessor_config.json", '{"image_mean": "x", "size": 3}', "cannot load"),
        ("config.json", "[1, 2]", "cannot load"),
        ("config.json", '{"model_type": ["qwen2_vl"]}', "cannot load"),
        ("tokenizer.json", '{"version": "1.0"}', "cannot load"),
        ("tokenizer.json", "\x00\x01", "cannot load"),
        ("tokenizer.json", '{"version": "1.0", "added_tokens": [], "model": {"type": "none"}}', "cannot load"),
        ("pickle", None, "cannot load"),
        ("tokenizer.json", None, "tokenizer"),
    ],
)
def test_a_broken_folder_is_refused_with_its_name(folder, tmp_path, name, content, cause):
    copy = shutil.copytree(folder, tmp_path / "broken")
    path = copy / name
    if name == "pickle":
        (copy / "model.safetensors").unlink()
        (copy / "pytorch_model.bin").write_bytes(pickle.dumps({"a": object}))
    elif content == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif content is None:
        for file in copy.glob("tokenizer*"):
            file.unlink()
    else:
        path.write_text(content)
    with pytest.raises(BackboneError, match=cause) as caught:
        load_backbone(copy)
    assert "broken" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("config.json", [1, 2]),
        ("config.json", {"model_type": ["qwen3_vl"]}),
        ("config.json", {"vision_config": 3}),
        ("config.json", {"vision_config": {"patch_size": "x"}}),
        ("config.json", {"vision_config": {"spatial_merge_size": 0}}),
        ("preprocessor_config.json", []),
        ("preprocessor_config.json", {"size": 3}),
        ("preprocessor_config.json", {"max_pixels": "x"}),
    ],
)
def test_wrong_types_leave_the_inputs_unknown_and_are_named_when_the_model_is_loaded(
    qwen3_folder, tmp_path, name, changes
):
    copy = shutil.copytree(qwen3_folder, tmp_path / "broken")
    assert Checkpoint.find(str(copy)).inputs is not None
    stated = json.loads((copy / name).read_text()) if (copy / name).exists() else {}
    if isinstance(changes, dict):
        for key, value in changes.items():
            changes = stated | {key: {**stated[key], **value} if isinstance(value, dict) else value}
    (copy / name).write_text(json.dumps(changes))
    assert Checkpoint.find(str(copy)).inputs is None
    with pytest.raises(BackboneError, match=r"cannot load .*broken"):
        load_backbone(copy, device="cpu")


def test_an_unknown_backbone_says_what_to_do(tmp_path):
    with pytest.raises(BackboneError, match=r"there is no folder .*nano-qwen3"):
        load_backbone(tmp_path / "nowhere")
    for device in ("tpu0", "meta"):
        with pytest.raises(BackboneError, match="use auto"):
            load_backbone(tmp_path, device=device)
    for name in ("", "nano-qwen33"):
        with pytest.raises(BackboneError, match="unknown backbone"):
            load_backbone(name)
    with pytest.raises(BackboneError, match="did you mean nano-qwen3"):
        check_backbone("nano-qwen33")


def test_a_pickle_holds_the_name_and_not_the_weights(folder, backbone):
    pickled = pickle.dumps(backbone)
    assert len(pickled) < 2000
    assert torch.equal(pickle.loads(pickled).embed([text("a red car")]), backbone.embed([text("a red car")]))


@pytest.fixture
def hub_cache(tmp_path, monkeypatch):
    """The snapshot of acme/tiny in an empty cache, without a network."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(HfApi, "model_info", mock.Mock(side_effect=OSError("no network")))
    repository = tmp_path / "models--acme--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("0" * 40)
    return repository / "snapshots" / ("0" * 40)


def list_files(snapshot, names):
    """As the hub's client notes them: all files of the repository, also those that were not downloaded."""
    files = {name: {"size": 1, "blob_id": "0" * 40} for name in names}
    listing = snapshot.parents[1] / "trees" / f"{snapshot.name}.json"
    listing.parent.mkdir()
    listing.write_text(json.dumps({"format_version": 1, "files": files}))


@pytest.mark.parametrize("listed", [False, True])
def test_a_hub_id_is_found_in_the_cache_without_a_network(folder, backbone, hub_cache, listed):
    shutil.copytree(folder, hub_cache)
    if listed:
        names = [file.name for file in hub_cache.iterdir()]
        list_files(hub_cache, [*names, "README.md", ".gitattributes", "picture.png"])
    cached = load_backbone("acme/tiny", device="cpu")
    assert torch.equal(cached.embed([text("a red car")]), backbone.embed([text("a red car")]))
    assert (load_text_half("acme/tiny") is None) == (load_text_half(str(folder)) is None)


@pytest.mark.parametrize("listed", [False, True])
def test_an_incomplete_cache_is_not_mistaken_for_a_model(folder, hub_cache, listed):
    shutil.copytree(folder, hub_cache)
    parts = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    (hub_cache / "model.safetensors").rename(hub_cache / parts[0])
    if listed:  # else the download was cut off before the list of parts
        weights = {"weight_map": dict(zip("ab", parts, strict=True))}
        (hub_cache / "model.safetensors.index.json").write_text(json.dumps(weights))
    with pytest.raises(BackboneError, match=r"(?s)no network.*hf download acme/tiny"):
        load_backbone("acme/tiny")
    assert load_text_half("acme/tiny") is None


def test_weights_that_are_there_twice_need_only_one_complete_form(folder, backbone, hub_cache):
    shutil.copytree(folder, hub_cache)
    weights = {"weight_map": {"a": "pytorch_model-00001-of-00002.bin"}}
    (hub_cache / "pytorch_model.bin.index.json").write_text(json.dumps(weights))
    cached = load_backbone("acme/tiny", device="cpu")
    assert torch.equal(cached.embed([text("a red car")]), backbone.embed([text("a red car")]))


@pytest.mark.parametrize("listed", [False, True])
def test_a_cache_without_weights_is_not_mistaken_for_a_model(hub_cache, listed):
    hub_cache.mkdir(parents=True)
    (hub_cache / "config.json").write_text("{}")
    if listed:
        list_files(hub_cache, ["config.json", "model.safetensors"])
    with pytest.raises(BackboneError, match=r"(?s)no network.*hf download acme/tiny"):
        load_backbone("acme/tiny")


@pytest.mark.parametrize("use_dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("names", ["old", "new"])
def test_an_adapter_is_merged_whichever_names_it_was_saved_with(qwen2_folder, tmp_path, names, use_dora):
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2VLForConditionalGeneration

    base = Qwen2VLForConditionalGeneration.from_pretrained(qwen2_folder, dtype=torch.float32)
    targets = ["q_proj", "v_proj", "down_proj"]
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=targets, use_dora=use_dora))
    torch.manual_seed(2)
    for name, parameter in adapted.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.2)
            parameter.data.abs_() if "magnitude" in name else None
    adapted.peft_config["default"].base_model_name_or_path = str(qwen2_folder)
    adapted.save_pretrained(tmp_path)
    if names == "old":
        weights = load_file(tmp_path / "adapter_model.safetensors")
        renamed = {key.replace(".model.language_model.", ".model."): tensor for key, tensor in weights.items()}
        assert renamed.keys() != weights.keys()
        save_file(renamed, tmp_path / "adapter_model.safetensors")

    backbone, plain = load_backbone(tmp_path, device="cpu"), load_backbone(qwen2_folder, device="cpu")
    row = rows_of(backbone, [text("a red car")])[0]
    with torch.no_grad():
        hidden = adapted.base_model.model.model(input_ids=torch.tensor(row.ids)[None]).last_hidden_state[:, -1]
    expected = torch.nn.functional.normalize(hidden, dim=-1)
    assert torch.allclose(backbone.embed([text("a red car")]), expected, atol=1e-5)
    assert (plain.embed([text("a red car")]) - expected).abs().max() > 1e-2


def test_an_adapter_that_does_not_fit_is_refused(qwen2_folder, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = AutoModel.from_pretrained(qwen2_folder, dtype=torch.float32)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"]))
    adapted.peft_config["default"].base_model_name_or_path = str(qwen2_folder)
    adapted.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "adapter_model.safetensors")
    strange = {key.replace("layers.0", "blocks.0"): tensor for key, tensor in weights.items()}
    save_file(strange, tmp_path / "adapter_model.safetensors")
    with pytest.raises(BackboneError, match="does not fit"):
        load_backbone(tmp_path)


@pytest.mark.parametrize("sections", [0, [1], ["a", 1, 1]])
def test_positions_that_cannot_be_shared_out_are_a_damaged_config(folder, tmp_path, sections):
    copy = shutil.copytree(folder, tmp_path / "odd")
    config = json.loads((copy / "config.json").read_text())
    config["text_config"]["rope_parameters"]["mrope_section"] = sections
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(BackboneError, match=r"mrope_section|cannot load"):
        load_backbone(copy, device="cpu")
