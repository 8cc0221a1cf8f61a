"""Subtitles inside a video."""

from fractions import Fraction

import av
import pytest

from allocembed.errors import VideoError
from allocembed.search.said import streams
from allocembed.search.said.streams import read_streams
from tests.clips import picture


def write_with_subtitles(path, codec="subrip", video="mpeg4", lines=("<i>Guten</i>\nMorgen", "zwei")):
    """A video of four seconds with a line every two seconds."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream(video, rate=10)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        subtitles = container.add_mux_stream(codec)
        subtitles.time_base = Fraction(1, 1000)
        for number, text in enumerate(lines):
            content = text.encode()
            packet = av.Packet(len(content).to_bytes(2, "big") + content if codec == "mov_text" else content)
            packet.stream, packet.pts, packet.dts, packet.duration = subtitles, number * 2000, number * 2000, 1500
            packet.time_base = Fraction(1, 1000)
            container.mux(packet)
        for number in range(40):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture(number))))
        container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(("name", "codec", "video"), [("a.mkv", "subrip", "mpeg4"), ("a.mp4", "mov_text", "mpeg4")])
def test_text_streams_are_read_with_their_times(tmp_path, name, codec, video):
    lines = read_streams(str(write_with_subtitles(tmp_path / name, codec, video)))
    assert [(line.start, line.end, line.text) for line in lines] == [(0.0, 1.5, "Guten Morgen"), (2.0, 3.5, "zwei")]


def test_a_damaged_video_gives_the_lines_before_the_damage(tmp_path):
    path = write_with_subtitles(tmp_path / "a.mkv")
    path.write_bytes(path.read_bytes()[:-800])
    assert [line.text for line in read_streams(str(path))][:1] == ["Guten Morgen"]


def test_what_cannot_be_opened_or_takes_too_long_is_an_error_and_not_a_video_without_lines(tmp_path, monkeypatch):
    path = write_with_subtitles(tmp_path / "a.mkv")
    monkeypatch.setattr(streams, "FILE_SECONDS", -1.0)
    for cause in ("more than", "Invalid data", "No such file"):
        with pytest.raises(VideoError, match=f"its subtitles cannot be read .*{cause}"):
            read_streams(str(path))
        path.unlink() if cause == "Invalid data" else path.write_bytes(b"no video")
