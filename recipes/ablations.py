"""The paper's ablation of RDPO's training signal, retrained in the nano world, and our two choices.

    python recipes/ablations.py --out out/ablations --jobs 10
    python recipes/ablations.py --out out/printed --as-printed --jobs 7

Seven rows as in the paper's table 2, then `soft` against projected rollouts and the mean-scale cost against tokens. All
rows start from the same weights and see the same examples in the same order; each differs from the first in one option.
With `--as-printed` the seven rows are trained with the paper's method (`PRINTED`) instead of ours; sizes, data, γ and
the learning rate stay those of the nano world. Each row is evaluated twice on fresh NanoRet videos: under the budget,
as in use, and without a budget, as in the paper, which shows the effect of the efficiency terms on the cost. Prints a
Markdown table and writes ablations.md and ablations.json; finished rows are not trained again. `--jobs` rows are
trained in parallel, each in its own process. `--tiny` is for a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
from nano_allocator import TINY, read_settings, tiny_backbone

from allocembed.allocators.base import AllocationRequest, Plan
from allocembed.allocators.learned import Learned
from allocembed.backbones.base import Backbone
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks.metrics import Score
from allocembed.embedder import AllocEmbed
from allocembed.output.files import whole_file
from allocembed.policy.preview import BackbonePreview
from allocembed.policy.scale_policy import ScalePolicy
from allocembed.rdpo.config import make_config
from allocembed.rdpo.run import BEST, STATE, train
from allocembed.video import Clip
from allocembed_nano import nanoret

CHECK_SEED = 777_003
PAPER: dict[str, dict[str, Any]] = {
    "Full RDPO": {},
    "Retrieval Success Only": {"reward": "success"},
    "Similarity Gap Only": {"reward": "gap"},
    "w/o Global Negatives": {"global_negatives": 0},
    "w/o Confidence Guidance": {"confidence": False},
    "w/o Efficiency Incentive": {"efficiency_weight": 0.0},
    "w/o Success Gating": {"success_gate": False},
}
OURS: dict[str, dict[str, Any]] = {
    "soft, cost in tokens": {"budget_mode": "soft"},
    "soft, cost by scale (the paper's)": {"budget_mode": "soft", "cost": "scale", "centre_efficiency": False},
    "projected, cost by scale": {"cost": "scale"},
}
ROWS = PAPER | OURS
METHOD = ("policy_head", "budget_mode", "cost", "centre_efficiency", "preview_summary", "like_with_like", "averaging")
PRINTED = {name: getattr(make_config({}, preset="paper"), name) for name in METHOD}
"""The options of the preset `paper` that are its method; its sizes do not suit the nano world."""

SIZES = {"target": "text", "width": 192, "heads": 6, "rollouts": 16, "scale_range": [0.2, 1.8], "decay": 0.0}
"""Smaller than the shipped allocator, so that all rows fit onto one GPU; and texts as targets, as in the paper."""


class RequestedScales(Learned):
    """The policy's scales as they are, whatever they cost."""

    name = "requested"

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        return replace(super().plan(clip, request), bounded=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--backbone", default="nano-qwen3", help="nano-qwen3, or a folder that holds it")
    parser.add_argument("--rows", default="", help="paper, ours, all (the default), or names separated by semicolons")
    parser.add_argument("--as-printed", action="store_true", help="train the paper's rows with the paper's method")
    parser.add_argument("--steps", type=int, default=40, help="steps per row")
    parser.add_argument("--minutes", type=float, default=0.0, help="limit of the training of one row; 0: no limit")
    parser.add_argument("--limit", type=int, default=150, help="videos of each set in the evaluation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="for all rows")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--jobs", type=int, default=1, help="rows trained in parallel")
    parser.add_argument("--tiny", action="store_true", help="a miniature, to try the script on a CPU")
    options = parser.parse_args()
    options.rows = options.rows or ("paper" if options.as_printed else "all")
    if options.jobs > 1:
        run_side_by_side(list(chosen_rows(options.rows)), options.jobs)
    backbone = tiny_backbone() if options.tiny else load_backbone(options.backbone, device=options.device)
    results = []
    for name, changes in chosen_rows(options.rows).items():
        results.append(run_row(backbone, name, changes, options))
        write(results, options)
    print((options.out / "ablations.md").read_text(), flush=True)


def run_side_by_side(names: list[str], jobs: int) -> None:
    """Run this script once per row with the same arguments; the tables they write are replaced by the whole one."""
    arguments = [sys.executable, *sys.argv, "--jobs", "1"]

    def run(name: str) -> None:
        done = subprocess.run([*arguments, "--rows", name], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"the row {name!r} failed:\n{done.stderr[-2000:]}")

    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run, names))


def chosen_rows(rows: str) -> dict[str, dict[str, Any]]:
    """The rows by name; all of the paper's, all of ours, or some."""
    named = {"all": ROWS, "paper": PAPER, "ours": OURS}
    if rows in named:
        return named[rows]
    names = [name.strip() for name in rows.split(";") if name.strip()]
    if unknown := [name for name in names if name not in ROWS]:
        raise SystemExit(f"unknown row {unknown[0]!r}: use paper, ours, all, or some of {'; '.join(ROWS)}")
    return {name: ROWS[name] for name in names}


def run_row(backbone: Backbone, name: str, changes: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Train and evaluate one row, or read its earlier result."""
    folder = options.out / "".join(letter if letter.isalnum() else "-" for letter in name.lower()).strip("-")
    found = folder / "row.json"
    if found.is_file():
        return json.loads(found.read_text())
    given: dict[str, Any] = {
        **(TINY if options.tiny else {"steps": options.steps}),
        "seed": options.seed,
        "minutes": options.minutes,
    }
    given |= {"budgets": ["8f/24"], "out": str(folder), "backbone": backbone.name}
    given |= SIZES if not options.tiny else {"target": "text"}
    given |= PRINTED if options.as_printed else {}
    given |= read_settings(options.set)
    config = make_config(given | changes, preset="nano")
    started = time.monotonic()
    progress = train(config, backbone=backbone, resume=(folder / STATE).exists())
    if progress.stopped_by:
        raise SystemExit(128 + progress.stopped_by)  # the next run continues this row
    policy = ScalePolicy.from_pretrained(folder / BEST)
    previewer = BackbonePreview(backbone, config.preview_tokens, summary=config.preview_summary)
    embedders = {cls.name: AllocEmbed(backbone, cls(policy, previewer)) for cls in (Learned, RequestedScales)}
    rows = nanoret.evaluate_embedders(embedders, limit=3 if options.tiny else options.limit, seed=CHECK_SEED)
    result = {
        "row": name,
        "steps": progress.step,
        "seconds": round(time.monotonic() - started),
        "projected": summary([row for row in rows if row.method == Learned.name]),
        "requested": summary([row for row in rows if row.method == RequestedScales.name]),
        "subsets": [asdict(row) for row in rows],
    }
    with whole_file(found) as scratch:
        scratch.write_text(json.dumps(result, indent=2) + "\n")
    return result


def summary(rows: list[Score]) -> dict[str, float]:
    """Hit@1 over the retrieval subsets, over questions, and the mean cost."""
    retrieval = [row.hit1 for row in rows if row.subset in nanoret.RETRIEVAL]
    asked = [row.hit1 for row in rows if row.subset not in nanoret.RETRIEVAL]
    return {
        "hit1": round(float(np.mean(retrieval)), 2),
        "qa": round(float(np.mean(asked)), 2),
        "cost": round(float(np.mean([row.cost for row in rows])), 4),
    }


def write(results: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """ablations.json and ablations.md, after every row."""
    options.out.mkdir(parents=True, exist_ok=True)
    first = results[0]
    lines = [
        "| variant | Hit@1 | Δ | qa | cost | Hit@1, no budget | Δ | qa, no budget | cost, no budget | Δ (%) | steps |",
        "| --- " + "| ---: " * 10 + "|",
    ]
    for result in results:
        held, free = result["projected"], result["requested"]
        changes = [f"{result[kind]['hit1'] - first[kind]['hit1']:+.2f}" for kind in ("projected", "requested")]
        changes.append(f"{100 * (free['cost'] / first['requested']['cost'] - 1):+.1f}")
        under, free_of, dearer = [""] * 3 if result is first else changes
        cells = [result["row"], f"{held['hit1']:.2f}", under, f"{held['qa']:.2f}", f"{held['cost']:.3f}×"]
        cells += [f"{free['hit1']:.2f}", free_of, f"{free['qa']:.2f}", f"{free['cost']:.3f}×", dearer]
        cells.append(str(result["steps"]))
        lines.append(f"| {' | '.join(cells)} |")
    note = f"Hit@1 in percent, mean of the four retrieval subsets of NanoRet; fresh test videos, seed {CHECK_SEED}"
    table = "\n".join([*lines, "", f"{note}, {options.limit} of every 500."]) + "\n"
    for name, text in (("ablations.json", json.dumps(results, indent=2) + "\n"), ("ablations.md", table)):
        with whole_file(options.out / name) as scratch:
            scratch.write_text(text)


if __name__ == "__main__":
    main()
