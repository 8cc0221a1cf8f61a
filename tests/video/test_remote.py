"""Videos in object storage: the frames of the file on a disk, and of an MP4 only what they need is fetched."""

import numpy as np
import pytest

from allocembed.errors import VideoError
from allocembed.remote.objects import write
from allocembed.remote.ranged import BLOCK_BYTES, RangedFile
from allocembed.video import open_video
from tests.clips import LONG_GROUPS, write_video
from tests.object_storage import proxy_of


@pytest.fixture(scope="module")
def noise(tmp_path_factory):
    """Five megabytes: 300 frames, with a keyframe every ten."""
    source = np.random.default_rng(0)
    frames = [source.integers(0, 256, (96, 128, 3), np.uint8) for _ in range(10)]
    path = tmp_path_factory.mktemp("noise") / "noise.mp4"
    return write_video(path, frames * 30, codec="mpeg4", options={"g": "10", "b": "20M", "bf": "2"})


@pytest.mark.parametrize("name", ["groups.mp4", "other.mkv"])
@pytest.mark.parametrize("seek", ["exact", "keyframe"])
def test_frames_from_a_bucket_are_those_of_the_file(bucket, tmp_path, name, seek):
    path = write_video(tmp_path / name, 200, options=LONG_GROUPS)
    write(f"{bucket}/{name}", path.read_bytes())
    with open_video(f"{bucket}/{name}") as remote, open_video(path) as local:
        found, wanted = remote.sample(5, seek), local.sample(5, seek)
        assert np.array_equal(found.frames, wanted.frames) and np.array_equal(found.times, wanted.times)
        assert (found.total, found.duration) == (wanted.total, wanted.duration)
        for one, two in zip(remote.windows(3, 2, seek), local.windows(3, 2, seek), strict=True):
            assert np.array_equal(one.frames, two.frames)


def test_a_few_frames_of_a_large_file_do_not_fetch_it(bucket, object_server, noise, monkeypatch):
    write(f"{bucket}/noise.mp4", noise.read_bytes())
    with proxy_of(object_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.variables["AWS_ENDPOINT_URL"])
        with open_video(f"{bucket}/noise.mp4") as remote, open_video(noise) as local:
            found, wanted = remote.sample(4), local.sample(4)
    assert np.array_equal(found.frames, wanted.frames)
    assert 0 < proxy.sent < 0.5 * noise.stat().st_size


def test_any_part_of_an_object_can_be_read_and_blocks_are_kept(bucket):
    content = np.random.default_rng(0).bytes(5 * BLOCK_BYTES + 17)
    write(f"{bucket}/a", content)
    file = RangedFile(f"{bucket}/a")
    for start, size in (
        (0, 10),
        (BLOCK_BYTES - 5, 10),
        (3 * BLOCK_BYTES, 2 * BLOCK_BYTES + 100),
        (5 * BLOCK_BYTES + 10, 100),
        (7, 3 * BLOCK_BYTES),
    ):
        file.seek(start)
        assert file.read(size) == content[start : start + size]
    fetched = file.fetched
    file.seek(0)
    assert file.read() == content and file.fetched == fetched == len(content)


def test_an_object_that_is_replaced_while_it_is_read_is_an_error(bucket, noise):
    write(f"{bucket}/noise.mp4", noise.read_bytes())
    with open_video(f"{bucket}/noise.mp4") as video:
        write(f"{bucket}/noise.mp4", noise.read_bytes()[::-1])
        with pytest.raises(VideoError, match="changed or replaced while it was read"):
            video.sample(4)


def test_a_truncated_object_is_an_error(bucket, tmp_path):
    path = write_video(tmp_path / "a.mp4", 100, muxing={"movflags": "faststart"})
    write(f"{bucket}/a.mp4", path.read_bytes()[:-2000])
    with pytest.raises(VideoError, match="truncated"), open_video(f"{bucket}/a.mp4") as video:
        video.sample(4)
