"""Candidates from folders of images, single images, and frames already in memory."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from allocembed.errors import VideoError
from allocembed.video import DecodeLimits, probe, sample
from tests.clips import HEIGHT, WIDTH, picture


def save(path: Path, pixels: np.ndarray, **options: object) -> Path:
    Image.fromarray(pixels).save(path, **options)
    return path


def test_a_folder_is_read_in_natural_order(tmp_path: Path) -> None:
    for index in (1, 2, 10):
        save(tmp_path / f"frame{index}.png", picture(index))
    (tmp_path / "notes.txt").write_text("not a frame")
    save(tmp_path / ".frame0.png", picture(0))
    clip = sample(tmp_path, 24, rate=2)
    np.testing.assert_array_equal(clip.frames, [picture(1), picture(2), picture(10)])
    assert (clip.times.tolist(), clip.total, clip.duration) == ([0, 0.5, 1], 3, 1.5)
    assert clip.source == str(tmp_path)


def test_a_folder_stands_for_a_frame_a_second_by_default(tmp_path: Path) -> None:
    for index in range(5):
        save(tmp_path / f"{index}.bmp", picture(index))
    clip = sample(str(tmp_path), 3)
    assert clip.indices.tolist() == clip.times.tolist() == [0, 2, 4]
    assert probe(tmp_path).rate == 1


@pytest.mark.parametrize("suffix", [".jpg", ".JPEG", ".png", ".webp", ".bmp"])
def test_one_image_is_a_video_of_one_frame(tmp_path: Path, suffix: str) -> None:
    clip = sample(save(tmp_path / f"a{suffix}", picture(0)), 24)
    assert (len(clip), clip.total, clip.width, clip.height) == (1, 1, WIDTH, HEIGHT)
    assert np.abs(clip.frames[0].astype(int) - picture(0)).mean() < 12


def test_images_of_other_sizes_take_the_first_ones(tmp_path: Path) -> None:
    save(tmp_path / "1.png", picture(0))
    save(tmp_path / "2.png", picture(0, 100, 30))
    assert sample(tmp_path).frames.shape == (2, HEIGHT, WIDTH, 3)


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn a quarter clockwise
    clip = sample(save(tmp_path / "a.png", picture(0), exif=exif))
    np.testing.assert_array_equal(clip.frames[0], np.rot90(picture(0), -1))


def test_transparent_images_are_laid_on_white(tmp_path: Path) -> None:
    pixels = np.dstack([picture(0), np.zeros((HEIGHT, WIDTH), np.uint8)])
    assert (sample(save(tmp_path / "a.png", pixels)).frames == 255).all()


def test_sixteen_bit_grey_is_scaled(tmp_path: Path) -> None:
    pixels = np.full((HEIGHT, WIDTH), 128 * 257, np.uint16)
    assert (sample(save(tmp_path / "a.png", pixels)).frames == 128).all()


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("not a frame")
    with pytest.raises(VideoError, match=r"holds no images.*put frames in it.*--recursive"):
        sample(tmp_path)


def test_a_broken_image_is_named(tmp_path: Path) -> None:
    save(tmp_path / "1.png", picture(0))
    path = save(tmp_path / "2.png", picture(1))
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(VideoError, match="truncated, corrupt or not an image") as caught:
        sample(tmp_path)
    assert caught.value.source == str(path)


def test_an_animated_webp_is_refused(tmp_path: Path) -> None:
    first, second = (Image.fromarray(picture(index)) for index in range(2))
    first.save(tmp_path / "a.webp", save_all=True, append_images=[second])
    with pytest.raises(VideoError, match="convert it to GIF or MP4"):
        sample(tmp_path / "a.webp")


def test_images_over_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.png", picture(0))
    with pytest.raises(VideoError, match="max_pixels=3072"):
        sample(path, limits=DecodeLimits(max_pixels=1000))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(VideoError, match="scale the image down"):
        sample(path)


def test_a_folder_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    save(tmp_path / "a.png", picture(0))
    with pytest.raises(VideoError, match="max_seconds"):
        sample(tmp_path, limits=DecodeLimits(max_seconds=0.0))


@pytest.mark.parametrize("as_list", [True, False])
def test_frames_in_memory_are_sampled(as_list: bool) -> None:
    frames = np.stack([picture(index) for index in range(30)])
    clip = sample(list(frames) if as_list else frames, 4, rate=10)
    assert clip.indices.tolist() == [0, 9, 19, 29]
    np.testing.assert_array_equal(clip.frames, frames[clip.indices])
    np.testing.assert_allclose(clip.times, [0, 0.9, 1.9, 2.9])
    assert (clip.total, clip.duration, clip.source) == (30, 3.0, "<frames>")


def test_a_list_may_mix_colour_grey_transparent_and_pillow_frames() -> None:
    grey = np.full((HEIGHT, WIDTH), 77, np.uint8)
    clear = np.dstack([picture(0), np.zeros_like(grey)])
    clip = sample([picture(0), grey, clear, Image.fromarray(picture(1))])
    np.testing.assert_array_equal(clip.frames[[0, 3]], [picture(0), picture(1)])
    assert (clip.frames[1] == 77).all()
    assert (clip.frames[2] == 255).all()


def test_the_clip_does_not_share_memory_with_the_frames() -> None:
    frames = np.zeros((3, 4, 4, 3), np.uint8)
    assert not np.shares_memory(sample(frames).frames, frames)


@pytest.mark.parametrize(
    ("frames", "words"),
    [
        (np.zeros((4, 4, 3), np.uint8), "add the time axis"),
        (np.zeros((1, 2, 4, 4, 3), np.uint8), "drop the extra axes"),
        (np.zeros((2, 3, 8, 8), np.uint8), "move channels last"),
        (np.zeros((2, 4, 4, 3), np.float32), "astype"),
        (np.zeros((2, 0, 4, 3), np.uint8), "must be"),
        (np.zeros((0, 4, 4, 3), np.uint8), "pass at least one"),
        ([], "pass at least one"),
        (["a.png", "b.png"], "folder of images"),
    ],
)
def test_frames_of_the_wrong_kind_are_refused(frames: object, words: str) -> None:
    with pytest.raises(VideoError, match=r"^<frames>: ") as caught:
        sample(frames)
    assert words in caught.value.cause
