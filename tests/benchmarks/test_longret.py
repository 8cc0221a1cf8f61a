"""LongRet: built from sources in their published formats, counted exactly, compared with the paper, evaluated."""

import json
from pathlib import Path

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import composition, longret
from allocembed.benchmarks.longret import SourceVideo, read_lovr, read_vript
from allocembed.benchmarks.paper import BINS, CORPORA, QUERIES, STATISTICS
from allocembed.benchmarks.request import BenchmarkRequest
from allocembed.benchmarks.runner import evaluate
from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.errors import ConfigError, DataError, OutputError
from tests.datasets_on_disk import write_timed_video

LOVR_MINUTES = {"lovr_a": 17.0, "lovr_b": 25.0, "lovr_c": 40.0}
VRIPT_MINUTES = {"vr-1": 10.0, "vr-2": 12.5, "vr-3": 20.0, "vr-short": 9.9, "vr-empty": 14.0}


def write_lovr(root: Path, suffix: str = ".jsonl") -> Path:
    """Three videos with five, two and four clips; one clip of the last has no caption."""
    lines = []
    for (video, minutes), clips in zip(LOVR_MINUTES.items(), (5, 2, 4), strict=True):
        write_timed_video(root / "videos" / f"{video}.mp4", minutes * 60)
        for number in range(clips):
            caption = "" if (video, number) == ("lovr_c", 1) else f"clip {number} of {video}"
            lines.append(
                {
                    "video_id": video,
                    "clip_id": f"{video}_{number}",
                    "video_path": f"videos/{video}.mp4",
                    "start_time": 10.0 * number,
                    "end_time": 10.0 * number + 9,
                    "clip_caption": caption,
                    "video_caption": f"all of {video}",
                }
            )
    if suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(lines), root / "records.parquet")
    else:
        (root / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (root / "dataset_info.json").write_text('{"description": "not records"}')
    return root


def write_vript(root: Path) -> Path:
    """Five videos: one too short, one without captions, one whose captions are partly missing, empty or null."""
    folder = root / "vript_captions" / "vript_long_videos_captions"
    folder.mkdir(parents=True)
    for video, minutes in VRIPT_MINUTES.items():
        write_timed_video(root / "vript_long_videos" / f"{video}.mp4", minutes * 60)
        contents = {"vr-2": ["first of vr-2", "", None, "second of vr-2", "first of vr-2"], "vr-empty": ["", None]}.get(
            video, [f"scene {number} of {video}" for number in range(4)]
        )
        scenes = {}
        for number, content in enumerate(contents, 1):
            name = f"{video}-Scene-{number:03}"
            caption = None if content is None else {"shot_type": "Medium", "camera_movement": "static"}
            if caption:
                caption |= {"content": content, "scene_title": "t"}
            scenes[name] = {"video_id": video, "clip_id": name, "video_title": "t", "caption": caption, "voiceover": []}
        if video == "vr-3":
            scenes["vr-3-Scene-005"] = None
        meta = {"video_id": video, "video_title": "t", "num_clips": len(scenes), "integrity": video != "vr-2"}
        (folder / f"{video}_caption.json").write_text(json.dumps({"meta": meta, "data": scenes}))
    return root


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> tuple[Path, Path]:
    return write_lovr(tmp_path_factory.mktemp("lovr")), write_vript(tmp_path_factory.mktemp("vript"))


@pytest.fixture(scope="module")
def built(sources) -> longret.LongRet:
    lovr, vript = sources
    return longret.build([*read_lovr(lovr), *read_vript(vript)])


def test_queries_are_drawn_as_the_paper_says(built):
    asked = {subset: [q for q in built.queries if q.subset == subset] for subset in QUERIES}
    assert {subset: len(queries) for subset, queries in asked.items()} == {
        "LoVR-Clip": 3 + 2 + 3,
        "LoVR-Video": 3,
        "Vript-Clip": 3 + 2 + 3,
        "Vript-Video": 3,
    }
    assert {q.text for q in asked["LoVR-Video"]} == {f"all of {video}" for video in LOVR_MINUTES}
    texts = {q.video_id: q.text for q in asked["Vript-Video"]}
    assert texts["vr-1"] == "scene 0 of vr-1 scene 1 of vr-1 scene 2 of vr-1 scene 3 of vr-1"
    assert texts["vr-2"] == "first of vr-2 second of vr-2 first of vr-2", "what is missing is passed over"
    clips = [q.text for q in asked["Vript-Clip"] if q.video_id == "vr-2"]
    assert clips == ["first of vr-2", "second of vr-2"], "an empty caption is not eligible, nor one that is there twice"
    assert all(q.text == f"clip {q.query_id[-1]} of {q.video_id}" for q in asked["LoVR-Clip"])


def test_what_is_left_out_is_named_with_its_reason(built):
    assert built.left_out == ["Vript vr-empty: no captions", "Vript vr-short: shorter than 10 minutes (9.90)"]
    assert longret.reasons(built.left_out) == {"Vript: no captions": 1, "Vript: shorter than 10 minutes": 1}


def test_the_seed_alone_decides_which_clips_are_drawn():
    many = SourceVideo("LoVR", "v", None, {str(i): f"c{i}" for i in range(50)}, "all")
    drawn = [tuple(q.query_id for q in longret.draw_queries(many, seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2] and len(drawn[0]) == 4


def test_the_composition_of_known_durations_is_exact(built):
    found = composition.compose(built)
    assert vars(found.subsets["LoVR-Clip"]) == {"queries": 8, "targets": 3, "videos": 3}
    assert vars(found.subsets["Vript-Video"]) == {"queries": 3, "targets": 3, "videos": 3}
    lovr, vript = found.corpora["LoVR"], found.corpora["Vript"]
    assert (lovr.videos, round(lovr.hours, 6)) == (3, round(82 / 60, 6))
    expected = [82 / 3, 17.0, 21.0, 25.0, 32.5, 38.5, 40.0]
    assert [lovr.minutes[name] for name in STATISTICS] == pytest.approx(expected, abs=1e-4)
    assert list(lovr.bins.values()) == [0, 0, 1, 1, 1]
    expected = [42.5 / 3, 10.0, 11.25, 12.5, 16.25, 19.25, 20.0]
    assert [vript.minutes[name] for name in STATISTICS] == pytest.approx(expected, abs=1e-4)
    assert list(vript.bins.values()) == [0, 2, 0, 1, 0], "bins are closed on the left and open on the right"
    assert found.left_out == {"Vript: no captions": 1, "Vript: shorter than 10 minutes": 1}


def test_every_difference_from_the_paper_is_named(built):
    said = composition.differences(composition.compose(built))
    assert "LoVR-Clip queries: 8, in the paper 1,401 (-1,393)" in said
    assert "LoVR median in minutes: 25.00, in the paper 21.56 (+3.44)" in said
    assert "Vript videos of 10–15 min: 2, in the paper 1,560 (-1,558)" in said
    assert not any(line.startswith("Vript min in") for line in said), "10.00 is the paper's own"
    assert composition.differences(composition.Composition({}, {}, {})) == [f"{s}: not built" for s in QUERIES]


def test_the_papers_own_composition_has_no_differences():
    subsets = {
        name: composition.Subset(count, 1, CORPORA[name.split("-")[0]].videos) for name, count in QUERIES.items()
    }
    assert composition.differences(composition.Composition(subsets, CORPORA, {})) == []
    assert "Every number is the paper's." in composition.markdown(composition.Composition(subsets, CORPORA, {}))
    assert list(BINS) == list(CORPORA["LoVR"].bins)


def test_the_benchmark_is_built_into_a_folder_that_the_evaluation_reads(sources, qwen2_folder, tmp_path):
    lovr, vript = sources
    out = tmp_path / "longret"
    text, files = composition.build_benchmark(lovr, vript, out)
    assert "(a) Evaluation composition" in text and "## Differences from the paper" in text
    assert text == (out / "composition.md").read_text() and sorted(files) == sorted(out.iterdir())
    assert json.loads((out / "composition.json").read_text())["subsets"]["Vript-Clip"]["queries"] == 8
    assert (out / "left_out.txt").read_text().count("\n") == 2
    tasks = BenchmarkRequest(benchmark="longret", data=out).load_tasks()
    clips = tasks[2]
    assert len(clips.texts) == 8 and [video.stem for video in clips.videos] == ["vr-1", "vr-2", "vr-3"]
    assert np.array_equal(clips.targets, [0, 0, 0, 1, 1, 2, 2, 2]) and not clips.is_qa
    backbone, config = load_backbone(qwen2_folder, device="cpu"), EmbedConfig(budget="2f", candidates=4)
    embedders = {method: AllocEmbed(backbone, method, config) for method in ("base", "uniform")}
    scores = evaluate(embedders, tasks, tmp_path / "cache").scores
    assert [(score.method, score.subset, score.n) for score in scores[:4]] == [
        ("base", "LoVR-Clip", 8),
        ("base", "LoVR-Video", 3),
        ("base", "Vript-Clip", 8),
        ("base", "Vript-Video", 3),
    ]


def test_a_full_disk_is_named_and_leaves_whole_files_only(sources, tmp_path, full_disk):
    with pytest.raises(OutputError) as error:
        composition.build_benchmark(sources[0], None, tmp_path)
    assert str(error.value) == full_disk.format(tmp_path / "composition.md")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["queries.parquet", "videos.parquet"]


def test_records_may_be_parquet_and_one_source_is_enough(tmp_path):
    lovr = write_lovr(tmp_path / "lovr", ".parquet")
    text, _ = composition.build_benchmark(lovr, None, tmp_path / "out")
    assert "Vript-Clip: not built" in text
    with pytest.raises(DataError, match="build it with --vript DIR"):
        longret.make_task(longret.load(tmp_path / "out"), "Vript-Clip")


def test_a_video_without_a_file_or_with_a_broken_one_is_left_out(sources, tmp_path):
    lovr = write_lovr(tmp_path / "lovr")
    (lovr / "videos" / "lovr_a.mp4").unlink()
    (lovr / "videos" / "lovr_b.mp4").write_bytes(b"no video")
    made = longret.build(read_lovr(lovr))
    assert [video.video_id for video in made.videos] == ["lovr_c"]
    assert made.left_out[0] == "LoVR lovr_a: no video file" and "lovr_b: unreadable (" in made.left_out[1]


def test_videos_that_went_away_are_named(sources, built, tmp_path):
    longret.save(built, tmp_path)
    gone = longret.Video("LoVR", "lovr_a", str(tmp_path / "gone.mp4"), 1020.0)
    lost = longret.LongRet([gone, *built.videos[1:]], built.queries, [])
    with pytest.raises(DataError, match=r"1 of 3 videos are missing, such as .*gone\.mp4"):
        longret.make_task(lost, "LoVR-Clip")
    task = longret.make_task(lost, "LoVR-Clip", allow_missing=True)
    assert len(task.videos) == 2 and len(task.texts) == 5 and "1 of 3 videos are missing" in task.notes


def test_a_missing_source_is_named_with_the_command_that_fetches_it(tmp_path):
    with pytest.raises(ConfigError, match="give --lovr DIR, --vript DIR or both"):
        composition.build_benchmark(None, None, tmp_path / "out")
    with pytest.raises(DataError, match="hf download debugger123/LoVR-benchmark"):
        composition.build_benchmark(tmp_path, None, tmp_path / "out")
    with pytest.raises(DataError, match=r"there are no \*_caption.json"):
        composition.build_benchmark(None, tmp_path, tmp_path / "out")
    with pytest.raises(DataError, match="allocembed longret build"):
        BenchmarkRequest(benchmark="longret", data=tmp_path).load_tasks()
    assert not (tmp_path / "out").exists()


def test_a_path_longer_than_the_file_system_allows_is_a_missing_video(tmp_path):
    line = {"video_id": "a", "clip_id": "a_1", "clip_caption": "a dog", "video_path": "n" * 300}
    (tmp_path / "lovr.jsonl").write_text(json.dumps(line), encoding="utf-8-sig")
    (found,) = longret.read_lovr(tmp_path)
    assert found.path is None and found.clips == {"a_1": "a dog"}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"meta": {"video_id": []}}', '{"meta": {"video_id": "\\ud83d"}}'])
def test_a_strange_caption_file_of_vript_is_named(tmp_path, text):
    path = tmp_path / longret.VRIPT_CAPTIONS / "a_caption.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(DataError, match=r"a_caption\.json is not as Vript publishes it"):
        longret.read_vript(tmp_path)
