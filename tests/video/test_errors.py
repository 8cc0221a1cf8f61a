"""Sources that cannot be read: every one ends in a VideoError that names the file, the cause and what to do."""

import io
import os
import socket
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from allocembed.errors import ConfigError, VideoError
from allocembed.video import DecodeLimits, open_video, probe, sample
from allocembed.words import printable
from tests.clips import LONG_GROUPS, picture, write_audio, write_video

PICTURES = [picture(index, 160, 120) for index in range(100)]


def refusal(source: Path, **options: object) -> str:
    """The cause given for refusing `source`, in both modes."""
    causes = []
    for seek in ("exact", "keyframe"):
        with pytest.raises(VideoError) as caught:
            sample(source, 8, seek=seek, **options)
        assert caught.value.source == str(source)
        assert str(caught.value) == f"{printable(str(source))}: {caught.value.cause}"
        causes.append(caught.value.cause)
    return causes[0]


def test_a_source_that_was_closed_is_an_error_and_no_crash(tmp_path):
    path = write_video(tmp_path / "a.mp4", 60)
    with open_video(path) as video:
        windows = video.windows(3, 4)
        next(windows)
    for use in (lambda: list(windows), lambda: video.sample(3), lambda: video.frames_at([0.5])):
        with pytest.raises(VideoError, match="it was closed; open it again"):
            use()


def test_a_picture_in_memory_that_cannot_be_read_is_named(tmp_path):
    made = io.BytesIO()
    Image.effect_noise((200, 200), 80).save(made, format="JPEG")
    with pytest.raises(VideoError, match=r"frame 0 cannot be read \(.*truncated.*\); check the picture"):
        sample([Image.open(io.BytesIO(made.getvalue()[:2000]))])


def test_more_pixels_than_ffmpeg_can_be_told_are_no_limit(tmp_path):
    path = write_video(tmp_path / "a.mp4", 5)
    assert len(sample(path, 3, limits=DecodeLimits(max_pixels=2**40))) == 3


def test_a_file_that_is_not_there() -> None:
    assert refusal(Path("nowhere/talk.mp4")) == "no such file or folder; check the path"


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").touch()
    assert refusal(tmp_path / "a.mp4") == "the file is empty; download or copy it again"


@pytest.mark.parametrize(
    "content", [b"Dear diary,\n" * 50, b"#EXTM3U\nhttp://localhost/a.ts\n", b"ffconcat version 1.0\n"]
)
def test_a_text_file_with_a_videos_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.mp4").write_bytes(content)
    assert "check that it is one" in refusal(tmp_path / "a.mp4")


def test_an_impossible_path() -> None:
    assert "check the path" in refusal("a\0b.mp4")


def test_sound_alone(tmp_path: Path) -> None:
    assert "no video stream" in refusal(write_audio(tmp_path / "a.m4a", "aac"))


def test_sound_with_a_cover_picture(tmp_path: Path) -> None:
    Image.fromarray(picture(0)).save(tmp_path / "cover.png")
    cover = b"\0image/png\0\x03\0" + (tmp_path / "cover.png").read_bytes()
    frame = b"APIC" + len(cover).to_bytes(4, "big") + b"\0\0" + cover
    size = bytes(len(frame) >> shift & 127 for shift in (21, 14, 7, 0))  # seven bits a byte
    path = write_audio(tmp_path / "a.mp3", "libmp3lame")
    path.write_bytes(b"ID3\x03\0\0" + size + frame + path.read_bytes())
    with av.open(str(path)) as container:
        assert len(container.streams.video) == 1
    assert "no video stream" in refusal(path)


@pytest.mark.parametrize(
    ("name", "muxing", "words"),
    [
        ("a.mp4", {}, "cannot open it as a video"),
        ("a.mp4", {"movflags": "faststart"}, "of 100 frames are there"),
        ("a.mp4", {"movflags": "frag_keyframe+empty_moov"}, "truncated"),
        ("a.mkv", {}, "of 4.00 s"),
        ("a.avi", {}, "truncated"),
        ("a.flv", {}, "truncated"),
    ],
)
def test_a_file_that_breaks_off(tmp_path: Path, name: str, muxing: dict[str, str], words: str) -> None:
    path = write_video(tmp_path / name, PICTURES, options=LONG_GROUPS, muxing=muxing)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 7 // 10])
    cause = refusal(path)
    assert words in cause
    assert cause.endswith(("download or copy it again", "check that it is one, and complete"))


@pytest.mark.parametrize("codec", ["libx264", "libvpx-vp9"])
def test_a_file_with_a_hole_in_it(tmp_path: Path, codec: str) -> None:
    options = {**LONG_GROUPS, "g": "20"} if codec == "libx264" else {"cpu-used": "8", "g": "20"}
    path = write_video(tmp_path / "a.mp4", PICTURES, codec=codec, options=options, muxing={"movflags": "faststart"})
    content = bytearray(path.read_bytes())
    third = len(content) // 3
    content[third:-100] = np.random.default_rng(0).bytes(len(content) - 100 - third)
    path.write_bytes(content)
    with pytest.raises(VideoError, match=r"truncated or corrupt|damaged"):
        sample(path, 50)


def test_frames_over_the_limit_are_refused_before_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("allocembed.video.decoders.pyav.PyAVDecoder.decode")
    path = write_video(tmp_path / "a.mp4", 3)
    cause = "a frame of 64x48 is over the limit of 3071 pixels; raise it with max_pixels=3072 (--max-pixels)"
    assert refusal(path, limits=DecodeLimits(max_pixels=64 * 48 - 1)) == cause


def test_frames_that_grow_past_the_limit_are_refused(tmp_path: Path) -> None:
    small = write_video(tmp_path / "small.h264", 10)
    large = write_video(tmp_path / "large.h264", PICTURES[:10])
    both = tmp_path / "both.h264"
    both.write_bytes(small.read_bytes() + large.read_bytes())
    assert "raise max_pixels (--max-pixels)" in refusal(both, limits=DecodeLimits(max_pixels=100 * 100))


def test_reading_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 100)
    assert "raise the limit with max_seconds (--max-seconds)" in refusal(path, limits=DecodeLimits(max_seconds=0.0))


@pytest.mark.parametrize("options", [{"count": 0}, {"count": -3}, {"seek": "fast"}, {"rate": 0.0}])
def test_arguments_that_make_no_sense(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        sample(np.zeros((2, 4, 4, 3), np.uint8), **options)


def test_a_source_of_another_kind() -> None:
    with pytest.raises(TypeError, match="pass a path"):
        sample(42)


def test_ffmpeg_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = write_video(
        tmp_path / "a.mp4", PICTURES, muxing={"movflags": "faststart"}, options={"x264-params": "log=-1"}
    )
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] + bytes(len(content) // 4) + content[len(content) * 3 // 4 :])
    capfd.readouterr()
    with pytest.raises(VideoError):
        probe(tmp_path / "missing.mp4")
    with pytest.raises(VideoError):
        sample(path, 100)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", ["a.mp4", "a.png"])
def test_a_fifo_is_refused_at_once(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert "not a regular file" in refusal(tmp_path / name)
    if name == "a.png":
        with pytest.raises(VideoError, match="not a regular file"):
            sample(tmp_path)


def test_a_device_and_a_socket_are_refused_at_once(tmp_path: Path) -> None:
    assert "not a regular file" in refusal(Path("/dev/zero"))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "a.mp4"))
        assert "not a regular file" in refusal(tmp_path / "a.mp4")


def test_a_file_that_disappears_while_open_is_a_video_error(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", 20)
    with open_video(path) as video:
        path.unlink()
        with pytest.raises(VideoError, match="cannot read the file"):
            video.sample(3)
