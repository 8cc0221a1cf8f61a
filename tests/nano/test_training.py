"""Training examples from the world: mixed, reproducible, and disjoint from all test videos."""

import numpy as np
import pytest
import torch

from allocembed.budget import Budget
from allocembed.rdpo.data.base import CORPUS, TRAINING, VALIDATION
from allocembed_nano import nanoret, world
from allocembed_nano.training import WorldSource, draw_timelines
from allocembed_nano.world import vocabulary as vocab
from allocembed_nano.world.timeline import EVENT_SLOTS

CPU = torch.device("cpu")
BUDGET = Budget.parse("8f")
MIXTURE = (0.4, 0.3, 0.3)


def batch_of(source, stream=TRAINING, step=0, count=8, candidates=6, mine=None):
    mine = range(count) if mine is None else mine
    return source.finish(source.prepare(stream, step, count, BUDGET, candidates, mine), CPU)


@pytest.fixture(scope="module")
def worldly() -> WorldSource:
    return WorldSource(seed=0, pool=200, mixture=MIXTURE)


def test_a_step_mixes_kinds_orientations_and_targets(worldly):
    prepared = worldly.prepare(TRAINING, 3, 64, BUDGET, 24, range(64))
    timelines, examples = prepared.timelines, prepared.examples
    assert timelines.portrait.sum() == 32 and (timelines.duration >= 600).sum() == 32
    asked = [example for example in examples if example.question]
    assert 5 < len(asked) < 35 and not any(example.query for example in asked)
    assert all(example.query for example in examples if example.question is None)
    assert len({example.sample for example in examples}) == 64


def test_training_validation_corpus_and_test_videos_never_meet():
    def events(timelines: world.Timelines) -> set[tuple]:
        slots = (timelines.object, timelines.word, timelines.colour, timelines.place)
        return {tuple(row) for row in np.concatenate([values[:, EVENT_SLOTS] for values in slots], 1).tolist()}

    streams = [events(draw_timelines([0, stream, 0], 64)) for stream in (TRAINING, VALIDATION)]
    streams.append(events(draw_timelines([0, CORPUS], 64)))
    streams.append(events(draw_timelines([0, TRAINING, 1], 64)))
    streams += [events(nanoret.draw_videos(name, 64).timelines) for name in nanoret.TEST_SEEDS]
    streams += [events(nanoret.draw_videos(name, 64, seed=0).timelines) for name in nanoret.TEST_SEEDS]
    assert len(set.union(*streams)) == sum(map(len, streams))


def test_combinations_held_out_for_the_test_are_not_trained_or_validated_on():
    for stream in (TRAINING, VALIDATION):
        drawn = draw_timelines([0, stream, 0], 200)
        things = drawn.object[:, EVENT_SLOTS]
        assert vocab.SEEN_OBJECT_COLOUR[things, drawn.colour[:, EVENT_SLOTS]].all()
        assert vocab.SEEN_OBJECT_WORD[things, drawn.word[:, EVENT_SLOTS]].all()


def test_a_step_is_the_same_however_many_processes_share_it(worldly):
    whole = batch_of(worldly)
    for rank in range(2):
        part = batch_of(worldly, mine=range(rank, 8, 2))
        assert part.examples == whole.examples
        for videos in part.videos:
            same = next(v for v in whole.videos if set(videos.members) <= set(v.members))
            rows = [list(same.members).index(member) for member in videos.members]
            assert torch.equal(videos.frames, same.frames[rows]) and np.array_equal(videos.times, same.times[rows])


def test_world_videos_are_sampled_as_the_benchmark_samples_them(worldly):
    prepared = worldly.prepare(TRAINING, 0, 4, BUDGET, 9, range(4))
    batch = worldly.finish(prepared, CPU)
    clips = nanoret.clips_of(nanoret.VideoSet("short", "", prepared.timelines), range(4), [9])[9]
    for videos in batch.videos:
        for row, member in enumerate(videos.members):
            assert np.array_equal(videos.frames[row].permute(0, 2, 3, 1).numpy(), clips[member].frames)
            assert videos.times[row] == pytest.approx(clips[member].times)
            assert videos.totals[row] == clips[member].total
    assert batch.videos[0].chunks(2).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 8]]


def test_the_corpus_has_every_kind_of_target(worldly):
    answers = [text for text in worldly.corpus.texts if text not in worldly.queries]
    assert len(worldly.corpus) == 200 and 20 < len(answers) < 100
    assert all(len(text) < 40 for text in answers)
