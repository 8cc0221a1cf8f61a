"""The learned allocator: it depends on frames and question, keeps the budget, and works with every backbone."""

import json
import pickle
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from allocembed import AllocEmbed, EmbedConfig
from allocembed.allocators.base import AllocationRequest, allocate_clip
from allocembed.allocators.learned import Learned
from allocembed.allocators.registry import load_allocator
from allocembed.backbones import registry
from allocembed.backbones.loading import load_backbone
from allocembed.budget import Budget
from allocembed.errors import ConfigError, PolicyError
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.preview import DEFAULT_TASK, BackbonePreview
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from allocembed.resize import as_chunks
from allocembed.video import sample
from allocembed_nano import world
from tests.clips import picture, write_video
from tests.command import run
from tests.stages import allocated

SMALL = FrameModuleConfig(visual_width=32, text_width=32, width=16, heads=2, layers=1)


def save_policy(folder: Path, preview: str, source: str, module: FrameModuleConfig = SMALL, **settings: Any) -> Path:
    """A policy with random weights large enough to tell chunks apart."""
    torch.manual_seed(3)
    policy = ScalePolicy(PolicyConfig(module, preview, source, **settings))
    torch.nn.init.normal_(policy.frame_module.head.out.weight, std=1.0)
    policy.save_pretrained(folder, dtype=torch.bfloat16)
    return folder


@pytest.fixture(scope="module", params=["qwen2_folder", "qwen3_folder"], ids=["qwen2", "qwen3"])
def backbone(request):
    return load_backbone(request.getfixturevalue(request.param), device="cpu")


@pytest.fixture(scope="module")
def checkpoint(qwen3_folder, tmp_path_factory) -> Path:
    """A policy that sees through the tiny Qwen3-VL."""
    return save_policy(tmp_path_factory.mktemp("policy"), "backbone", str(qwen3_folder))


@pytest.fixture(scope="module")
def smol_checkpoint(smol_folder, tmp_path_factory) -> Path:
    module = replace(SMALL, visual_width=24, text_width=24)
    return save_policy(tmp_path_factory.mktemp("smol-policy"), "smolvlm2", str(smol_folder), module)


@pytest.fixture(scope="module")
def frames() -> np.ndarray:
    return np.stack([picture(index * index % 97, width=200, height=120) for index in range(60)])


@pytest.fixture(scope="module")
def learned(backbone, checkpoint) -> Learned:
    return load_allocator(str(checkpoint), backbone)


@pytest.mark.parametrize("name", ["checkpoint", "smol_checkpoint"])
def test_a_checkpoint_brings_its_preview_along_on_any_backbone(backbone, frames, name, request):
    embedder = AllocEmbed(backbone, str(request.getfixturevalue(name)))
    embedding = embedder.encode_video(frames, "what?")
    allocation = embedding.allocation
    assert embedder.allocator.name == "learned" and len(allocation) == 12
    assert allocation.cost <= allocation.budget and len(set(allocation.grids)) > 1
    shared = name == "checkpoint" and backbone.family == "qwen3_vl"
    assert (getattr(embedder.allocator.previewer, "backbone", None) is backbone) == shared
    assert embedder.allocator.previewer.device == backbone.device


def test_scales_are_the_means_of_the_policy(learned, backbone, frames):
    video = frames[:24]
    text = learned.previewer.read(["what?"])[0]
    alpha, beta = learned.policy(learned.previewer.look(as_chunks(video))[None], text[None])
    means = (alpha / (alpha + beta))[0].detach().numpy()
    assert np.abs(learned.actions(video, "what?") - means).max() < 1e-6 and np.ptp(means) > 0.05
    plan = learned.plan(sample(video, 24), AllocationRequest(backbone.geometry, Budget(), (0.5, 1.5), "what?"))
    assert np.abs(plan.scales - (0.5 + means)).max() < 1e-6 and plan.grow and plan.bounded


def test_the_text_and_the_frames_both_matter_and_the_default_task_stands_in(learned, frames):
    usual = learned.actions(frames[:24])
    assert np.array_equal(usual, learned.actions(frames[:24], DEFAULT_TASK))
    assert np.array_equal(usual, learned.actions(frames[:24], ""))
    assert np.abs(usual - learned.actions(frames[:24], "a red car drives by")).max() > 1e-4
    assert np.abs(usual - learned.actions(frames[24:48])).max() > 1e-3


INSTRUCTIONS = (
    "Find a video that contains the following visual content.",
    "Find the video snippet that corresponds to the given summary.",
    "Select a video that fits the description provided.",
    "Find a video that demonstrates the following action while making a recipe.",
    "Represent the user's input.",
    "Represent this video for classification",
    "Describe the video in detail.",
    "Understand the content of the provided video.",
    "Given a video and a question, select the most accurate answer from the provided candidates.",
    "Recognize the category of the video content.",
)


@pytest.mark.slow  # twelve embeddings with nano-qwen3
def test_no_instruction_changes_an_allocation_and_a_question_does():
    embedder = AllocEmbed.from_pretrained("nano-qwen3", "learned", device="cpu")
    timelines = world.draw(1, [5], "short", "train", orientation="landscape")
    frames = world.render(timelines, np.linspace(0, 1, 24))[0].permute(0, 2, 3, 1).numpy()
    plain = embedder.encode_video(frames)
    instructed = [embedder.encode_video(frames, instruction=text) for text in INSTRUCTIONS]
    assert [each.allocation for each in instructed] == [plain.allocation] * 10
    moved = [np.abs(each.vector - plain.vector).max() > 1e-3 for each in instructed]
    assert sum(moved) == 9, "all but the model's own default reach the backbone"
    assert embedder.encode_video(frames, "What colour is the circle?").allocation != plain.allocation


def test_a_policy_that_was_trained_with_soft_rollouts_is_never_enlarged(backbone, learned, frames):
    policy = ScalePolicy(replace(learned.policy.config, grow=False))
    policy.load_state_dict(learned.policy.state_dict())
    capped, clip = Learned(policy, learned.previewer), sample(frames, 24)
    assert capped.identity() != learned.identity()
    request = AllocationRequest(backbone.geometry, Budget.parse("4000"))
    plan, enlarged = (allocate_clip(clip, allocator.plan(clip, request), request) for allocator in (capped, learned))
    requested = 0.2 + 1.6 * capped.actions(clip.frames)
    assert np.abs(plan.scales - requested).max() < 0.2, "its own scales, but for the rounding to whole tokens"
    assert plan.cost < enlarged.cost <= 4000
    small = replace(request, budget=Budget.parse("2f"))
    assert allocate_clip(clip, capped.plan(clip, small), small).relative_cost <= 1


@pytest.mark.parametrize("budget", ["8f", "2f", 30, "400"])
def test_the_budget_holds(backbone, learned, frames, budget):
    allocation = allocated(AllocEmbed(backbone, learned, EmbedConfig(budget=str(budget))), frames)
    assert 0 < allocation.cost <= allocation.budget


@pytest.mark.parametrize("count", [1, 2, 3, 23, 60])
def test_any_number_of_candidates_is_planned_for(backbone, learned, frames, count):
    embedding = AllocEmbed(backbone, learned, EmbedConfig(candidates=count)).encode_video(frames)
    assert len(embedding.allocation) == -(-count // 2)
    assert embedding.cost <= embedding.allocation.budget


def test_an_odd_last_frame_is_paired_with_itself(learned, frames):
    odd, even = frames[:5], np.concatenate([frames[:5], frames[4:5]])
    assert np.array_equal(learned.actions(odd), learned.actions(even))


def test_the_range_is_the_trained_one_unless_another_is_given(backbone, qwen3_folder, frames, tmp_path):
    folder = save_policy(tmp_path, "backbone", str(qwen3_folder), scale_range=(0.4, 0.7))
    usual = AllocEmbed(backbone, str(folder))
    assert usual.scale_range == (0.4, 0.7)
    wide = AllocEmbed(backbone, usual.allocator, EmbedConfig(scale_range=(0.2, 1.8)))
    for embedder, low, high in ((usual, 0.4, 0.7), (wide, 0.2, 1.8)):
        scales = allocated(embedder, frames).scales
        assert low <= min(scales) and max(scales) <= high
    assert allocated(wide, frames).grids != allocated(usual, frames).grids


def test_plans_and_vectors_do_not_depend_on_the_company(backbone, learned, frames):
    embedder = AllocEmbed(backbone, learned)
    videos = [frames, frames[:31], frames[::-1], frames[:5], frames[10:]]
    texts = ["a", "b", "c", "a", "a longer question than the others"]
    alone = [embedder.encode_video(video, text) for video, text in zip(videos, texts, strict=True)]
    # Read ahead in another thread, while the backbone works in this one.
    together = list(embedder.stream(videos, texts, batch=2))
    assert [one.allocation for one in alone] == [one.allocation for one in together]
    assert max(np.abs(one.vector - two.vector).max() for one, two in zip(alone, together, strict=True)) < 1e-5


def test_planning_is_safe_while_the_backbone_works_in_another_thread(backbone, learned, frames):
    embedder = AllocEmbed(backbone, learned)
    expected = allocated(embedder, frames)
    vector = embedder.encode_text("a red car").vector
    found, vectors = [], []

    def plan() -> None:
        found.extend(allocated(embedder, frames) for _ in range(5))

    threads = [threading.Thread(target=plan) for _ in range(2)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        vectors.append(embedder.encode_text("a red car").vector)
    assert found == [expected] * 10
    assert all(np.abs(other - vector).max() < 1e-5 for other in vectors)


def test_a_pickled_allocator_plans_the_same(learned, frames):
    other = pickle.loads(pickle.dumps(learned))
    assert np.array_equal(other.actions(frames[:24], "what?"), learned.actions(frames[:24], "what?"))
    assert other.identity() == learned.identity()


def test_the_identity_tells_weights_and_previews_apart(learned, backbone, qwen3_folder, tmp_path):
    policy = ScalePolicy.from_pretrained(save_policy(tmp_path, "backbone", str(qwen3_folder)))
    same = Learned(policy, learned.previewer)
    assert same.identity() == learned.identity()
    assert Learned(policy, BackbonePreview(learned.previewer.backbone, 6)).identity() != learned.identity()
    with torch.no_grad():
        policy.frame_module.head.out.bias.add_(1e-3)
    assert same.identity() != learned.identity()


def test_a_backbone_of_single_frame_chunks_is_planned_for(siglip_folder, checkpoint, smol_checkpoint, frames):
    single = load_backbone(siglip_folder, device="cpu")
    for folder in (checkpoint, smol_checkpoint):
        embedder = AllocEmbed(single, str(folder))
        allocation = allocated(embedder, frames, "what?")
        assert len(allocation) == 24 and allocation.cost <= allocation.budget and len(set(allocation.grids)) > 1


def test_an_allocator_loaded_for_other_chunks_raises(learned, siglip_folder, frames):
    single = load_backbone(siglip_folder, device="cpu")
    with pytest.raises(PolicyError, match="chunks of 2 frames, the backbone has chunks of 1"):
        allocated(AllocEmbed(single, learned), frames)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["checkpoint", "smol_checkpoint"])
def test_a_gpu_plans_as_the_cpu_does(qwen3_folder, frames, name, request):
    on = {
        device: AllocEmbed.from_pretrained(qwen3_folder, request.getfixturevalue(name), device=device, dtype="float32")
        for device in ("cpu", "cuda")
    }
    actions = {device: embedder.allocator.actions(frames[:24], "what?") for device, embedder in on.items()}
    assert np.abs(actions["cpu"] - actions["cuda"]).max() < 1e-3
    alone = [on["cuda"].encode_video(video).allocation for video in (frames, frames[::-1])]
    assert [one.allocation for one in on["cuda"].stream([frames, frames[::-1]], batch=1)] == alone


def test_another_preview_model_than_the_trained_one_is_refused(backbone):
    policy = ScalePolicy(PolicyConfig(replace(SMALL, visual_width=48), "backbone", "nano-qwen3"))
    with pytest.raises(PolicyError, match="must be nano-qwen3"):
        Learned(policy, BackbonePreview(backbone))


def test_a_preview_model_that_can_not_be_had_is_named_with_the_allocator(backbone, tmp_path):
    folder = save_policy(tmp_path / "policy", "backbone", str(tmp_path / "gone"))
    with pytest.raises(PolicyError, match=r"cannot load .*gone, the preview model of the allocator .*policy"):
        load_allocator(str(folder), backbone)


@pytest.fixture
def shipped(monkeypatch, tmp_path, qwen2_folder, qwen3_folder):
    """Short names for the tiny models, with an allocator that is shipped for both once `save_policy` has written it."""
    for name, folder in (("nano-qwen2", qwen2_folder), ("nano-qwen3", qwen3_folder)):
        entry = registry.BackboneEntry(str(folder), allocator=str(tmp_path / "nano-allocator"))
        monkeypatch.setitem(registry.REGISTRY, name, entry)
    return tmp_path / "nano-allocator"


@pytest.mark.parametrize("name", ["nano-qwen2", "nano-qwen3"])
def test_auto_is_learned_where_one_is_shipped_and_uniform_elsewhere(shipped, backbone, name):
    nano = load_backbone(name, device="cpu")
    assert AllocEmbed(nano).allocator.name == "uniform"
    with pytest.raises(PolicyError, match=r"missing from this installation.*install its package again"):
        load_allocator("learned", nano)
    save_policy(shipped, "backbone", "nano-qwen3")
    for asked in ("auto", "learned"):
        allocator = AllocEmbed(nano, asked).allocator
        assert allocator.name == "learned" and allocator.previewer.source == "nano-qwen3"
        assert (allocator.previewer.backbone is nano) == (name == "nano-qwen3")
    assert AllocEmbed(backbone).allocator.name == "uniform"


def test_learned_without_a_shipped_one_says_how_to_have_one(backbone):
    with pytest.raises(PolicyError, match=r"--allocator FOLDER_OR_HUB_ID.*allocembed train --backbone") as caught:
        load_allocator("learned", backbone)
    assert backbone.name in str(caught.value)
    with pytest.raises(PolicyError, match="without a backbone"):
        load_allocator("learned")


@pytest.mark.parametrize("name", ["magic", "", "nowhere/"])
def test_an_impossible_name_raises_before_any_weights_are_read(name):
    with pytest.raises(ConfigError, match=r"use one of base, .*learned.*, auto, or the folder"):
        AllocEmbed.from_pretrained("no/such-model", name)


def test_the_command_line_takes_a_folder_and_draws_it(checkpoint, qwen2_folder, tmp_path):
    video, png = write_video(tmp_path / "one.mp4"), tmp_path / "film.png"
    words = ["--backbone", qwen2_folder, "--allocator", checkpoint, "--device", "cpu"]
    result = run("allocate", video, *words, "--png", png, "--question", "what?")
    assert result.returncode == 0, result.stderr
    assert Image.open(png).width == 1600
    result = run("allocate", video, *words, "--json", "--scale-range", "0.5", "0.9")
    assert all(0.5 <= chunk["scale"] <= 0.9 for chunk in json.loads(result.stdout)["chunks"])
    result = run("embed", video, *words, "--out", tmp_path / "v.npz")
    assert result.returncode == 0, result.stderr
    result = run("embed", video, *words[:2], "--allocator", tmp_path, "--out", tmp_path / "v.npz")
    assert result.returncode == 1 and "holds no learned allocator" in result.stderr
