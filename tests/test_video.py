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
from PIL import Image

from allocembed import packets, video
from allocembed.frames import candidate_indices
from allocembed.video import is_video, probe, sample
from tests.clips import HEIGHT, LONG_GROUPS, RATE, WIDTH, picture, read_all, write_video

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


@pytest.fixture(scope="module")
def long_groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_video(tmp_path_factory.mktemp("long") / "a.mp4", 185, options=LONG_GROUPS)


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
    table = packets.FrameTable(stamps, keys, stamps[keys], int(stamps[-1]) + 1, 1000.0)
    choices = video._choose(table, count, "keyframe")
    wanted = candidate_indices(len(table), count)
    indices = [choice.index for choice in choices]
    assert len(set(indices)) == len(indices) == len(wanted)
    assert indices == sorted(indices)
    reach = np.ptp(stamps[wanted]) / max(1, len(wanted) - 1) / 2
    for choice in choices:
        assert choice.index in (keys if choice.on_keyframe else wanted)
        assert np.abs(stamps[wanted] - stamps[choice.index]).min() <= reach


def test_keyframe_mode_reads_an_mp4_index_instead_of_the_file(
    long_groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(video, "table_from_packets")
    assert len(sample(long_groups, 4, seek="keyframe")) == 4
    assert probe(long_groups).total == 185


def test_frames_of_one_group_are_decoded_without_seeking_again(
    long_groups: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entries = []
    original = video._decode_from

    def spy(reader: packets.Reader, table: packets.FrameTable, entry: int, kept: frozenset[int]) -> object:
        entries.append(entry)
        return original(reader, table, entry, kept)

    monkeypatch.setattr(video, "_decode_from", spy)
    sample(long_groups, 5)  # 0 46 92 138 184: keyframe 60 is as good as reached at 46, 120 and 180 are worth a seek
    assert len(entries) == 3
    entries.clear()
    sample(long_groups, 185)
    assert len(entries) == 1


@pytest.mark.parametrize(("name", "spared"), [("a.mp4", True), ("a.mkv", True), ("a.ts", False)])
def test_frames_from_which_no_other_is_made_are_spared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, spared: bool
) -> None:
    path = write_video(tmp_path / name, 121, options={"g": "60", "bf": "3", "sc_threshold": "0"})
    made, decode = [], packets.Reader.decode

    def count(reader: packets.Reader, packet: av.Packet, **how: bool) -> list[av.VideoFrame]:
        made.extend(frames := decode(reader, packet, **how))
        return frames

    monkeypatch.setattr(packets.Reader, "decode", count)
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


@pytest.mark.parametrize(("degrees", "mirrored"), [(90, False), (180, False), (270, False), (0, True), (90, True)])
def test_frames_come_out_upright(tmp_path: Path, degrees: int, mirrored: bool) -> None:
    corner = np.full((HEIGHT, WIDTH, 3), 16, np.uint8)
    corner[:16, :16] = 240  # top left as stored
    path = write_video(
        tmp_path / "a.mp4", [corner] * 3, prepare=lambda stream: stream.set_display_rotation(degrees, hflip=mirrored)
    )
    upright = np.rot90(corner, degrees // 90)  # counter-clockwise, then mirrored, as the display matrix is built
    upright = upright[:, ::-1] if mirrored else upright
    clip = sample(path, 2)
    assert clip.frames.shape[1:] == upright.shape == (clip.height, clip.width, 3)
    assert np.abs(clip.frames[0].astype(int) - upright).mean() < 8
    assert (probe(path).width, probe(path).height) == (clip.width, clip.height)


def test_motion_jpeg_with_exif_comes_out_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise
    Image.fromarray(picture(0)).save(tmp_path / "a.jpg", exif=exif, quality=95)
    path = tmp_path / "a.mjpeg"
    path.write_bytes((tmp_path / "a.jpg").read_bytes() * 3)
    frame = sample(path, 3).frames[2]
    assert np.abs(frame.astype(int) - np.rot90(picture(0), -1)).mean() < 3


def test_pixels_come_out_square(tmp_path: Path) -> None:
    def widen(stream: av.VideoStream) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(4, 3)

    clip = sample(write_video(tmp_path / "a.mp4", 3, prepare=widen), 3)
    assert (clip.width, clip.height) == (85, 48)


def black_and_white(pixels: str, full_range: bool) -> av.VideoFrame:
    """The left half black and the right half white, in the codes of that format and range."""
    frame = av.VideoFrame(WIDTH, HEIGHT, pixels)
    depth, kind = (10, np.uint16) if "10" in pixels else (8, np.uint8)
    black, white = (0, 2**depth - 1) if full_range else (16 << depth - 8, 235 << depth - 8)
    for number, plane in enumerate(frame.planes):
        codes = np.full((plane.height, plane.line_size // kind().itemsize), 1 << depth - 1, kind)
        if number == 0:
            codes[:, : WIDTH // 2], codes[:, WIDTH // 2 :] = black, white
        plane.update(codes.tobytes())
    frame.color_range = 2 if full_range else 1
    return frame


@pytest.mark.parametrize(
    ("pixels", "full_range"),
    [
        ("yuv420p", False),
        ("yuv420p", True),
        ("yuvj420p", True),
        ("yuv444p", True),
        ("yuv420p10le", False),
        ("yuv420p10le", True),
        ("yuv422p10le", False),
    ],
)
def test_white_is_white_and_black_is_black(tmp_path: Path, pixels: str, full_range: bool) -> None:
    def set_range(stream: av.VideoStream) -> None:
        stream.codec_context.color_range = 2 if full_range else 1

    pictures = [black_and_white(pixels, full_range) for _ in range(2)]
    path = write_video(tmp_path / "a.mkv", pictures, pixels=pixels, options={"qp": "0"}, prepare=set_range)
    frame = sample(path, 1).frames[0]
    assert (frame[:, :24] == 0).all()
    assert (frame[:, 40:] == 255).all()


def test_each_matrix_gives_its_own_red(tmp_path: Path) -> None:
    red = {}
    for name, matrix in (("bt709", 1), ("bt601", 6), ("bt2020", 9), ("bt2020-constant", 10), ("unnamed", 2)):

        def set_matrix(stream: av.VideoStream, matrix: int = matrix) -> None:
            stream.codec_context.colorspace = matrix

        pictures = [np.full((HEIGHT, WIDTH, 3), (200, 40, 40), np.uint8)] * 2
        path = write_video(tmp_path / f"{name}.mkv", pictures, options={"qp": "0"}, prepare=set_matrix)
        red[name] = sample(path, 1).frames[0, 24, 32].tolist()
    assert red["bt601"] == red["unnamed"] != red["bt709"] != red["bt2020"] == red["bt2020-constant"]


def test_gif_frames_and_times_are_read(tmp_path: Path) -> None:
    pictures = [Image.fromarray(picture(index)) for index in range(10)]
    path = tmp_path / "a.gif"
    pictures[0].save(path, save_all=True, append_images=pictures[1:], duration=[100] * 5 + [300] * 5)
    clip = sample(path, 4)
    assert (clip.total, clip.indices.tolist()) == (10, [0, 3, 6, 9])
    np.testing.assert_allclose(clip.times, [0, 0.3, 0.8, 1.7])
    assert np.abs(clip.frames[3].astype(int) - picture(9)).mean() < 12  # 256 colours


def test_transparent_gif_is_laid_on_white(tmp_path: Path) -> None:
    pictures = []
    for left in (0, 32):
        image = Image.new("RGBA", (WIDTH, HEIGHT))
        image.paste((200, 0, 0, 255), (left, 0, left + 32, HEIGHT))
        pictures.append(image)
    pictures[0].save(tmp_path / "a.gif", save_all=True, append_images=pictures[1:], duration=100, disposal=2)
    frames = sample(tmp_path / "a.gif", 2).frames
    assert frames[0, 20, 10].tolist() == frames[1, 20, 50].tolist() == [200, 0, 0]
    assert frames[0, 20, 50].tolist() == frames[1, 20, 10].tolist() == [255, 255, 255]


def test_frames_that_change_size_take_the_first_ones(tmp_path: Path) -> None:
    small = write_video(tmp_path / "small.h264", 10, options={"g": "5"})
    large = write_video(tmp_path / "large.h264", [picture(index, 128, 96) for index in range(10)])
    both = tmp_path / "both.h264"
    both.write_bytes(small.read_bytes() + large.read_bytes())
    clip = sample(both, 20)
    assert clip.frames.shape == (20, HEIGHT, WIDTH, 3)
    assert np.abs(clip.frames[15].astype(int) - sample(large, 10).frames[5][::2, ::2]).mean() < 12


def test_memory_does_not_grow_with_the_length_of_the_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("needs /proc")
    pictures = [picture(index, 320, 240) for index in range(20)]
    path = write_video(tmp_path / "a.mp4", pictures * 75, options={"preset": "ultrafast", "g": "250"})
    resident, painted = [], []
    decode, paint = packets.Reader.decode, video._Painter.__call__

    def watch_decode(reader: packets.Reader, packet: av.Packet, **how: bool) -> list[av.VideoFrame]:
        resident.append(int(statm.read_text().split()[1]) * 4096)
        return decode(reader, packet, **how)

    monkeypatch.setattr(packets.Reader, "decode", watch_decode)
    monkeypatch.setattr(video._Painter, "__call__", lambda *frame: painted.append(1) or paint(*frame))
    clip = sample(path, 8)
    assert (clip.total, len(painted)) == (1500, 8)
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
        "from allocembed.video import VideoError, sample\n"
        "try: sample('a.mp4')\n"
        "except VideoError as error: print(error)"
    )
    command = [sys.executable, "-c", code]
    environment = {"PYTHONPATH": str(Path(video.__file__).parents[1])}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "a.mp4: reading video needs PyAV; install it with: pip install av"
