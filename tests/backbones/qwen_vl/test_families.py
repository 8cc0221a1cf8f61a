"""Parts of younger Qwen families: windows in the tower, positions in time, recurrent layers; and layouts as data."""

import shutil

import numpy as np
import pytest
import torch

from allocembed.backbones.base import Prompt
from allocembed.backbones.checkpoint import find_entry
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.qwen_vl.language import unpacked_places
from allocembed.backbones.qwen_vl.layouts import FIRST, LAYOUTS
from allocembed.backbones.qwen_vl.positions import RULES
from allocembed.backbones.qwen_vl.tower import find_windows
from allocembed.backbones.registry import FAMILIES, REGISTRY
from allocembed.backbones.text_half import load_text_half
from allocembed.resize import normalise
from allocembed.testing.items import mixed, rows_of, text, video

CHUNK = "<|vision_start|><|video_pad|><|vision_end|>"
TIMES = np.array([0.5, 2.5])


@pytest.fixture
def qwen25(qwen25_folder):
    return load_backbone(qwen25_folder, device="cpu")


def patch_grids(backbone, item) -> torch.Tensor:
    grids = torch.from_numpy(item.patches.grids) * backbone.geometry.merge
    return torch.cat([torch.ones(len(grids), 1, dtype=torch.long), grids], 1)


def test_the_windowed_tower_gives_the_librarys_tokens_bit_for_bit_on_mixed_grids(qwen25):
    item = video(qwen25, [(1, 1), (3, 5), (4, 2), (2, 2), (5, 7)])
    pixels = normalise(item.patches.pixels, qwen25.geometry, torch.float32)
    with torch.no_grad():
        own = qwen25.model.visual(pixels, grid_thw=patch_grids(qwen25, item)).pooler_output
        assert torch.equal(qwen25.see(pixels, item.patches.grids).tokens, own)


def test_windows_are_the_librarys(qwen25):
    from transformers.vision_utils import get_vision_window_index

    grids = np.array([[1, 1], [3, 5], [4, 2], [9, 10]])
    thw = torch.from_numpy(np.concatenate([np.ones((4, 1), np.int64), grids * 2], 1))
    index, bounds = get_vision_window_index(thw, spatial_merge_size=2, window_size=112, patch_size=14)
    windows = find_windows(grids, 2, 4)
    assert torch.equal(windows.order[::4] // 4, index) and torch.equal(windows.places, index.argsort())
    assert torch.equal(windows.bounds, bounds) and windows.longest == 64


def test_blocks_outside_the_windows_see_the_whole_chunk(qwen25, monkeypatch):
    item = video(qwen25, [(5, 5)])
    before = qwen25.embed([item])
    monkeypatch.setattr(qwen25.tower, "fullatt_block_indexes", [])
    assert (qwen25.embed([item]) - before).abs().max() > 1e-3


@pytest.mark.parametrize("seconds", [[0.5], [0.5, 2.5, 4.5, 6.5], [0.0, 0.75, 1.5]])
def test_timed_positions_are_those_of_the_library(qwen25_folder, seconds):
    backbone = load_backbone(qwen25_folder, device="cpu", inputs="transformers-5")
    (ids,) = backbone.tokenise([Prompt("why?", seconds=np.array(seconds))])
    (row,) = backbone.rows([ids], [np.tile([2, 3], (len(seconds), 1))])
    theirs, _ = backbone.model.get_rope_index(
        torch.from_numpy(row.ids)[None],
        mm_token_type_ids=torch.from_numpy(row.visual)[None].int() * 2,
        video_grid_thw=torch.tensor([[len(seconds), 4, 6]]),
        second_per_grid_ts=[seconds[1] - seconds[0] if len(seconds) > 1 else 1.0],
    )
    assert np.array_equal(row.positions, theirs[:, 0].numpy())


def test_positions_of_several_pictures_are_qwen2s_own(qwen2_folder):
    backbone = load_backbone(qwen2_folder, device="cpu", inputs="ops-mm")
    item = video(backbone, [(1, 1), (3, 4), (2, 2)], "why?")
    (row,) = rows_of(backbone, [item])
    kinds = torch.from_numpy(row.visual)[None].int()
    ids, grids = torch.from_numpy(row.ids)[None], patch_grids(backbone, item)
    theirs, _ = backbone.model.get_rope_index(ids, mm_token_type_ids=kinds, image_grid_thw=grids)
    assert np.array_equal(row.positions, theirs[:, 0].numpy())


def test_the_older_rule_continues_past_the_last_time(qwen25, qwen25_folder):
    newer = load_backbone(qwen25_folder, device="cpu", inputs="transformers-5")
    item = video(qwen25, [(2, 3)] * 4, "why?")  # 5 seconds apart, 2 steps a second: the last one begins after 30
    row, one, other = rows_of(qwen25, [item])[0], *(rows_of(each, [item])[0].positions for each in (qwen25, newer))
    end = np.flatnonzero(row.visual)[-1] + 1
    assert np.array_equal(one[:, :end], other[:, :end])
    assert (one[:, end] == one[0, :end].max() + 1).all()
    assert (one[:, end] - other[:, end] == 28).all()


def test_positions_of_a_row_do_not_depend_on_the_rows_beside_it(qwen25):
    items = mixed(qwen25)
    for together, alone in zip(rows_of(qwen25, items), (rows_of(qwen25, [item])[0] for item in items), strict=True):
        assert np.array_equal(together.positions, alone.positions) and np.array_equal(together.ids, alone.ids)
    assert (rows_of(qwen25, items)[0].ids >= 0).all(), "times must not stay in the ids"


def test_packed_rows_are_set_apart_and_put_back():
    unpacked = unpacked_places([2, 3], torch.device("cpu"))
    assert unpacked.places.tolist() == [[0, 1, 2], [2, 3, 4]] and unpacked.back.tolist() == [0, 1, 3, 4, 5]


def test_recurrent_layers_would_leak_if_packed_rows_were_not_set_apart(qwen35_folder, monkeypatch):
    backbone = load_backbone(qwen35_folder, device="cpu")
    items = mixed(backbone)
    right = backbone.embed(items, batching="pack")
    monkeypatch.setattr(
        "allocembed.backbones.qwen_vl.qwen3.unpacked_places",
        lambda lengths, device: unpacked_places([sum(lengths)], device),
    )
    assert (backbone.embed(items, batching="pack") - right).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("name", "prompt", "written"),
    [
        (
            "gme",
            Prompt("a car", "Find it."),
            "<|im_start|>system\nFind it.<|im_end|>\n"
            "<|im_start|>user\na car<|im_end|>\n<|im_start|>assistant\n<|endoftext|>",
        ),
        (
            "gme",
            Prompt(seconds=TIMES),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
            f"<|im_start|>user\n{CHUNK}{CHUNK}<|im_end|>\n<|im_start|>assistant\n<|endoftext|>",
        ),
        (
            "qwen2-chat",
            Prompt("Why?", seconds=TIMES),
            "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
            "<|vision_start|><|video_pad|><|video_pad|><|vision_end|>Why?<|im_end|>\n<|im_start|>assistant\n",
        ),
        (
            "qwen3-chat",
            Prompt("Why?", seconds=TIMES),
            f"<|im_start|>user\n<|vision_start|><0.5 seconds>{CHUNK}<2.5 seconds>{CHUNK}<|vision_end|>Why?<|im_end|>\n"
            "<|im_start|>assistant\n",
        ),
        (
            "qwen3-chat",
            Prompt(None, "Look.", np.zeros(1), picture=True),
            f"<|im_start|>system\nLook.<|im_end|>\n<|im_start|>user\n{CHUNK}<|im_end|>\n<|im_start|>assistant\n",
        ),
    ],
)
def test_a_layout_writes_what_the_models_own_code_writes(name, prompt, written):
    assert LAYOUTS[name].write(prompt) == written


def test_every_pipeline_of_the_qwen_families_names_a_layout_and_a_rule():
    for family, first in FIRST.items():
        for inputs in FAMILIES[family].inputs.values():
            assert LAYOUTS[inputs.layout or first].positions in RULES


@pytest.mark.parametrize("name", REGISTRY)
def test_a_registered_model_has_the_inputs_that_it_names(name):
    entry = REGISTRY[name]
    assert entry.inputs is None or entry.inputs in FAMILIES[entry.family].inputs
    assert find_entry(entry.source) == entry


@pytest.mark.parametrize(
    ("hub", "layout", "positions", "tokens"),
    [
        ("Alibaba-NLP/gme-Qwen2-VL-2B-Instruct", "gme", "sequential", (256, 1280)),
        ("OpenSearch-AI/Ops-MM-embedding-v1-2B", "ops-mm", "interleaved", (256, 1280)),
        ("TianchengGu/UniME-V2-Qwen2VL-7B", "", "sequential", (4, 1280)),
    ],
)
def test_a_copy_of_a_registered_model_is_read_as_its_entry_says(qwen2_folder, tmp_path, hub, layout, positions, tokens):
    backbone = load_backbone(shutil.copytree(qwen2_folder, tmp_path / hub.rpartition("/")[2]), device="cpu")
    limits = backbone.geometry.min_pixels, backbone.geometry.max_pixels
    assert (backbone.inputs.layout, backbone.position_rule) == (layout, positions)
    assert limits == (tokens[0] * 28**2, tokens[1] * 28**2) and backbone.notice is None
    assert backbone.query_instruction == LAYOUTS[layout or "vlm2vec"].query
    words = text("a dog", backbone.query_instruction)
    half = load_text_half(str(tmp_path / hub.rpartition("/")[2]), device="cpu")
    assert np.allclose(half.vector("a dog", half.query_instruction), backbone.embed([words])[0], atol=1e-6)


def test_a_model_that_is_not_registered_says_in_one_line_how_it_is_read(qwen25, qwen25_folder):
    assert "\n" not in qwen25.notice and str(qwen25_folder) in qwen25.notice
    for assumed in ("qwen2_5_vl", "layout qwen2-chat", "timed positions", "last token", "4 to 768 tokens a frame"):
        assert assumed in qwen25.notice
    assert load_backbone("nano-qwen3", device="cpu").notice.startswith("nano-qwen3 knows only")
