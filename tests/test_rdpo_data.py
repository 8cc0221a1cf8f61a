"""What training sees: world examples that never meet the test's, and jsonl files of real videos, good and bad."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from allocembed import world
from allocembed.benchmarks import nano
from allocembed.budget import Budget
from allocembed.rdpo.data import CORPUS, TRAINING, VALIDATION, WorldSource, draw_timelines
from allocembed.rdpo.jsonl import JsonlSource, find_video, parse_record
from allocembed.world import vocabulary as vocab
from allocembed.world.timeline import EVENT_SLOTS
from tests.clips import write_video

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
    asked = [example for example in examples if example.text]
    assert 5 < len(asked) < 35 and not any(example.query for example in asked)
    assert all(example.query for example in examples if example.text is None)
    assert len({example.sample for example in examples}) == 64


def test_training_validation_corpus_and_test_videos_never_meet():
    def events(timelines: world.Timelines) -> set[tuple]:
        slots = (timelines.object, timelines.word, timelines.colour, timelines.place)
        return {tuple(row) for row in np.concatenate([values[:, EVENT_SLOTS] for values in slots], 1).tolist()}

    streams = [events(draw_timelines([0, stream, 0], 64)) for stream in (TRAINING, VALIDATION)]
    streams.append(events(draw_timelines([0, CORPUS], 64)))
    streams.append(events(draw_timelines([0, TRAINING, 1], 64)))
    streams += [events(nano.draw_videos(name, 64).timelines) for name in nano.TEST_SEEDS]
    streams += [events(nano.draw_videos(name, 64, seed=0).timelines) for name in nano.TEST_SEEDS]
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
    clips = nano.clips_of(nano.VideoSet("short", "", prepared.timelines), range(4), [9])[9]
    for videos in batch.videos:
        for row, member in enumerate(videos.members):
            assert np.array_equal(videos.frames[row].permute(0, 2, 3, 1).numpy(), clips[member].frames)
            assert videos.times[row] == pytest.approx(clips[member].times)
            assert videos.totals[row] == clips[member].total
    assert batch.videos[0].pairs.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 8]]


def test_the_corpus_has_every_kind_of_target(worldly):
    answers = [text for text in worldly.corpus.texts if text not in worldly.queries]
    assert len(worldly.corpus) == 200 and 20 < len(answers) < 100
    assert all(len(text) < 40 for text in answers)


# A jsonl of real videos


@pytest.fixture
def folder(tmp_path):
    """Two frame folders, a video file, a broken one, and a file that names them, some lines of it bad."""
    for name, count in (("one", 5), ("two", 9)):
        (tmp_path / name).mkdir()
        for number in range(count):
            pixels = np.full((32, 48, 3), 20 * number, np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{number:03}.png")
    write_video(tmp_path / "three.mp4")
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    said = [{"from": "human", "value": "<video>\nWhat is it?"}, {"from": "gpt", "value": "A ramp."}]
    lines = [
        {"id": "1", "video": "one", "caption": "it gets lighter"},
        {"id": "2", "video": "two.mp4", "conversations": said},
        {"id": "3", "video": "three", "text": "a test picture"},
        {"id": "4", "video": "broken.mp4", "caption": "nothing"},
        {"id": "5", "video": "gone", "caption": "nothing at all"},
        {"id": "6", "caption": "no video"},
        {"id": "7", "video": "one"},
    ]
    file = tmp_path / "train.jsonl"
    file.write_text("\n".join(map(json.dumps, lines)) + "\nnot json\n\n")
    return tmp_path


def test_frame_folders_and_files_are_found_by_name(folder):
    assert find_video(folder, "one") == folder / "one"
    assert find_video(folder, "two.mp4") == folder / "two"
    assert find_video(folder, "three") == folder / "three.mp4"
    assert find_video(folder, "gone") == folder / "gone"


def test_bad_lines_and_videos_are_left_out_and_named(folder):
    source = JsonlSource(folder / "train.jsonl", folder, validation=0)
    assert len(source.skipped) == 3 and "train.jsonl:6" in source.skipped[0] and "field video" in source.skipped[0]
    batch = batch_of(source, count=10)
    read = {batch.examples[member].sample for videos in batch.videos for member in videos.members}
    assert read == {"one", "two.mp4", "three"}
    named = "\n".join(source.skipped[3:])
    assert len(source.skipped) == 5 and "broken.mp4" in named and "gone" in named
    batch_of(source, step=1, count=10)
    assert len(source.skipped) == 5  # each is named once


def test_videos_of_one_size_and_length_share_a_group(folder):
    source = JsonlSource(folder / "train.jsonl", folder, validation=0)
    batch = batch_of(source, count=5, candidates=4)
    shapes = sorted(tuple(videos.frames.shape[1:]) for videos in batch.videos)
    assert (4, 3, 32, 48) in shapes and all(videos.frames.dtype == torch.uint8 for videos in batch.videos)
    pair = next(videos for videos in batch.videos if videos.frames.shape[-2:] == (32, 48))
    assert len(pair) == 2 and sorted(pair.totals) == [5, 9]
    texts = {example.sample: example.text for example in batch.examples}
    assert texts["two.mp4"] == "What is it?" and texts["one"] is None


def test_validation_keeps_whole_videos_apart(tmp_path):
    lines = [{"video": f"v{i // 3}", "caption": f"text {i}"} for i in range(30)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = JsonlSource(tmp_path / "a.jsonl", tmp_path, validation=7)
    held, trained = ({record.video for record in part} for part in (source.held, source.records))
    assert len(source.held) == 9 and not held & trained and len(held | trained) == 10
    assert set(source.corpus.sample_ids) == trained


def test_epochs_go_through_everything_in_new_orders(tmp_path):
    lines = [{"video": f"v{i}", "caption": f"text {i}"} for i in range(6)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = JsonlSource(tmp_path / "a.jsonl", tmp_path, validation=0)
    steps = [[e.sample for e in source.prepare(TRAINING, s, 3, BUDGET, 2, range(0)).examples] for s in range(6)]
    epochs = [tuple(one + other) for one, other in list(pairwise(steps))[::2]]
    assert all(sorted(epoch) == sorted(epochs[0]) for epoch in epochs) and len(set(epochs)) > 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "no video is named"),
        ({"video": ""}, "no video is named"),
        ({"video": "v", "caption": " "}, "no target"),
        ({"video": "v", "conversations": [{"from": "gpt", "value": "x"}]}, "no human turn"),
        ({"video": "v", "conversations": "hello"}, "no human turn"),
        ({"video": "v", "caption": "see <|video_pad|>"}, "<|video_pad|>"),
    ],
)
def test_what_a_line_lacks_is_said(line, message):
    with pytest.raises(ValueError) as error:
        parse_record(line)
    assert message in str(error.value)


def test_a_file_that_validation_would_use_up_is_refused(folder):
    with pytest.raises(ValueError, match="lower --validation"):
        JsonlSource(folder / "train.jsonl", folder, validation=50)
    with pytest.raises(ValueError, match="cannot read"):
        JsonlSource(folder / "missing.jsonl", folder)
