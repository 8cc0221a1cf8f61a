"""Names that the package adds to AllocEmbed, and advice to users who lack it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from allocembed import plugins
from allocembed.backbones.checkpoint import Checkpoint, check_backbone
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.registry import REGISTRY
from allocembed.cli.main import COMMANDS
from allocembed.errors import AllocEmbedError, BackboneError
from allocembed.plugins import OWN_PACKAGES
from allocembed.rdpo.config import PRESETS, TRAINING_DATA, TrainConfig
from allocembed.rdpo.run import train
from tests.command import run

GROUPS = {names.group: names for names in (REGISTRY, COMMANDS, PRESETS, TRAINING_DATA)}
PROJECT = Path(__file__).parents[2] / "packages" / "allocembed-nano" / "pyproject.toml"
INSTALL = "pip install allocembed-nano (from a checkout: pip install -e packages/allocembed-nano)"


@pytest.fixture
def uninstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    """No package adds a name, and none was set in this process by an earlier test."""
    for group, names in GROUPS.items():
        stated = vars(names)["_own"]
        ours = {name: stated[name] for name in stated if name not in OWN_PACKAGES["allocembed-nano"][group]}
        monkeypatch.setitem(vars(names), "_own", ours)
        monkeypatch.setitem(vars(names), "_added", {})


def test_the_errors_of_the_core_know_exactly_the_names_that_the_package_adds():
    stated = tomllib.loads(PROJECT.read_text())["project"]["entry-points"]
    assert OWN_PACKAGES["allocembed-nano"] == {group: tuple(names) for group, names in stated.items()}


def test_every_name_is_there_and_can_be_loaded():
    for group, names in OWN_PACKAGES["allocembed-nano"].items():
        assert all(GROUPS[group][name] for name in names)


@pytest.mark.parametrize(
    "words",
    [
        ["demo"],
        ["eval", "nano"],
        ["train", "--preset", "nano"],
        ["train", "--data", "world"],
        ["embed", "a.mp4", "--backbone", "nano-qwen3"],
        ["index", ".", "--to", "new.index", "--backbone", "Nano-Gemma"],
    ],
    ids=" ".join,
)
def test_without_the_package_one_sentence_says_how_to_install_it(words, uninstalled, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    result = run(*words)
    assert result.returncode in (1, 2) and result.stdout == "" and result.stderr.count("\n") == 1
    assert result.stderr.endswith(f"comes with the package allocembed-nano, which is not installed: {INSTALL}\n")
    assert not list(tmp_path.iterdir())


def test_a_program_is_told_the_same_without_the_package(uninstalled):
    for ask in (load_backbone, check_backbone, lambda name: train(TrainConfig(backbone=name, data="world"))):
        with pytest.raises(AllocEmbedError, match="pip install allocembed-nano"):
            ask("nano-qwen3")


def test_without_the_package_the_help_is_silent_about_it():
    # A process of its own: the options of a command are made once.
    code = "from importlib.metadata import EntryPoints; from allocembed import plugins; "
    code += "plugins.installed = EntryPoints; from allocembed.cli.main import run; run(['--help']); "
    code += "run(['eval', '--help']); run(['train', '--help'])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout
    assert "--budgets" in shown and "mmeb-v2" in shown
    assert "demo" not in shown and "nano" not in shown.lower() and "toy" not in shown


def test_a_copy_of_a_model_in_a_folder_of_its_name_needs_no_package(uninstalled, monkeypatch, nano_tiny, tmp_path):
    (tmp_path / "nano-qwen3").symlink_to(nano_tiny)
    monkeypatch.chdir(tmp_path)
    assert Checkpoint.fetch("nano-qwen3").files[0].samefile(nano_tiny)


def test_a_model_that_cannot_be_found_is_offered_a_toy_only_if_there_is_one(uninstalled, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(BackboneError, match=r"--backbone nano-qwen3 .*pip install allocembed-nano"):
        load_backbone("no/such-model")


def test_a_command_of_a_package_that_is_broken_spares_the_help_of_the_others(monkeypatch):
    broken = plugins.EntryPoint("mine", "no_such_module:mine", "allocembed.commands")
    monkeypatch.setitem(vars(COMMANDS), "_added", {"mine": broken})
    shown = run("--help").stdout
    assert "  embed " in shown and "no_such_module" in shown
