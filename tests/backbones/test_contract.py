"""What every family of backbones must do. A new family is added to `FAMILIES` below and must pass all of it.

`tests/families/mean_pool.py` is unlike Qwen-VL: one frame per chunk, bidirectional attention, mean pooling.
"""

import pickle

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from allocembed import AllocEmbed, EmbedConfig
from allocembed.allocators.learned import Learned
from allocembed.allocators.registry import ALL_METHODS
from allocembed.backbones.base import LONGEST_TEXT, TowerOutput
from allocembed.backbones.checkpoint import Checkpoint
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import nano
from allocembed.errors import BackboneError
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.preview import BackbonePreview
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from allocembed.rdpo.rollouts import RolloutEncoder
from allocembed.resize import normalise
from allocembed.search import VideoIndex
from allocembed.video import read_picture
from tests.backbones.items import make_allocation, mixed, noise, rows_of, text, video
from tests.clips import picture, write_video
from tests.families import gemma, siglip
from tests.small_runs import small_trainer
from tests.video_batches import video_batch

FAMILIES = ("qwen2", "qwen25", "qwen3", "qwen3_moe", "qwen35", "gemma", "siglip", "mean_pool")
CLOSE = 1e-5
ROUNDING = 3e-6  # of float32 in a unit vector: processors differ in the order of sums


@pytest.fixture(scope="module", params=FAMILIES)
def folder(request):
    return request.getfixturevalue(f"{request.param}_folder")


@pytest.fixture(scope="module")
def backbone(folder):
    return load_backbone(folder, device="cpu")


@torch.no_grad()
def plain_vector(backbone, item) -> torch.Tensor:
    """The model's ordinary path, written down for each family: one row, one forward pass of its own model."""
    row = rows_of(backbone, [item])[0]
    ids, pixels = torch.from_numpy(row.ids)[None], normalise(item.patches.pixels, backbone.geometry, torch.float32)
    grids = torch.from_numpy(item.patches.grids)
    if backbone.family == "embedding_gemma2":
        return gemma.plain_vector(backbone, item, row)
    if backbone.family == "siglip2":
        return siglip.plain_vector(backbone, item)
    if backbone.family == "tiny_mean":
        places = torch.cat([torch.cartesian_prod(*(torch.arange(n) / n for n in grid)) for grid in grids.tolist()])
        sizes = grids.prod(-1).tolist()
        frames = [
            backbone.model.see(own, at, torch.ones(1, 1, len(own), len(own), dtype=torch.bool))
            for own, at in zip(pixels.split(sizes), places.split(sizes), strict=True)
        ]
        hidden = backbone.model.words(ids)
        hidden[0, torch.from_numpy(row.visual)] = torch.cat(frames)
        states = backbone.model.read(hidden, torch.arange(len(row))[None], torch.ones(1, 1, 1, len(row)).bool())
        return normalize(backbone.model.head(states.mean(1)), dim=-1)
    patches = torch.cat([torch.ones(len(grids), 1, dtype=torch.long), grids * backbone.geometry.merge], 1)
    own = {"mm_token_type_ids": (ids == backbone.video_token).int() * 2}
    if backbone.family == "qwen2_vl":
        own = {"position_ids": torch.arange(len(row)).expand(3, 1, -1)}
    if backbone.family == "qwen2_5_vl":  # refuses mixed grids in one video without positions, which have their own test
        own = {"position_ids": torch.from_numpy(row.positions)[:, None]}
    hidden = backbone.model(
        input_ids=ids, attention_mask=torch.ones_like(ids), pixel_values_videos=pixels, video_grid_thw=patches, **own
    ).last_hidden_state
    return normalize(hidden[:, -1], dim=-1)


def test_scale_one_is_the_models_ordinary_path(backbone):
    item = video(backbone, [(2, 3)] * 4, "what is it?")
    assert (backbone.embed([item]) - plain_vector(backbone, item)).abs().max() < ROUNDING


def test_mixed_grids_are_the_models_ordinary_path(backbone):
    item = video(backbone, [(1, 1), (3, 4), (2, 2), (3, 4)], "what is it?")
    assert (backbone.embed([item]) - plain_vector(backbone, item)).abs().max() < ROUNDING


@pytest.mark.parametrize("batching", ["pad", "pack"])
def test_a_vector_is_the_same_alone_padded_and_packed(backbone, batching):
    items = mixed(backbone)
    alone = torch.cat([backbone.embed([item]) for item in items])
    assert (backbone.embed(items, batching=batching) - alone).abs().max() < CLOSE


@pytest.mark.parametrize("batching", ["pad", "pack"])
def test_a_neighbour_does_not_leak(backbone, batching):
    first, second = mixed(backbone)[:2]
    other = video(backbone, [(3, 3), (1, 1)], "system", seed=9)
    before, after = (backbone.embed([neighbour, first], batching=batching)[1] for neighbour in (second, other))
    assert (before - after).abs().max() < CLOSE


def test_splitting_batches_by_tokens_changes_nothing(backbone):
    items = mixed(backbone)
    assert (backbone.embed(items, batch_tokens=1) - backbone.embed(items)).abs().max() < CLOSE


def test_vectors_are_unit_vectors_and_depend_on_pixels_text_and_instruction(backbone):
    items = [
        video(backbone, [(2, 3)], "a"),
        video(backbone, [(2, 3)], "a", seed=1),
        video(backbone, [(2, 3)], "b"),
        video(backbone, [(2, 3)], "a", instruction="Find it."),
    ]
    vectors = backbone.embed(items)
    assert torch.allclose(vectors.norm(dim=-1), torch.ones(4))
    assert all((vectors[0] - vectors[i]).abs().max() > 1e-4 for i in (1, 2, 3))
    assert backbone.embed([]).shape == (0, backbone.dim)


def test_a_picture_is_the_models_ordinary_path_at_its_native_size(backbone, one_thread):
    embedder = AllocEmbed(backbone, "base", EmbedConfig(budget="2f"))
    clip = read_picture(picture(7, width=200, height=120))
    allocation, item = embedder.prepare_picture(clip, "what is it?")
    native = backbone.inputs.picture_geometry.native(120, 200)
    assert allocation.grids == (native,) and item.prompt.picture
    assert (backbone.embed([item]) - plain_vector(backbone, item)).abs().max() < ROUNDING
    made = embedder.encode_image(clip.frames[0], "what is it?")
    assert np.array_equal(made.vector, backbone.embed([item])[0].numpy()) and made.cost == native.tokens


def test_a_picture_is_shrunk_to_the_budget_and_says_what_it_cost(backbone):
    pixels = picture(7, width=400, height=240)
    costs = []
    for budget in ("1", "5", "20"):
        made = AllocEmbed(backbone, "uniform", EmbedConfig(budget=budget)).encode_images([pixels, pixels])
        assert len(made) == 2 and np.array_equal(made[0].vector, made[1].vector)
        assert made[0].cost <= int(budget) and abs(np.linalg.norm(made[0].vector) - 1) < 1e-5
        costs.append(made[0].cost)
    assert costs[0] == 1 and costs == sorted(set(costs)), "a larger budget must show more"


def test_every_chunk_becomes_the_tokens_it_costs(backbone):
    item = video(backbone, [(1, 1), (3, 4), (2, 2)], "x")
    row = rows_of(backbone, [item])[0]
    assert row.visual.sum() == sum(item.patches.tokens) == 17


def test_dim_keeps_the_first_dimensions_as_a_unit_vector(folder, backbone):
    whole, cut = backbone.embed([text("a red car")]), load_backbone(folder, dim=8).embed([text("a red car")])
    assert torch.allclose(cut, normalize(whole[:, :8], dim=-1), atol=1e-6)
    with pytest.raises(BackboneError, match=f"1 to {backbone.dim}"):
        load_backbone(folder, dim=backbone.dim + 1)


def test_bad_texts_are_refused(backbone):
    for word in backbone.reserved_words()[:1]:
        for item in (text(f"a {word} b"), video(backbone, [(1, 1)], word), text("a", instruction=word)):
            with pytest.raises(BackboneError, match="remove it"):
                backbone.embed([item])
    with pytest.raises(BackboneError, match="Unicode"):
        backbone.embed([text("\udcff")])
    with pytest.raises(BackboneError, match="shorten it"):
        backbone.embed([text("a" * (LONGEST_TEXT + 1))])
    with pytest.raises(ValueError, match="pad or pack"):
        backbone.embed([text("a")], batching="stack")


def test_an_empty_text_has_a_vector_of_its_own(backbone):
    alone = backbone.embed([text("")])
    for batching in ("pad", "pack"):
        for others in (["a dog", ""], ["", "a dog"], ["a dog", "", "a much longer text about a dog"]):
            found = backbone.embed([text(words) for words in others], batching=batching)
            assert (found[others.index("")] - alone[0]).abs().max() < CLOSE
    assert (alone - backbone.embed([text("a dog")])).abs().max() > 1e-3


def test_text_states_end_in_the_pooled_state(backbone):
    texts = ["a red car", "x"]
    for words, states in zip(texts, backbone.text_states(texts), strict=True):
        assert states.shape[1] == backbone.widths.tokens and states.dtype == torch.float32
        assert (backbone.vectors(states[-1:]) - backbone.embed([text(words)])).abs().max() < CLOSE


def test_tower_output_can_be_shared_between_rows(backbone):
    """What rollouts do: see each chunk once, gather its tokens into several rows."""
    grids = [(1, 1), (3, 4), (2, 2)]
    item = video(backbone, grids, "x")
    pixels = normalise(item.patches.pixels, backbone.geometry, backbone.dtype)
    parts = pixels.split([rows * cols * backbone.geometry.patches_per_token for rows, cols in grids])
    with torch.no_grad():
        each = [backbone.see(part, np.array([grid])) for part, grid in zip(parts[::-1], grids[::-1], strict=True)]
        joined = TowerOutput.concat(each)
        index = torch.tensor([16, *range(4, 16), *range(4)])
        vector = backbone.read(rows_of(backbone, [item]), joined.select(index, torch.tensor([2, 1, 0])))
    assert (vector - backbone.embed([item])).abs().max() < CLOSE


def test_a_copy_with_patch_products_leaves_the_lent_backbone_alone(backbone):
    item = video(backbone, [(2, 3)], "x")
    before = backbone.embed([item])
    fast = backbone.with_patch_product()
    assert (fast.embed([item]) - before).abs().max() < CLOSE
    assert fast.model is backbone.model, "a copy must not load the weights again"
    assert not backbone.patch_product and torch.equal(backbone.embed([item]), before)


def test_inputs_are_known_without_weights(folder, backbone):
    assert Checkpoint.find(str(folder)).inputs == backbone.inputs


def test_previews_are_features_of_every_chunk_and_of_texts(backbone):
    per_chunk = backbone.geometry.frames_per_chunk
    frames = torch.from_numpy(noise(backbone, 5)).permute(0, 3, 1, 2).unflatten(0, (-1, per_chunk))
    previewer = BackbonePreview(backbone, tokens=6, summary=True)
    asked, silent = previewer.look(frames, asked=True), previewer.look(frames, asked=False)
    assert asked.shape == silent.shape and asked.shape[0] == 5 and asked.shape[2] == backbone.widths.tokens
    assert torch.equal(asked[:, 1:], silent[:, 1:]) and not silent[:, 0].any() and asked[:, 0].abs().sum() > 0
    alone = torch.cat([previewer.look(frames[i : i + 1], asked=True) for i in range(5)])
    assert (alone - asked).abs().max() < 1e-4
    words = previewer.read(["what is it?"])[0]
    assert words.shape[1] == backbone.widths.tokens


def test_rollouts_give_the_vectors_of_the_ordinary_path(backbone):
    videos = video_batch(backbone, count=2, chunks=3)
    grids = np.array([[[(1, 1), (2, 3), (2, 2)], [(2, 3), (2, 3), (1, 1)]]] * 2)
    vectors = RolloutEncoder(backbone, batch_tokens=64).embed(videos, ["why?", None], grids)
    for number, question in enumerate(("why?", None)):
        for k in range(2):
            allocation = make_allocation(backbone, [tuple(grid) for grid in grids[number, k]])
            frames = videos.frames[number].movedim(1, -1).contiguous().numpy()
            from allocembed.backbones.base import Item, Prompt
            from allocembed.resize import chunk_seconds, to_patches

            prompt = Prompt(question, None, chunk_seconds(videos.times[number], allocation.frames))
            item = Item(prompt, to_patches(frames, allocation, backbone.geometry))
            assert (backbone.embed([item])[0] - vectors[number, k]).abs().max() < CLOSE


def learned_for(backbone, folder) -> Learned:
    previewer = BackbonePreview(backbone, tokens=6, summary=True)
    module = FrameModuleConfig(backbone.widths.tokens, backbone.widths.tokens, width=32, heads=2, layers=1, summary=True)
    torch.manual_seed(0)
    return Learned(ScalePolicy(PolicyConfig(module, "backbone", str(folder))), previewer)


@pytest.mark.parametrize("method", [*ALL_METHODS[:5], "learned"])
def test_every_method_keeps_the_budget(folder, backbone, method):
    frames = np.stack([picture(index, width=200, height=120) for index in range(60)])
    allocator = learned_for(backbone, folder) if method == "learned" else method
    embedder = AllocEmbed(backbone, allocator, EmbedConfig(budget="6f", candidates=16))
    embedding = embedder.encode_video(frames, "what is it?" if method == "learned" else None)
    allocation = embedding.allocation
    assert (allocation.cost > allocation.budget) == (method == "full")
    assert all(len(chunk) == backbone.geometry.frames_per_chunk for chunk in allocation.frames)
    assert embedding.cost == sum(grid.tokens for grid in allocation.grids)
    assert abs(np.linalg.norm(embedding.vector) - 1) < 1e-5


@pytest.mark.parametrize("method", ["content", "learned"])
def test_an_embedder_survives_pickling_with_the_same_bits(folder, backbone, method):
    frames = np.stack([picture(index, width=96, height=64) for index in range(20)])
    allocator = learned_for(backbone, folder) if method == "learned" else method
    embedder = AllocEmbed(backbone, allocator, EmbedConfig(budget="4f", candidates=8))
    again = pickle.loads(pickle.dumps(embedder))
    one, other = embedder.encode_video(frames, "why?"), again.encode_video(frames, "why?")
    assert np.array_equal(one.vector, other.vector) and one.allocation == other.allocation


@pytest.mark.slow
def test_one_step_of_rdpo_changes_the_policy(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path)
    before = {name: weights.clone() for name, weights in trainer.policy.state_dict().items()}
    from allocembed.rdpo.data.base import TRAINING

    report = trainer.step(trainer.source.finish(trainer.prepare(TRAINING, 0), trainer.device), 0)
    after = trainer.policy.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    assert report["cost"] <= 1 and np.isfinite(report["reward"])


@pytest.mark.slow
def test_an_index_finds_a_video_by_itself(folder, tmp_path):
    for number in range(3):
        frames = [picture(40 * number + index, 96, 64) for index in range(30)]
        write_video(tmp_path / f"{number}.mp4", frames)
    config = EmbedConfig(backbone=str(folder), allocator="content", budget="4f", candidates=8, device="cpu")
    index = VideoIndex.create(tmp_path / "i.index", config, segments="off")
    assert index.add([tmp_path]).embedded == 3
    hit = index.search_like(tmp_path / "1.mp4")[0]
    assert hit.path.endswith("1.mp4") and hit.score > 1 - 1e-5


@pytest.mark.slow
def test_a_benchmark_runs(backbone):
    scores = nano.evaluate(backbone, ["base", "uniform"], subsets=["short-clip", "qa"], limit=3)
    assert [score.method for score in scores] == ["base", "base", "uniform", "uniform"]
    assert all(score.over_budget == 0 for score in scores)
