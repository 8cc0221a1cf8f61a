"""The policy as a checkpoint: what is saved can be loaded, its size, and errors for damaged folders."""

import json
import re
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
import torch
from safetensors.torch import load_file, save_file

from allocembed.errors import ConfigError, OutputError, PolicyError
from allocembed.policy import scale_policy
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.scale_policy import SIZES, PolicyConfig, ScalePolicy, model_card
from allocembed_nano.names import ASSETS

SMALL = FrameModuleConfig(visual_width=8, text_width=6, width=16, heads=2, layers=1)
FACTS = {"backbone": "nano-qwen3", "data": "the toy world", "steps": 300, "scores": {"uniform": 61.5, "learned": 70.25}}


@pytest.fixture
def policy() -> ScalePolicy:
    torch.manual_seed(0)
    return ScalePolicy(PolicyConfig(SMALL, "backbone", "nano-qwen3", scale_range=(0.3, 1.5), trained=FACTS))


def features(config: FrameModuleConfig = SMALL) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, 5, 3, config.visual_width), torch.randn(2, 4, config.text_width)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_saved_comes_back_in_full_precision(policy, tmp_path, dtype):
    policy.save_pretrained(tmp_path / "deep" / "policy", dtype=dtype)
    loaded = ScalePolicy.from_pretrained(tmp_path / "deep" / "policy")
    assert loaded.config == policy.config and not loaded.training
    assert {parameter.dtype for parameter in loaded.parameters()} == {torch.float32}
    assert all(parameter.requires_grad for parameter in loaded.parameters())
    given = features()
    for mine, theirs in zip(policy(*given), loaded(*given), strict=True):
        assert mine.shape == (2, 5) and theirs.dtype == torch.float32
        assert (mine - theirs).abs().max() <= (0 if dtype == torch.float32 else 0.02)


def test_the_folder_is_as_the_hub_has_it(policy, tmp_path):
    policy.save_pretrained(tmp_path)
    policy.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    stated = json.loads((tmp_path / "config.json").read_text())
    assert stated["preview_source"] == "nano-qwen3" and stated["trained"] == FACTS and stated["module"]["width"] == 16
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("---\nlicense:") and "the toy world" in text and "| learned | 70.25 |" in text


def test_a_new_save_brings_a_new_model_card(policy, tmp_path):
    policy.save_pretrained(tmp_path)
    policy.config = replace(policy.config, trained={"steps": 7})
    policy.save_pretrained(tmp_path)
    assert "| steps | 7 |" in (tmp_path / "README.md").read_text()
    assert ScalePolicy.from_pretrained(tmp_path).config.trained == {"steps": 7}


def test_gathered_weights_are_saved_in_place_of_the_modules_own(policy, tmp_path):
    gathered = {name: tensor + 1 for name, tensor in policy.state_dict().items()}
    policy.save_pretrained(tmp_path, state_dict=gathered)
    loaded = ScalePolicy.from_pretrained(tmp_path).state_dict()
    assert all(torch.equal(loaded[name], gathered[name]) for name in gathered)


def test_a_save_that_fails_is_said_and_leaves_the_old_checkpoint(policy, tmp_path, full_disk):
    before = dict.fromkeys(("model.safetensors", "config.json", "README.md"), "old")
    for name, text in before.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(OutputError, match=re.escape(full_disk.format(tmp_path / "model.safetensors"))):
        policy.save_pretrained(tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == before


def test_masked_chunks_and_words_change_nothing(policy):
    visual, text = features()
    padded = torch.cat([visual, torch.full_like(visual[:, :2], 9.0)], 1), torch.cat([text, text[:, :1] * 50], 1)
    masks = torch.ones(2, 7, dtype=torch.bool), torch.ones(2, 5, dtype=torch.bool)
    masks[0][:, 5:], masks[1][:, 4:] = False, False
    for alone, among in zip(policy(visual, text), policy(*padded, *masks), strict=True):
        assert (alone - among[:, :5]).abs().max() < 1e-5


def test_sizes_are_the_promised_ones(tmp_path):
    count = sum(
        parameter.numel() for parameter in ScalePolicy(PolicyConfig(SIZES["paper"], "smolvlm2", "")).parameters()
    )
    assert abs(count - 48e6) < 0.1 * 48e6
    ScalePolicy(PolicyConfig(SIZES["nano"], "backbone", "nano-qwen3")).save_pretrained(tmp_path, dtype=torch.bfloat16)
    assert 6e6 < (tmp_path / "model.safetensors").stat().st_size < 7e6


def break_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def foreign_config(folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "qwen3_vl"}')


def unknown_field(folder: Path) -> None:
    stated = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stated | {"colour": "red"}))


def cut_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lose_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    weights.popitem()
    save_file(weights, folder / "model.safetensors")


def other_sizes(folder: Path) -> None:
    stated = json.loads((folder / "config.json").read_text())
    stated["module"]["width"] = 32
    (folder / "config.json").write_text(json.dumps(stated))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (break_config, "cannot load"),
        (foreign_config, "config of a qwen3_vl model"),
        (unknown_field, "colour"),
        (cut_weights, "cannot load"),
        (lose_a_weight, "Missing key"),
        (other_sizes, "size mismatch"),
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors missing"),
        (lambda folder: (folder / "config.json").unlink(), "config.json missing"),
    ],
)
def test_a_broken_folder_is_named_with_its_cause_and_a_remedy(policy, tmp_path, damage, message):
    policy.save_pretrained(tmp_path)
    damage(tmp_path)
    with pytest.raises(PolicyError, match=message) as caught:
        ScalePolicy.from_pretrained(tmp_path)
    assert str(tmp_path) in str(caught.value) and "allocembed train" in str(caught.value)


def test_a_folder_that_is_not_there_is_said_so(tmp_path):
    with pytest.raises(PolicyError, match=r"cannot load the allocator .*there is no folder"):
        ScalePolicy.from_pretrained(tmp_path / "nowhere")


def test_a_config_refuses_what_can_not_be():
    with pytest.raises(ConfigError, match="use one of backbone, smolvlm2"):
        PolicyConfig(SMALL, "clip", "x")
    with pytest.raises(ConfigError, match="s_min"):
        PolicyConfig(SMALL, "backbone", "x", scale_range=(2, 1))


def test_pushing_uploads_the_same_three_files(policy, monkeypatch):
    uploaded = {}

    def upload(repo_id: str, folder_path: str, commit_message: str) -> str:
        uploaded.update({path.name: path.stat().st_size for path in Path(folder_path).iterdir()})
        return f"https://example.org/{repo_id}"

    hub = mock.Mock()
    hub.create_repo.return_value.repo_id = "someone/allocator"
    hub.upload_folder.side_effect = upload
    monkeypatch.setattr(scale_policy, "HfApi", mock.Mock(return_value=hub))
    assert policy.push_to_hub("allocator", private=True).endswith("someone/allocator")
    hub.create_repo.assert_called_once_with("allocator", private=True, exist_ok=True)
    assert sorted(uploaded) == ["README.md", "config.json", "model.safetensors"]


def test_the_bundled_allocator_loads():
    policy = ScalePolicy.from_pretrained(ASSETS / "nano-allocator")
    assert policy.config.preview_source == "nano-qwen3" and policy.config.module.summary


def test_a_model_card_without_facts_says_so():
    text = model_card(PolicyConfig(SMALL, "backbone", "nano-qwen3"))
    assert "untrained" in text and "0.2 to 1.8" in text
    assert "a\\|b" in model_card(PolicyConfig(SMALL, "backbone", "x", trained={"data": "a|b"}))
