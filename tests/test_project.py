"""The project keeps its word: documented commands run, links lead somewhere, pages are current, layers hold."""

import ast
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from tests.clips import picture, write_video

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_ci_runs_the_second_command_of_the_readme():
    commands = re.findall(r"```sh\n(.+?)\n```", README, re.DOTALL)
    assert commands[1] in (ROOT / ".ci/run").read_text().splitlines()


def test_every_local_link_of_the_docs_exists():
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_script_that_the_docs_name_exists():
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")):
        for script in re.findall(r"python ((?:bench|recipes|examples|docs)/\w+\.py)", page.read_text()):
            assert (ROOT / script).exists(), f"{page.name} names {script}"


def test_the_api_page_is_made_from_todays_docstrings(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from make_api import PAGE, render

    assert PAGE.read_text() == render(), "run python docs/make_api.py"


def test_no_module_imports_private_names_of_another():
    for path in (ROOT / "allocembed").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("allocembed"):
                private = [name.name for name in node.names if re.match(r"_(?!_)", name.name)]
                assert not private, f"{path} imports {private} from {node.module}"


def test_the_core_is_small_when_packed():
    files = [path for path in (ROOT / "allocembed").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(len(zlib.compress(path.read_bytes())) for path in files) < 1e6
    assert max(path.stat().st_size for path in files) < 1e5


def test_the_core_names_the_toy_world_only_to_say_how_to_install_it():
    naming = [
        path.name for path in (ROOT / "allocembed").rglob("*.py") if re.search("allocembed[-_]nano", path.read_text())
    ]
    assert naming == ["plugins.py"] and "allocembed_nano" not in (ROOT / "allocembed/plugins.py").read_text()


@pytest.mark.slow
def test_types_reach_users(tmp_path):
    user = tmp_path / "user.py"
    user.write_text('from allocembed import AllocEmbed\nreveal_type(AllocEmbed.from_pretrained("x"))\n')
    command = [sys.executable, "-m", "basedpyright", "--pythonpath", sys.executable, str(user)]
    shown = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert 'Type of "AllocEmbed.from_pretrained("x")" is "AllocEmbed"' in shown.stdout
    assert (ROOT / "allocembed/py.typed").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.py")))
def test_every_example_runs(name, tmp_path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    video = write_video(tmp_path / "clip.mp4", [picture(index, 96, 64) for index in range(40)])
    own = {
        "embed_videos": [str(video), str(tmp_path / "missing.mp4"), "--query", "a red car"],
        "own_frames": [],
        "stages": [str(video)],
        "own_allocator": [str(video)],
        "search_folder": [str(tmp_path), str(tmp_path / "videos.index"), "a red car"],
    }
    __import__(name).main([*own[name], "--backbone", "nano-qwen3"])
    printed = capsys.readouterr().out
    assert "tokens" in printed
