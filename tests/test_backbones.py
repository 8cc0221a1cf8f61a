"""The frozen models: the same vector as the ordinary path, however items are batched."""

import shutil
from functools import partial
from unittest import mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel

from allocembed.backbones import BackboneError, Item, load_backbone, loading
from allocembed.backbones.positions import RULES
from allocembed.budget import Allocation, Grid
from allocembed.resize import Patches, to_patches


@pytest.fixture(params=["qwen2_folder", "qwen3_folder"], ids=["qwen2", "qwen3"])
def folder(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def backbone(folder):
    return load_backbone(folder, device="cpu")


def make_patches(backbone, grids: list[tuple[int, int]], seed: int = 0, step: float = 2.5) -> Patches:
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 255, (2 * len(grids), 64, 96, 3), np.uint8)
    allocation = Allocation(
        frames=tuple((2 * i, 2 * i + 1) for i in range(len(grids))),
        scales=(1.0,) * len(grids),
        grids=tuple(Grid(*grid) for grid in grids),
        native=Grid(2, 3),
        budget=10**6,
        base_cost=1,
    )
    return to_patches(frames, np.arange(len(frames)) * step, allocation, backbone.geometry)


def ordinary_vector(folder, backbone, item: Item, *, one_video: bool = True) -> torch.Tensor:
    """The model's own path: one video of T rows, transformers' own attention and (Qwen3-VL) its own positions.

    With `one_video=False` every chunk is a video of one row, which the model's own code takes at any size.
    """
    model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    row = backbone.rows([item])[0]
    ids = torch.tensor(row.ids)[None]
    count, height, width = len(item.patches.grids), *item.patches.grids[0, 1:].tolist()
    extra = {"mm_token_type_ids": (ids == model.config.video_token_id).int() * 2}
    if backbone.family == "qwen2_vl":
        extra = {"position_ids": torch.arange(ids.shape[1]).expand(3, 1, -1)}
    with torch.no_grad():
        hidden = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            pixel_values_videos=item.patches.normalised(),
            video_grid_thw=torch.tensor([[count, height, width]]) if one_video else item.patches.grids,
            **extra,
        ).last_hidden_state
    return torch.nn.functional.normalize(hidden[:, -1], dim=-1)


def test_scale_one_equals_the_models_ordinary_path_bit_for_bit(folder, backbone):
    item = Item("what is it?", make_patches(backbone, [(2, 3)] * 4))
    assert torch.equal(backbone.embed([item]), ordinary_vector(folder, backbone, item))


def test_mixed_grids_equal_the_models_own_forward_bit_for_bit(folder, backbone):
    item = Item("what is it?", make_patches(backbone, [(1, 1), (3, 4), (2, 2), (3, 4)]))
    assert torch.equal(backbone.embed([item]), ordinary_vector(folder, backbone, item, one_video=False))


def test_a_wrong_position_rule_changes_the_vector(folder, backbone):
    item = Item("what is it?", make_patches(backbone, [(2, 3)] * 4))
    backbone.position_rule = "sequential" if backbone.position_rule == "interleaved" else "interleaved"
    if backbone.position_rule == "interleaved":  # needs chunks kept apart, as Qwen2-VL's layout does not
        backbone.layout = lambda item: " ".join(["<|video_pad|>"] * len(item.patches.grids)) + item.text
    wrong = backbone.embed([item])
    assert (wrong - ordinary_vector(folder, backbone, item)).abs().max() > 1e-3


def mixed_items(backbone) -> list[Item]:
    return [
        Item("a red car", make_patches(backbone, [(1, 1), (3, 4), (2, 2)], seed=1)),
        Item(None, make_patches(backbone, [(4, 2), (1, 2)], seed=2)),
        Item("drives by"),
        Item("user", make_patches(backbone, [(2, 3)], seed=3)),
    ]


@pytest.mark.parametrize("batching", ["pad", "pack"])
def test_mixed_grids_give_the_same_vector_alone_and_in_a_batch(backbone, batching):
    items = mixed_items(backbone)
    alone = torch.cat([backbone.embed([item]) for item in items])
    together = backbone.embed(items, batching=batching)
    assert (alone - together).abs().max() < 1e-5


@pytest.mark.parametrize("batching", ["pad", "pack"])
def test_a_neighbour_in_the_batch_does_not_leak(backbone, batching):
    first, second = mixed_items(backbone)[:2]
    other = Item("system", make_patches(backbone, [(3, 3), (1, 1)], seed=9))
    before = backbone.forward(backbone.rows([second, first]), batching)[1]
    after = backbone.forward(backbone.rows([other, first]), batching)[1]
    assert (before - after).abs().max() < 1e-5


def test_packing_without_the_separating_row_would_leak(backbone, monkeypatch):
    from allocembed.backbones import base

    rows = backbone.rows(mixed_items(backbone)[:2])
    right = backbone.forward(rows, "pack")
    honest = base.pack_rows
    monkeypatch.setattr(base, "pack_rows", lambda rows: (lambda i, p, at: (i, p[1:], at))(*honest(rows)))
    assert (backbone.forward(rows, "pack") - right)[1].abs().max() > 1e-3


def test_batches_split_by_tokens_change_nothing(backbone):
    items = mixed_items(backbone)
    assert (backbone.embed(items, batch_tokens=1) - backbone.embed(items)).abs().max() < 1e-5


def test_interleaved_positions_are_qwen3s_own(qwen3_folder):
    backbone = load_backbone(qwen3_folder, device="cpu")
    row = backbone.rows(mixed_items(backbone)[:1])[0]
    ids = torch.tensor(row.ids)[None]
    kinds = (ids == backbone.video_token).int() * 2
    theirs, _ = backbone.model.get_rope_index(ids, mm_token_type_ids=kinds, video_grid_thw=row.patches.grids)
    assert np.array_equal(row.positions, theirs[:, 0].numpy())


def test_sequential_positions_count_through_the_video(qwen2_folder):
    backbone = load_backbone(qwen2_folder, device="cpu")
    row = backbone.rows(mixed_items(backbone)[:1])[0]
    assert backbone.position_rule == "sequential"
    assert np.array_equal(row.positions, np.tile(np.arange(len(row)), (3, 1)))
    assert np.array_equal(RULES["sequential"](row.ids, backbone.video_token, None), row.positions)


def test_every_chunk_becomes_as_many_tokens_as_it_costs(backbone):
    patches = make_patches(backbone, [(1, 1), (3, 4), (2, 2)])
    row = backbone.rows([Item("x", patches)])[0]
    assert np.count_nonzero(row.ids == backbone.video_token) == sum(patches.tokens) == 1 + 12 + 4


def test_qwen3_layout_is_a_chat_turn_with_times(qwen3_folder):
    backbone = load_backbone(qwen3_folder, device="cpu")
    patches = make_patches(backbone, [(1, 1), (1, 1)])
    pad = "<|vision_start|><|video_pad|><|vision_end|>"
    assert backbone.layout(Item("Why?", patches)) == (
        "<|im_start|>system\nRepresent the user's input.<|im_end|>\n"
        f"<|im_start|>user\n<1.2 seconds>{pad}<6.2 seconds>{pad}Why?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert backbone.layout(Item("a car", instruction="Find it.")) == (
        "<|im_start|>system\nFind it.<|im_end|>\n<|im_start|>user\na car<|im_end|>\n<|im_start|>assistant\n"
    )


def test_qwen2_layout_is_a_bare_placeholder_and_the_text(qwen2_folder):
    backbone = load_backbone(qwen2_folder, device="cpu")
    patches = make_patches(backbone, [(1, 1), (1, 1)])
    pads = "<|video_pad|>" * 2
    assert backbone.layout(Item(None, patches)) == pads + " Understand the content of the provided video."
    assert backbone.layout(Item("Why?", patches)) == pads + " Why?"
    assert backbone.layout(Item("a car", instruction="Find a video:")) == "Find a video: a car"


def test_dim_keeps_the_first_dimensions_as_a_unit_vector(folder, backbone):
    short = load_backbone(folder, device="cpu", dim=8)
    whole, cut = backbone.embed([Item("a red car")]), short.embed([Item("a red car")])
    assert torch.allclose(cut, torch.nn.functional.normalize(whole[:, :8], dim=-1))
    with pytest.raises(BackboneError, match="1 to 32"):
        load_backbone(folder, dim=33)


def test_half_precision_stays_close(folder, backbone):
    half = load_backbone(folder, device="cpu", dtype="bfloat16")
    items = mixed_items(backbone)
    assert (half.embed(items) * backbone.embed(items)).sum(-1).min() > 0.99


def test_a_text_that_holds_the_video_placeholder_is_refused(backbone):
    for item in (Item("a <|video_pad|> b"), Item("<|video_pad|>", make_patches(backbone, [(1, 1)]))):
        with pytest.raises(BackboneError, match="take it out"):
            backbone.embed([item])


def test_texts_that_can_not_be_embedded_are_refused(backbone):
    with pytest.raises(BackboneError, match="Unicode"):
        backbone.embed([Item("\udcff")])
    with pytest.raises(BackboneError, match="shorten it"):
        backbone.embed([Item("a" * 100_001)])
    with pytest.raises(ValueError, match="pad or pack"):
        backbone.embed([Item("a")], batching="stack")


def test_a_checkpoint_with_missing_weights_is_refused(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "broken")
    tensors = load_file(tmp_path / "broken/model.safetensors")
    del tensors[next(name for name in tensors if "layers.1.mlp.up_proj" in name)]
    save_file(tensors, tmp_path / "broken/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(BackboneError, match="lacks 1 weights"):
        load_backbone(tmp_path / "broken")


@pytest.mark.parametrize(
    ("name", "content", "cause"),
    [
        ("model.safetensors", "half", "can't be loaded"),
        ("config.json", "{", "can't be loaded"),
        ("config.json", '{"model_type": "llama"}', "is a llama model"),
        ("adapter_config.json", "{}", "can't be loaded"),
        ("preprocessor_config.json", '{"image_mean": "x", "size": 3}', "can't be loaded"),
        ("tokenizer.json", None, "tokenizer"),
    ],
)
def test_a_broken_folder_is_refused_with_its_name(folder, tmp_path, name, content, cause):
    copy = shutil.copytree(folder, tmp_path / "broken")
    path = copy / name
    if content == "half":
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    elif content is None:
        for file in copy.glob("tokenizer*"):
            file.unlink()
    else:
        path.write_text(content)
    with pytest.raises(BackboneError, match=cause) as caught:
        load_backbone(copy)
    assert "broken" in str(caught.value)


def test_an_unknown_backbone_says_what_to_do(tmp_path):
    with pytest.raises(BackboneError, match=r"(?s)--backbone /path/to/folder.*nano-qwen3"):
        load_backbone(tmp_path / "nowhere")
    for device in ("tpu0", "meta"):
        with pytest.raises(BackboneError, match="write auto"):
            load_backbone(tmp_path, device=device)
    with pytest.raises(BackboneError, match="empty"):
        load_backbone("")


def test_a_hub_id_is_found_in_the_cache_without_a_network(folder, backbone, tmp_path, monkeypatch):
    repository = tmp_path / "models--acme--tiny"
    shutil.copytree(folder, repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("0" * 40)
    find = partial(loading.snapshot_download, cache_dir=tmp_path)
    monkeypatch.setattr(loading, "snapshot_download", find)
    monkeypatch.setattr(loading, "HfApi", None)  # asking the network would fail loudly
    cached = load_backbone("acme/tiny", device="cpu")
    assert torch.equal(cached.embed([Item("a red car")]), backbone.embed([Item("a red car")]))


def test_an_incomplete_cache_is_not_mistaken_for_a_model(tmp_path, monkeypatch):
    repository = tmp_path / "models--acme--tiny"
    (repository / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (repository / "snapshots" / ("0" * 40) / "config.json").write_text("{}")
    (repository / "refs").mkdir()
    (repository / "refs/main").write_text("0" * 40)
    monkeypatch.setattr(loading, "snapshot_download", partial(loading.snapshot_download, cache_dir=tmp_path))
    monkeypatch.setattr(loading.HfApi, "model_info", mock.Mock(side_effect=OSError("no network")))
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
    row = backbone.rows([Item("a red car")])[0]
    with torch.no_grad():
        hidden = adapted.base_model.model.model(input_ids=torch.tensor(row.ids)[None]).last_hidden_state[:, -1]
    expected = torch.nn.functional.normalize(hidden, dim=-1)
    assert torch.allclose(backbone.embed([Item("a red car")]), expected, atol=1e-5)
    assert (plain.embed([Item("a red car")]) - expected).abs().max() > 1e-2


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
