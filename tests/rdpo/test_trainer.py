"""One step of the trainer: what it samples, ranks and changes; and that steps add up to learning."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from allocembed.backbones.base import Item, Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.budget import Budget
from allocembed.errors import PolicyError
from allocembed.policy.frame_module import FrameModuleConfig
from allocembed.policy.scale_policy import PolicyConfig, ScalePolicy
from allocembed.rdpo.data.base import TRAINING, VALIDATION, TrainingBatch, TrainingExample
from allocembed.rdpo.data.jsonl import JsonlSource
from allocembed.rdpo.run import TrainingRun
from allocembed_nano import training as world_data
from allocembed_nano import world
from allocembed_nano.names import ASSETS
from allocembed_nano.world.timeline import Scene
from tests.small_runs import furthest, lines, small_trainer

NANO = ASSETS / "nano-qwen3"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def backbone(nano_tiny):
    return load_backbone(nano_tiny, device="cpu")


def test_the_mean_of_the_weights_follows_them_and_is_what_is_kept(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path / "mean", steps=3, validate_every=3)
    seen, wanted = [], None

    def follow(step: int) -> None:
        seen.append({name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()})

    TrainingRun(trainer, follow).go()
    for step, now in enumerate(seen):
        keep = step / (step + 10)  # below 0.9, in the beginning
        wanted = now if wanted is None else {name: keep * wanted[name] + (1 - keep) * now[name] for name in now}
    assert furthest(wanted, trainer.mean.state_dict()) < 1e-6
    assert furthest(wanted, ScalePolicy.from_pretrained(tmp_path / "mean" / "best").state_dict()) < 1e-6
    plain = small_trainer(backbone, tmp_path / "none", averaging=0.0)
    assert plain.mean is plain.policy


def test_answers_are_ranked_among_answers_where_that_is_asked_for(backbone, tmp_path):
    examples = [
        TrainingExample(1, "red", "What colour?"),
        TrainingExample(2, "a red car drives by"),
        TrainingExample(3, "blue", "What colour?", options=("green", "red")),
        TrainingExample(4, "a blue boat"),
    ]
    batch = TrainingBatch(examples, [], Budget())
    trainer = small_trainer(backbone, tmp_path)
    options = trainer.candidates.options(batch, beyond=batch.targets)
    assert options.texts == ["green"]
    apart = trainer.candidates.negatives(batch, range(4), batch.targets + options)
    assert apart.int().tolist() == [[0, 0, 1, 0, 1], [0, 0, 0, 1, 0], [1, 0, 0, 0, 1], [0, 1, 0, 0, 0]]
    mixed = small_trainer(backbone, tmp_path, like_with_like=False)
    assert not len(mixed.candidates.options(batch, beyond=batch.targets))
    assert torch.equal(mixed.candidates.negatives(batch, range(4), batch.targets), ~torch.eye(4, dtype=torch.bool))


def test_captions_may_be_targets_without_the_prompt_of_queries(backbone, tmp_path):
    prompted, bare = (small_trainer(backbone, tmp_path, target_prompt=kind) for kind in ("query", "none"))
    texts = ["a red car drives by", "a blue boat"]
    expected = backbone.embed([Item(Prompt(text, backbone.query_instruction)) for text in texts])
    assert torch.equal(prompted.candidates.embed_texts(texts, [True, True]), expected)
    expected = backbone.embed([Item(Prompt(text)) for text in texts])
    assert torch.equal(bare.candidates.embed_texts(texts, [True, True]), expected)
    assert (prompted.candidates.bank[1] - bare.candidates.bank[1]).abs().max() > 1e-3


@pytest.mark.parametrize(("validation", "used"), [(0, 3), (2, 2), (9, 3)])
def test_zero_validation_examples_are_all_of_their_file(backbone, tmp_path, validation, used):
    for name, videos in (("train", "ab"), ("held", "cde")):
        lines = [json.dumps({"video": video, "caption": f"video {video}"}) for video in videos]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    held = tmp_path / "held.jsonl"
    trainer = small_trainer(backbone, tmp_path, validation=validation, validation_data=str(held))
    trainer.source = JsonlSource(tmp_path / "train.jsonl", tmp_path, held=held)
    assert len(trainer.prepare(VALIDATION, 0).examples) == used


def test_a_step_that_is_not_finite_is_skipped_and_counted(backbone, tmp_path, monkeypatch):
    trainer = small_trainer(backbone, tmp_path / "nan", steps=2)
    score, seen = trainer.score, []

    def fail_first(*given):
        return score(*given) * (1.0 if seen else float("nan"))

    monkeypatch.setattr(trainer, "score", fail_first)
    before = {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}
    progress = TrainingRun(trainer, lambda step: seen.append(furthest(before, trainer.policy.state_dict()))).go()
    assert seen[0] == 0 and 0 < seen[1] < 0.01
    assert progress.skipped == 2 == lines(tmp_path / "nan")[0]["skipped"]  # both updates of the first step


def test_a_vector_that_is_not_finite_costs_its_own_video_only(backbone, tmp_path, monkeypatch):
    trainer = small_trainer(backbone, tmp_path / "nan", steps=1, validate_every=1)
    embed, spoilt = trainer.encoder.embed, []

    def spoil(videos, *asked):
        vectors = embed(videos, *asked)
        if 0 in videos.members.tolist():
            spoilt.append(len(videos))
            vectors[videos.members.tolist().index(0), -1, 0] = float("nan")
        return vectors

    monkeypatch.setattr(trainer.encoder, "embed", spoil)
    before = {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}
    progress = TrainingRun(trainer).go()
    assert (
        spoilt and progress.skipped == 0 and progress.broken == 1 and furthest(before, trainer.policy.state_dict()) > 0
    )
    (step,), (held,) = lines(tmp_path / "nan"), lines(tmp_path / "nan", "validation")
    assert step["broken"] == 1 and None not in step.values() and None not in held.values()


def test_a_video_without_finite_vectors_is_as_if_it_could_not_be_read(backbone, tmp_path, monkeypatch):
    reports = []
    for spoilt in (True, False):
        trainer = small_trainer(backbone, tmp_path, steps=1)
        batch = trainer.source.finish(trainer.prepare(TRAINING, 0), trainer.device)
        if spoilt:
            embed = trainer.encoder.embed

            def spoil(videos, *asked, embed=embed):
                vectors = embed(videos, *asked)
                vectors[torch.from_numpy(videos.members == 0)] = float("inf")
                return vectors

            monkeypatch.setattr(trainer.encoder, "embed", spoil)
        else:
            kept = [videos.select(torch.from_numpy(np.flatnonzero(videos.members))) for videos in batch.videos]
            batch = replace(batch, videos=[videos for videos in kept if len(videos)])
        reports.append(trainer.step(batch, 0))
    assert reports[0].pop("broken") == 1 and reports[1].pop("broken") == 0
    assert reports[0] == pytest.approx(reports[1], rel=1e-3)


def test_soft_rollouts_may_cost_more_than_the_budget(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path, budget_mode="soft", cost="scale", budgets=["2f/7"])
    batch = trainer.source.finish(trainer.prepare(TRAINING, 0), trainer.device)
    assert trainer.step(batch, 0)["cost"] > 1
    assert trainer.validate(trainer.prepare(VALIDATION, 0))["cost"] <= 1


def test_after_soft_rollouts_the_budget_is_only_an_upper_bound(backbone, tmp_path):
    for mode in ("soft", "projected"):
        trainer = small_trainer(backbone, tmp_path, budget_mode=mode, scale_range=(0.2, 0.5))
        assert trainer.mean.config.grow == (mode == "projected")
        held = trainer.prepare(VALIDATION, 0)
        costs = [trainer.validate(held, uniform=uniform)["cost"] for uniform in (False, True)]
        # Half of the smallest range costs far less than the budget of 4 of 7 frames.
        assert (costs[0] < 0.9 * costs[1]) == (mode == "soft"), costs


def test_a_run_as_printed_has_the_plain_head_and_learns(backbone, tmp_path):
    method = {"policy_head": "softplus", "budget_mode": "soft", "cost": "scale", "preview_summary": False}
    trainer = small_trainer(backbone, tmp_path, **method, like_with_like=False, averaging=0.0, centre_efficiency=False)
    assert trainer.policy.config.module.policy_head == "softplus" and not trainer.policy.config.grow
    before = {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}
    batch = trainer.source.finish(trainer.prepare(TRAINING, 0), trainer.device)
    report = trainer.step(batch, 0)
    assert report["not finite"] == 0 and report["sharpness"] < 2, "α and β start at 0.7 each"
    assert furthest(before, trainer.policy.state_dict()) > 0


def test_an_instruction_is_part_of_the_prompt_and_the_policy_never_sees_it(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path)
    batch = trainer.source.finish(trainer.prepare(TRAINING, 0), trainer.device)
    told = replace(batch, examples=[replace(each, instruction="Describe the video.") for each in batch.examples])
    videos = batch.videos[0]
    assert torch.equal(trainer.look(videos, batch).text, trainer.look(videos, told).text)
    grids = np.full((len(videos), 1, 4, 2), 2)
    plain, instructed = (trainer.embed(videos, each, grids) for each in (batch, told))
    assert (plain - instructed).abs().amax((1, 2)).min() > 1e-4


def test_an_older_allocator_can_be_trained_further(backbone, tmp_path):
    config = FrameModuleConfig(backbone.widths.tokens, backbone.widths.tokens, 32, 2, 1, summary=True)
    older = ScalePolicy(PolicyConfig(config, "backbone", backbone.name))
    older.save_pretrained(tmp_path / "older")
    trainer = small_trainer(backbone, tmp_path, start_from=str(tmp_path / "older"))
    started = trainer.policy.state_dict()
    assert trainer.policy.config.module.learns_questions
    assert all(torch.equal(started[name], tensor) for name, tensor in older.state_dict().items())
    with pytest.raises(PolicyError, match="cannot start from"):
        small_trainer(backbone, tmp_path, start_from=str(tmp_path / "older"), width=16)


def test_a_step_none_of_whose_videos_can_be_read_changes_nothing(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path)
    batch = trainer.source.finish(trainer.prepare(TRAINING, 0), trainer.device)
    before = {name: tensor.clone() for name, tensor in trainer.policy.state_dict().items()}
    assert trainer.step(replace(batch, videos=[]), 0) == {"not finite": 0, "broken": 0}
    assert furthest(before, trainer.policy.state_dict()) == 0


def test_the_corpus_may_be_embedded_as_it_is_drawn_or_once(backbone, tmp_path, monkeypatch):
    kept = small_trainer(backbone, tmp_path)
    monkeypatch.setattr("allocembed.rdpo.candidates.BANK", 0)
    drawn = small_trainer(backbone, tmp_path)
    assert kept.candidates.bank is not None and drawn.candidates.bank is None
    batch = kept.source.finish(kept.prepare(TRAINING, 0), kept.device)
    (names, one), (same, other) = (trainer.candidates.draw(batch, 5) for trainer in (kept, drawn))
    assert names == same and len(names) >= 6 + 8 and (one - other).abs().max() < 1e-5
    none = small_trainer(backbone, tmp_path, global_negatives=0, like_with_like=False)
    assert len(none.candidates.draw(batch, 5)[0]) == 6


@pytest.mark.slow
@pytest.mark.skipif(not NANO.is_dir(), reason="needs the trained nano-qwen3")
def test_rdpo_learns_to_give_events_more_than_empty_scenes(tmp_path, monkeypatch):
    # One event a video, between black, blur and empty places: which chunks matter is easy to see.
    scenes = {Scene.BLACK: 1.0, Scene.PLACE: 1.0, Scene.BLUR: 0.5}
    easy = {"word_size": (0.12, 0.145), "object_size": (0.2, 0.42), "object_skew": 1.0}
    config = replace(world.SHORT, events=(1, 1), event_length=(0.3, 0.3), mixture=scenes, **easy)
    monkeypatch.setattr(world_data, "draw_timelines", lambda seed, count: world.draw(count, seed, config=config))
    backbone = load_backbone(NANO, device="cpu")
    changes = {"steps": 5, "examples": 12, "rollouts": 8, "mini_batch": 6, "micro_batch": 6, "budgets": ["1f/8"]}
    changes |= {"reward": "validated", "mixture": [1, 0, 0], "learning_rate": 2e-3, "width": 64, "validation": 12}
    changes |= {"validate_every": 5}  # validating changes no weight
    trainer = small_trainer(backbone, tmp_path / "learns", **changes, pool=128, global_negatives=64)
    held = trainer.prepare(VALIDATION, 0)
    batch = trainer.source.finish(held, trainer.device)
    (videos,) = batch.videos
    shown = world.events_at(held.timelines, held.indices / 479)[:, videos.chunks(2)] >= 0
    inputs = trainer.look(videos, batch)

    def scales() -> tuple[float, float]:
        """Mean scale of the chunks that show an event, and of those that do not."""
        alpha, beta = trainer.shapes(trainer.policy, [inputs])[0]
        chosen = 0.2 + 1.6 * (alpha / (alpha + beta)).numpy()
        return float(chosen[shown.any(-1)].mean()), float(chosen[~shown.any(-1)].mean())

    assert abs(np.subtract(*scales())) < 0.1
    TrainingRun(trainer).go()
    event, empty = scales()
    assert event > empty + 0.15
