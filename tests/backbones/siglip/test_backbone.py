"""SigLIP 2 NaFlex: sizes and texts of the model's own processor, and the mean over frames, which is ours."""

import json
import shutil

import numpy as np
import pytest
import torch
from transformers.models.siglip2.image_processing_pil_siglip2 import Siglip2ImageProcessorPil

from allocembed.backbones.base import Item, Prompt
from allocembed.backbones.checkpoint import Checkpoint
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.siglip.inputs import SIGLIP
from allocembed.budget import Allocation
from allocembed.errors import BackboneError
from allocembed.resize import normalise, to_patches
from allocembed.testing.items import rows_of, text, video


@pytest.fixture
def backbone(siglip_folder):
    return load_backbone(siglip_folder, device="cpu")


@pytest.mark.parametrize(("height", "width"), [(240, 320), (720, 1280), (1080, 1920), (36, 64), (640, 360), (7, 900)])
def test_sizes_and_patches_are_those_of_the_models_own_processor(height, width):
    pixels = np.random.default_rng(0).integers(0, 255, (1, height, width, 3), np.uint8)
    theirs = Siglip2ImageProcessorPil()(pixels[0], return_tensors="pt")
    grid = SIGLIP.native(height, width)
    assert theirs["spatial_shapes"].tolist() == [[grid.rows, grid.cols]]
    # At the native size nothing is resized, and the patches are equal too.
    frame = np.random.default_rng(1).integers(0, 255, (1, grid.rows * 16, grid.cols * 16, 3), np.uint8)
    allocation = Allocation(((0,),), (1.0,), (grid,), grid, grid.tokens, 1)
    ours = normalise(to_patches(frame, allocation, SIGLIP).pixels, SIGLIP, torch.float32)
    theirs = Siglip2ImageProcessorPil(max_num_patches=grid.tokens)(frame[0], return_tensors="pt")
    assert SIGLIP.native(*frame.shape[1:3]) == grid and torch.allclose(theirs["pixel_values"][0], ours, atol=1e-6)


def test_a_text_is_lower_case_and_filled_up_with_padding_that_is_read(backbone):
    (ids,) = backbone.tokenise([Prompt("A Red CAR")])
    assert len(ids) == 24 and (ids[-10:] == backbone.tokenizer.pad_token_id).all()
    assert torch.equal(backbone.embed([text("A Red CAR")]), backbone.embed([text("a red car")]))
    with torch.no_grad():
        own = backbone.model.get_text_features(torch.from_numpy(ids)[None]).pooler_output
    assert torch.allclose(backbone.embed([text("a red car")]), torch.nn.functional.normalize(own, dim=-1), atol=1e-6)


def test_a_long_text_is_cut_and_it_is_said(backbone, caplog):
    long = "x " * 30
    (ids,) = backbone.tokenise([Prompt(long)])
    assert len(ids) == 24 and ids[-1] == 1 and "cut to 24" in caplog.text
    caplog.clear()
    backbone.tokenise([Prompt("a red car drives by a red car drives")])
    assert not caplog.text


def test_a_large_frame_weighs_as_much_as_a_small_one(backbone):
    item = video(backbone, [(1, 1), (6, 8)])
    pixels = item.patches.pixels.split([1, 48])
    parts = [type(item.patches)(own, item.patches.grids[[n]]) for n, own in enumerate(pixels)]
    alone = backbone.embed([Item(Prompt(seconds=np.zeros(1)), part) for part in parts])
    both = backbone.embed([item])
    assert ((both * alone[:1]).sum() - (both * alone[1:]).sum()).abs() < 1e-6


def test_a_row_holds_the_number_of_the_frame_of_each_token(backbone):
    (row,) = rows_of(backbone, [video(backbone, [(1, 2), (1, 1)], "x")])
    assert row.positions[0].tolist() == [*range(24), 0, 0, 1] and row.visual.tolist() == [False] * 24 + [True] * 3


def test_half_precision_stays_close(siglip_folder, backbone):
    half = load_backbone(siglip_folder, device="cpu", dtype="bfloat16")
    items = [video(backbone, [(2, 3), (4, 4)], "x"), text("x")]
    assert (half.embed(items) * backbone.embed(items)).sum(-1).min() > 0.99


@pytest.mark.parametrize("changes", [{"max_num_patches": "x"}, {"image_mean": [0.4, 0.5, 0.6]}])
def test_settings_that_cannot_be_are_named(siglip_folder, tmp_path, changes):
    copy = shutil.copytree(siglip_folder, tmp_path / "broken")
    stated = json.loads((copy / "preprocessor_config.json").read_text())
    (copy / "preprocessor_config.json").write_text(json.dumps(stated | changes))
    assert Checkpoint.find(str(copy)).inputs is None
    with pytest.raises(BackboneError, match=r"cannot load .*broken"):
        load_backbone(copy, device="cpu")


def test_the_registered_model_is_known_without_weights():
    inputs = Checkpoint.find("google/siglip2-base-patch16-naflex").inputs
    assert inputs is not None and inputs.geometry.native(720, 1280).tokens == 252
    assert inputs.picture_geometry.native(720, 1280) == inputs.geometry.native(720, 1280)
