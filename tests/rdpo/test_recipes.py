"""The recipes that train allocators, in miniature: they run and write what they promise."""

import json
import sys
from pathlib import Path

import pytest

from allocembed.policy.scale_policy import ScalePolicy
from allocembed.rdpo.config import make_config

RECIPES = Path(__file__).parents[2] / "recipes"


def run_recipe(monkeypatch, name: str, *words: object) -> None:
    monkeypatch.syspath_prepend(str(RECIPES))
    monkeypatch.setattr(sys, "argv", [name, "--tiny", *map(str, words)])
    __import__(name).main()


@pytest.mark.slow
@pytest.mark.nightly
def test_the_nano_allocator_is_trained_checked_and_written_for_shipping(monkeypatch, tmp_path, capsys):
    out = tmp_path / "run"
    run_recipe(monkeypatch, "nano_allocator", "--out", out, "--methods", "uniform", "--set", "steps=1")
    policy = ScalePolicy.from_pretrained(out / "nano-allocator")
    assert policy.config.preview_source == "nano-qwen3" == policy.config.trained["backbone"]
    table = capsys.readouterr().out
    assert "AllocEmbed" in table and "Uniform" in table and "parameters" in table
    model_card = (out / "nano-allocator" / "README.md").read_text()
    assert "learned, qa" in model_card and str(tmp_path) not in model_card


@pytest.mark.slow
@pytest.mark.nightly
def test_ablations_become_a_table_and_finished_rows_are_kept(monkeypatch, tmp_path, capsys):
    words = ("--out", tmp_path, "--set", "steps=1", "--rows", "Full RDPO; w/o Global Negatives")
    run_recipe(monkeypatch, "ablations", *words)
    rows = json.loads((tmp_path / "ablations.json").read_text())
    assert [row["row"] for row in rows] == ["Full RDPO", "w/o Global Negatives"]
    assert all(row["projected"]["cost"] <= 1 < row["requested"]["cost"] for row in rows)
    assert "| w/o Global Negatives |" in capsys.readouterr().out
    changed = tmp_path / "full-rdpo" / "row.json"
    changed.write_text(changed.read_text().replace("Full RDPO", "kept"))
    run_recipe(monkeypatch, "ablations", *words)
    assert "| kept |" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.nightly
def test_ablations_as_printed_train_the_papers_method(monkeypatch, tmp_path, capsys):
    words = ("--out", tmp_path, "--as-printed", "--set", "steps=1", "--rows", "Full RDPO")
    run_recipe(monkeypatch, "ablations", *words)
    policy = ScalePolicy.from_pretrained(tmp_path / "full-rdpo" / "best")
    assert policy.config.module.policy_head == "softplus" and not policy.config.grow
    assert policy.config.trained["budget_mode"] == "soft" and policy.config.trained["cost"] == "scale"


def test_the_ablations_are_the_papers_seven_rows(monkeypatch):
    monkeypatch.syspath_prepend(str(RECIPES))
    import ablations

    assert len(ablations.PAPER) == 7 and next(iter(ablations.PAPER.values())) == {}
    assert all(len(changes) == 1 for changes in list(ablations.PAPER.values())[1:])
    with pytest.raises(SystemExit, match="unknown row 'x'"):
        ablations.chosen_rows("x")
    paper = make_config({}, preset="paper")
    assert {"policy_head", "budget_mode", "cost"} < set(ablations.PRINTED)
    assert all(getattr(paper, name) == value for name, value in ablations.PRINTED.items())
