"""The bundled nano models: small enough, loadable by name like any other, and really able to retrieve."""

import json

import numpy as np
import pytest
from safetensors import safe_open

from allocembed import AllocEmbed
from allocembed.backbones.loading import load_backbone
from allocembed_nano import nanoret, world
from allocembed_nano.names import ASSETS
from tests.stages import allocated

BACKBONES = ("nano-qwen3", "nano-qwen2", "nano-gemma")


@pytest.fixture(scope="module", params=BACKBONES)
def backbone(request):
    if request.param == "nano-gemma":
        pytest.importorskip("transformers.models.embedding_gemma2", reason="needs transformers 5.19")
    return load_backbone(request.param, device="cpu")


@pytest.fixture(scope="module")
def in_pairs(backbone):
    """The backbones whose chunks are pairs of frames."""
    if backbone.geometry.frames_per_chunk != 2:
        pytest.skip("the allocator is shown on the families it was trained for")
    return backbone


@pytest.mark.parametrize(("name", "megabytes"), [*((name, 16) for name in BACKBONES), ("nano-allocator", 7)])
def test_a_bundled_model_is_a_small_hub_folder_in_bfloat16(name, megabytes):
    folder = ASSETS / name
    weights = folder / "model.safetensors"
    assert weights.stat().st_size <= megabytes * 1e6
    assert {path.name for path in folder.iterdir()} >= {"config.json", "README.md"}
    with safe_open(weights, "pt") as file:
        keys = list(file.keys())
        assert {file.get_slice(key).get_dtype() for key in keys} == {"BF16"}


def test_the_backbones_differ_in_family_and_depth():
    configs = [json.loads((ASSETS / name / "config.json").read_text()) for name in BACKBONES]
    assert [config["model_type"] for config in configs] == ["qwen3_vl", "qwen2_vl", "embedding_gemma2"]
    assert len({config["text_config"]["num_hidden_layers"] for config in configs}) == 3


@pytest.mark.slow
def test_full_resolution_finds_single_moments(backbone):
    rows = nanoret.evaluate(backbone, ["base", "full"], subsets=["long-clip"], limit=20, seed=11)
    hits = {row.method: row.hit1 for row in rows}
    assert hits["full"] >= 75 and hits["full"] >= hits["base"] + 20


@pytest.mark.slow
def test_the_allocator_is_the_default_keeps_the_budget_and_beats_uniform(backbone):
    learned = AllocEmbed(backbone)
    assert learned.allocator.name == "learned"
    rows = nanoret.evaluate_embedders(
        {"uniform": AllocEmbed(backbone, "uniform"), "learned": learned}, subsets=["short-clip"], limit=32, seed=11
    )
    hits = {row.method: row.hit1 for row in rows}
    assert hits["learned"] > hits["uniform"]
    assert all(row.over_budget == 0 and row.cost <= 1 for row in rows)


@pytest.mark.slow
def test_chunks_with_an_event_get_more_tokens_than_the_others(in_pairs):
    videos = nanoret.draw_videos("long", limit=12, seed=11)
    embedder = AllocEmbed(in_pairs)
    on_events, elsewhere = [], []
    for number, clip in enumerate(nanoret.clips_of(videos, range(12), [24])[24]):
        seen = world.events_at(videos.timelines.select(np.array([number])), clip.indices / (nanoret.NOMINAL_FRAMES - 1))
        shown = (seen[0] >= 0).reshape(-1, 2).any(1)
        tokens = np.array([grid.tokens for grid in allocated(embedder, clip).grids])
        on_events += tokens[shown].tolist()
        elsewhere += tokens[~shown].tolist()
    assert np.mean(on_events) > 1.5 * np.mean(elsewhere)


@pytest.mark.slow
def test_a_question_moves_tokens_to_the_chunks_it_is_about(in_pairs):
    videos = nanoret.draw_videos("qa", limit=24, seed=11)
    embedder = AllocEmbed(in_pairs)
    with_question, without = [], []
    clips = nanoret.clips_of(videos, range(24), [24])[24]
    for number, (clip, question) in enumerate(zip(clips, nanoret.questions(videos), strict=True)):
        seen = world.events_at(videos.timelines.select(np.array([number])), clip.indices / (nanoret.NOMINAL_FRAMES - 1))
        asked = (seen[0] == question.event).reshape(-1, 2).any(1)
        for text, tokens in ((question.text, with_question), (None, without)):
            allocation = allocated(embedder, clip, text)
            assert allocation.cost <= allocation.budget
            tokens += [grid.tokens for grid, wanted in zip(allocation.grids, asked, strict=True) if wanted]
    assert np.mean(with_question) > 1.5 * np.mean(without)
