"""MMEB-V2: the published strings and frames of every task, from every layout; errors that say what is missing."""

import json
import subprocess
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from allocembed.backbones.base import Backbone, Prompt
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import mmeb_v2
from allocembed.benchmarks.annotations import read_annotations, read_file
from allocembed.benchmarks.paper import BENCHMARKS
from allocembed.benchmarks.runner import evaluate
from allocembed.benchmarks.tasks import instruction_for
from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.errors import DataError
from allocembed.video import sample
from tests.clips import write_video
from tests.command import run
from tests.datasets_on_disk import (
    FILES,
    FOLDERS,
    LINES,
    NEW,
    OLD,
    write_frames,
    write_lines,
    write_published,
    write_questions,
    write_retrieval,
)

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


@pytest.fixture
def few_subsets(monkeypatch):
    """MVBench with two of its twenty subsets, as in the small dataset."""
    spec = mmeb_v2.SPECS["MVBench"]
    assert len(spec.subsets) == len(set(spec.subsets)) == 20
    few = {name: spec.subsets[name] for name in ("action_sequence", "moving_count")}
    monkeypatch.setitem(mmeb_v2.SPECS, "MVBench", replace(spec, subsets=few))


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
    write_lines(tmp_path, name, [line])
    if name == "MVBench":
        write_lines(tmp_path, name, [line], "json/moving_count.json")
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
    assert instruction_for(QA_PROMPT, "siglip2") == QA_PROMPT


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


def test_annotations_may_be_one_file_of_any_format(tmp_path):
    line = LINES["MSVD"][0]
    for number, place in enumerate(("MSVD.parquet", "MSVD.jsonl", "MSVD.json")):
        root = tmp_path / str(number)
        write_lines(root, "MSVD", [line], f"../{place}")
        assert read_annotations(mmeb_v2.SPECS["MSVD"], root) == [line]


def test_only_the_published_file_is_read_from_a_whole_repository(tmp_path):
    right, wrong = [{"video": "a.mp4", "caption": "right"}], [{"video": "a.mp4", "caption": "wrong"}]
    write_lines(tmp_path, "DiDeMo", right)
    for other in ("didemo_train.json", "raw_data/didemo_test.json", "raw_data/tempoTL+didemo_test.json"):
        write_lines(tmp_path, "DiDeMo", wrong, other)
    assert read_annotations(mmeb_v2.SPECS["DiDeMo"], tmp_path) == right
    write_lines(tmp_path, "NExTQA", [LINES["NExTQA"][0]])
    write_lines(tmp_path, "NExTQA", wrong, "OE/test-00000-of-00001.parquet")
    assert len(read_annotations(mmeb_v2.SPECS["NExTQA"], tmp_path)) == 1


def test_egoschemas_frames_are_found_in_both_spellings(tmp_path):
    write_lines(tmp_path, "EgoSchema", [LINES["EgoSchema"][0]])
    frames = tmp_path / "video-tasks/frames/video_qa"
    folder = write_frames(frames / "egoschema" / FOLDERS["EgoSchema"], 2)
    assert mmeb_v2.load_task("EgoSchema", tmp_path).videos == [folder]
    (frames / "egoschema").rename(frames / "EgoSchema")
    assert mmeb_v2.load_task("EgoSchema", tmp_path).videos == [frames / "EgoSchema" / FOLDERS["EgoSchema"]]


def test_mvbenchs_raw_videos_are_found_in_the_folders_of_their_sources(few_subsets, tmp_path):
    raw = tmp_path / "video-tasks/videos/video_qa/MVBench"
    for subset, folder in (("action_sequence", "star/Charades_v1_480"), ("moving_count", "clevrer/video_validation")):
        write_lines(tmp_path, "MVBench", [LINES["MVBench"][0]], f"json/{subset}.json")
        (raw / folder).mkdir(parents=True)
    with pytest.raises(DataError) as error:
        mmeb_v2.load_task("MVBench", tmp_path)
    assert f"  {raw}/star/Charades_v1_480/ZS9XR.mp4\n" in str(error.value) and "ziyan" not in str(error.value)
    videos = [write_video(raw / "star/Charades_v1_480/ZS9XR.mp4", 4)]
    # The videos of one source come as frames.
    videos.append(write_frames(raw / "clevrer/video_validation/ZS9XR.mp4", 2))
    assert mmeb_v2.load_task("MVBench", tmp_path).videos == videos


def test_a_folder_without_images_is_a_missing_video(tmp_path):
    write_retrieval(tmp_path, "VATEX", 2)
    folder = tmp_path / NEW.format(kind="video_ret", task="VATEX") / "v1"
    for image in folder.iterdir():
        image.rename(image.with_suffix(".part"))
    with pytest.raises(DataError, match=r"1 of 2 videos are missing \(v1\)"):
        mmeb_v2.load_task("VATEX", tmp_path)


def test_qwen3_gets_the_strings_of_its_own_evaluation(few_subsets, tmp_path):
    for name in ("NExTQA", "EgoSchema", "Video-MME"):
        line = LINES[name][0]
        write_lines(
            tmp_path, name, [line if name != "Video-MME" else {**line, "options": ["A. x", "none", "C. y", "D."]}]
        )
        write_frames(tmp_path / NEW.format(kind="video_qa", task=name) / FOLDERS[name], 2)
    tasks = {name: mmeb_v2.load_task(name, tmp_path) for name in ("NExTQA", "EgoSchema", "Video-MME")}
    qwen3 = {name: task.for_family("qwen3_vl") for name, task in tasks.items()}
    assert qwen3["NExTQA"].options == [["(A) unhappy", "(B) for fun", "(C) dance", "(D) excited", "(E) hot"]]
    assert tasks["NExTQA"].options == [["unhappy", "for fun", "dance", "excited", "hot"]]
    assert qwen3["NExTQA"].texts == tasks["NExTQA"].texts
    assert qwen3["EgoSchema"].texts[0].startswith("What is C doing? A. C is cooking. B. C")
    assert tasks["EgoSchema"].texts[0].startswith("What is C doing?A. C is cooking. B. C")
    assert qwen3["EgoSchema"].options == tasks["EgoSchema"].options
    # An option without a letter: VLM2Vec's code keeps its last character, which its published scores contain.
    assert (qwen3["Video-MME"].options, tasks["Video-MME"].options) == (
        [["x", "none", "y", "D."]],
        [["x", "e", "y", ""]],
    )


@pytest.mark.slow
def test_a_run_embeds_the_words_of_the_models_family(qwen2_folder, qwen3_folder, tmp_path):
    write_questions(tmp_path, 3)
    task = mmeb_v2.load_task("NExTQA", tmp_path, limit=1)
    for folder, option in ((qwen2_folder, "option 0 of 0"), (qwen3_folder, "(A) option 0 of 0")):
        embedder = AllocEmbed(load_backbone(folder, device="cpu"), "base", EmbedConfig(budget="2f", candidates=2))
        found = evaluate({"base": embedder}, [task], tmp_path / "cache")
        assert found.outcomes[0].task.candidate_texts[0] == option and len(found.outcomes[0].task.texts) == 1


@pytest.mark.slow
def test_all_ten_tasks_run_from_the_downloads_and_a_second_run_embeds_nothing(qwen2_folder, tmp_path):
    root = tmp_path / "MMEB-V2"
    write_published(root, list(mmeb_v2.SPECS["MVBench"].subsets), tmp_path / "work")
    words = ["eval", "mmeb-v2", "--data", root, "-b", qwen2_folder, "--methods", "base", "--budget", "2f"]
    words += ["--candidates", 2, "--device", "cpu", "--cache", tmp_path / "cache", "--out", tmp_path / "out", "--json"]
    for kind in ("video_ret", "video_qa"):
        said = run(*words).stderr
        command = mmeb_v2.UNPACK[kind].format(folder=root / "video-tasks" / "frames")
        assert f"unpack the frames:\n  {command}\n" in said and "hf download" not in said, "the archives are there"
        subprocess.run(command, shell=True, check=True, timeout=60)
    with mock.patch.object(Backbone, "embed", autospec=True, side_effect=Backbone.embed) as embed:
        first = run(*words)
        assert first.returncode == 0, first.stderr
        assert sum(item.patches is not None for call in embed.call_args_list for item in call.args[1]) == 29
        embed.reset_mock()
        assert run(*words).stdout == first.stdout and not embed.called
    (result,) = json.loads(first.stdout)["results"]
    assert {row["subset"]: row["n"] for row in result["rows"]} == {
        task: 20 if task == "MVBench" else 1 for task in FILES
    }


def test_missing_annotations_are_named_with_the_command_that_fetches_them(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError) as error:
        mmeb_v2.load_task("MSVD", tmp_path)
    folder = tmp_path / "annotations/MSVD"
    assert f"there is no {folder}/msvd_test.json and no {folder}.jsonl" in str(error.value)
    fetch = "hf download VLM2Vec/MSVD --repo-type dataset --include 'msvd_test.json' --local-dir"
    assert f"{fetch} {folder}" in str(error.value), "without the raw videos beside it"
    with pytest.raises(DataError, match=r"--include 'json/\*\.json'"):
        mmeb_v2.load_task("MVBench", tmp_path)
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
    write_lines(tmp_path, "MSVD", lines)
    with pytest.raises(DataError, match=message):
        mmeb_v2.load_task("MSVD", tmp_path)


def test_a_damaged_annotation_file_is_named(tmp_path):
    path = write_lines(tmp_path, "MSVD", [{"video_id": "a", "caption": ["x"]}], "../MSVD.parquet")
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
