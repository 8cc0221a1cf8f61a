"""Score allocators on fresh videos of the nano world: Hit@1 over several seeds, with standard errors.

    python recipes/nano_eval.py --allocators uniform sensitivity learned full --seeds 61 62 63
    python recipes/nano_eval.py --backbone nano-qwen2 --allocators uniform MINE full --budget 16f --candidates 48
    python recipes/nano_eval.py --backbone nano-gemma --inputs frame-mean --allocators base uniform sensitivity full

"way" is the share of the distance from `uniform` to `full`, on the average of the four retrieval subsets, if both are
among the allocators. `sensitivity:6-12+12-24@1.5` is sensitivity with two looks and the exponent 1.5. Standard errors
are over the videos of all seeds. `--questions` scores questions only, and again
with the question hidden from the allocator. Nothing but torch, transformers and numpy is needed.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.allocators.registry import load_allocator
from allocembed.backbones.base import Backbone
from allocembed.backbones.float8 import round_linears
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks.metrics import Score
from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.video import Clip
from allocembed_nano import nanoret

RETRIEVAL = ("short-clip", "short-video", "long-clip", "long-video")


class HiddenQuestion(Allocator):
    """Another allocator that does not hear the question; the vector does."""

    def __init__(self, inner: Allocator) -> None:
        self.inner, self.name = inner, f"{inner.name}, question hidden"
        self.scale_range, self.takes_tensors = inner.scale_range, inner.takes_tensors

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        blind = AllocationRequest(request.geometry, request.budget, request.scale_range)
        return self.inner.plan(clip, blind)


def load(options: argparse.Namespace) -> Backbone:
    """The backbone. On a CPU, torch computes float8's products slowly, which the package itself would refuse."""
    if options.dtype != "float8" or torch.cuda.is_available():
        return load_backbone(options.backbone, dtype=options.dtype, inputs=options.inputs)
    backbone = load_backbone(options.backbone, dtype="bfloat16", inputs=options.inputs)
    round_linears(backbone.model)
    return backbone


def make_embedders(options: argparse.Namespace, backbone: Backbone) -> dict[str, AllocEmbed]:
    config = EmbedConfig(budget=options.budget, candidates=options.candidates)
    found = {}
    for name in options.allocators:
        allocator = load_allocator(name, backbone)
        label = Path(name).parent.name if Path(name).is_dir() else name
        found[label] = AllocEmbed(backbone, allocator, config)
        if options.questions and name not in ("base", "uniform", "full"):
            found[f"{label}, question hidden"] = AllocEmbed(backbone, HiddenQuestion(allocator), config)
    return found


def summarise(scores: Sequence[Score], subsets: Sequence[str]) -> dict[str, dict[str, float]]:
    """Mean Hit@1 of each method over the subsets, its standard error, and the subsets by themselves."""
    found: dict[str, dict[str, float]] = {}
    for method in dict.fromkeys(score.method for score in scores):
        line: dict[str, float] = {}
        variance = 0.0
        for subset in subsets:
            own = [score for score in scores if (score.method, score.subset) == (method, subset)]
            total = sum(score.n for score in own)
            hit = sum(score.hit1 * score.n for score in own) / total
            line[subset] = round(hit, 2)
            variance += hit * (100 - hit) / total
        line["mean"] = round(float(np.mean([line[subset] for subset in subsets])), 2)
        line["error"] = round(variance**0.5 / len(subsets), 2)
        line["cost"] = round(float(np.mean([score.cost for score in scores if score.method == method])), 3)
        line["over"] = sum(score.over_budget for score in scores if score.method == method)
        found[method] = line
    if {"uniform", "full"} <= found.keys():
        low, high = found["uniform"]["mean"], found["full"]["mean"]
        for line in found.values():
            line["way"] = round(100 * (line["mean"] - low) / max(high - low, 1e-9), 1)
            line["way error"] = round(100 * line["error"] / max(high - low, 1e-9), 1)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="nano-qwen3")
    parser.add_argument("--allocators", nargs="+", required=True, help="methods, or folders of learned allocators")
    parser.add_argument("--seeds", type=int, nargs="+", default=[61, 62, 63])
    parser.add_argument("--videos", type=int, default=500, help="of each set")
    parser.add_argument("--budget", default="8f")
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--questions", action="store_true")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--inputs", help="another of the backbone's input pipelines than its first")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no new seed after this time")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(False)
    backbone = load(options)
    embedders = make_embedders(options, backbone)
    subsets, scores, started, used = ("qa",) if options.questions else RETRIEVAL, [], time.monotonic(), []
    by_seed = {}
    for seed in options.seeds:
        if time.monotonic() - started > 60 * options.minutes:
            break
        new = nanoret.evaluate_embedders(embedders, subsets=subsets, limit=options.videos, seed=seed)
        by_seed[seed] = {f"{score.method}, {score.subset}": round(score.hit1, 2) for score in new}
        scores += new
        used.append(seed)
    found = summarise(scores, subsets)
    print(f"{options.backbone}, {options.budget} of {options.candidates}, seeds {used}, {options.videos} videos a set")
    for method, line in found.items():
        print(f"  {method:28}", ", ".join(f"{name} {value}" for name, value in line.items()), flush=True)
    if options.out:
        about = {name: str(value) for name, value in vars(options).items()}
        options.out.write_text(json.dumps({"options": about, "summary": found, "seeds": by_seed}, indent=1))


if __name__ == "__main__":
    main()
