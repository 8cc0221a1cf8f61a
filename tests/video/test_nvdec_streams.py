"""Facts that streams state about themselves, and streams that change them: a GPU's decoder would not notice."""

import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest

from allocembed.video import open_video
from allocembed.video.decoders.nvdec.bitstream import StartPoint, Stream, in_packet, may_be_interlaced
from tests.clips import picture, write_video
from tests.nvdec import stand_in
from tests.video.joined import join

X265 = "log-level=none:keyint=12"
CHANGES = {
    "colours": ({}, {"matrix": 1}),
    "range": ({}, {"full": True}),
    "references": ({"refs": "1"}, {"refs": "6"}),
    "size": ({}, {"width": 96}),
    "cropping": ({}, {"width": 62}),
}


def part(path: Path, start: int, *, width: int = 64, matrix: int = 5, full: bool = False, refs: str = "2", **other):
    def prepare(stream):
        stream.codec_context.colorspace, stream.codec_context.color_range = matrix, 2 if full else 1

    pictures = [picture(start + number, width) for number in range(30)]
    if path.suffix == ".ts":
        other["stamps"] = range(start, start + 30)
    return write_video(path, pictures, options={"g": "12", "bf": "0", "refs": refs}, prepare=prepare, **other)


def test_frames_that_change_size_take_the_first_ones(tmp_path):
    path, gpu = tmp_path / "sizes.h264", stand_in()
    path.write_bytes(
        b"".join(
            write_video(tmp_path / f"{width}.h264", [picture(n, width) for n in range(5)]).read_bytes()
            for width in (64, 96)
        )
    )
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        found = fast.sample(10).frames
        assert found.shape == (10, 48, 64, 3) and np.array_equal(found, plain.sample(10).frames)


@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("suffix", ["ts", "mp4"])
def test_a_stream_that_changes_is_left_to_pyav_and_spoils_no_other(tmp_path, suffix, kind):
    before, after = CHANGES[kind]
    first = part(tmp_path / f"first.{suffix}", 0, **before)
    second, both, gpu = part(tmp_path / f"second.{suffix}", 30, **after), tmp_path / f"both.{suffix}", stand_in()
    if suffix == "mp4":
        join(first, second, both)
    else:
        both.write_bytes(first.read_bytes() + second.read_bytes())
    for path in (first, both, first):
        with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
            expected, found = plain.sample(8), fast.sample(8)
            assert expected.total == (60 if path == both else 30)
            assert np.array_equal(np.asarray(found.frames), expected.frames)
    assert gpu.files == 2 and gpu.declined.total() == 1


@pytest.mark.parametrize("seconds", [(0.1, 0.5, 1.2), (1.2,)])  # of the whole file, or of its second part alone
@pytest.mark.parametrize(("widths", "matrices"), [((64, 96), (5, 5)), ((64, 64), (5, 1))])
def test_a_vp9_stream_that_changes_is_left_to_pyav(tmp_path, widths, matrices, seconds):
    options = {"deadline": "realtime", "cpu-used": "8", "g": "10"}
    path, gpu, packets = tmp_path / "a.webm", stand_in(), []
    for number, (width, matrix) in enumerate(zip(widths, matrices, strict=True)):

        def prepare(stream, matrix=matrix):
            stream.codec_context.colorspace = matrix

        pictures = [picture(n, width) for n in range(20)]
        source = tmp_path / f"{number}.webm"
        write_video(source, pictures, codec="libvpx-vp9", options=options, prepare=prepare)
        with av.open(str(source)) as container:
            packets += [packet for packet in container.demux(video=0) if packet.size]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libvpx-vp9", rate=25, options=options)
        stream.width, stream.height = 64, 48
        for number, packet in enumerate(packets):
            packet.stream, packet.pts, packet.dts = stream, number * 40, number * 40
            packet.time_base = Fraction(1, 1000)
            container.mux(packet)
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert np.array_equal(np.asarray(fast.frames_at(seconds).frames), plain.frames_at(seconds).frames)
    assert list(gpu.declined) == ["pictures that change their size, colours or references"]


@pytest.mark.parametrize("suffix", ["mp4", "ts"])
@pytest.mark.parametrize("fields", ["interlaced=1", "fake-interlaced=1"])
@pytest.mark.parametrize("more", ["", ":cqm=jvt", ":bframes=0:cabac=0:8x8dct=0"])
def test_streams_that_may_be_interlaced_are_left_to_pyav(tmp_path, suffix, fields, more):
    """Their first picture need not be: a GPU makes other pictures of those that are."""
    path, gpu = write_video(tmp_path / f"a.{suffix}", options={"g": "12", "x264-params": fields + more}), stand_in()
    with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
        assert np.array_equal(np.asarray(fast.sample(5).frames), plain.sample(5).frames)
    assert gpu.files == 0 and list(gpu.declined) == ["interlaced pictures"]


@pytest.mark.parametrize("lists", ["cqm=jvt", "cqm4=16,16,16,20,16,16,20,24,16,20,24,28,20,24,28,32"])
def test_other_parameters_of_h264_are_read_past(tmp_path, lists):
    path, gpu = write_video(tmp_path / "a.mp4", options={"g": "12", "x264-params": lists}), stand_in()
    with open_video(path, decoders=gpu) as video:
        video.sample(5)
    assert gpu.files == 1 and not gpu.declined


def test_repeated_parameter_sets_change_nothing(tmp_path):
    for name, codec, options in (
        ("a.mp4", "libx264", {"g": "12", "x264-params": "repeat-headers=1"}),
        ("b.mp4", "libx265", {"x265-params": X265 + ":repeat-headers=1"}),
        ("c.ts", "libx265", {"x265-params": X265}),
        ("d.mkv", "libx265", {"x265-params": X265 + ":repeat-headers=1"}),
    ):
        path, gpu = write_video(tmp_path / name, codec=codec, options=options), stand_in()
        with open_video(path) as plain, open_video(path, decoders=gpu) as fast:
            assert np.array_equal(fast.sample(9).frames.numpy(), plain.sample(9).frames)
        assert gpu.files == 1 and not gpu.declined


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_an_empty_unit_says_nothing_about_a_picture(codec):
    record = bytes(4) + b"\xff" + bytes(2) if codec == "h264" else bytes(21) + b"\x03\x00"
    stream = Stream(codec, b"\1" + record[1:], lambda packet: (packet,))
    start = bytes([0x65]) if codec == "h264" else bytes([19 << 1, 1])
    data = bytearray(bytes(4) + (len(start) + 3).to_bytes(4) + start + b"abc")
    assert stream.in_place and stream.mark_units(memoryview(data)) == (StartPoint.ANYWHERE, False)
    assert data == b"\0\0\0\1\0\0\0\1" + start + b"abc"


def test_damaged_parameter_sets_are_read_in_no_time():
    random, began = np.random.default_rng(0), time.monotonic()
    for number in range(300):
        damaged = bytes([103, 100]) + (bytes(2000) if number == 0 else random.bytes(40))
        may_be_interlaced(damaged)
        for codec in ("H264", "HEVC", "VP9", "AV1"):
            in_packet(codec, b"\0\0\1" * (number % 3) + damaged)
    assert time.monotonic() - began < 2


def test_units_without_content_are_passed_over(tmp_path):
    path, gpu = write_video(tmp_path / "a.h264", options={"g": "12", "bf": "0"}), stand_in()
    doubled = tmp_path / "b.ts"
    path.write_bytes(path.read_bytes().replace(b"\0\0\0\1\x67", b"\0\0\1\0\0\1\x67"))
    with av.open(str(path)) as source, av.open(str(doubled), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(each for each in source.demux(video=0) if each.size):
            packet.stream, packet.pts, packet.dts, packet.time_base = stream, number, number, Fraction(1, 25)
            target.mux(packet)
    with open_video(doubled) as plain, open_video(doubled, decoders=gpu) as fast:
        assert np.array_equal(np.asarray(fast.sample(9).frames), plain.sample(9).frames)


def test_an_empty_parameter_set_in_a_header_is_no_bug_of_ours():
    record = bytes([1, 100, 0, 30, 255, 225, 0, 0, 1, 0, 1, 104])  # one set without content, and one of pictures
    assert not Stream("h264", record, lambda packet: [packet]).is_set_up
