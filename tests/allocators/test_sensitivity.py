"""Sensitivity: which chunks move the vector, and what is left out to find that cheaply."""

import pickle

import numpy as np
import pytest
import torch

from allocembed import AllocEmbed, EmbedConfig
from allocembed.allocators.base import AllocationRequest
from allocembed.allocators.registry import load_allocator
from allocembed.allocators.sensitivity import Sensitivity, scales_from
from allocembed.backbones.base import Item, Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.variants import variant_grids
from allocembed.budget import Allocation, Budget, Grid
from allocembed.errors import ConfigError, PolicyError
from allocembed.policy.preview import preview_grid
from allocembed.resize import chunk_seconds, normalise, to_patches
from allocembed.video import Clip
from tests.stages import allocated

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module", params=["qwen2_folder", "qwen3_folder", "siglip_folder"])
def backbone(request):
    return load_backbone(request.getfixturevalue(request.param), device="cpu")


@pytest.fixture(scope="module")
def clip():
    """Two thirds of the video are blank; some frames have detail."""
    frames = np.full((11, 160, 192, 3), 90, np.uint8)
    frames[4:6] = np.random.default_rng(0).integers(0, 255, (2, 160, 192, 3), np.uint8)
    times = np.arange(11) * 7.3
    return Clip(frames, times, np.arange(11), 11, 80.3, "test")


def chunks_of(backbone):
    per_chunk = backbone.geometry.frames_per_chunk
    return [tuple(min(f, 10) for f in range(n, n + per_chunk)) for n in range(0, 11, per_chunk)]


def sizes_of(backbone, clip, look):
    native = backbone.geometry.native(clip.height, clip.width, frames=11)
    return tuple(preview_grid(native, tokens) for tokens in look)


def pixels_of(backbone, clip, grids):
    chunks = chunks_of(backbone)
    allocation = Allocation(tuple(chunks), (1.0,) * len(chunks), tuple(grids), grids[0], 0, 1)
    return to_patches(clip.frames, allocation, backbone.geometry)


def moves_of_whole_rows(backbone, clip, look, question=None):
    """Moves from whole rows, each embedded alone."""
    chunks, vectors = chunks_of(backbone), []
    for row in variant_grids(*sizes_of(backbone, clip, look), len(chunks)):
        prompt = Prompt(question, seconds=chunk_seconds(clip.times, chunks))
        patches = pixels_of(backbone, clip, [Grid(*map(int, grid)) for grid in row])
        vectors.append(backbone.embed([Item(prompt, patches)])[0].numpy())
    return 1 - np.array(vectors[1:]) @ vectors[0]


def moves_by_a_dense_mask(backbone, clip, look, question=None):
    """Moves that a change causes directly: each variant in the library's own forward, with a mask of who sees whom."""
    chunks = chunks_of(backbone)
    sizes, model = sizes_of(backbone, clip, look), backbone.language_model
    model.config._attn_implementation = "sdpa"
    (ids,) = backbone.tokenise([Prompt(question, seconds=chunk_seconds(clip.times, chunks))])
    rows = backbone.rows([ids, ids], [np.tile([grid.rows, grid.cols], (len(chunks), 1)) for grid in sizes])
    places = [np.flatnonzero(row.visual).reshape(len(chunks), -1) for row in rows]
    seen = []
    for grid in sizes:
        patches = pixels_of(backbone, clip, [grid] * len(chunks))
        pixels = normalise(patches.pixels, backbone.geometry, backbone.dtype)
        seen.append(backbone.see(pixels, patches.grids))
    first, after = rows[0], np.arange(places[0].max() + 1, len(rows[0]))

    def vector(chunk):
        own = [] if chunk is None else places[1][chunk]
        last = [] if chunk is None else after
        if chunk is None:
            moved = np.empty((3, 0), int)
        else:
            moved = rows[1].positions[:, own] - rows[1].positions[:, own[:1]] + first.positions[:, places[0][chunk, :1]]
        tokens = np.concatenate([first.ids, rows[1].ids[own], first.ids[last]]).astype(int)
        positions = np.concatenate([first.positions, moved, first.positions[:, last]], 1).astype(int)
        visual = tokens == backbone.video_token
        few, many = places[0].shape[1], places[1].shape[1]
        mine = slice(None) if chunk is None else slice(chunk * many, (chunk + 1) * many)

        def features(layer):
            small, large = layer(seen[0]), layer(seen[1])
            return small if chunk is None else torch.cat([small, large[mine]])

        hidden = model.embed_tokens(torch.from_numpy(tokens))
        hidden[torch.from_numpy(visual)] = features(lambda output: output.tokens)
        mask = np.tril(np.ones((len(tokens), len(tokens)), bool))
        if chunk is not None:
            start, n = places[0][chunk, 0], len(first)
            mask[n:, :n] = False
            mask[n:, :start] = True  # both parts see what stands before the chunk
            mask[n + many :, start + few : after[0]] = True  # only the text sees the chunks after it
        more = {}
        if seen[0].deepstack:
            layers = [features(lambda output, n=n: output.deepstack[n]) for n in range(len(seen[0].deepstack))]
            more = {"visual_pos_masks": torch.from_numpy(visual)[None], "deepstack_visual_embeds": layers}
        state = model(
            inputs_embeds=hidden[None],
            position_ids=torch.from_numpy(positions)[:, None],
            attention_mask=torch.from_numpy(mask)[None, None],
            use_cache=False,
            **more,
        ).last_hidden_state[0, -1]
        return backbone.vectors(state[None])[0]

    with torch.inference_mode():
        vectors = torch.stack([vector(chunk) for chunk in [None, *range(len(chunks))]]).double().numpy()
    return 1 - vectors[1:] @ vectors[0]


LOOKS = [(6, 12), (12, 2)]


@pytest.mark.parametrize("question", [None, "what is it?"])
def test_moves_are_those_of_rows_embedded_one_by_one(siglip_folder, clip, question):
    """For a family that shares nothing between the rows."""
    backbone = load_backbone(siglip_folder, device="cpu")
    looks = Sensitivity(backbone, LOOKS).look(clip, AllocationRequest(backbone.geometry, Budget(), question=question))
    for moves, look in zip(looks.moves, LOOKS, strict=True):
        assert np.abs(moves - moves_of_whole_rows(backbone, clip, look, question)).max() < 2e-6


@pytest.mark.parametrize("question", [None, "what is it?"])
@pytest.mark.parametrize("folder", ["qwen2_folder", "qwen3_folder"])
def test_moves_are_what_a_change_causes_directly(folder, clip, question, request):
    backbone, reference = (load_backbone(request.getfixturevalue(folder), device="cpu") for _ in range(2))
    looks = Sensitivity(backbone, LOOKS).look(clip, AllocationRequest(backbone.geometry, Budget(), question=question))
    for moves, look in zip(looks.moves, LOOKS, strict=True):
        assert np.abs(moves - moves_by_a_dense_mask(reference, clip, look, question)).max() < 2e-6


@pytest.mark.parametrize("folder", ["qwen2_folder", "qwen3_folder"])
def test_direct_moves_cost_a_fraction_of_whole_rows(folder, clip, request):
    backbone = load_backbone(request.getfixturevalue(folder), device="cpu")
    asked = AllocationRequest(backbone.geometry, Budget())
    direct = Sensitivity(backbone).look(clip, asked)
    backbone.language_model.config._attn_implementation = "sdpa"  # as with sliding windows: rows are then whole
    whole = Sensitivity(backbone).look(clip, asked)
    assert direct.tokens < 0.6 * whole.tokens


def test_chunks_that_move_the_vector_more_get_more_and_the_budget_holds(backbone, clip):
    embedder = AllocEmbed(backbone, "sensitivity", EmbedConfig(budget="4f"))
    allocation = allocated(embedder, clip)
    assert allocation.cost <= allocation.budget and allocation.look_tokens > 0
    moves = embedder.allocator.look(clip, embedder.request()).moves
    scales, tokens = scales_from(moves), [grid.tokens for grid in allocation.grids]
    for chunk, other in zip(*np.nonzero(scales[:, None] < 0.99 * scales), strict=True):
        assert tokens[chunk] <= tokens[other]
    assert min(tokens) < max(tokens)
    assert embedder.encode_video(clip).allocation == allocation


def test_equal_chunks_get_equal_scales():
    assert np.allclose(scales_from(np.full((1, 5), 0.02)), 1)
    assert np.allclose(scales_from(np.zeros((2, 5))), 1)


def test_it_can_be_pickled(clip, qwen3_folder):
    embedder = AllocEmbed.from_pretrained(qwen3_folder, "sensitivity", device="cpu")
    again = pickle.loads(pickle.dumps(embedder))
    assert allocated(again, clip) == allocated(embedder, clip)
    assert again.identity() == embedder.identity()


def test_the_name_may_state_looks_and_exponent(qwen3_folder):
    embedder = AllocEmbed.from_pretrained(qwen3_folder, "sensitivity:3-6+6-2@2", device="cpu")
    assert embedder.allocator.looks == ((3, 6), (6, 2)) and embedder.allocator.exponent == 2
    assert EmbedConfig.from_json(embedder.config.as_json()).allocator == "sensitivity:3-6+6-2@2"
    with pytest.raises(ConfigError, match="did you mean sensitivity"):
        EmbedConfig(allocator="sensitivity:big").check()


def test_it_needs_a_backbone():
    with pytest.raises(PolicyError, match="looks with the backbone"):
        load_allocator("sensitivity")
