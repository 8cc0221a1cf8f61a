"""Cutting moments out of videos."""

import av
import numpy as np
import pytest

from allocembed.errors import SearchError
from allocembed.search import cut as cutting
from allocembed.search.cut import cut
from tests.clips import picture, read_all, write_video


@pytest.mark.parametrize("name", ["a.mp4", "a.m4v", "a.mov", "a.mkv", "a.avi"])
def test_a_cut_begins_at_the_keyframe_before_and_is_not_re_encoded(tmp_path, name):
    path = write_video(tmp_path / name, 100, options={"g": "20", "bf": "0", "sc_threshold": "0"})
    pictures, _ = read_all(path)
    made, begin = cut(path, 1.8, 3.0, tmp_path / "out", "one")
    assert abs(begin - 1.6) < 0.05, "frame 40 of 25 a second is the keyframe before 1.8 s"
    copied, times = read_all(made)
    assert np.array_equal(copied, pictures[40 : 40 + len(copied)]), "the pixels are those of the source"
    assert 75 <= 40 + len(copied) <= 78 and times[0] == 0
    assert [each.name for each in (tmp_path / "out").iterdir()] == [made.name], "no scratch is left"


@pytest.mark.parametrize("sound", [False, True])
@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.webm"])
def test_a_cut_holds_the_moment_where_pictures_are_reordered(tmp_path, name, sound):
    path = tmp_path / name
    with av.open(str(path), "w") as container:
        codec = "libvpx-vp9" if name == "a.webm" else "libx264"
        options = {"g": "60", "bf": "3"} if codec == "libx264" else {"g": "60", "deadline": "realtime", "cpu-used": "8"}
        video = container.add_stream(codec, rate=25, options=options)
        video.width, video.height, video.pix_fmt = 64, 48, "yuv420p"
        audio = container.add_stream("libopus" if name == "a.webm" else "aac", rate=48000) if sound else None
        for number in range(400):
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture(number), format="rgb24")))
            if audio is not None:
                noise = av.AudioFrame.from_ndarray(np.zeros((1, 1920), np.float32), format="flt", layout="mono")
                noise.sample_rate, noise.pts = 48000, 1920 * number
                container.mux(audio.encode(noise))
        for stream in filter(None, (video, audio)):
            container.mux(stream.encode())
    pictures, times = read_all(path)
    for start in (0.0, 1.0, 2.5, 4.9, 7.1, 11.0, 13.0):
        made, begin = cut(path, start, start + 2, tmp_path / "out", f"{start}")
        copied, _ = read_all(made)
        first = int(np.abs(np.array(times) - begin).argmin())
        assert abs(times[first] - begin) < 0.01 and start - 2.41 <= begin <= start + 0.001
        assert np.array_equal(copied[:30], pictures[first : first + 30]) and first + len(copied) >= 25 * (start + 2) - 1


@pytest.mark.parametrize(
    ("name", "codec"), [("a.avi", "mpeg4"), ("a.avi", "libx264"), ("a.m2v", "mpeg2video"), ("a.mpg", "mpeg2video")]
)
@pytest.mark.parametrize("start", [0.0, 0.02, 2.5])
def test_a_first_keyframe_behind_the_start_is_where_a_cut_begins(tmp_path, name, codec, start):
    """Where pictures are reordered, the first time of some containers is that of a later picture."""
    path = write_video(tmp_path / name, 150, codec=codec, options={"g": "12", "bf": "2"})
    made, begin = cut(path, start, start + 2, tmp_path / "out", "one")
    assert begin <= start + 0.09 and len(read_all(made)[0]) >= 45


def test_a_cut_before_the_first_keyframe_says_where_that_is(tmp_path):
    path = write_video(tmp_path / "a.ts", 200, options={"g": "100", "bf": "0", "sc_threshold": "0"})
    data = path.read_bytes()
    with av.open(str(path)) as container:
        second = [packet.pos for packet in container.demux(video=0) if packet.is_keyframe][1]
    cut_off = tmp_path / "b.ts"
    cut_off.write_bytes(data[: 188 * 3] + data[second // 2 // 188 * 188 :])
    with pytest.raises(SearchError, match=r"its first keyframe is at \d\.\d s; choose a moment that ends later"):
        cut(cut_off, 0.1, 0.3, tmp_path / "out", "one")


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
def test_what_a_cut_keeps_in_memory_does_not_grow_with_the_distance_to_the_keyframe(tmp_path, monkeypatch, name):
    path, alive, most = write_video(tmp_path / name, 600, options={"g": "600", "bf": "0", "sc_threshold": "0"}), 0, 0
    packets = cutting._packets

    class Counted:
        def __init__(self, packet):
            nonlocal alive, most
            self.__dict__["packet"] = packet
            alive += 1
            most = max(most, alive)

        def __getattr__(self, name):
            return getattr(self.__dict__["packet"], name)

        def __del__(self):
            nonlocal alive
            alive -= 1

    monkeypatch.setattr(cutting, "_packets", lambda *given: map(Counted, packets(*given)))
    with av.open(str(path)) as given:
        video = given.streams.video[0]
        count = sum(1 for _ in cutting._with_decode_times(cutting._from_keyframe(given, [video], 20.0, 0)))
    assert count == 600 and most < 20


def test_two_cuts_to_the_same_place_at_once_do_not_clash(tmp_path, monkeypatch):
    path = write_video(tmp_path / "a.mp4", 100, options={"g": "20", "bf": "0", "sc_threshold": "0"})
    out = tmp_path / "out"
    copy, other = cutting.copy_packets, []

    def overtaken(*given):
        begin = copy(*given)
        if not other:
            other.append(True)
            cut(path, 0, 4, out, "one")
        return begin

    monkeypatch.setattr(cutting, "copy_packets", overtaken)
    made, begin = cut(path, 1.8, 3.0, out, "one")
    assert abs(begin - 1.6) < 0.05 and len(read_all(made)[0]) < 50, "the last to finish wins"
    assert list(out.iterdir()) == [made]


def test_a_cut_that_fails_says_so_and_leaves_the_old_one(tmp_path):
    (tmp_path / "a.mp4").write_text("no video")
    (tmp_path / "one.mp4").write_text("old")
    with pytest.raises(SearchError, match=r"cannot cut .*: Invalid data.*; check the file, and the space for"):
        cut(tmp_path / "a.mp4", 0, 1, tmp_path, "one")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.mp4", "one.mp4"]
    assert (tmp_path / "one.mp4").read_text() == "old"


def test_a_cut_of_a_file_that_is_gone_says_so(tmp_path):
    with pytest.raises(SearchError, match="it is gone"):
        cut(tmp_path / "a.mp4", 0, 1, tmp_path, "one")


def test_a_codec_that_the_container_cannot_hold_is_cut_into_matroska(tmp_path):
    path = write_video(tmp_path / "a.mkv", 50, options={"g": "20", "bf": "0"}).rename(tmp_path / "a.webm")
    made, _ = cut(path, 0, 1, tmp_path / "out", "one")
    assert made.name == "one.mkv" and len(read_all(made)[0]) >= 25
    assert list((tmp_path / "out").iterdir()) == [made]


def test_a_codec_that_no_container_can_hold_is_an_error_in_words(tmp_path, monkeypatch):
    def refuse(*given):
        raise ValueError("'matroska' format does not support 'flv' codec")

    path = write_video(tmp_path / "a.mp4", 10)
    monkeypatch.setattr(cutting, "copy_packets", refuse)
    with pytest.raises(
        SearchError, match=r"cannot cut .*a\.mp4: 'matroska' format does not support 'flv' codec; check"
    ):
        cut(path, 0, 0.2, tmp_path / "out", "one")
