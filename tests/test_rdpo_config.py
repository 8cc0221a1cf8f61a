"""The training config: presets, files, the command line's values, and errors that name the nearest option."""

import json
import tomllib
from dataclasses import fields

import pytest

from allocembed.rdpo.config import FREE_TO_CHANGE, PRESETS, TrainConfig, field_docs, field_types, make_config
from allocembed.rdpo.rewards import RewardOptions


def test_the_paper_preset_is_table_4():
    paper = make_config({}, preset="paper")
    assert paper == TrainConfig() == make_config({})
    assert (paper.learning_rate, paper.steps, paper.examples, paper.rollouts) == (2e-5, 125, 1024, 16)
    assert (paper.global_negatives, paper.scale_range) == (3072, (0.2, 1.8))
    assert (paper.efficiency_weight, paper.gamma, paper.tau) == (0.4, 0.45, 0.10)
    assert (paper.clip_low, paper.clip_high, paper.mini_batch, paper.micro_batch) == (0.20, 0.28, 256, 64)
    assert (paper.budget_mode, paper.cost) == ("projected", "tokens")  # ours; soft and scale are the paper's


def test_the_nano_preset_serves_three_budgets():
    nano = make_config({}, preset="nano")
    assert {(budget.frames, candidates) for budget, candidates in nano.settings} == {(8, 24), (16, 48), (20, 60)}
    assert nano.settings[0][0].frames == 8 and nano.centre_efficiency and nano.data == "world"


def test_a_config_is_its_own_reward_options():
    config = make_config({"reward": "gap", "gamma": 0.3})
    assert isinstance(config, RewardOptions) and config.gamma == 0.3
    with pytest.raises(ValueError, match="there is no reward 'rank'"):
        make_config({"reward": "rank"})


def test_every_field_is_documented_and_every_preset_and_free_key_is_a_field():
    names = {item.name for item in fields(TrainConfig)}
    assert set(field_docs()) == set(field_types()) == names
    assert all(len(text) > 10 for text in field_docs().values())
    assert set().union(*PRESETS.values()) <= names and names >= FREE_TO_CHANGE


def test_the_command_line_is_over_the_file_which_is_over_the_preset(tmp_path):
    file = tmp_path / "train.toml"
    file.write_text('preset = "nano"\nsteps = 7\nbudgets = ["8f/24", "16f/48"]\nscale_range = [0.3, 1.5]\n')
    config = make_config({"steps": 9}, file)
    assert (config.steps, config.examples, config.scale_range) == (9, PRESETS["nano"]["examples"], (0.3, 1.5))
    assert config.budgets == ("8f/24", "16f/48")
    assert make_config({}, file, preset="paper").examples == 1024


@pytest.mark.parametrize("preset", PRESETS)
def test_a_saved_config_makes_the_same_run(tmp_path, preset):
    config = make_config({"out": 'a "quoted" \\ folder', "data": "äöü.jsonl"}, preset=preset)
    (tmp_path / "train.toml").write_text(config.as_toml(), encoding="utf-8")
    assert make_config({}, tmp_path / "train.toml") == config
    assert tomllib.loads(config.as_toml()) == config.as_dict() == json.loads(json.dumps(config.as_dict()))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"learning_rat": 1}, "there is no option learning_rat; did you mean learning_rate?"),
        ({"rolouts": 4}, "did you mean rollouts"),
        ({"steps": 1.5}, "steps cannot be 1.5: write it as in steps = 125"),
        ({"steps": "many"}, "steps cannot be 'many'"),
        ({"confidence": 3}, "confidence cannot be 3"),
        ({"scale_range": "0.2"}, "scale_range cannot be '0.2': write it as in scale_range = [0.2, 1.8]"),
        ({"scale_range": "1.8,0.2"}, "s_min ≤ s_max"),
        ({"budgets": "8f"}, "write 8f/24"),
        ({"budgets": []}, "at least one budget"),
        ({"mixture": "0.5,0.2,0.2"}, "must add up to 1"),
        ({"rollouts": 1}, "at least 2"),
        ({"examples": 0}, "examples must be at least 1"),
        ({"learning_rate": float("nan")}, "learning_rate must be greater than 0"),
        ({"decay": 2.0}, "share of the steps"),
        ({"budget_mode": "hard"}, "take projected or soft"),
        ({"preview": "clip"}, "take backbone or smolvlm2"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(given, message):
    with pytest.raises(ValueError) as error:
        make_config(given)
    assert message in str(error.value)


def test_unknown_presets_and_broken_files_are_named(tmp_path):
    with pytest.raises(ValueError, match="there is no preset 'big': take one of paper, nano"):
        make_config({}, preset="big")
    with pytest.raises(ValueError, match=r"cannot read .*missing\.toml"):
        make_config({}, tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("steps 3")
    with pytest.raises(ValueError, match="it must be a TOML file"):
        make_config({}, tmp_path / "bad.toml")
