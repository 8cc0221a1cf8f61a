"""Small videos and a bad one, and a Ray cluster of two cores that the tests share."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from allocembed.scale.cluster import Cluster, ClusterOptions, connected
from tests.clips import picture, write_video


@pytest.fixture(scope="package")
def many(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    for number in range(12):
        write_video(folder / f"v{number:02}.mp4", [picture(number * 37 + frame) for frame in range(5)])
    (folder / "bad.mp4").write_bytes(b"no video")
    return folder


@pytest.fixture(scope="package")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    if find_spec("ray") is None:  # not imported yet: it reads the environment when it is
        pytest.skip("Ray is not installed: pip install -e '.[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # where Ray keeps its token
        with connected(ClusterOptions(workers=2)) as connection:
            yield connection
