"""Training runs small enough for a test, and what they wrote."""

import json
from pathlib import Path
from typing import Any

from allocembed.backbones.base import Backbone
from allocembed.execution.distributed import Processes
from allocembed.policy.preview import BackbonePreview
from allocembed.rdpo.config import TrainConfig, make_config
from allocembed.rdpo.trainer import Trainer
from allocembed_nano.training import WorldSource

# An untrained backbone never ranks a positive first, so only the gap can teach anything.
SMALL = {
    "reward": "gap",
    "steps": 4,
    "examples": 6,
    "rollouts": 3,
    "mini_batch": 4,
    "micro_batch": 2,
    "width": 32,
    "heads": 2,
    "layers": 1,
    "warmup": 0,
    "decay": 0.0,
    "learning_rate": 5e-5,
    "budgets": ["4f/7"],
    "pool": 32,
    "global_negatives": 8,
    "averaging": 0.9,
    "preview_summary": True,
    "like_with_like": True,
    "validation": 5,
    "validate_every": 2,
    "save_every": 1,
    "device": "cpu",
}


def small(folder: Path, out: Path, **changes: Any) -> TrainConfig:
    return make_config({**SMALL, "backbone": str(folder), "out": str(out), **changes}, preset="nano")


def small_trainer(backbone: Backbone, out: Path, **changes: Any) -> Trainer:
    """A trainer as `train` makes it, with `backbone` for previews too."""
    backbone = backbone.with_patch_product()
    config = small(Path(backbone.name), out, **changes)
    source = WorldSource(config.seed, config.pool, config.mixture, texts=config.target == "text")
    previewer = BackbonePreview(backbone, config.preview_tokens, summary=config.preview_summary)
    return Trainer(config, Processes("cpu"), backbone, previewer, source)


def furthest(one: dict, other: dict) -> float:
    assert one.keys() == other.keys()
    return max((one[name] - other[name]).abs().max().item() for name in one)


def lines(out: Path, kind: str = "step") -> list[dict]:
    read = map(json.loads, (out / "train.jsonl").read_text().splitlines())
    return [line for line in read if line["kind"] == kind]
