"""The project keeps its word: documented commands run, links lead somewhere, pages are current, layers hold."""

import ast
import re
import subprocess
import sys
import zlib
from importlib import import_module
from pathlib import Path

import pytest

from tests.clips import picture, write_video

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = [*ROOT.glob("*.md"), *(page for page in (ROOT / "docs").rglob("*.md") if page.name != "api.md")]


def test_ci_runs_the_second_command_of_the_readme():
    commands = re.findall(r"```sh\n(.+?)\n```", README, re.DOTALL)
    assert commands[1] in (ROOT / ".ci/run").read_text().splitlines()


def test_every_local_link_of_the_docs_exists():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_link_to_a_part_of_a_page_finds_its_heading():
    for page in PAGES:
        for target, part in re.findall(r"\]\((?!https?:)([^)#]*)#([^)]+)\)", page.read_text()):
            found = page.parent / target if target else page
            assert part in anchors(found.read_text()), f"{page.name} links to {target}#{part}"


def anchors(text: str) -> list[str]:
    """GitHub's anchors for the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_the_contents_name_every_page_for_users():
    listed = re.findall(r"\]\(([^)#]+)\)", (ROOT / "docs/index.md").read_text())
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").as_posix()
        assert name in (*listed, "index.md", "api.md", "internals/sweep_frames.md"), f"docs/index.md leaves out {name}"


def test_every_script_that_the_docs_name_exists():
    for page in PAGES:
        for script in re.findall(r"python ((?:bench|recipes|examples|docs)/(?:\w+/)?\w+\.py)", page.read_text()):
            assert (ROOT / script).exists(), f"{page.name} names {script}"


def test_the_api_page_describes_every_public_name(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_api

    page = make_api.render()
    for module, names in make_api.public().items():
        for name in names:
            assert re.search(rf"^### `{name}\b.*\n\n.", page, re.MULTILINE), f"nothing is said of {module}.{name}"
    for name in vars(import_module("allocembed.errors")):
        assert name in page or not name.endswith("Error")
    assert 'seek: Literal["exact", "keyframe"] = "exact"' in page
    assert not re.search(r"Literal\[\w|object at 0x", page), "a type or a default is not as one writes it"


def test_tables_of_the_docs_are_what_quick_commands_print(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import make_tables

    quick = ("bench/plan.py", "bench/hours.py", "bench/cpu.py --from docs/internals/measured/cpu.json")
    for command in (f"python {words}" for words in quick):
        (page,) = [each for each in make_tables.pages() if command in make_tables.commands(each)]
        text = page.read_text()
        assert make_tables.fill(text, command, make_tables.printed(command)) == text, "run docs/make_tables.py"


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
