"""A stranger's package, installed into a fresh environment, is used from the command line by name."""

import json
import os
import site
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

from allocembed.testing.videos import write_videos

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parent.parent
PLUGIN = REPOSITORY / "examples" / "plugin"


@pytest.fixture(scope="module")
def python(tmp_path_factory) -> Path:
    """The interpreter of an environment that sees the packages of this one, and has the plug-in installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    here = [path for path in map(Path, (*site.getsitepackages(), site.getusersitepackages())) if path.is_dir()]
    # Whole folders of packages, with the links in them to packages that are being edited.
    lines = [f"import site; site.addsitedir({str(path)!r})\n" for path in here]
    (packages / "packages_of_the_tests.pth").write_text("".join(lines))
    python = folder / "bin" / "python"
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", str(PLUGIN)]
    subprocess.run([sys.executable, "-m", "pip", "--python", str(python), "install", *options], check=True, timeout=120)
    return python


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A tiny CLIP checkpoint."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(PLUGIN / "tests"))
        from tiny_clip import save

        return save(tmp_path_factory.mktemp("clip"))


def run(python: Path, folder: Path, *arguments: object) -> str:
    """The output of a command; its error fails the test."""
    command = [str(python), "-m", "allocembed", *map(str, arguments)]
    variables = os.environ | {"PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    ran = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_embed_takes_a_family_and_an_allocator_of_the_package(python, checkpoint, tmp_path):
    paths, named = write_videos(tmp_path, 2), ("--backbone", checkpoint, "--device", "cpu", "--budget", "4f")
    vectors = {}
    for allocator in ("middle", "middle:0.9"):
        out = tmp_path / "vectors.npz"
        run(python, tmp_path, "embed", *paths, *named, "--allocator", allocator, "--out", out)
        vectors[allocator] = np.load(out)["vectors"]
        assert vectors[allocator].shape == (2, 24)
    assert not np.array_equal(vectors["middle"], vectors["middle:0.9"])


@pytest.mark.parametrize("place", ["videos.index", "sqlite://videos.sqlite"])
def test_an_index_is_made_opened_and_searched(python, checkpoint, tmp_path, place):
    (tmp_path / "videos").mkdir()
    write_videos(tmp_path / "videos", 3)
    named = ("--backbone", checkpoint, "--allocator", "middle", "--device", "cpu")
    run(python, tmp_path, "index", "videos", "--to", place, *named)
    found = json.loads(run(python, tmp_path, "search", place, "--like", "videos/1.avi", "--json"))
    assert Path(found[0]["path"]).name == "1.avi" and found[0]["score"] > 0.999
    assert len(json.loads(run(python, tmp_path, "search", place, "a red car", "--json"))) == 3
