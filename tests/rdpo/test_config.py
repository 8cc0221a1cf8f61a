"""The training config: presets, files, the command line's values, and errors that name the nearest option."""

import json
import subprocess
import sys
import tomllib
from dataclasses import fields

import pytest

from allocembed.errors import ConfigError
from allocembed.policy.scale_policy import SIZES
from allocembed.rdpo.config import FREE_TO_CHANGE, PRESETS, RewardOptions, TrainConfig, make_config


def test_the_default_has_a_name_of_its_own_and_differs_from_the_paper_in_four_options():
    default, paper = make_config({}), make_config({}, preset="paper")
    assert default == TrainConfig() == make_config({}, preset="allocembed")
    mine, theirs = default.as_dict(), paper.as_dict()
    differences = {name: (mine[name], theirs[name]) for name in mine if mine[name] != theirs[name]}
    assert differences == {
        "budget_mode": ("projected", "soft"),
        "cost": ("tokens", "scale"),
        "policy_head": ("bounded", "softplus"),
        "target_prompt": ("query", "none"),
    }


def test_the_paper_preset_is_table_4():
    paper = make_config({}, preset="paper")
    assert (paper.learning_rate, paper.steps, paper.examples, paper.rollouts) == (2e-5, 125, 1024, 16)
    assert (paper.global_negatives, paper.scale_range) == (3072, (0.2, 1.8))
    assert (paper.efficiency_weight, paper.gamma, paper.tau) == (0.4, 0.45, 0.10)
    assert (paper.clip_low, paper.clip_high, paper.mini_batch, paper.micro_batch) == (0.20, 0.28, 256, 64)
    assert (paper.reward, paper.confidence, paper.success_gate) == ("validated", True, True)
    assert not (paper.averaging or paper.like_with_like or paper.preview_summary or paper.centre_efficiency)


def test_the_paper_preset_states_all_that_the_paper_does_whatever_the_defaults_become():
    stated = tomllib.loads(PRESETS["paper"].read_text())
    open_ones = {"seed", "warmup", "decay", "weight_decay", "gradient_clip", "epsilon"}
    assert {"steps", "gamma", "budget_mode", "policy_head", "cost", "reward", "rollouts"} <= set(stated)
    assert {"search_rounds", "queue", "ladder", "start_from", "training_pixels", "target_prompt"} <= set(stated)
    assert not open_ones & set(stated), "the paper states none of these"


def test_the_nano_preset_serves_three_budgets():
    nano = make_config({}, preset="nano")
    assert (nano.width, nano.heads) == (SIZES["nano"].width, SIZES["nano"].heads)
    assert {(budget.frames, candidates) for budget, candidates in nano.settings} == {(8, 24), (16, 48), (20, 60)}
    assert nano.settings[0][0].frames == 8 and nano.centre_efficiency and nano.data == "world"


def test_a_config_is_its_own_reward_options():
    config = make_config({"reward": "gap", "gamma": 0.3})
    assert isinstance(config, RewardOptions) and config.gamma == 0.3
    with pytest.raises(ConfigError, match="reward must be validated, success, gap or cosine, not 'rank'"):
        make_config({"reward": "rank"})


def test_every_preset_and_free_key_is_a_field():
    names = {item.name for item in fields(TrainConfig)}
    assert all(set(tomllib.loads(path.read_text())) <= names for path in PRESETS.values()) and names >= FREE_TO_CHANGE


def test_given_options_override_the_file_which_overrides_the_preset(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text('preset = "nano"\nsteps = 7\nbudgets = ["8f/24", "16f/48"]\nscale_range = [0.3, 1.5]\n')
    config = make_config({"steps": 9}, file)
    assert (config.steps, config.examples, config.scale_range) == (9, 128, (0.3, 1.5))
    assert config.budgets == ("8f/24", "16f/48")
    assert make_config({}, file, "paper").examples == 1024


@pytest.mark.parametrize("preset", PRESETS)
def test_a_saved_config_makes_the_same_run(tmp_path, preset):
    config = make_config({"out": 'a "quoted" \\ folder', "data": "äöü 🎬.jsonl"}, preset=preset)
    (tmp_path / "train.toml").write_text(config.as_toml(), encoding="utf-8")
    assert make_config({}, file=tmp_path / "train.toml") == config
    assert tomllib.loads(config.as_toml()) == config.as_dict() == json.loads(json.dumps(config.as_dict()))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rat": 1}, "unknown option learning_rat (did you mean learning_rate?)"),
        ({"rolouts": 4}, "did you mean rollouts"),
        ({"steps": 1.5}, "steps must be of type int, not 1.5"),
        ({"steps": "many"}, "steps must be of type int, not 'many'"),
        ({"confidence": 3}, "confidence must be of type bool, not 3"),
        ({"scale_range": [0.2]}, "scale_range must be of type tuple[float, float], not [0.2]"),
        ({"scale_range": [1.8, 0.2]}, "s_min ≤ s_max"),
        ({"budgets": ["8f"]}, "write 8f/24"),
        ({"budgets": []}, "at least one entry"),
        ({"mixture": [0.5, 0.2, 0.2]}, "must add up to 1"),
        ({"rollouts": 1}, "at least 2"),
        ({"examples": 0}, "examples must be at least 1"),
        ({"validation": 0}, "with --validation-data, 0 means all of it"),
        ({"validation": -1, "validation_data": "held.jsonl"}, "validation must be at least 1, not -1"),
        ({"learning_rate": 0.0}, "learning_rate must be greater than 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be a finite number, not nan"),
        ({"tau": float("inf")}, "tau must be a finite number, not inf"),
        ({"mixture": [float("nan")] * 3}, "mixture must be a finite number"),
        ({"heads": 0}, "heads must be at least 1"),
        ({"width": 0}, "width must be at least 1"),
        ({"layers": -1}, "layers must be at least 1"),
        ({"seed": 2**63}, "seed must be less than 2**63"),
        ({"decay": 2.0}, "a fraction of the steps"),
        ({"budget_mode": "hard"}, "must be projected or soft"),
        ({"preview": "clip"}, "must be backbone or smolvlm2"),
        ({"policy_head": "plain"}, "policy_head must be bounded or softplus"),
        ({"preview": "backbone", "preview_summary": True, "policy_head": "softplus"}, "needs policy_head = bounded"),
    ],
)
def test_an_impossible_value_raises_an_error_that_says_what_is_possible(given, message):
    with pytest.raises(ConfigError) as error:
        make_config(given)
    assert message in str(error.value)


def test_unknown_presets_and_broken_files_are_named(tmp_path):
    with pytest.raises(ConfigError, match="unknown preset 'big': use one of allocembed, one-gpu, paper, nano"):
        make_config({}, preset="big")
    with pytest.raises(ConfigError, match=r"cannot read .*missing\.toml"):
        make_config({}, file=tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("steps 3")
    with pytest.raises(ConfigError, match="write a TOML file"):
        make_config({}, file=tmp_path / "bad.toml")


@pytest.mark.parametrize(
    "text",
    [
        "[train]\nsteps = 3",
        "[preset]\nname = 1",
        "preset = [1]",
        "preset = 3",
        "steps = {a = 1}",
        "reward = [1]",
        "budgets = [[1]]",
        "budgets = 3",
        "out = 1979-05-27",
        "a = " + "[" * 100_000,
        "scale_range = ['a', 'b']",
    ],
)
def test_tables_and_wrong_types_in_a_file_are_one_clear_error(tmp_path, text):
    (tmp_path / "train.toml").write_text(text)
    with pytest.raises(ConfigError):
        make_config({}, tmp_path / "train.toml")


def test_a_table_in_a_file_is_named_and_flat_options_are_advised(tmp_path):
    (tmp_path / "train.toml").write_text("[train]\nsteps = 3")
    with pytest.raises(ConfigError, match=r"train\.toml: train is a table, and options are flat; write lines such as"):
        make_config({}, tmp_path / "train.toml")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "train.toml").write_text("steps = 3", encoding="utf-8-sig")
    assert make_config({}, tmp_path / "train.toml").steps == 3


def test_the_config_needs_no_torch():
    code = "import sys, allocembed.rdpo.config; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
