"""Pixels from the PyAV decoder: upright, square, with the right range, matrix and background."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from allocembed.video import DecodeLimits, open_video, probe, sample
from tests.clips import HEIGHT, WIDTH, picture, write_video


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


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize(
    ("name", "codec", "options"),
    [
        ("a.mp4", "libx264", {"g": "30", "bf": "3", "sc_threshold": "0", "x264-params": "open-gop=1"}),
        ("a.mkv", "libx264", {"g": "30", "bf": "3", "sc_threshold": "0", "x264-params": "open-gop=1"}),
        ("a.mp4", "libx265", {"x265-params": "log-level=none:keyint=30:min-keyint=30:open-gop=1"}),
    ],
)
def test_keyframes_of_open_groups_are_decoded_without_others(tmp_path: Path, name, codec, options, threads) -> None:
    path = write_video(tmp_path / name, 120, codec=codec, options=options)
    with open_video(path, limits=DecodeLimits(threads=threads)) as video:
        keys = video.table.keys.tolist()
        alone = {index: pixels for index, _, pixels in video.decoder.pictures(video.table, [], keys)}
        assert sorted(alone) == keys == [0, 30, 60, 90]
        for index, _, pixels in video.decoder.pictures(video.table, keys):
            assert np.array_equal(alone[index], pixels)
        assert set(keys) <= set(video.sample(12, "keyframe").indices.tolist())
