"""MMEB-V2: the published strings and frames of every task, from every layout; errors that say what is missing."""

import json
from dataclasses import replace

import numpy as np
import pytest

from allocembed.backbones.base import Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import mmeb_v2
from allocembed.benchmarks.annotations import read_annotations, read_file
from allocembed.benchmarks.paper import BENCHMARKS
from allocembed.benchmarks.tasks import instruction_for
from allocembed.errors import DataError
from allocembed.video import sample
from tests.clips import write_video
from tests.datasets_on_disk import FOLDERS, LINES, NEW, OLD, write_frames, write_lines, write_retrieval

QA_PROMPT = (
    "Given a video and a question, select the most accurate answer from the provided candidates. Return only the exact "
    "text of your chosen answer. Question: "
)
PUBLISHED = {  # task: hub set, subset, split, queries, prompt
    "MSR-VTT": ("VLM2Vec/MSR-VTT", "test_1k", "test", 1000, "Find a video that contains the following visual content:"),
    "MSVD": ("VLM2Vec/MSVD", None, "test", 670, "Find the video snippet that corresponds to the given summary:"),
    "DiDeMo": ("VLM2Vec/DiDeMo", None, "test", 1004, "Find a video that includes the following described scenes:"),
    "YouCook2": (
        "lmms-lab/YouCook2",
        None,
        "val",
        3179,
        "Find a video that demonstrates the following action while making a recipe:",
    ),
    "VATEX": ("VLM2Vec/VATEX", None, "test", 4478, "Select a video that fits the description provided:"),
    "Video-MME": ("VLM2Vec/Video-MME", None, "test", 2700, QA_PROMPT),
    "NExTQA": ("VLM2Vec/NExTQA", "MC", "test", 8564, QA_PROMPT),
    "EgoSchema": ("VLM2Vec/EgoSchema", "Subset", "test", 500, QA_PROMPT),
    "MVBench": ("VLM2Vec/MVBench", "action_sequence", "train", 4000, QA_PROMPT),
    "ActivityNetQA": ("VLM2Vec/ActivityNetQA", None, "test", 1000, QA_PROMPT),
}


def where(task: str) -> str:
    """The path of a task's parquet in its hub repository."""
    _, subset, split, *_ = PUBLISHED[task]
    return f"{subset or 'data'}/{split}-00000-of-00001.parquet"


@pytest.fixture
def few_subsets(monkeypatch):
    """MVBench with two of its twenty subsets, as in the small dataset."""
    spec = mmeb_v2.SPECS["MVBench"]
    assert len(spec.subsets) == len(set(spec.subsets)) == 20
    monkeypatch.setitem(mmeb_v2.SPECS, "MVBench", replace(spec, subsets=("action_sequence", "moving_count")))


def test_the_ten_tasks_are_the_published_ones():
    assert list(mmeb_v2.SPECS) == BENCHMARKS["mmeb-v2"].tasks == list(PUBLISHED)
    for name, (hub, subset, split, queries, prompt) in PUBLISHED.items():
        spec = mmeb_v2.SPECS[name]
        assert (spec.hub, spec.split, spec.queries, spec.prompt) == (hub, split, queries, prompt)
        assert (subset in spec.subsets) if subset else not spec.subsets
        assert spec.kind == ("video_qa" if prompt == QA_PROMPT else "video_ret")


@pytest.mark.parametrize("name", LINES)
def test_every_task_asks_what_was_published_about_the_right_frames(name, few_subsets, tmp_path):
    line, text, options, answer = LINES[name]
    kind = mmeb_v2.SPECS[name].kind
    folder = write_frames(tmp_path / NEW.format(kind=kind, task=name) / FOLDERS[name])
    write_lines(tmp_path, name, [line], where(name))
    if name == "MVBench":
        write_lines(tmp_path, name, [line], "moving_count/train-00000-of-00001.parquet")
        write_frames(tmp_path / NEW.format(kind=kind, task=name) / "moving_count/ZS9XR.mp4")
    task = mmeb_v2.load_task(name, tmp_path)
    assert task.texts[0] == text and task.videos[0] == folder and task.targets[0] == answer
    assert (task.options[0] if task.options else []) == options
    assert len(task.texts) == (2 if name == "MVBench" else 1)
    assert task.notes == (f"{len(task.texts)} queries, where {PUBLISHED[name][3]:,} were published",)


def test_the_models_read_prompt_and_text_as_their_own_evaluations_write_them(qwen2_folder, qwen3_folder):
    vlm2vec, qwen3 = load_backbone(qwen2_folder, device="cpu"), load_backbone(qwen3_folder, device="cpu")
    find = PUBLISHED["MSR-VTT"][4]
    assert vlm2vec.layout(Prompt("a dog", instruction_for(find, "qwen2_vl"))) == f"{find} a dog"
    seconds = np.zeros(1)
    asked = vlm2vec.layout(Prompt("Who runs?", instruction_for(QA_PROMPT, "qwen2_vl"), seconds))
    # The published prompt ends in a space and is joined with another.
    assert asked == f"<|video_pad|> {QA_PROMPT} Who runs?" and "Question:  Who" in asked
    assert vlm2vec.layout(Prompt(seconds=seconds)) == "<|video_pad|> Understand the content of the provided video."
    said = qwen3.layout(Prompt("a dog", instruction_for(find, "qwen3_vl")))
    assert "system\nFind a video that contains the following visual content.<|im_end|>" in said
    assert "user\na dog<|im_end|>" in said
    said = qwen3.layout(Prompt("Who runs?", instruction_for(QA_PROMPT, "qwen3_vl"), seconds))
    assert "Return only the exact text of your chosen answer.<|im_end|>" in said and "Question:" not in said


def test_a_family_without_words_of_its_own_gets_the_prompt_as_it_is():
    assert instruction_for(QA_PROMPT, "tiny_mean") == QA_PROMPT


@pytest.mark.parametrize("layout", [NEW, OLD, "video-tasks/frames/" + OLD])
def test_frames_are_found_in_every_published_layout(layout, tmp_path):
    write_retrieval(tmp_path, "VATEX", 2, layout)
    task = mmeb_v2.load_task("VATEX", tmp_path)
    assert [video.name for video in task.videos] == ["v0", "v1"]
    assert all(str(video).startswith(str(tmp_path / layout.split("{")[0])) for video in task.videos)


def test_raw_videos_are_used_if_there_are_no_frames(tmp_path):
    write_retrieval(tmp_path, "VATEX", 1)
    write_lines(tmp_path, "VATEX", [{"videoID": "v9", "enCap": ["a"]}])
    folder = tmp_path / "video-tasks/videos/video_ret/VATEX"
    folder.mkdir(parents=True)
    path = write_video(folder / "v9.mp4", 12)
    assert mmeb_v2.load_task("VATEX", tmp_path).videos == [path]


def test_frames_are_sampled_as_published(tmp_path):
    folder = write_frames(tmp_path / "v", 64)
    for count in (8, 24, 64):
        assert sample(folder, count).indices.tolist() == np.linspace(0, 63, count, dtype=int).tolist()
    few = write_frames(tmp_path / "few", 5)
    assert sample(few, 8).indices.tolist() == [0, 1, 2, 3, 4], "all of them, unrepeated"


def test_a_video_with_two_queries_is_one_candidate(tmp_path):
    write_frames(tmp_path / NEW.format(kind="video_ret", task="MSVD") / "a")
    write_frames(tmp_path / NEW.format(kind="video_ret", task="MSVD") / "b")
    lines = [{"video_id": name, "video": f"{name}.avi", "caption": [text]} for name, text in ("bx", "ay", "bz")]
    write_lines(tmp_path, "MSVD", lines)
    task = mmeb_v2.load_task("MSVD", tmp_path)
    assert [video.name for video in task.videos] == ["b", "a"] and task.targets.tolist() == [0, 1, 0]


def test_annotations_come_from_parquet_jsonl_and_json_alike(tmp_path):
    line = LINES["MSVD"][0]
    found = []
    for number, place in enumerate(("data/test-00000-of-00001.parquet", "test.jsonl", "msvd_test.jsonl")):
        root = tmp_path / str(number)
        write_lines(root, "MSVD", [line], place)
        found.append(read_annotations(root, "MSVD", "x/y", (), "test", ("video_id",)))
    assert found[0] == found[1] == found[2] == [line]


def test_other_splits_and_subsets_are_not_mixed_in(tmp_path):
    lines = [{"video_id": name, "caption": name} for name in ("right", "wrong")]
    write_lines(tmp_path, "MSR-VTT", lines[:1], "test_1k/test-00000-of-00001.parquet")
    write_lines(tmp_path, "MSR-VTT", lines[1:], "train_9k/train-00000-of-00001.parquet")
    write_lines(tmp_path, "MSR-VTT", lines[1:], "train_7k/test-00000-of-00001.parquet")
    assert read_annotations(tmp_path, "MSR-VTT", "x/y", ("test_1k",), "test", ("caption",)) == lines[:1]


def test_missing_videos_are_named_with_places_and_the_command_that_fetches_them(tmp_path):
    write_retrieval(tmp_path, "VATEX", 3)
    for name in ("v1", "v2"):
        for image in (tmp_path / NEW.format(kind="video_ret", task="VATEX") / name).iterdir():
            image.unlink()
    with pytest.raises(DataError) as error:
        mmeb_v2.load_task("VATEX", tmp_path)
    said = str(error.value)
    assert "2 of 3 videos are missing (v1, v2)" in said and "hf download TIGER-Lab/MMEB-V2" in said
    for layout in (NEW, OLD):
        assert str(tmp_path / layout.format(kind="video_ret", task="VATEX") / "v1") in said
    assert "v1.mp4" in said and "tar -xzf video_ret.tar.gz" in said and "--allow-missing" in said
    task = mmeb_v2.load_task("VATEX", tmp_path, allow_missing=True)
    assert len(task.texts) == len(task.videos) == 1 and "2 of 3 videos are missing" in task.notes
    assert mmeb_v2.load_task("VATEX", tmp_path, limit=1).texts == task.texts, "a quick look needs its own videos only"


def test_missing_annotations_are_named_with_the_command_that_fetches_them(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match=r"hf download VLM2Vec/MSVD --repo-type dataset --local-dir .*annotations/MSVD"):
        mmeb_v2.load_task("MSVD", tmp_path)
    with pytest.raises(DataError, match="there is no folder"):
        mmeb_v2.load_task("MSVD", tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([{"video_id": "a", "text": "x"}], "have no column caption"),
        ([{"video_id": "a", "caption": []}], "line 1 of the annotations of MSVD is not as published"),
    ],
)
def test_annotations_of_another_shape_are_refused(lines, message, tmp_path):
    write_lines(tmp_path, "MSVD", lines, "test.jsonl")
    with pytest.raises(DataError, match=message):
        mmeb_v2.load_task("MSVD", tmp_path)


def test_a_damaged_annotation_file_is_named(tmp_path):
    path = write_lines(tmp_path, "MSVD", [{"video_id": "a", "caption": ["x"]}])
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match="cannot read"):
        mmeb_v2.load_task("MSVD", tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [(rb'{"a": "\ud83d"}', "line 2: .*surrogate"), (b"[" * 100_000, "line 2: .*deeply"), (b"\xff", "line 2: .*UTF-8")],
)
def test_a_bad_line_of_annotations_is_named_by_its_number(tmp_path, line, message):
    path = tmp_path / "MSVD.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b"\n")
    with pytest.raises(DataError, match=message):
        read_file(path)
    path = tmp_path / "MSVD.json"
    path.write_bytes(line)
    with pytest.raises(DataError, match="cannot read"):
        read_file(path)


def test_annotations_may_hold_unusual_separators_and_a_byte_order_mark(tmp_path):
    lines = [{"caption": "a\u2028b"}, {"caption": "c\u0085d"}]
    for name, text in (
        ("a.jsonl", "\n".join(json.dumps(line, ensure_ascii=False) for line in lines)),
        ("a.json", json.dumps(lines, ensure_ascii=False)),
    ):
        (tmp_path / name).write_text(text, encoding="utf-8-sig")
        assert read_file(tmp_path / name) == lines
