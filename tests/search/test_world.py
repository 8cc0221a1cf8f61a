"""Search that really finds: the bundled nano model on videos of its world, through the command line.

VIDEOS in the environment sets another number of videos than 22, which is the least.
"""

import json
import os
from pathlib import Path

import pytest

from allocembed.search import VideoIndex
from tests.command import run
from tests.search.said.test_reading import write_lines
from tests.world_videos import draw_videos, sentences, write_videos

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")


pytestmark = pytest.mark.slow
VIDEOS = int(os.environ.get("VIDEOS", "22"))


@pytest.fixture(scope="module")
def timelines():
    return draw_videos(VIDEOS - VIDEOS // 15, VIDEOS // 15, seed=606)


@pytest.fixture(scope="module")
def place(timelines, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    (folder / "videos").mkdir()
    write_videos(timelines, folder / "videos")
    result = run("index", folder / "videos", "--to", folder / "index", "--backbone", "nano-qwen3")
    assert result.returncode == 0 and f"{VIDEOS} embedded" in result.stderr, result.stderr
    return folder / "index"


def test_sentences_find_their_video_and_their_moment(timelines, place):
    asked = sentences(timelines, moments=VIDEOS // 2, whole=VIDEOS // 2, seed=1)
    index = VideoIndex.open(place)
    found = [index.search(sentence.text, top=1)[0] for sentence in asked]
    right = [Path(hit.path).name == sentence.name for hit, sentence in zip(found, asked, strict=True)]
    assert sum(right) >= 0.9 * len(asked), right
    overlaps = [
        ok and hit.start < sentence.moment[1] and sentence.moment[0] < hit.end
        for hit, sentence, ok in zip(found, asked, right, strict=True)
        if sentence.moment
    ]
    print(f"{sum(right)} of {len(asked)} sentences find their video, {sum(overlaps)} of {len(overlaps)} their moment")
    assert len(overlaps) == VIDEOS // 2 and sum(overlaps) >= 0.8 * len(overlaps), overlaps


def test_the_command_finds_and_cuts_the_moment(timelines, place, tmp_path):
    sentence = sentences(timelines, moments=1, whole=0, seed=2)[0]
    result = run("search", place, sentence.text, "--top", 2, "--json", "--clip", tmp_path / "cut")
    assert result.returncode == 0, result.stderr
    hits = json.loads(result.stdout)
    assert Path(hits[0]["path"]).name == sentence.name and len(hits) == 2
    assert len(list((tmp_path / "cut").glob("01-*.mp4"))) == 1
    result = run("search", place, "--like", hits[0]["path"], "--top", 1, "--json")
    assert result.returncode == 0 and json.loads(result.stdout)[0]["path"] == hits[0]["path"]


def test_what_only_speech_answers_and_what_only_pixels_answer_both_come_first(timelines, place):
    folder = place.parent / "videos"
    chatter = [
        "so what do we do now",
        "a good sign",
        "the word of the day",
        "I have seen it on the beach",
        "red or blue",
    ]
    written = 0
    for number, video in enumerate(sorted(folder.glob("*.mp4"))):
        answer = ["when interest", "rates rise again"] if number == 21 else []
        said = [*chatter[number % 5 :], *answer]
        write_lines(video.with_suffix(".srt"), *said)
        written += len(said)
    index = VideoIndex.open(place)
    report = index.add([folder])
    assert report.embedded == 0 and report.lines == written
    hit = index.search("interest rates rise", top=3)[0]
    assert Path(hit.path).name == "021.mp4" and hit.line and hit.start == hit.line_start
    for sentence in sentences(timelines, moments=6, whole=6, seed=3):
        vector = index.embed_query(sentence.text)
        by_both = index.search(sentence.text, top=1, vector=vector)[0]
        assert by_both.video == index.search_vector(vector, top=1)[0].video and not by_both.line


def test_what_was_spent_is_told_and_within_the_budget(place):
    result = run("index", "info", place, "--json")
    info = json.loads(result.stdout)
    assert (
        result.returncode == 0
        and info["videos"] == VIDEOS
        and info["allocator"] == "learned"
        and info["backbone"] == "nano-qwen3"
    )
    stored = [segment for segments in VideoIndex.open(place).store.segments().values() for segment in segments]
    assert all(segment.cost <= segment.budget for segment in stored)
    assert sum(segment.cost for segment in stored) == info["tokens"]
