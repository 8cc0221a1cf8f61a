"""Train the allocator of the nano backbones by RDPO, with nano-qwen3 only, and check it on fresh videos.

    python recipes/nano_allocator.py --out out/allocator --set seed=1      # the bundled one

Eight minutes on one GPU; `--tiny` runs a miniature on a CPU, with an untrained backbone. All settings are those of
the preset `nano` (`allocembed train --help`); `--set learning_rate=1e-3` changes one. The run folder is that of
`allocembed train`, and `--resume` continues it. The result goes to OUT/nano-allocator: the best checkpoint in
validation, in bfloat16, with a model card. The check draws its own test videos, never the shipped ones of NanoRet.
"""

from __future__ import annotations

import argparse
import os
import time
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from allocembed.allocators.learned import Learned
from allocembed.backbones.base import Backbone
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import report
from allocembed.benchmarks.metrics import Score
from allocembed.policy.preview import BackbonePreview
from allocembed.policy.scale_policy import WEIGHTS, ScalePolicy
from allocembed.rdpo.config import TrainConfig, make_config
from allocembed.rdpo.run import BEST, train
from allocembed_nano import nanoret

CHECK_SEED = 777_002
BUNDLED = "nano-allocator"
TINY: dict[str, Any] = {
    "steps": 4,
    "examples": 8,
    "rollouts": 4,
    "mini_batch": 4,
    "micro_batch": 4,
    "width": 32,
    "heads": 2,
    "warmup": 1,
    "budgets": ["8f/24", "8f/9"],
    "pool": 64,
    "global_negatives": 16,
    "validation": 8,
    "validate_every": 2,
    "save_every": 2,
    "batch_tokens": 16384,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument("--backbone", default="nano-qwen3", help="nano-qwen3, or a folder that holds it")
    parser.add_argument("--minutes", type=float, default=15.0, help="limit of the training")
    parser.add_argument("--limit", type=int, default=100, help="videos of each set in the closing check")
    parser.add_argument("--methods", default="base,uniform,content,full", help="methods to compare the allocator with")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="another setting")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--resume", action="store_true", help="continue the run in OUT")
    parser.add_argument("--tiny", action="store_true", help="a miniature, to try the script on a CPU")
    options = parser.parse_args()
    started = time.monotonic()
    backbone = tiny_backbone() if options.tiny else load_backbone(options.backbone, device=options.device)
    config = make_config(
        {
            **(TINY if options.tiny else {}),
            "out": str(options.out),
            "backbone": backbone.name,
            "minutes": options.minutes,
            **read_settings(options.set),
        },
        preset="nano",
    )
    progress = train(config, resume=options.resume, backbone=backbone)
    if progress.stopped_by:
        raise SystemExit(128 + progress.stopped_by)
    minutes = (time.monotonic() - started) / 60
    policy = ScalePolicy.from_pretrained(options.out / BEST)
    limit = 4 if options.tiny else options.limit
    rows = check(backbone, policy, config, options.methods.split(","), limit)
    print(report.markdown(rows, nanoret.LAYOUT, f"fresh test videos; {limit} of every {nanoret.VIDEOS}"), flush=True)
    # It is bundled with nano-qwen3, its preview model, wherever that was loaded from.
    facts = {**policy.config.trained, "backbone": "nano-qwen3", "minutes": round(minutes, 1)}
    facts["Hit@1 and cost on fresh NanoRet videos"] = {
        f"{row.method}, {row.subset}": f"{row.hit1:.1f} at {row.cost:.3f}×" for row in rows
    }
    policy.config = replace(policy.config, preview_source="nano-qwen3", trained=facts)
    folder = options.out / BUNDLED
    policy.save_pretrained(folder, dtype=torch.bfloat16)
    size = (folder / WEIGHTS).stat().st_size / 1e6
    parameters = sum(parameter.numel() for parameter in policy.parameters())
    print(
        f"{parameters:,} parameters, {size:.2f} MB, {progress.step} steps in {minutes:.1f} min → {folder}", flush=True
    )


def check(backbone: Backbone, policy: ScalePolicy, config: TrainConfig, methods: list[str], limit: int) -> list[Score]:
    """NanoRet on fresh videos: the methods, and the policy as it will be bundled, in bfloat16."""
    rounded = ScalePolicy(policy.config)
    rounded.load_state_dict({name: tensor.bfloat16().float() for name, tensor in policy.state_dict().items()})
    learned = Learned(rounded, BackbonePreview(backbone, config.preview_tokens, summary=config.preview_summary))
    return nanoret.evaluate(backbone, [*methods, learned], limit=limit, seed=CHECK_SEED)


def read_settings(given: list[str]) -> dict[str, Any]:
    """Parse OPTION=VALUE, where VALUE is TOML or, if it is not, a string; `make_config` checks names and types."""
    if wrong := [setting for setting in given if "=" not in setting]:
        raise SystemExit(f"cannot read {wrong[0]!r}: write --set OPTION=VALUE, such as --set learning_rate=1e-3")
    settings = {}
    for name, value in (setting.split("=", 1) for setting in given):
        try:
            settings[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            settings[name] = value
    return settings


def tiny_backbone() -> Backbone:
    from nano_model import build_backbone

    return build_backbone("qwen3", tiny=True)


if __name__ == "__main__":
    main()
