"""A short form of bench/torture.py: each part attacks a little, and nothing bad happens."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from allocembed.budget import project

ROOT = Path(__file__).parents[1]
# At these scales: 50 damaged files, 6 kills, 2 races, failures of one kind, 50,000 allocations, 150 requests.
INSIDE = {"media": 0.01, "kills": 0.04, "writers": 0.034, "soak": 0.015}
BY_COMMAND = {"disk": 0.25, "allocations": 0.05}


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("part", INSIDE)
def test_nothing_crashes_hangs_is_lost_or_wrong(part, tmp_path, monkeypatch):
    """These parts attack processes of their own, so they need none around them, which would import torch again."""
    pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    common = importlib.import_module("torture_parts.common")
    outcome = importlib.import_module(f"torture_parts.{part}").run(common.Settings(tmp_path, 0, INSIDE[part]))
    assert outcome.clean, outcome.examples
    assert outcome.runs > 0


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("part", BY_COMMAND)
def test_the_command_finds_no_failure_and_nothing_over_budget(part, tmp_path):
    out = tmp_path / "outcome.json"
    command = [sys.executable, "bench/torture.py", "--only", part, "--scale", str(BY_COMMAND[part]), "--out", str(out)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True
    )
    assert out.exists(), done.stderr
    outcome = json.loads(out.read_text())["parts"][0]
    bad = {kind: outcome[kind] for kind in ("crashes", "hangs", "lost", "wrong", "over_budget")}
    assert not any(bad.values()), outcome["examples"]
    assert outcome["runs"] > 0 and done.returncode == 0


def test_extreme_scales_keep_their_order_when_they_are_limited():
    scales = np.array([[1e-320, 1e-300, 1e300, 1e-100, 1e-200]])
    for budget in range(5, 400, 7):
        tokens = project(scales, np.array([[6, 8]]), budget, (0.05, 4.0))[1].prod(-1)[0]
        assert tokens.sum() <= budget
        assert (np.diff(tokens[np.argsort(scales[0])]) >= 0).all()
