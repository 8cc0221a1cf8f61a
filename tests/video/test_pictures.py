"""Reading one picture: every kind of source, upright, and errors that say what to do."""

import io

import numpy as np
import pytest
from PIL import Image

from allocembed.errors import VideoError
from allocembed.video import DecodeLimits, read_picture
from tests.clips import picture, write_video

PIXELS = picture(3, 40, 24)


def encoded(kind: str, **options) -> bytes:
    made = io.BytesIO()
    Image.fromarray(PIXELS).save(made, format=kind, **options)
    return made.getvalue()


@pytest.mark.parametrize("kind", ["png", "webp", "bmp", "tiff", "gif"])
def test_a_file_its_bytes_and_its_pixels_are_one_picture(tmp_path, kind):
    exact = {"lossless": True} if kind == "webp" else {}
    data = encoded(kind, **exact)
    path = tmp_path / f"a.{kind}"
    path.write_bytes(data)
    shown = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    for source in (path, str(path), data, Image.open(path), shown):
        clip = read_picture(source)
        assert np.array_equal(clip.frames, shown[None]) and clip.listed and not clip.timed
    assert read_picture(path).source == str(path) and read_picture(data).source == "<picture>"


def test_a_photo_is_turned_upright():
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was held on its side
    clip = read_picture(encoded("png", exif=exif))
    assert np.array_equal(clip.frames[0], np.rot90(PIXELS, -1))


def test_an_animation_is_its_first_frame(tmp_path):
    frames = [Image.fromarray(picture(number)) for number in (0, 9)]
    frames[0].save(tmp_path / "a.webp", save_all=True, append_images=frames[1:], lossless=True)
    assert np.array_equal(read_picture(tmp_path / "a.webp").frames[0], picture(0))


def test_errors_name_the_file_and_what_to_do(tmp_path):
    (tmp_path / "text.jpg").write_text("no picture")
    (tmp_path / "half.png").write_bytes(encoded("png")[:60])
    write_video(tmp_path / "video.mp4", 3)
    for name, words in (
        ("nowhere.jpg", "no such file; check the path"),
        ("text.jpg", "not an image: save it again"),
        ("half.png", "truncated"),
        ("video.mp4", "search by it as a video"),
        ("", "not a regular file"),
    ):
        with pytest.raises(VideoError, match=words) as caught:
            read_picture(tmp_path / name)
        assert caught.value.source == str(tmp_path / name)
    with pytest.raises(VideoError, match=r"<picture>: .*not an image"):
        read_picture(b"no picture")
    for source in (PIXELS, Image.fromarray(PIXELS), encoded("png")):
        with pytest.raises(VideoError, match="over the limit"):
            read_picture(source, DecodeLimits(max_pixels=100))
    with pytest.raises(VideoError, match="float32, not uint8"):
        read_picture(PIXELS.astype(np.float32))
    with pytest.raises(TypeError, match="cannot read a list as a picture"):
        read_picture([PIXELS])  # pyright: ignore[reportArgumentType]
