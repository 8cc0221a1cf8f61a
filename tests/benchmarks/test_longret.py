"""LongRet: built from sources in their published formats, counted exactly, compared with the paper, evaluated."""

import io
import json
import subprocess
import tarfile
import zipfile
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow
import pytest
from pyarrow import parquet

from allocembed.backbones.base import Backbone
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import composition, longret
from allocembed.benchmarks.longret_sources import LOVR_STEPS, SourceVideo, read_lovr, read_vript
from allocembed.benchmarks.paper import BINS, CORPORA, QUERIES, STATISTICS
from allocembed.benchmarks.request import BenchmarkRequest
from allocembed.benchmarks.runner import evaluate
from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.errors import ConfigError, DataError, OutputError
from tests.clips import write_video
from tests.command import run
from tests.datasets_on_disk import write_timed_video

LOVR_MINUTES = {"lovr_a": 17.0, "lovr_b": 25.0, "lovr_c": 40.0}
VRIPT_MINUTES = {"vr-1": 10.0, "vr-2": 12.5, "vr-3": 20.0, "vr-short": 9.9, "vr-long": 30.0, "vr-empty": 14.0}


def write_records(path: Path, records: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(records), path)
    else:
        path.write_text("".join(json.dumps(record) + "\n" for record in records))


def write_lovr_captions(root: Path, suffix: str = ".parquet") -> None:
    """Captions of five, two and four clips, in both splits; one clip of the last video has no caption."""
    for split, videos in {"train": ["lovr_a", "lovr_c"], "test": ["lovr_b"]}.items():
        clips = []
        for video in videos:
            for number in range({"lovr_a": 5, "lovr_b": 2, "lovr_c": 4}[video]):
                caption = "" if (video, number) == ("lovr_c", 1) else f"clip {number} of {video}"
                path = f"{video}/{video}-Scene-00{number}.mp4"
                clips.append({"vid": video, "slice_num": number, "path": path, "cap": caption})
        write_records(root / "caption_data" / f"clip_{split}{suffix}", clips)
        wholes = [{"vid": video, "cap": f"all of {video}"} for video in videos]
        write_records(root / "caption_data" / f"video_{split}{suffix}", wholes)


def write_lovr(root: Path) -> Path:
    """Three videos, as the published script joins them."""
    write_lovr_captions(root)
    for video, minutes in LOVR_MINUTES.items():
        write_timed_video(root / "video_data" / "merged" / f"{video}.mp4", minutes * 60)
    (root / "dataset_info.json").write_text('{"description": "not records"}')
    return root


def vript_captions(video: str) -> str:
    """The caption file of a video: some captions are missing, empty or null."""
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
    return json.dumps({"meta": meta, "data": scenes})


def write_vript(root: Path) -> Path:
    """Six videos, unpacked: one too short, one too long, one without captions."""
    folder = root / "vript_captions" / "vript_long_videos_captions"
    folder.mkdir(parents=True)
    for video, minutes in VRIPT_MINUTES.items():
        write_timed_video(root / "vript_long_videos" / "video_1_of_1095" / f"{video}.mp4", minutes * 60)
        (folder / f"{video}_caption.json").write_text(vript_captions(video))
    return root


def zip_vript(unpacked: Path, root: Path) -> Path:
    """Vript's files zipped as downloaded, beside those that a broader pattern fetches."""
    for folder in ("vript_captions", "vript_long_videos", "vript_long_videos_clips", "vript_short_videos"):
        (root / folder).mkdir(parents=True)
    with zipfile.ZipFile(root / "vript_captions" / "vript_long_videos_captions.zip", "w") as archive:
        for path in unpacked.rglob("*_caption.json"):
            archive.write(path, path.name)
    with zipfile.ZipFile(root / "vript_captions" / "vript_short_videos_captions.zip", "w") as archive:
        archive.writestr("short_caption.json", vript_captions("short"))
    for number, path in enumerate(sorted(unpacked.rglob("*.mp4")), 1):
        with zipfile.ZipFile(root / "vript_long_videos" / f"video_{number}_of_1095.zip", "w") as archive:
            archive.write(path, f"video_{number}_of_1095/{path.name}")
    (root / "vript_long_videos_clips" / "clips_1_of_1095.zip").write_bytes(b"never opened")
    return root


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> tuple[Path, Path]:
    return write_lovr(tmp_path_factory.mktemp("lovr")), write_vript(tmp_path_factory.mktemp("vript"))


@pytest.fixture(scope="module")
def built(sources, tmp_path_factory) -> longret.LongRet:
    lovr, vript = sources
    return longret.build([*read_lovr(lovr), *read_vript(vript)], tmp_path_factory.mktemp("unused"))


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
    assert all(q.query_id.startswith(f"{q.video_id}-Scene-00") for q in asked["LoVR-Clip"])


def test_what_is_left_out_is_named_with_its_reason(built):
    assert built.left_out == [
        "Vript vr-empty: no captions",
        "Vript vr-long: 30 minutes or longer (30.00)",
        "Vript vr-short: shorter than 10 minutes (9.90)",
    ]
    assert longret.reasons(built.left_out)["Vript: 30 minutes or longer"] == 1


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
    assert list(found.left_out) == [
        "Vript: 30 minutes or longer",
        "Vript: no captions",
        "Vript: shorter than 10 minutes",
    ]


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
    assert (out / "left_out.txt").read_text().count("\n") == 3
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


def test_one_source_is_enough(sources, tmp_path):
    text, _ = composition.build_benchmark(sources[0], None, tmp_path / "out")
    assert "Vript-Clip: not built" in text
    with pytest.raises(DataError, match="build it with --vript DIR"):
        longret.make_task(longret.load(tmp_path / "out"), "Vript-Clip")


def test_lovrs_captions_are_read_from_its_evaluations_lines_and_its_readmes_records_too(tmp_path):
    write_lovr_captions(tmp_path / "published")
    write_lovr_captions(tmp_path / "lines", ".jsonl")
    for level in ("clip", "video"):
        with (tmp_path / "lines/caption_data" / f"all_{level}.jsonl").open("w") as file:
            for path in sorted((tmp_path / "lines/caption_data").glob(f"{level}_*.jsonl")):
                file.write(path.read_text())
                path.unlink()
    records = []
    for source in read_lovr(tmp_path / "published"):
        for clip, caption in source.clips.items():
            records.append({"video_id": source.video_id, "clip_id": clip, "clip_caption": caption})
            records[-1] |= {"video_path": "v.mp4", "start_time": 0.0, "video_caption": source.whole}
    write_records(tmp_path / "records" / "lovr.jsonl", records)
    found = [read_lovr(tmp_path / name) for name in ("published", "lines", "records")]
    assert found[0] == found[1] == found[2] and len(found[0]) == 3


def test_unknown_columns_of_lovr_are_named_with_what_was_expected(tmp_path):
    write_records(tmp_path / "caption_data" / "clip_test.parquet", [{"name": "a", "words": "b"}])
    with pytest.raises(DataError) as error:
        read_lovr(tmp_path)
    said = str(error.value)
    assert "found caption_data/clip_test.parquet (name, words); expected caption_data/{clip,video}_{train,test}" in said
    assert "columns vid (or video_id), path (or clip_id) and cap (or caption)" in said and "part_* | tar -xz" in said


def test_lovr_without_joined_videos_says_how_to_join_them(tmp_path):
    write_lovr_captions(tmp_path)
    clips = tmp_path / "video_data" / "long_video_clip" / "lovr_a"
    clips.mkdir(parents=True)
    write_video(clips / "lovr_a-Scene-001.mp4", 4)
    with pytest.raises(DataError) as error:
        composition.build_benchmark(tmp_path, None, tmp_path / "out")
    said = str(error.value)
    assert "LoVR: not joined from its clips: 1, LoVR: no video file: 2" in said and "<vid>.mp4 below" in said
    for step in LOVR_STEPS:
        assert step.format(folder=tmp_path) in said


def test_vript_is_read_from_its_zip_files_and_only_what_is_used_is_unzipped(sources, built, tmp_path):
    root, out = zip_vript(sources[1], tmp_path / "vript"), tmp_path / "out"
    for _ in range(2):
        made = longret.build(read_vript(root), out)
        assert [query for query in built.queries if query.subset.startswith("Vript")] == made.queries
        assert made.left_out == built.left_out
        assert sorted(path.name for path in out.iterdir()) == ["vr-1.mp4", "vr-2.mp4", "vr-3.mp4"]
        assert [video.path for video in made.videos] == [str(out / f"vr-{n}.mp4") for n in (1, 2, 3)]
    # An unpacked video is used where it is.
    write_timed_video(root / "vript_long_videos" / "vr-1.mp4", 700)
    assert longret.build(read_vript(root), out).videos[0].path == str(root / "vript_long_videos" / "vr-1.mp4")


def test_a_damaged_zip_file_is_named(sources, tmp_path):
    root = zip_vript(sources[1], tmp_path / "vript")
    path = root / "vript_long_videos" / "video_1_of_1095.zip"
    content = bytearray(path.read_bytes())
    content[200:300] = bytes(100)
    path.write_bytes(content)
    assert "vr-1: unreadable (Bad CRC-32" in longret.build(read_vript(root), tmp_path / "out").left_out[0]
    path.write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"cannot read .*video_1_of_1095\.zip \(File is not a zip file\)"):
        read_vript(root)


@pytest.mark.slow
def test_the_downloads_run_with_two_commands_and_a_second_run_embeds_nothing(sources, qwen2_folder, tmp_path):
    lovr, vript = tmp_path / "LoVR", zip_vript(sources[1], tmp_path / "Vript")
    write_lovr_captions(lovr)
    # The archive in three parts, and what the joining script makes of its clips.
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        clip = write_video(tmp_path / "clip.mp4", 4)
        for video in LOVR_MINUTES:
            archive.add(clip, f"long_video_clip/{video}/{video}-Scene-001.mp4")
    content, folder = buffer.getvalue(), lovr / "video_data"
    folder.mkdir()
    for number, name in enumerate(("part_aa", "part_ab", "part_ac")):
        (folder / name).write_bytes(content[len(content) * number // 3 : len(content) * (number + 1) // 3])
    subprocess.run(LOVR_STEPS[1].format(folder=lovr), shell=True, check=True, timeout=60)
    assert (folder / "long_video_clip/lovr_a/lovr_a-Scene-001.mp4").is_file()
    for video, minutes in LOVR_MINUTES.items():
        write_timed_video(folder / "merged" / f"{video}.mp4", minutes * 60)
    data = tmp_path / "longret"
    result = run("longret", "build", "--lovr", lovr, "--vript", vript, "--out", data)
    assert result.returncode == 0, result.stderr
    words = ["eval", "longret", "--data", data, "-b", qwen2_folder, "--methods", "base", "--budget", "2f"]
    words += ["--candidates", 2, "--device", "cpu", "--cache", tmp_path / "cache", "--out", tmp_path / "out", "--json"]
    with mock.patch.object(Backbone, "embed", autospec=True, side_effect=Backbone.embed) as embed:
        first = run(*words)
        assert first.returncode == 0, first.stderr
        assert sum(item.patches is not None for call in embed.call_args_list for item in call.args[1]) == 6
        embed.reset_mock()
        assert run(*words).stdout == first.stdout and not embed.called
    (results,) = json.loads(first.stdout)["results"]
    assert [row["n"] for row in results["rows"]] == [8, 3, 8, 3]


def test_a_video_without_a_file_or_with_a_broken_one_is_left_out(tmp_path):
    lovr = write_lovr(tmp_path / "lovr")
    (lovr / "video_data/merged/lovr_a.mp4").unlink()
    (lovr / "video_data/merged/lovr_b.mp4").write_bytes(b"no video")
    made = longret.build(read_lovr(lovr), tmp_path)
    assert [video.video_id for video in made.videos] == ["lovr_c"]
    assert made.left_out[0] == "LoVR lovr_a: no video file" and "lovr_b: unreadable (" in made.left_out[1]


def test_videos_that_went_away_are_named(sources, built, tmp_path):
    longret.save(built, tmp_path)
    gone = longret.LongRetVideo("LoVR", "lovr_a", str(tmp_path / "gone.mp4"), 1020.0)
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
    with pytest.raises(DataError, match=r"expected vript_captions/vript_long_videos_captions\.zip, or its") as error:
        composition.build_benchmark(None, tmp_path, tmp_path / "out")
    assert "--include '*long_videos*' --exclude 'vript_long_videos_clips/*'" in str(error.value), "822 GB less"
    with pytest.raises(DataError, match="allocembed longret build"):
        BenchmarkRequest(benchmark="longret", data=tmp_path).load_tasks()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("text", ["[" * 100_000, '{"meta": {"video_id": []}}', '{"meta": {"video_id": "\\ud83d"}}'])
def test_a_strange_caption_file_of_vript_is_named(tmp_path, text):
    path = tmp_path / "anywhere" / "a_caption.json"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(DataError, match=r"a_caption\.json is not as Vript publishes it"):
        read_vript(tmp_path)
