"""Previews by SmolVLM2."""

import pytest
import torch
from transformers import SmolVLMForConditionalGeneration

from allocembed.errors import BackboneError
from allocembed.policy.smol import SmolPreview
from allocembed.resize import resize
from tests.policy.test_preview import TEXTS, chunks


def test_smolvlm_features_are_the_models_own(smol_folder):
    previewer = SmolPreview(str(smol_folder), "cpu")
    model = SmolVLMForConditionalGeneration.from_pretrained(smol_folder).eval()
    video = chunks(3)
    pixels = resize(video.flatten(0, 1), (64, 64)).float() / 255
    pixels = (pixels - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / 0.5
    with torch.no_grad():
        features = model.get_image_features(pixels[:, None], return_dict=True).pooler_output
        # A list of one tensor for every row from transformers 5.18 on, one tensor before.
        features = torch.stack(list(features)).view(3, 2, 16, 24).mean(1)
        ids = torch.tensor([previewer.tokenizer(TEXTS[0])["input_ids"]])
        states = model.model(input_ids=ids).last_hidden_state[0]
    assert previewer.look(video).shape == (3, 16, 24)
    assert (previewer.look(video) - features).abs().max() < 1e-5
    assert (previewer.read(TEXTS[:1])[0] - states).abs().max() < 1e-5


def test_frames_of_any_chunk_length_are_averaged(smol_folder):
    one, two = (SmolPreview(str(smol_folder), "cpu", frames_per_chunk=count) for count in (1, 2))
    video = chunks(3)
    alone = one.look(video.flatten(0, 1)[:, None])
    assert (two.look(video) - alone.unflatten(0, (3, 2)).mean(1)).abs().max() < 1e-5


def test_a_model_that_cannot_be_loaded_is_named_with_a_remedy(tmp_path, qwen3_folder, smol_folder):
    with pytest.raises(BackboneError, match="hf download HuggingFaceTB"):
        SmolPreview(str(tmp_path / "nowhere"), "cpu")
    with pytest.raises(BackboneError, match="is a qwen3_vl model"):
        SmolPreview(str(qwen3_folder), "cpu")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(BackboneError, match="incomplete or damaged"):
        SmolPreview(str(tmp_path), "cpu")
    (tmp_path / "config.json").write_text((smol_folder / "config.json").read_text())
    with pytest.raises(BackboneError, match="incomplete or damaged"):
        SmolPreview(str(tmp_path), "cpu")
