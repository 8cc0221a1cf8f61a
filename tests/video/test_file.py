"""Sampling from whole, valid video files: the right frames, at the right times, the right way up."""

import random
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocembed.video import Seek, candidate_indices, is_video, open_video, probe, sample
from allocembed.video.decoders import pyav
from allocembed.video.decoders.base import FrameTable
from allocembed.video.decoders.pyav import PyAVDecoder
from allocembed.video.packets import Demuxer
from allocembed.video.source import Part, choose_frames
from tests.clips import HEIGHT, LONG_GROUPS, RATE, WIDTH, picture, read_all, write_video
from tests.nvdec import Library

VP9 = {"g": "60", "lag-in-frames": "16", "auto-alt-ref": "1", "cpu-used": "5"}
X265 = "keyint=60:min-keyint=60:bframes=4:log-level=none:open-gop="
ENCODINGS = {
    "h264-mp4": ("a.mp4", "libx264", LONG_GROUPS),
    "h264-mov-all-intra": ("a.mov", "libx264", {"g": "1"}),
    "h264-mp4-short-groups": ("a.mp4", "libx264", {"g": "3", "bf": "2", "sc_threshold": "0", "keyint_min": "1"}),
    "h264-mp4-open-groups": ("a.mp4", "libx264", {**LONG_GROUPS, "x264-params": "open-gop=1"}),
    "h264-mp4-intra-refresh": ("a.mp4", "libx264", {"x264-params": "intra-refresh=1:keyint=60:bframes=0"}),
    "h264-mp4-interlaced": ("a.mp4", "libx264", {**LONG_GROUPS, "x264-params": "interlaced=1:bframes=5"}),
    "h264-mkv": ("a.mkv", "libx264", LONG_GROUPS),
    "h264-ts": ("a.ts", "libx264", LONG_GROUPS),
    "h264-ts-open-groups": ("a.ts", "libx264", {**LONG_GROUPS, "x264-params": "open-gop=1"}),
    "h264-flv": ("a.flv", "libx264", LONG_GROUPS),
    "h264-avi-invented-timestamps": ("a.avi", "libx264", LONG_GROUPS),
    "h264-raw-no-timestamps": ("a.h264", "libx264", LONG_GROUPS),
    "hevc-mp4": ("a.mp4", "libx265", {"x265-params": X265 + "0"}),
    "hevc-mp4-open-groups": ("a.mp4", "libx265", {"x265-params": X265 + "1"}),
    "hevc-mp4-temporal-layers": ("a.mp4", "libx265", {"x265-params": X265 + "0:temporal-layers=2:b-adapt=0"}),
    "hevc-mkv-open-groups": ("a.mkv", "libx265", {"x265-params": X265 + "1"}),
    "vp8-webm": ("a.webm", "libvpx", {"g": "60", "deadline": "realtime", "cpu-used": "8"}),
    "vp9-webm-hidden-frames": ("a.webm", "libvpx-vp9", VP9),
    "av1-mp4-hidden-frames": ("a.mp4", "libsvtav1", {"g": "60", "preset": "12"}),
    "av1-webm-hidden-frames": ("a.webm", "libsvtav1", {"g": "60", "preset": "12"}),
    "mpeg2-mpg": ("a.mpg", "mpeg2video", {"g": "12", "bf": "2"}),
    "mpeg2-mkv": ("a.mkv", "mpeg2video", {"g": "12", "bf": "2"}),
    "mpeg4-mp4": ("a.mp4", "mpeg4", {"g": "60", "bf": "2"}),
    "mpeg4-avi": ("a.avi", "mpeg4", {"g": "60", "bf": "2"}),
}  # fmt: skip


@pytest.fixture(scope="module", params=ENCODINGS.values(), ids=ENCODINGS)
def encoded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A video of 185 frames in some codec and container, and all its frames."""
    name, codec, options = request.param
    path = write_video(tmp_path_factory.mktemp("encoded") / name, 185, codec=codec, options=options)
    return path, read_all(path)[0]


@pytest.mark.parametrize("count", [1, 2, 5, 24])
def test_exact_frames_are_those_of_a_full_decode(encoded: tuple[Path, np.ndarray], count: int) -> None:
    path, everything = encoded
    clip = sample(path, count)
    assert clip.total == len(everything) == 185
    assert clip.indices.tolist() == np.linspace(0, 184, count, dtype=int).tolist()
    np.testing.assert_array_equal(clip.frames, everything[clip.indices])
    np.testing.assert_allclose(clip.times, clip.indices / RATE, atol=0.0011)  # FLV and WebM count milliseconds
    assert clip.duration == pytest.approx(185 / RATE, abs=0.002)


@pytest.mark.parametrize("count", [1, 3, 4, 24])
def test_keyframe_mode_reports_the_frames_it_took(encoded: tuple[Path, np.ndarray], count: int) -> None:
    path, everything = encoded
    clip = sample(path, count, seek="keyframe")
    assert clip.total == 185
    assert len(clip) == count
    assert (np.diff(clip.indices) > 0).all()
    np.testing.assert_array_equal(clip.frames, everything[clip.indices])
    np.testing.assert_allclose(clip.times, clip.indices / RATE, atol=0.0011)


def test_the_frames_at_given_seconds_are_those_that_are_shown_then(encoded: tuple[Path, np.ndarray]) -> None:
    path, everything = encoded
    with open_video(path) as video:
        clip = video.frames_at([5.01, -1.0, 2.01, 2.02, 99.0])
        np.testing.assert_array_equal(clip.frames, everything[[0, 50, 125, 184]])
        np.testing.assert_allclose(clip.times, np.array([0, 50, 125, 184]) / RATE, atol=0.0011)
        np.testing.assert_array_equal(video.frames_at([3.01]).frames, everything[[75]])


@pytest.fixture(scope="module")
def long_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("long") / "a.mp4", 185, options=LONG_GROUPS)


@pytest.mark.parametrize("seek", ["exact", "keyframe"])
def test_a_gpu_gives_the_same_frames(encoded: tuple[Path, np.ndarray], seek: Seek) -> None:
    import torch

    from allocembed.video.decoders.nvdec.gpu import Nvdec

    path, everything = encoded
    with open_video(path, decoders=Nvdec(torch.device("cpu"), library=Library())) as video:
        clip = video.sample(7, seek)
    if seek == "exact":
        assert clip.indices.tolist() == np.linspace(0, 184, 7, dtype=int).tolist()
    np.testing.assert_array_equal(clip.frames, everything[clip.indices])
    np.testing.assert_allclose(clip.times, clip.indices / RATE, atol=0.0011)


def test_keyframe_mode_takes_the_nearest_keyframe_within_half_an_interval(long_groups: Path) -> None:
    assert sample(long_groups, 4, seek="keyframe").indices.tolist() == [0, 60, 120, 180]  # wanted 0 61 122 184


def test_keyframe_mode_decodes_exactly_where_no_keyframe_is_near_or_it_is_taken(long_groups: Path) -> None:
    wanted = np.linspace(0, 184, 7, dtype=int).tolist()
    assert wanted == [0, 30, 61, 92, 122, 153, 184]
    assert sample(long_groups, 7, seek="keyframe").indices.tolist() == [0, 30, 60, 92, 120, 153, 180]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 400), min_size=2, max_size=80), st.sets(st.integers(0, 79)), st.integers(1, 30))
def test_keyframe_choices_are_ascending_distinct_and_near(steps: list[int], marks: set[int], count: int) -> None:
    stamps = np.cumsum(steps)
    keys = np.array(sorted({0} | {mark for mark in marks if mark < len(stamps)}))
    table = FrameTable(stamps, keys, int(stamps[-1]) + 1, 1000.0)
    on_keyframe, exact = choose_frames(table, Part().span(table.times, table.duration, "a"), count, "keyframe")
    wanted = candidate_indices(len(table), count)
    assert len(set(on_keyframe + exact)) == len(on_keyframe + exact) == len(wanted)
    assert on_keyframe == sorted(on_keyframe) and exact == sorted(exact)
    assert set(on_keyframe) <= set(keys.tolist()) and set(exact) <= set(wanted.tolist())
    reach = np.ptp(stamps[wanted]) / max(1, len(wanted) - 1) / 2
    for index in on_keyframe:
        assert np.abs(stamps[wanted] - stamps[index]).min() <= reach


def test_keyframe_mode_reads_an_mp4_index_instead_of_the_file(
    long_groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(pyav, "table_from_packets")
    assert len(sample(long_groups, 4, seek="keyframe")) == 4
    assert probe(long_groups).total == 185


def test_frames_of_one_group_are_decoded_without_seeking_again(
    long_groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = []
    original = Demuxer.packets_from

    def spy(demuxer: Demuxer, table: FrameTable, stamp: int) -> object:
        entries.append(stamp)
        return original(demuxer, table, stamp)

    monkeypatch.setattr(Demuxer, "packets_from", spy)
    sample(long_groups, 5)  # 0 46 92 138 184: keyframe 60 is as good as reached at 46, 120 and 180 are worth a seek
    assert len(entries) == 3
    entries.clear()
    sample(long_groups, 185)
    assert len(entries) == 1


@pytest.mark.parametrize("seek", ["exact", "keyframe"])
def test_a_trimmed_film_whose_first_keyframe_is_hidden_is_not_decoded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seek: Seek
) -> None:
    options = {"g": "20", "bf": "3", "sc_threshold": "0"}
    path = write_video(tmp_path / "a.mp4", 305, stamps=range(-5, 300), options=options)
    everything, calls, decode = read_all(path)[0], [], PyAVDecoder.decode
    monkeypatch.setattr(
        PyAVDecoder, "decode", lambda *given, **how: calls.append(1) or decode(*given, **how), raising=True
    )
    assert probe(path).total == 300 and len(calls) < 10
    calls.clear()
    clip = sample(path, 5, seek=seek)
    assert len(calls) < (100 if seek == "exact" else 20)
    np.testing.assert_array_equal(clip.frames, everything[clip.indices])
    assert clip.indices[0] == (0 if seek == "exact" else 15)


@pytest.mark.parametrize(("name", "spared"), [("a.mp4", True), ("a.mkv", True), ("a.ts", False)])
def test_frames_from_which_no_other_is_made_are_spared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, spared: bool
) -> None:
    path = write_video(tmp_path / name, 121, options={"g": "60", "bf": "3", "sc_threshold": "0"})
    made, decode = [], PyAVDecoder.decode

    def count(decoder: PyAVDecoder, packet: av.Packet, **how: bool) -> list[av.VideoFrame]:
        made.extend(frames := decode(decoder, packet, **how))
        return frames

    monkeypatch.setattr(PyAVDecoder, "decode", count)
    clip = sample(path, 5)
    assert clip.indices.tolist() == [0, 30, 60, 90, 120]
    assert (len(made) < 50) == spared  # of four frames, two are B-frames that no other needs
    np.testing.assert_array_equal(clip.frames, read_all(path)[0][clip.indices])


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv"])
@pytest.mark.parametrize("b_frames", ["0", "3"])
@pytest.mark.parametrize("seek", ["exact", "keyframe"])
def test_times_are_true_at_a_variable_frame_rate(tmp_path: Path, name: str, b_frames: str, seek: str) -> None:
    gaps = random.Random(7)
    stamps = np.cumsum([gaps.choice([20, 40, 41, 300]) for _ in range(100)])
    options = {**LONG_GROUPS, "g": "30", "bf": b_frames}
    path = write_video(tmp_path / name, 100, options=options, stamps=stamps.tolist(), time_base=Fraction(1, 1000))
    clip = sample(path, 9, seek=seek)
    assert clip.total == 100
    np.testing.assert_allclose(clip.times, (stamps[clip.indices] - stamps[0]) / 1000, atol=1e-9)
    np.testing.assert_array_equal(clip.frames, read_all(path)[0][clip.indices])


def test_a_video_shorter_than_count_gives_every_frame_once(tmp_path: Path) -> None:
    clip = sample(write_video(tmp_path / "a.mp4", 5), 24)
    assert clip.indices.tolist() == [0, 1, 2, 3, 4]
    assert len(clip) == clip.total == 5


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.ts"])
def test_one_frame_is_a_video_too(tmp_path: Path, name: str) -> None:
    path = write_video(tmp_path / name, 1)
    for seek in ("exact", "keyframe"):
        clip = sample(path, 24, seek=seek)
        assert (len(clip), clip.total, clip.times.tolist()) == (1, 1, [0.0])


@pytest.mark.parametrize("seek", ["exact", "keyframe"])
@pytest.mark.parametrize("cut", [7, 27])
def test_frames_that_an_edit_list_hides_do_not_count(tmp_path: Path, cut: int, seek: str) -> None:
    def earlier(packet: av.Packet) -> av.Packet:
        packet.pts, packet.dts = packet.pts - cut, packet.dts - cut
        return packet

    options = {"g": "20", "bf": "2", "sc_threshold": "0"}
    muxing = {"avoid_negative_ts": "disabled", "use_editlist": "1"}
    path = write_video(tmp_path / "a.mp4", 60, options=options, muxing=muxing, change=earlier)
    clip = sample(path, 6, seek=seek)
    everything, times = read_all(path)
    assert clip.total == len(everything) == 60 - cut
    np.testing.assert_array_equal(clip.frames, everything[clip.indices])
    np.testing.assert_allclose(clip.times, np.array(times)[clip.indices], atol=1e-9)


def test_fragmented_mp4_without_frame_count_or_duration_is_read(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 185, options=LONG_GROUPS, muxing={"movflags": "frag_keyframe+empty_moov"})
    with av.open(str(path)) as container:
        assert container.streams.video[0].frames == 0
    clip = sample(path, 5)
    assert (clip.total, clip.duration) == (185, 7.4)
    np.testing.assert_array_equal(clip.frames, read_all(path)[0][clip.indices])


def test_a_live_webm_without_duration_is_read(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.webm", 30, codec="libvpx", muxing={"live": "1"})
    with av.open(str(path)) as container:
        assert container.duration is None
    assert probe(path).duration == pytest.approx(1.2, abs=0.002)


def test_a_recording_that_starts_mid_group_begins_at_its_first_keyframe(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.ts", 185, options={**LONG_GROUPS, "x264-params": "open-gop=1"})
    everything = read_all(path)[0]
    packets_of_188_bytes = path.stat().st_size // 188
    path.write_bytes(path.read_bytes()[packets_of_188_bytes // 6 * 188 :])
    clip = sample(path, 9)
    assert clip.total == 125
    np.testing.assert_array_equal(clip.frames, everything[60:][clip.indices])


def test_hidden_vp8_frames_do_not_count(tmp_path: Path) -> None:
    seen = []

    def hide_every_seventh(packet: av.Packet) -> av.Packet:
        seen.append(packet)
        if packet.is_keyframe or len(seen) % 7:
            return packet
        hidden = av.Packet(bytes([bytes(packet)[0] & ~0x10]) + bytes(packet)[1:])
        hidden.pts, hidden.dts, hidden.time_base, hidden.stream = (
            packet.pts,
            packet.dts,
            packet.time_base,
            packet.stream,
        )
        return hidden

    path = write_video(tmp_path / "a.webm", 60, codec="libvpx", options={"cpu-used": "8"}, change=hide_every_seventh)
    clip = sample(path, 9)
    assert clip.total == 52
    np.testing.assert_array_equal(clip.frames, read_all(path)[0][clip.indices])


def test_frames_that_change_size_take_the_first_ones(tmp_path: Path) -> None:
    small = write_video(tmp_path / "small.h264", 10, options={"g": "5"})
    large = write_video(tmp_path / "large.h264", [picture(index, 128, 96) for index in range(10)])
    both = tmp_path / "both.h264"
    both.write_bytes(small.read_bytes() + large.read_bytes())
    clip = sample(both, 20)
    assert clip.frames.shape == (20, HEIGHT, WIDTH, 3)
    assert np.abs(clip.frames[15].astype(int) - sample(large, 10).frames[5][::2, ::2]).mean() < 12


@pytest.mark.slow
def test_memory_does_not_grow_with_the_length_of_the_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("needs /proc")
    pictures = [picture(index, 320, 240) for index in range(20)]
    path = write_video(tmp_path / "a.mp4", pictures * 75, options={"preset": "ultrafast", "g": "250"})
    resident, converted = [], []
    decode, convert = PyAVDecoder.decode, PyAVDecoder.to_rgb

    def watch_decode(decoder: PyAVDecoder, packet: av.Packet, **how: bool) -> list[av.VideoFrame]:
        resident.append(int(statm.read_text().split()[1]) * 4096)
        return decode(decoder, packet, **how)

    monkeypatch.setattr(PyAVDecoder, "decode", watch_decode)
    monkeypatch.setattr(PyAVDecoder, "to_rgb", lambda *frame: converted.append(1) or convert(*frame))
    clip = sample(path, 8)
    assert (clip.total, len(converted)) == (1500, 8)
    assert len(resident) > 700
    # All frames would take 345 MB as RGB and 173 MB as decoded.
    assert max(resident[50:]) - resident[50] < 30e6


def test_probe_says_what_is_in_the_file(tmp_path: Path) -> None:
    info = probe(write_video(tmp_path / "a.mp4", 30))
    assert (info.width, info.height, info.total, info.duration, info.rate) == (WIDTH, HEIGHT, 30, 1.2, 25)


def test_videos_are_known_by_their_suffix() -> None:
    assert is_video("a/b.MKV")
    assert not is_video(Path("b.txt"))


def test_the_package_imports_without_pyav_and_says_how_to_get_it(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_bytes(b"anything")
    code = (
        "import sys; sys.modules['av'] = None\n"
        "from allocembed.errors import VideoError; from allocembed.video import sample\n"
        "try: sample('a.mp4')\n"
        "except VideoError as error: print(error)"
    )
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(Path(pyav.__file__).parents[3])}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "a.mp4: reading video needs PyAV; install it with: pip install av"


def test_reading_a_video_does_not_import_torch(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 3)
    code = f"import sys; from allocembed.video import sample; sample({str(path)!r}); print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_one_time_that_two_frames_share_does_not_cost_all_others(tmp_path: Path) -> None:
    stamps = [*range(0, 50, 2), *range(1000, 3500, 100)]

    def share(packet: av.Packet) -> av.Packet:
        if packet.pts is not None and packet.pts == 1401:
            packet.pts = packet.dts = 1400
        return packet

    stamps[30] = 1401
    path = write_video(
        tmp_path / "a.mkv", 50, options={"g": "10", "bf": "0"}, stamps=stamps, time_base=Fraction(1, 100), change=share
    )
    clip = sample(path, 50)
    assert clip.duration == pytest.approx(34, abs=1.5) and clip.times[29] == clip.times[30] == pytest.approx(
        14.0, abs=0.01
    )
