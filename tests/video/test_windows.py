"""Windows and parts of a video: the right frames, shared passes over the file, and files that are hard to cut."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from allocembed.errors import ConfigError, VideoError
from allocembed.video import Clip, DecodeLimits, VideoSource, open_video, sample
from allocembed.video.decoders.pyav import PyAVDecoder
from allocembed.video.packets import Demuxer
from tests.clips import LONG_GROUPS, RATE, picture, read_all, write_video

SHORT_GROUPS = {"g": "10", "bf": "0", "sc_threshold": "0"}


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
@pytest.mark.parametrize("number", [2, 5])
def test_windows_hold_the_frames_they_report(tmp_path: Path, name: str, number: int) -> None:
    path = write_video(tmp_path / name, 90, options=LONG_GROUPS)
    pictures, times = read_all(path)
    with open_video(path) as video:
        clips = list(video.windows(number, 3))
        info = video.probe()
    assert [clip.start for clip in clips] == np.linspace(0, info.duration, number + 1)[:-1].tolist()
    for place, clip in enumerate(clips):
        low, high = (edge * len(pictures) / number for edge in (place, place + 1))
        assert len(clip) == 3 and np.all((clip.indices >= int(low)) & (clip.indices < high))
        assert np.array_equal(clip.frames, pictures[clip.indices])
        assert np.allclose(clip.times, np.array(times)[clip.indices], atol=1e-3)
        assert (clip.total, clip.duration, clip.source) == (90, info.duration, str(path))


def test_windows_of_a_file_without_timestamps_are_counted_out(tmp_path: Path) -> None:
    path = write_video(tmp_path / "raw.h264", 60, options={"bf": "0"})
    pictures, _ = read_all(path)
    clips = list(open_video(path).windows(3, 2))
    assert [clip.indices.tolist() for clip in clips] == [[5, 15], [25, 35], [45, 55]]
    assert all(np.array_equal(clip.frames, pictures[clip.indices]) for clip in clips)


def test_windows_take_keyframes_that_are_near_enough(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 200, options=SHORT_GROUPS)
    pictures, _ = read_all(path)
    with open_video(path) as video:
        exact, near = list(video.windows(4, 2)), list(video.windows(4, 2, within=0.1))
    assert [clip.indices.tolist() for clip in exact] == [[12, 37], [62, 87], [112, 137], [162, 187]]
    assert [clip.indices.tolist() for clip in near] == [[10, 37], [60, 87], [110, 137], [160, 187]]
    assert all(np.array_equal(clip.frames, pictures[clip.indices]) for clip in near)


def test_windows_by_keyframe_take_keyframes(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 200, options=SHORT_GROUPS)
    pictures, _ = read_all(path)
    clips = list(open_video(path).windows(4, 2, "keyframe"))
    assert all(index % 10 == 0 for clip in clips for index in clip.indices.tolist())
    assert all(np.array_equal(clip.frames, pictures[clip.indices]) for clip in clips)


class Passes:
    """Counts how often files are opened, and how often one is read from its first packet to its last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opens, self.demuxes, self.decoded = 0, 0, 0
        open_file, packets, decode = av.open, Demuxer.packets, PyAVDecoder.decode

        def count_open(*arguments: object, **options: object) -> object:
            self.opens += 1
            return open_file(*arguments, **options)

        def count_packets(demuxer: Demuxer) -> Iterator[av.Packet]:
            passed, decoded = 0, self.decoded
            for packet in packets(demuxer):
                passed += packet.size > 0
                yield packet
            self.demuxes += passed == 200 and self.decoded == decoded

        def count_decode(decoder: PyAVDecoder, packet: av.Packet, **how: bool) -> list[av.VideoFrame]:
            self.decoded += 1
            return decode(decoder, packet, **how)

        monkeypatch.setattr(av, "open", count_open)
        monkeypatch.setattr(Demuxer, "packets", count_packets)
        monkeypatch.setattr(PyAVDecoder, "decode", count_decode)


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "a.flv"])
@pytest.mark.parametrize("seek", ["exact", "keyframe"])
def test_probe_sample_and_windows_share_one_open_and_at_most_one_demux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, seek: str
) -> None:
    path = write_video(tmp_path / name, 200, options={**SHORT_GROUPS, "bf": "2"})
    passes = Passes(monkeypatch)
    with open_video(path) as video:
        video.probe()
        video.sample(12, seek)
        video.sample(3, seek)
        assert len(list(video.windows(6, 4, seek))) == 6
        assert len(list(video.windows(2, 2, seek))) == 2
    assert (passes.opens, passes.demuxes) == (1, 0 if name == "a.mp4" else 1)


def test_an_mp4_sampled_by_its_index_is_not_demuxed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", 200, options={"g": "1"})  # its header does not mark keyframes
    passes = Passes(monkeypatch)
    with open_video(path) as video:
        video.sample(8, "keyframe")
        assert (passes.opens, passes.demuxes) == (1, 0)
        again = video.sample(8)
    assert (passes.opens, passes.demuxes) == (1, 1)
    np.testing.assert_array_equal(again.frames, sample(path, 8).frames)


def test_each_call_on_an_open_file_gives_what_a_fresh_one_gives(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 185, options={**LONG_GROUPS, "x264-params": "open-gop=1"})
    with open_video(path) as video:
        for count, seek in ((24, "keyframe"), (4, "keyframe"), (9, "exact"), (3, "keyframe"), (24, "exact")):
            clip, fresh = video.sample(count, seek), sample(path, count, seek=seek)
            np.testing.assert_array_equal(clip.frames, fresh.frames)
            assert clip.indices.tolist() == fresh.indices.tolist() and clip.times.tolist() == fresh.times.tolist()


@pytest.mark.parametrize("name", ["a.avi", "a.mp4", "a.h264"])
@pytest.mark.parametrize("seek", ["exact", "keyframe"])
def test_windows_share_frames_where_there_are_too_few(tmp_path: Path, name: str, seek: str) -> None:
    stamps = None if name == "a.h264" else [index * 4 for index in range(15)]
    path = write_video(tmp_path / name, 15, stamps=stamps, time_base=Fraction(1, RATE if stamps is None else 1))
    pictures, _ = read_all(path)
    with open_video(path) as video:
        for number in (12, 15, 40):
            clips = list(video.windows(number, 4, seek))
            assert len(clips) == number
            assert all(np.array_equal(clip.frames, pictures[clip.indices]) for clip in clips)


@pytest.mark.parametrize("pause", [3, 30, 50, 61, 77, 99, 110])
@pytest.mark.parametrize("group", ["7", "25"])
def test_keyframe_windows_stay_ascending_around_a_long_pause(tmp_path: Path, pause: int, group: str) -> None:
    stamps = [index + (1500 if index >= pause else 0) for index in range(120)]
    path = write_video(tmp_path / "a.mp4", 120, options={**SHORT_GROUPS, "g": group}, stamps=stamps)
    pictures, _ = read_all(path)
    with open_video(path) as video:
        for number, count in ((12, 4), (5, 3), (6, 2)):
            clips = list(video.windows(number, count, "keyframe"))
            for place, clip in enumerate(clips):
                assert clip.indices[0] >= place * 120 // number and clip.indices[-1] < (place + 1) * 120 / number
                assert (np.diff(clip.indices) > 0).all()
                assert np.array_equal(clip.frames, pictures[clip.indices])


def test_windows_resume_by_counting_where_the_decoder_contradicts_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / "a.mkv", 60, options=SHORT_GROUPS)
    pictures, _ = read_all(path)
    video = open_video(path)
    video.table.stamps[40:] += 1
    clips = list(video.windows(6, 2))
    assert [clip.indices.tolist() for clip in clips] == [[2, 7], [12, 17], [22, 27], [32, 37], [42, 47], [52, 57]]
    assert all(np.array_equal(clip.frames, pictures[clip.indices]) for clip in clips)


def test_time_spent_by_the_caller_between_windows_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, now = write_video(tmp_path / "a.mkv", 60), [0.0]
    monkeypatch.setattr("allocembed.video.clip.time.monotonic", lambda: now[0])
    for _ in open_video(path, limits=DecodeLimits(max_seconds=5)).windows(6, 2):
        now[0] += 4


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts", "raw.h264"])
@pytest.mark.parametrize("seek", ["exact", "keyframe"])
@pytest.mark.parametrize(("start", "end"), [(None, 2.0), (1.2, None), (1.2, 4.0), (0.0, 99.0), (2.41, 2.45)])
def test_a_part_holds_the_frames_between_start_and_end(
    tmp_path: Path, name: str, seek: str, start: float | None, end: float | None
) -> None:
    path = write_video(tmp_path / name, 125, options={**SHORT_GROUPS, "g": "25"})
    pictures, times = read_all(path)
    times = np.arange(125) / RATE if name == "raw.h264" else np.array(times)
    inside = np.flatnonzero((times >= (start or 0) - 1e-9) & (times < (end or 99) - 1e-9))
    low, high = start or 0.0, min(end or 5.0, 5.0)
    with open_video(path, start=start, end=end) as video:
        clips = [video.sample(6, seek), video.sample(200, seek)]
        windows = list(video.windows(3, 2, seek))
        info = video.probe()
    assert clips[1].indices.tolist() == inside.tolist()
    assert (info.total, info.duration) == (len(inside), pytest.approx(high - low))
    assert len(clips[0]) == min(6, len(inside))
    for clip in (*clips, *windows):
        assert set(clip.indices.tolist()) <= set(inside.tolist())
        assert (clip.total, clip.duration) == (len(inside), pytest.approx(high - low))
        np.testing.assert_array_equal(clip.frames, pictures[clip.indices])
    assert all(clip.start == low for clip in clips)
    np.testing.assert_allclose(clips[0].times, times[clips[0].indices], atol=1e-9)
    edges = low + np.linspace(0, high - low, 4)
    assert [window.start for window in windows] == pytest.approx(edges[:-1].tolist())
    if len(inside) > 6 and seek == "exact":
        for window, low, high in zip(windows, edges, edges[1:], strict=False):
            assert (window.times >= low - 0.04).all() and (window.times < high).all()


def test_a_part_from_zero_to_the_end_is_the_whole_video(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 60, options=SHORT_GROUPS)
    for seek in ("exact", "keyframe"):
        whole, part = sample(path, 7, seek=seek), open_video(path, start=0, end=60).sample(7, seek)
        np.testing.assert_array_equal(whole.frames, part.frames)
        assert (whole.total, whole.duration, whole.start) == (part.total, part.duration, part.start)
        assert whole.times.tolist() == part.times.tolist()


def sources(folder: Path) -> dict[str, VideoSource]:
    """Ten seconds at one frame per second, and the part from 3 to 7.5 s, in every form but a file."""
    pictures = [picture(index) for index in range(10)]
    for index, pixels in enumerate(pictures):
        Image.fromarray(pixels).save(folder / f"{index}.png")
    forms = {"folder": folder, "array": np.stack(pictures), "list": pictures}
    return {name: open_video(form, start=3, end=7.5) for name, form in forms.items()}


def describe(clip: Clip) -> tuple[object, ...]:
    return clip.indices.tolist(), clip.times.tolist(), clip.total, clip.duration, clip.start


def test_a_part_of_images_and_arrays_is_sampled_and_cut(tmp_path: Path) -> None:
    for video in sources(tmp_path).values():
        clip = video.sample(3)
        assert describe(clip) == ([3, 5, 7], [3.0, 5.0, 7.0], 5, 4.5, 3.0)
        np.testing.assert_array_equal(clip.frames, [picture(index) for index in (3, 5, 7)])
        assert describe(video.sample(3, "keyframe")) == describe(clip)
        first, second = video.windows(2, 2)
        assert describe(first) == ([3, 4], [3.0, 4.0], 5, 4.5, 3.0)
        assert describe(second) == ([6, 7], [6.0, 7.0], 5, 4.5, 5.25)
        assert (video.probe().total, video.probe().duration) == (5, 4.5)


@pytest.mark.parametrize(("start", "end"), [(10.0, None), (99.0, 100.0), (2.1, 2.3)])
def test_an_empty_part_is_refused_with_the_length_of_the_video(tmp_path: Path, start: float, end: float | None) -> None:
    path = write_video(tmp_path / "a.mkv", 10, stamps=list(range(10)), time_base=Fraction(1, 1))
    raw = write_video(tmp_path / "a.h264", 10, options={"bf": "0"})
    for source, length in ((path, "9.04"), (np.zeros((10, 4, 4, 3), np.uint8), "10.00"), (raw, "0.40")):
        for seek in ("exact", "keyframe"):
            with (
                pytest.raises(VideoError, match=f"the video is {length} s long"),
                open_video(source, start=start, end=end) as video,
            ):
                video.sample(4, seek)


@pytest.mark.parametrize(("start", "end"), [(-1.0, None), (3.0, 3.0), (3.0, 1.0), (None, 0.0), (float("nan"), None)])
def test_a_part_that_makes_no_sense_is_refused(start: float | None, end: float | None) -> None:
    with pytest.raises(ConfigError, match="start must be"):
        open_video(np.zeros((10, 4, 4, 3), np.uint8), start=start, end=end)


def test_windows_refuse_numbers_below_one() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        next(open_video(np.zeros((10, 4, 4, 3), np.uint8)).windows(0, 4))
