"""Training without texts: the target of a video is its own vector at full resolution."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from allocembed.backbones.loading import load_backbone
from allocembed.errors import ConfigError, DataError
from allocembed.rdpo.checkpoint import check_config, load_state, save_state
from allocembed.rdpo.config import RewardOptions, TrainConfig
from allocembed.rdpo.data.base import TRAINING, VALIDATION
from allocembed.rdpo.meter import Meter
from allocembed.rdpo.negatives import VectorQueue
from allocembed.rdpo.rewards import score_group
from allocembed.rdpo.run import TrainingRun, check_videos
from tests.small_runs import furthest, lines, small_trainer

pytestmark = pytest.mark.usefixtures("one_thread")
OWN = {"target": "video", "queue": 4, "mixture": [0.5, 0.0, 0.5]}
MOSTLY = OWN | {"mixture": [0.8, 0.0, 0.2]}


@pytest.fixture(scope="module")
def backbone(nano_tiny):
    return load_backbone(nano_tiny, device="cpu")


def test_the_cosine_reward_needs_no_rivals():
    positive, none = torch.tensor([[0.9, 0.5]]), torch.zeros(1, 2, 0)
    scores = score_group(
        positive, none, torch.zeros(1, 0, dtype=torch.bool), torch.zeros(1, 2), RewardOptions(reward="cosine")
    )
    assert torch.equal(scores.reward, positive) and scores.advantage[0, 0] > 0.9 > -0.9 > scores.advantage[0, 1]


def test_targets_are_the_vectors_at_full_resolution(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path, **OWN)
    batch = trainer.source.finish(trainer.prepare(TRAINING, 0), trainer.device)
    targets = trainer.candidates.targets(batch)
    for videos in batch.videos:
        native = backbone.geometry.native(*videos.frames.shape[-2:])
        grids = np.tile([native.rows, native.cols], (len(videos), 1, 4, 1))
        found = trainer.encoder.embed(videos, batch.questions(videos), grids)[:, 0]
        own = [row for row, member in enumerate(videos.members.tolist()) if batch.examples[member].own]
        assert torch.allclose(targets[videos.members[own]], found[own], atol=1e-6)
    asked = [place for place, example in enumerate(batch.examples) if not example.own]
    assert asked and all(batch.examples[place].question for place in asked)
    texts = trainer.encoder.texts([batch.examples[place].target for place in asked], [False] * len(asked))
    assert torch.allclose(targets[asked], texts, atol=1e-6), "answers stay the targets of questions"


def test_videos_are_ranked_among_videos_of_the_batch_and_the_queue(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path, **OWN)
    for step in range(2):
        batch = trainer.source.finish(trainer.prepare(TRAINING, step), trainer.device)
        pool, vectors = trainer.candidates.draw(batch, step)
        mask = trainer.candidates.negatives(batch, range(6), pool)
        own = torch.tensor([text.startswith("<the vector of") for text in pool.texts])
        assert len(vectors) == len(pool) and own[:6].any() and not own[:6].all()
        assert not mask[own[:6]][:, ~own].any() and not mask[~own[:6]][:, own].any()
        count = int(own[:6].sum())
        assert int(mask[:6][own[:6]][:, :6].sum()) == count * (count - 1)
    assert 0 < len(trainer.candidates.queue.samples) <= 4


def test_a_queue_leaves_out_the_videos_of_the_batch():
    queue = VectorQueue(3, 2)
    queue.add(["a", "b"], torch.ones(2, 2))
    samples, vectors = queue.rivals({"a"})
    assert samples == ["b"] and vectors.shape == (1, 2)


@pytest.mark.slow
def test_a_run_without_texts_learns_validates_and_resumes(backbone, tmp_path):
    whole = small_trainer(backbone, tmp_path / "whole", **MOSTLY)
    progress = TrainingRun(whole).go()
    assert 0 < progress.uniform <= 1
    validation = lines(tmp_path / "whole", "validation")
    assert all(0 < line["cosine"] <= 1 for line in validation)
    first = small_trainer(backbone, tmp_path / "half", **MOSTLY)
    run = TrainingRun(first)
    run.config = first.config
    for step in range(2):
        first.step(first.source.finish(first.prepare(TRAINING, step), first.device), step)
    run.progress.step = 2
    save_state(tmp_path / "state", first.parts, run.progress, first.config)
    second = small_trainer(backbone, tmp_path / "half", **MOSTLY)
    load_state(tmp_path / "state", second.parts, first.config)
    assert second.candidates.queue.samples == first.candidates.queue.samples
    assert torch.equal(second.candidates.queue.vectors, first.candidates.queue.vectors.cpu())
    for step in range(2, 4):
        second.step(second.source.finish(second.prepare(TRAINING, step), second.device), step)
    assert furthest(whole.policy.state_dict(), second.policy.state_dict()) == 0
    assert second.validate(second.prepare(VALIDATION, 0))["cosine"] == pytest.approx(validation[-1]["cosine"], abs=1e-6)


@pytest.mark.slow
def test_a_run_without_any_text_is_validated_by_the_cosine(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path, **OWN | {"mixture": [1.0, 0.0, 0.0], "steps": 1, "ladder": 4})
    progress = TrainingRun(trainer).go()
    (validation,) = lines(tmp_path, "validation")
    assert progress.cosine and "hit1" not in validation and validation["score"] == validation["cosine"]


def test_options_without_use_and_missing_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--videos has no use with --data world"):
        check_videos(TrainConfig(data="world", videos=str(tmp_path)))
    with pytest.raises(DataError, match="--validation-data"):
        check_videos(TrainConfig(videos=str(tmp_path), validation_data=str(tmp_path / "no.jsonl")))
    with pytest.raises(ConfigError, match="pass --videos FOLDER"):
        check_videos(TrainConfig())


def test_a_state_of_an_older_version_lacks_new_options(tmp_path):
    config = TrainConfig(data="world")
    older = {name: value for name, value in config.as_dict().items() if name not in ("target", "queue", "ladder")}
    check_config(older, config, tmp_path)
    with pytest.raises(ConfigError, match="started with target = 'text'"):
        check_config(older, replace(config, target="video"), tmp_path)


def test_a_full_gpu_names_what_helps(backbone, tmp_path, monkeypatch):
    trainer = small_trainer(backbone, tmp_path, **MOSTLY)

    def fill(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(trainer, "validate", fill)
    with pytest.raises(ConfigError, match="lower --batch-tokens"):
        TrainingRun(trainer).go()


def test_the_queue_holds_videos_of_earlier_steps(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path, **OWN | {"mixture": [1.0, 0.0, 0.0]})
    sizes = []
    for step in range(2):
        batch = trainer.source.finish(trainer.prepare(TRAINING, step), trainer.device)
        pool, _ = trainer.candidates.draw(batch, step)
        sizes.append(sum(text.startswith("<the vector of") for text in pool.texts))
    assert sizes == [6, 10]


@pytest.mark.slow
def test_a_search_does_not_depend_on_the_grouping_and_finds_better_allocations(backbone, tmp_path):
    trainer = small_trainer(backbone, tmp_path, **OWN | {"mixture": [1.0, 0.0, 0.0], "search_rounds": 2, "rollouts": 8})
    batch = trainer.source.finish(trainer.prepare(TRAINING, 0), trainer.device)
    _, targets = trainer.candidates.draw(batch, 0)
    videos = batch.videos[0]
    chunks = len(videos.chunks(2))
    actions = torch.rand((len(videos), 8, chunks), generator=torch.Generator().manual_seed(0))
    vectors = trainer.embed(videos, batch, trainer.allocate(actions.numpy(), videos, batch, "projected").grids)
    best, _ = trainer.search(actions, vectors, videos, targets, batch, 0, Meter())
    last = videos.select(torch.tensor([len(videos) - 1]))
    alone, _ = trainer.search(actions[-1:], vectors[-1:], last, targets, batch, 0, Meter())
    assert torch.allclose(best[-1:], alone, atol=1e-4)
    found = trainer.embed(videos, batch, trainer.allocate(best.numpy(), videos, batch, "projected").grids)
    wanted = targets[videos.members][:, None]
    assert ((found * wanted).sum(-1).max(1).values >= (vectors * wanted).sum(-1).max(1).values - 1e-5).all()
