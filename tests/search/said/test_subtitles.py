"""Subtitle files: which belong to a video, and what is read of them."""

import os
import time

import pytest

from allocembed.search.said import subtitles
from allocembed.search.said.subtitles import Line, beside, decoded, parse, read_bytes


def names(folder, video):
    return [os.path.basename(path) for path in beside([str(folder / video)])[str(folder / video)]]  # noqa: PTH119


def test_subtitles_have_the_name_of_their_video_and_maybe_a_language(tmp_path):
    mine = ["talk.en.forced.vtt", "talk.mp4.srt", "talk.SRT", "talk.pt-BR.srt", "talk.srt"]
    others = [
        "talk.part.two.three.srt",
        "talkshow.srt",
        "talk.de.mkv",
        "talk.de.srt",
        ".talk.srt",
        "talk.txt",
        "talk.12.srt",
    ]
    for name in ["talk.mp4", *mine, *others]:
        (tmp_path / name).touch()
    assert sorted(names(tmp_path, "talk.mp4")) == sorted(mine)
    assert names(tmp_path, "talk.de.mkv") == ["talk.de.srt"], "the longest name that fits"


def test_a_folder_that_cannot_be_listed_says_nothing_about_its_videos(tmp_path):
    assert beside([str(tmp_path / "gone" / "talk.mp4")]) == {}


def test_markup_numbers_and_notes_are_no_lines():
    text = """WEBVTT - a title

STYLE
::cue { color: red }

NOTE a comment

first
00:01.000 --> 00:02.500 align:start position:0%
<c.yellow><00:01.200>Good</c> {\\an8}morning,
<v Ann>it&#39;s&nbsp;me\u202e</v>

7
01:00:00,5 -> 01:00:02
100
8
01:00:03,000 --> 01:00:01,000
backwards
"""
    assert parse(text) == [
        Line(1.0, 2.5, "Good morning, it's me"),
        Line(3600.5, 3602.0, "100"),
        Line(3603.0, 3603.0, "backwards"),
    ]


def test_captions_that_roll_up_are_not_repeated():
    rows = "00:01.000 --> 00:02.000\none\n\n00:02.000 --> 00:03.000\none\ntwo\n\n00:03.000 --> 00:04.000\ntwo\n"
    assert parse(rows) == [Line(1.0, 3.0, "one"), Line(2.0, 4.0, "two")]


@pytest.mark.parametrize(
    ("text", "encoding", "name"),
    [
        ("ä 走", "utf-8", "a.srt"),
        ("ä 走", "utf-8-sig", "a.srt"),
        ("ä 走", "utf-16", "a.srt"),
        ("ä", "cp1252", "a.de.srt"),
        ("走", "cp932", "a.ja.srt"),
        ("走", "gb18030", "a.zh-Hans.srt"),
    ],
)
def test_encodings_are_recognised(text, encoding, name):
    assert decoded(text.encode(encoding), name) == text


def test_a_character_cut_in_two_by_the_limit_is_left_out(monkeypatch):
    monkeypatch.setattr(subtitles, "LARGEST_SUBTITLES", 4)
    assert decoded("aä走".encode()[:4]) == "aä"


def test_ten_megabytes_of_anything_are_read_in_bounded_time(tmp_path):
    path = tmp_path / "a.srt"
    for row in (b"<", b"{\\", b"00:00:01,0 --> 00:00:02,0\nx\n\n"):
        content = row * (10_000_000 // len(row))
        path.write_bytes(content)
        started = time.monotonic()
        lines = parse(decoded(read_bytes(str(path)), path.name))
        assert time.monotonic() - started < 5
        assert len(lines) <= subtitles.MOST_LINES_OF_FILE and all(
            len(line.text) <= subtitles.LONGEST_LINE for line in lines
        )


def test_a_fifo_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "a.srt")
    with pytest.raises(OSError, match="regular file"):
        read_bytes(str(tmp_path / "a.srt"))


def test_one_bad_byte_garbles_only_itself():
    assert decoded("Тишина и мир".encode() + b"\xff!", "a.ru.srt") == "Тишина и мир\ufffd!"
    assert decoded("Тишина и мир".encode("cp1251"), "a.ru.srt") == "Тишина и мир"
