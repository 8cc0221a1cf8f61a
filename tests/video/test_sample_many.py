"""Several samples from one pass are the samples that each count gives alone."""

import numpy as np
import pytest
from PIL import Image

from allocembed.video import open_video
from allocembed.video.decoders.pyav import PyAVDecoder
from tests.clips import LONG_GROUPS, picture, write_video

COUNTS = (8, 3, 24, 8)


def compare(source, seek="exact", **options) -> None:
    with open_video(source, **options) as video:
        found = video.sample_many(COUNTS, seek)
    assert list(found) == [3, 8, 24]
    for count, clip in found.items():
        with open_video(source, **options) as video:
            alone = video.sample(count, seek)
        for name, value in vars(alone).items():
            assert np.array_equal(getattr(clip, name), value), (count, name)


@pytest.mark.parametrize(
    "options", [{}, {"rounds": True}, {"start": 0.5, "end": 2.0}], ids=["whole", "rounded", "part"]
)
@pytest.mark.parametrize("seek", ["exact", "keyframe"])
def test_a_file_gives_the_same_clips(tmp_path, options, seek):
    compare(write_video(tmp_path / "a.mp4", 90, options=LONG_GROUPS), seek, **options)


def test_a_file_without_usable_timestamps_gives_the_same_clips(tmp_path):
    compare(write_video(tmp_path / "a.h264", 40, options=LONG_GROUPS))


def test_a_folder_with_images_of_several_sizes_gives_the_same_clips(tmp_path):
    for number in range(30):
        Image.fromarray(picture(number, 64 + 8 * (number % 3), 48)).save(tmp_path / f"{number}.png")
    compare(tmp_path)


def test_exact_frames_are_decoded_in_one_pass(tmp_path, monkeypatch):
    passes = []
    pictures = PyAVDecoder.pictures
    monkeypatch.setattr(PyAVDecoder, "pictures", lambda self, *a: passes.append(a[1]) or pictures(self, *a))
    with open_video(write_video(tmp_path / "a.mp4", 60)) as video:
        video.sample_many((24, 8))
    assert len(passes) == 1 and passes[0] == sorted(set(passes[0])) and 24 <= len(passes[0]) <= 30
