"""Lines in the index: read with the videos, kept up to date, and searched without a model."""

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace

import av
import numpy as np
import pytest

from allocembed.errors import MissingDependency, VideoError
from allocembed.search import Filters, SearchError, VideoIndex
from allocembed.search.query import Query
from allocembed.search.said import reading
from allocembed.search.said.speech import read_sound
from allocembed.search.said.subtitles import Line
from allocembed.search.store import INSIDE, SPEECH
from allocembed.search.verify import verify
from tests.clips import picture, write_video
from tests.search.said.test_streams import write_with_subtitles

pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")

SAID = ("nothing", "die Tür ist offen", "nothing", "the interest", "rates rise again", "我们去北京")


def write_lines(path: Path, *texts: str) -> Path:
    """A subtitle file with a line every two seconds."""
    clock = "00:00:{:02},000 --> 00:00:{:02},500"
    path.write_text("".join(f"{clock.format(2 * n, 2 * n + 1)}\n{text}\n\n" for n, text in enumerate(texts)))
    return path


def names(hits) -> list[str]:
    return [Path(hit.path).name for hit in hits]


def said(index, query, **options):
    return index.search(query, said=True, **options)


@pytest.fixture
def spoken(index, folder) -> VideoIndex:
    """The index with two subtitle files, opened without a model."""
    write_lines(folder / "v1.srt", "Guten Morgen", "ein Haus", "interest rates")
    write_lines(
        folder / "windows.en.srt",
        "nothing",
        "die Tür ist offen",
        "nothing",
        "the interest",
        "rates rise again",
        "我们去北京",
    )
    assert index.add([folder]).lines == 9
    opened = VideoIndex.open(index.store.uri)
    opened.settings = replace(opened.settings, config=replace(opened.settings.config, backbone="no such model"))
    return opened


def test_what_was_said_is_found_without_a_model_at_its_time(spoken):
    hit = said(spoken, "TUR")[0]
    assert names([hit]) == ["windows.mp4"] and (hit.line, hit.line_start, hit.start) == ("die Tür ist offen", 2.0, 2.0)
    hits = said(spoken, "when do interest rates rise")
    assert names(hits) == ["windows.mp4", "v1.mp4"], "a sentence may go on in the next line"
    assert hits[0].score == 1 > hits[1].score and hits[0].segment > 0
    assert names(said(spoken, "北京")) == ["windows.mp4"]
    assert said(spoken, "elephants") == []
    assert spoken.info()["lines"] == 9 and not verify(spoken)


def test_a_changed_subtitle_file_is_read_again_and_nothing_is_embedded(spoken, folder):
    write_lines(folder / "v1.srt", "ein Elefant")
    (folder / "windows.en.srt").unlink()
    report = spoken.add([folder])  # without the model, embedding would fail
    assert (report.embedded, report.unchanged, report.lines) == (0, 9, 1)
    assert names(said(spoken, "elefant")) == ["v1.mp4"] and said(spoken, "morgen") == [] == said(spoken, "tür")
    assert spoken.add([folder]).lines == 0 and not verify(spoken)


def test_lines_follow_their_video(spoken, folder):
    (folder / "deeper").mkdir()
    for name in ("v1.mp4", "v1.srt"):
        (folder / name).rename(folder / "deeper" / name)
    assert spoken.add([folder]).lines == 0, "moved lines are known by their content"
    assert said(spoken, "morgen")[0].path == str(folder / "deeper" / "v1.mp4") and not verify(spoken)
    spoken.remove([folder / "deeper"])
    assert said(spoken, "morgen") == [] and spoken.info()["lines"] == 6


def test_a_bad_subtitle_file_is_noted_and_its_video_indexed(index, folder):
    (folder / "v0.srt").write_bytes(os.urandom(5000))
    os.mkfifo(folder / "v1.srt")
    (folder / "v2.srt").symlink_to(folder / "nowhere.srt")
    (folder / "v3.srt").mkdir()
    write_lines(folder / "v4.srt", "a good one")
    report = index.add([folder])
    assert (report.unchanged, report.failed, report.lines) == (9, [], 1)
    assert sorted(Path(path).name for path, _ in report.notes) == ["v0.srt", "v1.srt", "v2.srt", "v3.srt"]


def test_an_index_without_lines_says_what_to_do(index):
    with pytest.raises(SearchError, match=r"no lines: put \.srt or \.vtt files beside"):
        said(index, "anything")
    for query in (" ", Query(images=(b"picture",)), Query(("a dog",), unlike=("a cat",))):
        with pytest.raises(SearchError, match="by anything but words"):
            index.search(query, said=True)


def test_an_index_of_an_older_version_is_searched_and_gets_its_lines(index, folder):
    shutil.rmtree(Path(index.store.uri) / "subtitles.lance")
    write_lines(folder / "v1.srt", "a needle")
    opened = VideoIndex.open(index.store.uri, embedder=index.embedder)
    assert opened.search("a needle", top=1) and opened.info()["lines"] == 0
    assert opened.add([folder]).lines == 1
    assert names(said(opened, "needle")) == ["v1.mp4"]


def test_streams_inside_a_video_are_read_once(empty, tmp_path, monkeypatch):
    write_with_subtitles(tmp_path / "inside.mkv")
    assert empty.add([tmp_path / "inside.mkv"]).lines == 2
    assert empty.add([tmp_path / "inside.mkv"], recheck=True).lines == 0
    monkeypatch.setattr(reading, "read_streams", lambda path: pytest.fail("it is read already"))
    assert empty.add([tmp_path / "inside.mkv"]).lines == 0
    assert names(said(empty, "guten morgen")) == ["inside.mkv"]
    monkeypatch.setattr(reading, "read_streams", lambda path: [Line(0.0, 1.0, "a better reader")])
    assert empty.add([tmp_path / "inside.mkv"], recheck=True).lines == 1
    assert names(said(empty, "better")) == ["inside.mkv"] and said(empty, "guten morgen") == [] == verify(empty)


def test_a_video_whose_streams_cannot_be_read_is_noted_and_tried_again(empty, tmp_path, monkeypatch):
    path = write_with_subtitles(tmp_path / "inside.mkv")

    def fail(path):
        raise VideoError(path, "the disk is away")

    with monkeypatch.context() as broken:
        broken.setattr(reading, "read_streams", fail)
        report = empty.add([path])
    assert report.notes == [(str(path), "the disk is away")] and empty.lines.sources() == []
    assert empty.add([path]).lines == 2 and names(said(empty, "guten morgen")) == ["inside.mkv"]


def test_long_words_of_any_script_are_found(index, folder):
    write_lines(folder / "v1.srt", "с достопримечательностями", "დამოუკიდებლობისთვის", "x" * 50)
    assert index.add([folder]).lines == 3
    for word in ("достопримечательностями", "დამოუკიდებლობისთვის", "x" * 50):
        assert names(said(index, word)) == ["v1.mp4"], word


def test_sound_after_a_gap_has_its_own_time(tmp_path):
    windows = list(read_sound(str(write_with_sound(tmp_path / "gap.mkv", starts=(0, 1, 50)))))
    assert [round(begin, 2) for begin, _ in windows] == [0.0, 5.0]
    assert [round(len(samples), -2) for _, samples in windows] == [3200, 1600]


@pytest.mark.parametrize("table", ["lines", "subtitles"])
@pytest.mark.parametrize("before", [True, False])
def test_a_kill_between_the_tables_loses_and_repeats_nothing(spoken, folder, monkeypatch, table, before):
    """The process dies just before or just after one of the two commits."""
    write_lines(folder / "v1.srt", "a needle")
    made = spoken.lines._made

    class Dying:
        def __init__(self, real):
            self.real = real

        def __getattr__(self, name):
            if name in ("add", "execute") and not before:
                return lambda *values: (getattr(self.real, name)(*values), self.die())
            if name in ("add", "merge_insert") and before:
                return lambda *values: self.die()
            value = getattr(self.real, name)
            return (lambda *values: Dying(value(*values))) if callable(value) else value

        def die(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(spoken.lines, "_made", lambda name: Dying(made(name)) if name == table else made(name))
    with pytest.raises(KeyboardInterrupt):
        spoken.add([folder])
    opened = VideoIndex.open(spoken.store.uri)
    assert names(said(opened, "rise again")) == ["windows.mp4"], "what was committed is there"
    opened.add([folder])
    assert names(said(opened, "needle")) == ["v1.mp4"] and said(opened, "morgen") == []
    assert opened.info()["lines"] == 7 and not verify(opened)


def test_verify_names_lines_that_are_missing_or_old_and_recheck_mends_them(spoken, folder):
    source = next(each for each in spoken.lines.sources() if each.origin.endswith("v1.srt"))
    spoken.lines._table("lines").delete(f"source = '{source.source}' and number = 1")
    os.utime(folder / "windows.en.srt", ns=(0, 0))
    problems = verify(spoken)
    assert len(problems) == 2
    assert any("v1.srt: 2 of its 3 lines" in each for each in problems)
    assert any("windows.en.srt: the subtitles have changed" in each for each in problems)
    spoken.add([folder], recheck=True)
    assert not verify(spoken) and names(said(spoken, "Haus")) == ["v1.mp4"]


def test_speech_needs_its_package_and_says_so(index, folder):
    if "faster_whisper" not in sys.modules:
        with pytest.raises(MissingDependency, match=r"allocembed\[speech\]"):
            index.add([folder], speech="small")


def test_speech_is_written_down_where_there_are_no_subtitles(empty, tmp_path, monkeypatch):
    """A stand-in for the library: it must be given real samples, and its segments become lines."""
    heard, broken = [], []

    class WhisperModel:
        def __init__(self, name, device, compute_type):
            assert name == "tiny"

        def transcribe(self, samples, vad_filter):
            heard.append((samples.dtype.name, samples.shape))
            if broken:
                raise RuntimeError("out of memory")
            return iter([SimpleNamespace(start=0.0, end=0.05, text=" Hallo <b>Welt</b>")]), None

    library = ModuleType("faster_whisper")
    library.WhisperModel = WhisperModel
    monkeypatch.setitem(sys.modules, "faster_whisper", library)
    write_with_subtitles(tmp_path / "subtitled.mkv")
    write_with_sound(tmp_path / "spoken.mkv")
    write_video(tmp_path / "silent.mp4", 3)
    broken.append(True)
    report = empty.add([tmp_path], speech="tiny")
    assert (report.embedded, report.lines) == (3, 2) and "out of memory" in report.notes[0][1]
    broken.clear()
    assert empty.add([tmp_path], speech="tiny").lines == 1
    assert heard and heard[0][0] == "float32" and 1000 < heard[0][1][0] < 2000, "a tenth of a second at 16 kHz"
    hits = said(empty, "hallo welt", filters=Filters(speech=True))
    assert names(hits) == ["spoken.mkv"] and hits[0].line == "Hallo Welt"
    heard.clear()
    assert empty.add([tmp_path], speech="tiny").lines == 0 and not heard, "each content is heard once"
    assert empty.add([tmp_path], recheck=True).lines == 0 and names(said(empty, "hallo")) == ["spoken.mkv"], (
        "it is kept"
    )
    assert empty.add([tmp_path], speech="tiny", recheck=True).lines == 0 and heard, "it is heard again"
    origins = sorted((each.origin, each.lines) for each in empty.lines.sources())
    assert origins == [(INSIDE, 0), (INSIDE, 0), (INSIDE, 2), (SPEECH, 0), (SPEECH, 1)]


def write_with_sound(path: Path, starts=(0,)) -> Path:
    """Two frames, and a tenth of a second of sound at each start, in tenths of a second."""
    with av.open(str(path), "w") as container:
        video = container.add_stream("mpeg4", rate=10)
        video.height, video.width, video.pix_fmt = 48, 64, "yuv420p"
        sound = container.add_stream("pcm_s16le", rate=44100, layout="mono")
        for number in range(2):
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture(number))))
        for start in starts:
            silence = av.AudioFrame.from_ndarray(np.zeros((1, 4410), np.int16), format="s16", layout="mono")
            silence.sample_rate, silence.pts = 44100, 4410 * start
            container.mux(sound.encode(silence))
        for stream in (sound, video):
            container.mux(stream.encode(None))
    return path
