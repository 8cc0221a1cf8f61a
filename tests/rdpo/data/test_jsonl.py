"""Training examples from a .jsonl of real videos: good and bad lines, good and bad files."""

import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from allocembed.budget import Budget
from allocembed.errors import BackboneError, DataError
from allocembed.rdpo.data.base import TRAINING
from allocembed.rdpo.data.jsonl import JsonlSource, find_video, parse_record
from tests.clips import write_video

CPU = torch.device("cpu")
BUDGET = Budget.parse("8f")


def batch_of(source, step=0, count=8, candidates=6):
    return source.finish(source.prepare(TRAINING, step, count, BUDGET, candidates, range(count)), CPU)


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
        {"id": "7", "video": "one", "caption": 3},
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
    texts = {example.sample: (example.question, example.query) for example in batch.examples}
    assert texts["two.mp4"] == ("What is it?", False) and texts["one"] == (None, True)


@pytest.mark.parametrize(
    ("turn", "more", "question", "instruction"),
    [
        ("Who runs?", {}, "Who runs?", None),
        ("谁在跑？", {}, "谁在跑？", None),
        ("Describe the video in detail.", {}, None, "Describe the video in detail."),
        ("Choose the animal.", {"options": ["A dog.", "A cat."]}, "Choose the animal.", None),
        ("Could you describe the video?", {"question": None}, None, None),
        ("Describe it.", {"question": "Who runs?"}, "Who runs?", "Describe it."),
        ("Who runs?", {"instruction": "Answer in a word."}, "Who runs?", "Answer in a word."),
        ("Who runs?", {"question": "Who sits?", "instruction": " "}, "Who sits?", None),
        ("<video>", {}, None, None),
    ],
)
def test_a_human_turn_is_a_question_or_an_instruction_and_keys_override_it(turn, more, question, instruction):
    said = [{"from": "human", "value": f"<video>\n{turn}"}, {"from": "gpt", "value": "A dog."}]
    record = parse_record({"video": "v", "conversations": said, **more})
    assert (record.question, record.instruction, record.target) == (question, instruction, "A dog.")


def test_targets_without_a_question_are_search_sentences_and_the_instruction_goes_along(tmp_path):
    told = [{"from": "human", "value": "Describe the video."}, {"from": "gpt", "value": "A dog runs."}]
    asked = [{"from": "human", "value": "Who runs?"}, {"from": "gpt", "value": "A dog."}]
    lines = [{"video": "a", "conversations": told}, {"video": "b", "conversations": asked}]
    lines.append({"video": "c", "caption": "a cat", "question": "Who sits?"})
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    source = JsonlSource(tmp_path / "a.jsonl", tmp_path, validation=0)
    assert source.queries == {"A dog runs."} and source.answers == {"A dog.", "a cat"}
    examples = {e.sample: e for e in source.prepare(TRAINING, 0, 3, BUDGET, 2, range(0)).examples}
    assert [examples[name].query for name in "abc"] == [True, False, False]
    assert [examples[name].instruction for name in "abc"] == ["Describe the video.", None, None]


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
        ({"video": "v", "caption": " "}, "the target is not a text"),
        ({"video": "v", "conversations": [{"from": "gpt", "value": "x"}]}, "no human turn"),
        ({"video": "v", "conversations": "hello"}, "no human turn"),
        ({"video": "v", "caption": "x", "options": "a"}, "list of texts"),
        ({"video": "v", "caption": "x", "question": 3}, "must be texts"),
    ],
)
def test_what_a_line_lacks_is_said(line, message):
    with pytest.raises(DataError) as error:
        parse_record(line)
    assert message in str(error.value)


def test_a_file_that_validation_would_use_up_is_refused(folder):
    with pytest.raises(DataError, match="lower it"):
        JsonlSource(folder / "train.jsonl", folder, validation=50)
    with pytest.raises(DataError, match="cannot read"):
        JsonlSource(folder / "missing.jsonl", folder)


def test_a_text_that_the_backbone_refuses_costs_its_line_only(folder):
    def check(text: str) -> None:
        if "ramp" in text:
            raise BackboneError("the text contains a ramp")

    source = JsonlSource(folder / "train.jsonl", folder, validation=0, check_text=check)
    assert "two.mp4" not in source.corpus.sample_ids and "train.jsonl:2: the text contains" in source.skipped[0]


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (rb'{"video": "one", "caption": "half an emoji \ud83d"}', "surrogate"),
        (rb'{"video": "half \ude00", "caption": "a"}', "surrogate"),
        (b'{"video": "' + b"n" * 300 + b'", "caption": "a"}', "File name too long"),
        (b'{"video": "one", "caption": ' + b"[" * 100_000, "nested too deeply"),
        (b'{"video": "one", "caption": "caf\xe9"}', "not UTF-8"),
        (b'{"video": "nul \\u0000", "caption": "a"}', ""),
    ],
)
def test_one_bad_line_costs_itself_only(tmp_path, bad, message):
    good = [f'{{"video": "v{n}", "caption": "text {n}"}}'.encode() for n in range(4)]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*good[:2], bad, *good[2:]]))
    source = JsonlSource(tmp_path / "a.jsonl", tmp_path, validation=0)
    assert [record.video for record in source.records] == ["v0", "v1", "v2", "v3"]
    assert len(source.skipped) == 1 and "a.jsonl:3: " in source.skipped[0] and message in source.skipped[0]


def test_only_a_line_feed_ends_a_line_and_a_byte_order_mark_is_no_text(tmp_path):
    captions = ["a\u2028b", "c\u0085d", "e\x0cf"]
    lines = [json.dumps({"video": f"v{n}", "caption": text}, ensure_ascii=False) for n, text in enumerate(captions)]
    (tmp_path / "a.jsonl").write_text("\r\n".join(lines), encoding="utf-8-sig", newline="")
    source = JsonlSource(tmp_path / "a.jsonl", tmp_path, validation=0)
    assert [record.target for record in source.records] == captions and not source.skipped


def test_two_names_of_one_file_are_one_video(tmp_path):
    (tmp_path / "links").mkdir()
    for n in range(6):
        (tmp_path / f"v{n}.mp4").write_bytes(b"")
        (tmp_path / "links" / f"w{n}.mp4").symlink_to(tmp_path / f"v{n}.mp4")
    names = [name.format(n=n) for name in ("v{n}", "v{n}.mp4", "./v{n}.mp4", "links/w{n}") for n in range(6)]
    lines = [json.dumps({"video": name, "caption": f"text {number}"}) for number, name in enumerate(names)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    source = JsonlSource(tmp_path / "a.jsonl", tmp_path, validation=8)
    held, trained = (
        {find_video(tmp_path, record.video).resolve() for record in part} for part in (source.held, source.records)
    )
    assert len(source.held) == 8 and len(held) == 2 and len(trained) == 4 and not held & trained
    assert len(set(source.corpus.sample_ids)) == 4, "texts of one video are never its negatives"
