"""The time of an RDPO step and its parts, with and without each of the savings.

    python bench/training.py                               the nano preset, in its own world
    python bench/training.py --model qwen3-vl-2b           the preset one-gpu, exact shape, random weights
    python bench/training.py --model qwen3-vl-2b --tiny    in miniature on a CPU, to try the script

- shared: a chunk goes through the vision tower once per size among the K allocations of its video; otherwise once per
  allocation.
- kept: the preview model sees an example once, and the texts of the corpus are embedded once per run; otherwise it sees
  the example once per allocation, as in ResAdapt, and the drawn texts are embedded in every step.
- ladder: scales lie on few sizes, so that more is shared.
- pixels: frames are capped at the preset's `training_pixels`, here 640 × 360; otherwise 1280 × 720.

Every way starts from the same weights and samples the same actions in its first step.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from shapes import SHAPES, make_backbone

from allocembed.backbones.loading import load_backbone, pick_device
from allocembed.budget import Budget
from allocembed.execution.distributed import Processes
from allocembed.policy.preview import load_previewer
from allocembed.rdpo.config import TrainConfig, make_config
from allocembed.rdpo.data.base import TRAINING, Source, TrainingBatch, VideoBatch, own_example
from allocembed.rdpo.negatives import TextPool
from allocembed.rdpo.rollouts import PolicyInputs
from allocembed.rdpo.run import make_source, training_switches
from allocembed.rdpo.trainer import Trainer

ALL = {"shared": True, "kept": True, "ladder": True, "pixels": True}
WAYS = {
    "all savings": ALL,
    "not shared": ALL | {"shared": False},
    "not kept": ALL | {"kept": False},
    "no ladder": ALL | {"ladder": False},
    "no cap on pixels": ALL | {"pixels": False},
    "none": dict.fromkeys(ALL, False),
}
LARGE = (1280, 720)


class SoftVideos(Source):
    """Random soft pictures and numbered sentences, for models whose weights are random as well."""

    def __init__(self, size: tuple[int, int], pool: int) -> None:
        self.width, self.height = size
        self.corpus = TextPool([("corpus", n) for n in range(pool)], [f"text number {n}" for n in range(pool)])
        self.queries, self.answers, self.skipped = frozenset(self.corpus.texts), frozenset(), []

    def prepare(self, stream: int, step: int, count: int, budget: Budget, candidates: int, mine: range) -> Any:
        generator = torch.Generator().manual_seed(step)
        small = torch.rand((count * candidates, 3, self.height // 16, self.width // 16), generator=generator)
        return small, count, candidates, budget

    def finish(self, prepared: Any, device: torch.device) -> TrainingBatch:
        small, count, candidates, budget = prepared
        large = torch.nn.functional.interpolate(small.to(device), size=(self.height, self.width), mode="bilinear")
        frames = (255 * large).to(torch.uint8).unflatten(0, (count, candidates))
        times = np.tile(np.arange(candidates, dtype=float), (count, 1))
        examples = [own_example(n) for n in range(count)]
        videos = VideoBatch(np.arange(count), frames, times, np.full(count, 40 * candidates))
        return TrainingBatch(examples, [videos], budget)


class Repeating(Trainer):
    """A trainer that can repeat what it would keep."""

    looks = 1

    def look(self, videos: VideoBatch, batch: TrainingBatch) -> PolicyInputs:
        for _ in range(self.looks - 1):
            super().look(videos, batch)
        return super().look(videos, batch)


def make_trainer(options: argparse.Namespace) -> Repeating:
    common: dict[str, Any] = {"timings": True, "budgets": ["8f/24"], "steps": 1000}
    if options.tiny:
        common |= {"examples": 2, "rollouts": 2, "mini_batch": 2, "global_negatives": 8, "pool": 32, "steps": 100}
    if options.model == "nano":
        config = make_config(common | ({"examples": options.examples} if options.examples else {}), preset="nano")
        backbone = load_backbone(config.backbone, device="cpu" if options.tiny else "auto").with_patch_product()
        named = (config.preview, config.preview_source or config.backbone, config.preview_tokens)
        previewer = load_previewer(*named, backbone, backbone.device, backbone.dtype)
        return Repeating(config, Processes(backbone.device), backbone, previewer, make_source(config))
    examples = options.examples or 16
    named = {"examples": examples, "mini_batch": examples, "pool": 4096, "backbone": options.model}
    config = make_config(named | common, preset="one-gpu")
    device = torch.device("cpu") if options.tiny else pick_device("auto")
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    backbone = make_backbone(options.model, device, dtype, tiny=options.tiny).with_patch_product()
    previewer = load_previewer("backbone", "", config.preview_tokens, backbone)
    return Repeating(config, Processes(device), backbone, previewer, SoftVideos(capped(options, config), config.pool))


def capped(options: argparse.Namespace, config: TrainConfig) -> tuple[int, int]:
    """Width and height of the frames under the preset's cap on pixels."""
    width, height = (96, 64) if options.tiny else LARGE
    factor = min(1.0, (config.training_pixels / (width * height)) ** 0.5)
    return round(width * factor), round(height * factor)


def measure(trainer: Repeating, way: dict[str, bool], options: argparse.Namespace, deadline: float) -> dict | None:
    """Seconds of steps and of their parts, without one warm-up step; None if no time is left."""
    bank, config, source = trainer.candidates.bank, trainer.config, trainer.source
    trainer.encoder.share, trainer.candidates.bank = way["shared"], bank if way["kept"] else None
    trainer.looks = 1 if way["kept"] else config.rollouts
    if not way["ladder"]:
        trainer.config = replace(config, ladder=0)
    if not way["pixels"] and isinstance(source, SoftVideos) and not options.tiny:
        source.width, source.height = LARGE
    taken, parts = [], []
    try:
        for number in range(options.steps + 1):
            if time.monotonic() > deadline:
                break
            batch = trainer.source.finish(trainer.prepare(TRAINING, number), trainer.device)
            if trainer.device.type == "cuda":
                torch.cuda.synchronize()
            trainer.timer.seconds.clear()
            started = time.perf_counter()
            trainer.step(batch, number)
            if trainer.device.type == "cuda":
                torch.cuda.synchronize()
            taken.append(time.perf_counter() - started)
            parts.append(dict(trainer.timer.seconds))
    finally:
        trainer.candidates.bank, trainer.config = bank, config
        if isinstance(source, SoftVideos):
            source.width, source.height = capped(options, config)
    if len(taken) < 2:
        return None
    taken, parts = taken[1:], parts[1:]
    means = {name: statistics.mean(part[name] for part in parts) for name in parts[0]}
    return {"step_seconds": statistics.median(taken), "samples": taken, "parts_seconds": means}


def print_table(results: dict) -> None:
    rows = results["ways"]
    if not rows:
        print("no time for a single step: pass more --minutes")
        return
    parts = list(next(iter(rows.values()))["parts_seconds"])
    title = f"{results['model']} on {results['device']}: {results['examples']} examples, K = {results['rollouts']}"
    table = Table(title=title + ", milliseconds of a step")
    for heading in ("way", "step", "against the first", *parts):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    first = next(iter(rows.values()))["step_seconds"]
    for name, row in rows.items():
        cells = [f"{1e3 * row['parts_seconds'][part]:.0f}" for part in parts]
        table.add_row(name, f"{1e3 * row['step_seconds']:.0f}", f"{row['step_seconds'] / first:.2f}x", *cells)
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="nano", choices=["nano", *(name for name in SHAPES if "qwen" in name)])
    parser.add_argument("--examples", type=int, help="videos a step (default the preset's for nano, else 16)")
    parser.add_argument("--steps", type=int, default=4, help="measured steps of each way (default 4)")
    parser.add_argument("--minutes", type=float, default=4.0, help="start no new step after this time")
    parser.add_argument("--tiny", action="store_true", help="tiny models and two examples, on a CPU")
    parser.add_argument("--out", type=Path, help="write all figures here as JSON")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    trainer = make_trainer(options)
    on_gpu = trainer.device.type == "cuda"
    results = {"model": options.model, "device": torch.cuda.get_device_name() if on_gpu else "the CPU"}
    results |= {"examples": trainer.config.examples, "rollouts": trainer.config.rollouts, "ways": {}}
    weights = copy.deepcopy(trainer.policy.state_dict())
    for name, way in WAYS.items():
        trainer.policy.load_state_dict(weights)
        try:
            with training_switches():
                measured = measure(trainer, way, options, deadline)
        except Exception as error:  # if one way fails, for example out of memory, the others still run
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        if measured:
            results["ways"][name] = measured
            print(f"{name}: {1e3 * measured['step_seconds']:.0f} ms a step", flush=True)
        if options.out:
            options.out.write_text(json.dumps(results, indent=1))
    print_table(results)


if __name__ == "__main__":
    main()
