"""`allocembed train`: defaults from presets, files and runs; options from the fields of the config."""

from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest

from allocembed.rdpo.config import TrainConfig, make_config
from tests.command import run


@pytest.fixture
def trained(monkeypatch, tmp_path) -> mock.Mock:
    """Stands in for the training itself, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    stand_in = mock.Mock(return_value=SimpleNamespace(stopped_by=0))
    monkeypatch.setattr("allocembed.rdpo.run.train", stand_in)
    return stand_in


def given(trained: mock.Mock, *words: object) -> TrainConfig:
    result = run("train", *words)
    assert result.returncode == 0, result.stderr
    return trained.call_args.args[0]


def test_without_options_it_is_the_default_preset(trained):
    assert given(trained) == TrainConfig() and trained.call_args.kwargs == {"resume": False}
    assert given(trained, "--preset", "allocembed") == TrainConfig()
    assert given(trained, "--preset", "paper").policy_head == "softplus"


def test_a_preset_gives_the_defaults_and_options_override_it(trained):
    assert given(trained, "--preset", "nano") == make_config({}, preset="nano")
    config = given(trained, "--preset", "nano", "--steps", 3, "--no-like-with-like", "-b", "nano-qwen2")
    assert (config.steps, config.like_with_like, config.backbone) == (3, False, "nano-qwen2")
    assert config.gamma == 0.3
    config = given(trained, "--preset", "nano", "--preview-summary", "--budgets", "8f/24", "16f/48")
    assert config.preview_summary and config.budgets == ("8f/24", "16f/48")


def test_a_file_gives_the_defaults_wherever_it_stands(trained, tmp_path):
    (tmp_path / "my.toml").write_text('preset = "nano"\nsteps = 7\nmixture = [1, 0, 0]\n')
    for words in (["my.toml", "--seed", 2], ["--seed", 2, "my.toml"]):
        config = given(trained, *words)
        assert (config.steps, config.seed, config.mixture, config.data) == (7, 2, (1.0, 0.0, 0.0), "world")


def test_out_and_resume_are_enough_to_continue(trained, tmp_path):
    own = make_config({}, preset="nano")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "train.toml").write_text(own.as_toml())
    config = given(trained, "--out", "run", "--resume", "--minutes", 5)
    assert (config.examples, config.minutes, config.out) == (own.examples, 5, "run")
    assert trained.call_args.kwargs == {"resume": True}


def test_a_stopped_run_exits_as_shells_report_a_signal(trained):
    trained.return_value = SimpleNamespace(stopped_by=15)
    assert run("train", "--preset", "nano").returncode == 128 + 15


def test_help_is_the_configs_docstrings(monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    shown = run("train", "--help").stdout
    for text in ("--rollouts", "K, the allocations sampled for each example.", "--no-confidence", "--resume"):
        assert text in shown
    assert "--no-resume" not in shown


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--rolouts", "3"], 2, "did you mean --rollouts?"),
        (["--preset", "large"], 1, "unknown preset 'large'"),
        (["--steps", "0"], 1, "steps must be at least 1"),
        (["--reward", "rank"], 2, "'validated'"),
        (["--mixture", "1", "2", "3"], 1, "must add up to 1"),
        (["nowhere.toml"], 1, "cannot read nowhere.toml"),
        (["--backbone", "nano-qwen33"], 1, "did you mean nano-qwen3?"),
        (["--preset", "nano", "--data", "nowhere.jsonl"], 1, "cannot read nowhere.jsonl"),
    ],
)
def test_mistakes_are_one_line(trained, words, code, said):
    result = run("train", *words)
    assert result.returncode == code and said in result.stderr and result.stderr.count("\n") == 1, result.stderr
    assert not trained.called and not list(Path().iterdir())
