"""The frame table from an MP4's sample tables is the one that its packets give."""

import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from allocembed.errors import VideoError
from allocembed.video import DecodeLimits, open_video
from allocembed.video.clip import Stopwatch
from allocembed.video.decoders import pyav
from allocembed.video.decoders.base import FrameTable, VideoInput
from allocembed.video.packets import Demuxer, table_from_packets
from allocembed.video.samples import table_from_samples
from tests.clips import RATE, picture, read_all, write_video

GROUPS = {"g": "20", "bf": "3", "sc_threshold": "0"}
X265 = "log-level=none:keyint=20:min-keyint=20:open-gop="
UNEVEN = {"stamps": [3 * index + index % 3 for index in range(50)], "time_base": Fraction(1, 75)}
SAME = {
    "b frames.mp4": {"options": GROUPS},
    "open groups.mp4": {"options": {**GROUPS, "x264-params": "open-gop=1"}},
    "one group.mp4": {"options": {**GROUPS, "g": "1000"}},
    "no b frames.mp4": {"options": {"g": "20", "bf": "0"}},
    "uneven times.mp4": {"options": GROUPS, **UNEVEN},
    "uneven times without b frames.mp4": {"options": {"g": "20", "bf": "0"}, **UNEVEN},
    "starts late.mp4": {"options": GROUPS, "stamps": [index + 100 for index in range(50)]},
    "hidden frames.mp4": {"options": GROUPS, "stamps": [index - 5 for index in range(50)]},
    "header first.mp4": {"options": GROUPS, "muxing": {"movflags": "faststart"}},
    "negative offsets.mp4": {"options": GROUPS, "muxing": {"movflags": "negative_cts_offsets"}},
    "no edit list.mp4": {"options": GROUPS, "muxing": {"use_editlist": "0"}},
    "b frames.mov": {"options": GROUPS},
    "interlaced.mp4": {"options": {**GROUPS, "x264-params": "interlaced=1"}},
    "intra refresh.mp4": {"options": {"g": "20", "x264-params": "intra-refresh=1"}},
    "turned.mp4": {"options": GROUPS, "prepare": lambda stream: stream.set_display_rotation(90)},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": X265 + "0"}},
    "hevc open groups.mp4": {"codec": "libx265", "options": {"x265-params": X265 + "1"}},
    "av1.mp4": {"codec": "libsvtav1", "options": {"g": "20", "preset": "12"}},
    "mpeg4.mp4": {"codec": "mpeg4", "options": {"g": "20", "bf": "2"}},
}
NONE = {
    "fragments.mp4": {"muxing": {"movflags": "frag_keyframe"}},
    "only fragments.mp4": {"muxing": {"movflags": "frag_keyframe+empty_moov"}},
    "keyframes without marks.mp4": {"options": {"g": "1"}},
    "vp9.mp4": {"codec": "libvpx-vp9"},
    "matroska.mkv": {},
}


@contextmanager
def demuxing(path: Path) -> Iterator[Demuxer]:
    limits = DecodeLimits()
    demuxer = Demuxer(VideoInput(path, "a file", limits, Stopwatch(limits, "a file")))
    yield demuxer
    demuxer.close()


def both_tables(path: Path) -> tuple[FrameTable | None, FrameTable]:
    with demuxing(path) as demuxer:
        return table_from_samples(demuxer), table_from_packets(demuxer, demuxer.packets())


def differences(found: FrameTable, expected: FrameTable) -> list[str]:
    names = [field.name for field in fields(FrameTable) if field.name != "layout"]
    return [name for name in names if not np.array_equal(getattr(found, name), getattr(expected, name))]


@pytest.mark.parametrize("name", SAME)
def test_the_samples_give_the_table_that_the_packets_give(tmp_path: Path, name: str) -> None:
    found, expected = both_tables(write_video(tmp_path / name, **SAME[name]))
    assert found is not None and expected.trusted
    assert differences(found, expected) == []
    assert len(found) == (45 if name == "hidden frames.mp4" else 50)


@pytest.mark.parametrize("name", SAME)
def test_samples_are_where_the_packets_are(tmp_path: Path, name: str) -> None:
    with demuxing(write_video(tmp_path / name, **SAME[name])) as demuxer:
        layout = table_from_samples(demuxer).layout
        packets = [(packet.pts, packet.pos, packet.size) for packet in demuxer.packets() if packet.size]
    assert (
        list(zip(*(column.tolist() for column in (layout.stamps, layout.starts, layout.sizes)), strict=True)) == packets
    )
    order = np.random.default_rng(0).permutation(len(packets))
    assert layout.find(layout.stamps[order]).tolist() == order.tolist()


@pytest.mark.parametrize("name", NONE)
def test_what_the_samples_do_not_tell_is_left_to_the_packets(tmp_path: Path, name: str) -> None:
    found, expected = both_tables(write_video(tmp_path / name, **NONE[name]))
    assert found is None and len(expected) == 50


def test_the_track_of_the_chosen_stream_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    silence = av.AudioFrame.from_ndarray(np.zeros((1, 44100), np.float32), format="fltp", layout="mono")
    silence.sample_rate, silence.pts = 44100, 0
    with av.open(str(path), "w") as container:
        sound = container.add_stream("aac", rate=44100)
        streams = [container.add_stream("libx264", rate=RATE, options=GROUPS | {"bf": bf}) for bf in ("0", "3")]
        for stream in streams:
            stream.width, stream.height = 64, 48
        streams[1].disposition = av.stream.Disposition.default
        container.mux(sound.encode(silence))
        for frame in [*(av.VideoFrame.from_ndarray(picture(index)) for index in range(50)), None]:
            for stream in streams:
                container.mux(stream.encode(frame))
        container.mux(sound.encode(None))
    found, expected = both_tables(path)
    assert found is not None and differences(found, expected) == []


def change_box(path: Path, name: bytes, change: Callable[[bytearray], None]) -> None:
    """Change the content of the only box of that name, in place."""
    data = bytearray(path.read_bytes())
    assert data.count(name) == 1
    start = data.index(name) + 4
    (size,) = struct.unpack_from(">I", data, start - 8)
    content = data[start : start + size - 8]
    change(content)
    data[start : start + size - 8] = content
    path.write_bytes(data)


@pytest.mark.parametrize("start", [0, 512, 1024, 1025, 4000, 12000])
@pytest.mark.parametrize("length", [4000, 2000, 1200])  # milliseconds
@pytest.mark.parametrize("movflags", ["faststart", "negative_cts_offsets"])
def test_any_edit_gives_the_packets_table_or_none(
    edited: dict[str, Path], tmp_path: Path, start: int, length: int, movflags: str
) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(edited[movflags].read_bytes())
    change_box(path, b"elst", lambda box: struct.pack_into(">II", box, 8, length, start))
    found, expected = both_tables(path)
    assert found is None or differences(found, expected) == []
    assert found is not None or start > 1024 or length < 4000


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("edited")
    flags = ("faststart", "negative_cts_offsets")
    return {each: write_video(folder / f"{each}.mp4", options=GROUPS, muxing={"movflags": each}) for each in flags}


def test_a_size_of_64_bits_is_read(tmp_path: Path, whole: bytes) -> None:
    path, start = tmp_path / "a.mp4", whole.index(b"mdat") - 12
    assert whole[start : start + 8] == b"\0\0\0\x08free"  # kept free for such a size
    size = 8 + struct.unpack_from(">I", whole, start + 8)[0]
    path.write_bytes(whole[:start] + struct.pack(">I4sQ", 1, b"mdat", size) + whole[start + 16 :])
    found, expected = both_tables(path)
    assert found is not None and differences(found, expected) == []


@pytest.mark.parametrize("missing", [1, 100, 2000])
def test_a_truncated_file_is_left_to_the_packets(tmp_path: Path, missing: int) -> None:
    path = write_video(tmp_path / "a.mp4", **SAME["header first.mp4"])
    path.write_bytes(path.read_bytes()[:-missing])
    with demuxing(path) as demuxer:
        assert table_from_samples(demuxer) is None
    with pytest.raises(VideoError, match=r"truncated: \d+ of 50 frames are there"):
        open_video(path).sample(3)


def header_of(data: bytes) -> tuple[int, int]:
    start = data.index(b"moov") - 4
    return start, start + struct.unpack_from(">I", data, start)[0]


@pytest.mark.parametrize("name", ["hevc.mp4", "mpeg4.mp4"])  # of these, packets do not contradict the header
def test_a_damaged_header_gives_the_packets_table_or_none(tmp_path: Path, name: str) -> None:
    path, draw = write_video(tmp_path / name, **SAME[name]), random.Random(7)
    whole, equal, declined = path.read_bytes(), 0, 0
    start, end = header_of(whole)
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(draw.choice([1, 1, 3])):
            data[draw.randrange(start, end)] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            with demuxing(path) as demuxer:
                found = table_from_samples(demuxer)
                if found is None:
                    declined += 1
                    continue
                assert differences(found, table_from_packets(demuxer, demuxer.packets())) == []
                equal += 1
        except VideoError:  # as it is opened: nothing to compare
            continue
    assert min(equal, declined) > 20


def test_a_damaged_header_gives_the_same_frames_or_error_as_without_samples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bytes
) -> None:
    """In H.264, packets can contradict the header; then they are listed after all."""
    path, draw, used = tmp_path / "a.mp4", random.Random(11), []
    start, end = header_of(whole)

    def outcome() -> object:
        try:
            with open_video(path) as video:
                clip = video.sample(4)
        except VideoError as error:
            return str(error)
        return clip.indices.tolist(), clip.times.tolist(), clip.duration, clip.frames.tobytes()

    for _ in range(60):
        data = bytearray(whole)
        data[draw.randrange(start, end)] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        with monkeypatch.context() as patch:
            patch.setattr(pyav, "table_from_samples", lambda demuxer: used.append(table_from_samples(demuxer)))
            expected = outcome()
        assert outcome() == expected
    assert sum(table is not None for table in used) > 10


@pytest.mark.parametrize("wrong", [b"\0\0\0\1", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\7"])
@pytest.mark.parametrize("name", [b"moov", b"trak", b"stbl", b"ctts", b"stts", b"stsz", b"stco", b"elst", b"tkhd"])
def test_a_box_of_a_wrong_size_ends_the_search(tmp_path: Path, name: bytes, wrong: bytes, whole: bytes) -> None:
    path, good = tmp_path / "a.mp4", tmp_path / "good.mp4"
    good.write_bytes(whole)
    path.write_bytes(whole.replace(whole[whole.index(name) - 4 :][:8], wrong + name))
    with demuxing(good) as demuxer:
        demuxer.file = path  # FFmpeg refuses most of these by itself
        found, expected = table_from_samples(demuxer), table_from_packets(demuxer, demuxer.packets())
    assert found is None or differences(found, expected) == []


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_video(tmp_path_factory.mktemp("whole") / "a.mp4", options=GROUPS).read_bytes()


def test_no_packet_is_read_to_find_the_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", options=GROUPS)
    monkeypatch.delattr(Demuxer, "packets")
    assert len(open_video(path).table) == 50


@pytest.mark.parametrize("seek", ["exact", "keyframe"])
def test_a_table_that_the_packets_contradict_is_found_again_from_them(tmp_path: Path, seek: str) -> None:
    """In H.264, packets tell keyframes themselves; here the header marks frame 10 instead of frame 20."""
    path = write_video(tmp_path / "a.mp4", options={**GROUPS, "bf": "0"})
    pictures, _ = read_all(path)
    expected = open_video(path).sample(5, seek).indices.tolist()
    change_box(path, b"stss", lambda box: struct.pack_into(">I", box, 12, 11))
    with demuxing(path) as demuxer:
        assert table_from_samples(demuxer) is not None
    with open_video(path) as video:
        clip = video.sample(5, seek)
        clips = list(video.windows(5, 2))
    assert clip.indices.tolist() == expected
    assert all(np.array_equal(each.frames, pictures[each.indices]) for each in (clip, *clips))


@pytest.mark.parametrize("way", ["sample", "sample_many", "windows"])
def test_wrong_times_are_found_again_from_the_packets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    path = write_video(tmp_path / "a.mp4", options=GROUPS)
    real = pyav.table_from_samples

    def wrong(demuxer: Demuxer) -> FrameTable | None:
        table = real(demuxer)
        assert table is not None
        table.stamps[10:] += 7
        return table

    monkeypatch.setattr(pyav, "table_from_samples", wrong)
    with open_video(path) as video:
        if way == "windows":
            clips = list(video.windows(2, 5))
        else:
            clips = [video.sample(6)] if way == "sample" else list(video.sample_many([3, 6]).values())
    pictures, _ = read_all(path)
    for clip in clips:
        assert np.array_equal(clip.frames, pictures[clip.indices])
        assert np.allclose(clip.times, clip.indices / RATE)
