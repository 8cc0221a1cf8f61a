"""Qwen-VL's own parts: layouts, position rules, and the library's bits on a CPU."""

import numpy as np
import pytest
import torch
from transformers import AutoModel

from allocembed.backbones.base import Item, Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.qwen_vl import backbone as qwen_backbone
from allocembed.backbones.qwen_vl.positions import RULES
from allocembed.resize import normalise
from allocembed.testing.items import mixed, rows_of, text, video


@pytest.fixture(params=["qwen2_folder", "qwen3_folder"], ids=["qwen2", "qwen3"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def backbone(folder):
    return load_backbone(folder, device="cpu")


def patch_grids(backbone, item: Item) -> torch.Tensor:
    """The grids as transformers states them: (C, 3) rows of 1, height, width in patches."""
    grids = torch.from_numpy(item.patches.grids) * backbone.geometry.merge
    return torch.cat([torch.ones(len(grids), 1, dtype=torch.long), grids], 1)


def ordinary_vector(folder, backbone, item: Item, *, one_video: bool = True) -> torch.Tensor:
    """The model's own path: one video of T rows, transformers' own attention and (Qwen3-VL) its own positions.

    With `one_video=False` each chunk is a video of one row, which the model's own code accepts at any size.
    """
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    row = rows_of(backbone, [item])[0]
    ids, grids = torch.tensor(row.ids)[None], patch_grids(backbone, item)
    extra = {"mm_token_type_ids": (ids == model.config.video_token_id).int() * 2}
    if backbone.family == "qwen2_vl":
        extra = {"position_ids": torch.arange(ids.shape[1]).expand(3, 1, -1)}
    with torch.no_grad():
        hidden = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values_videos=normalise(item.patches.pixels, backbone.geometry, torch.float32),
            video_grid_thw=torch.tensor([[len(grids), *grids[0, 1:].tolist()]]) if one_video else grids,
            **extra,
        ).last_hidden_state
    return torch.nn.functional.normalize(hidden[:, -1], dim=-1)


def test_scale_one_equals_the_models_ordinary_path_bit_for_bit(folder, backbone):
    item = video(backbone, [(2, 3)] * 4, "what is it?")
    assert torch.equal(backbone.embed([item]), ordinary_vector(folder, backbone, item))


def test_mixed_grids_equal_the_models_own_forward_bit_for_bit(folder, backbone):
    item = video(backbone, [(1, 1), (3, 4), (2, 2), (3, 4)], "what is it?")
    assert torch.equal(backbone.embed([item]), ordinary_vector(folder, backbone, item, one_video=False))


def test_a_wrong_position_rule_changes_the_vector(folder, backbone):
    item = video(backbone, [(2, 3)] * 4, "what is it?")
    backbone.position_rule = "sequential" if backbone.position_rule == "interleaved" else "interleaved"
    if backbone.position_rule == "interleaved":  # needs separated chunks, which Qwen2-VL's layout does not have
        backbone.layout = lambda prompt: " ".join(["<|video_pad|>"] * len(prompt.seconds)) + prompt.text
    wrong = backbone.embed([item])
    assert (wrong - ordinary_vector(folder, backbone, item)).abs().max() > 1e-3


def test_packing_by_the_librarys_mask_without_the_separating_axis_would_leak(backbone, monkeypatch):
    monkeypatch.setattr(backbone.language_model.config, "_attn_implementation", "sdpa")  # as with sliding windows
    items = mixed(backbone)[:2]
    right = backbone.embed(items, batching="pack")
    honest = qwen_backbone.pack_rows
    monkeypatch.setattr(qwen_backbone, "pack_rows", lambda rows: (lambda i, p, at: (i, p[1:], at))(*honest(rows)))
    assert (backbone.embed(items, batching="pack") - right).abs().max() > 1e-3


def test_interleaved_positions_are_qwen3s_own(qwen3_folder):
    backbone = load_backbone(qwen3_folder, device="cpu")
    item = mixed(backbone)[0]
    row = rows_of(backbone, [item])[0]
    ids = torch.tensor(row.ids)[None]
    kinds = (ids == backbone.video_token).int() * 2
    grids = patch_grids(backbone, item)
    theirs, _ = backbone.model.get_rope_index(ids, mm_token_type_ids=kinds, video_grid_thw=grids)
    assert np.array_equal(row.positions, theirs[:, 0].numpy())


def test_sequential_positions_count_through_the_video(qwen2_folder):
    backbone = load_backbone(qwen2_folder, device="cpu")
    row = rows_of(backbone, mixed(backbone)[:1])[0]
    assert backbone.position_rule == "sequential"
    assert np.array_equal(row.positions, np.tile(np.arange(len(row)), (3, 1)))
    assert np.array_equal(RULES["sequential"](row.ids, backbone.video_token, None), row.positions)


def test_qwen3_layout_is_a_chat_turn_with_times(qwen3_folder):
    backbone = load_backbone(qwen3_folder, device="cpu")
    pad = "<|vision_start|><|video_pad|><|vision_end|>"
    assert backbone.layout(Prompt("Why?", seconds=np.array([1.25, 6.25]))) == (
        "<|im_start|>system\nRepresent the user's input.<|im_end|>\n"
        f"<|im_start|>user\n<1.2 seconds>{pad}<6.2 seconds>{pad}Why?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert backbone.layout(Prompt("a car", "Find it.")) == (
        "<|im_start|>system\nFind it.<|im_end|>\n<|im_start|>user\na car<|im_end|>\n<|im_start|>assistant\n"
    )


def test_qwen2_layout_is_a_bare_placeholder_and_the_text(qwen2_folder):
    backbone = load_backbone(qwen2_folder, device="cpu")
    pads, times = "<|video_pad|>" * 2, np.zeros(2)
    assert backbone.layout(Prompt(seconds=times)) == pads + " Understand the content of the provided video."
    assert backbone.layout(Prompt("Why?", seconds=times)) == pads + " Why?"
    assert backbone.layout(Prompt("a car", "Find a video:")) == "Find a video: a car"


def test_half_precision_stays_close(folder, backbone):
    half = load_backbone(folder, device="cpu", dtype="bfloat16")
    items = [*mixed(backbone), text("x")]
    assert (half.embed(items) * backbone.embed(items)).sum(-1).min() > 0.99
