"""Compare float8 with bfloat16 on random weights of exact shape: time, memory, and how far the vectors move.

    python bench/float8.py [--models qwen3-vl-8b,qwen3-vl-2b] [--samples 30] [--out FILE.json]
                           [--profile FILE.md] [--tiny]

The input is that of bench/latency.py: 24 candidates of 1280×720, the budget of Base (8 native frames), batch 1. Each
model is measured in bfloat16, then rounded and measured again. "Products" are the layers of one block by themselves,
with as many tokens or patches as the allocated video has: the product in bfloat16, in float8 with both ways to sum, and
the rounding of the input. Random weights amplify rounding; `recipes/nano_eval.py --allocators uniform full --dtype
float8` shows what it costs. `--tiny` runs everything in miniature on a CPU, to test the script.
"""

from __future__ import annotations

import gc
import json
import time
from typing import Any

import torch
import torch._dynamo
import torch.nn.functional as F
from latency import LatencyBench, make_parser
from measure import cosine_gap, forward, kernel_table, measure, prepare_videos
from rich.console import Console
from rich.table import Table
from shapes import make_backbone
from torch._dynamo.utils import counters

from allocembed.backbones.base import Item, Prompt
from allocembed.backbones.float8 import can_round, round_linears, round_rows

QUESTION = "A person repairs a bicycle in a workshop, and another one watches."
HALF, EIGHTH = "bfloat16", "float8"


class Float8Comparison(LatencyBench):
    """One model in both formats."""

    def compare(self) -> str:
        """Measure both formats; return profiles as markdown if asked for."""
        question = prepare_videos(self.eager, [Item(Prompt(QUESTION))])
        inputs = {"allocated": self.mixed[0], "a question": question, "full": self.full}
        self.out["tokens"] = {name: len(videos[0]) for name, videos in inputs.items()}
        self.products()
        profiles, vectors = [], {}
        for dtype in (HALF, EIGHTH):
            if dtype == EIGHTH:
                torch._dynamo.reset()  # else both formats count towards one limit of graphs
                self.out["layers"] = round_linears(self.eager.model)
                options = {"tiny": self.options.tiny, "compile": True, "model": self.eager.model}
                self.fast = make_backbone(self.name, self.device, self.eager.dtype, **options)
                gc.collect()
            counters.clear()
            for name, videos in inputs.items():
                self.time(f"{dtype}: {name}", lambda _, v=videos: forward(self.fast, v), seconds=20)
                self.time(f"{dtype}: {name}, eager", lambda _, v=videos: forward(self.eager, v), seconds=20)
                for kind, backbone in (("", self.fast), (", eager", self.eager)):
                    if f"{dtype}: {name}{kind}" in self.out["times"]:  # it works, and there was time
                        vectors[f"{dtype}: {name}{kind}"] = forward(backbone, videos)
            packed = [videos[0] for videos in self.mixed[:4]]
            self.time(f"{dtype}: 4 allocated, packed", lambda _, v=packed: forward(self.fast, v, "pack"), seconds=20)
            self.time(f"{dtype}: new allocations", lambda n: forward(self.fast, self.mixed[n % 12]), seconds=20)
            self.out.setdefault("graphs", {})[dtype] = counters["stats"]["unique_graphs"]
            weights = sum(tensor.numel() * tensor.element_size() for tensor in self.eager.model.state_dict().values())
            self.out.setdefault("weights_gb", {})[dtype] = weights / 1e9
            if self.options.profile:
                for kind, backbone in (("compiled", self.fast), ("eager", self.eager)):
                    title = f"{self.name}: allocated, {dtype}, {kind}"
                    profiles.append(kernel_table(title, lambda b=backbone: forward(b, self.mixed[0]), self.device))
        for name in inputs:
            pairs = [(f"{EIGHTH}: {name}{kind}", f"{HALF}: {name}{kind}") for kind in ("", ", eager")]
            pairs += [(f"{dtype}: {name}", f"{dtype}: {name}, eager") for dtype in (HALF, EIGHTH)]
            for one, other in pairs:
                if one in vectors and other in vectors:
                    self.out.setdefault("apart", {})[f"{one} to {other}"] = cosine_gap(vectors[one], vectors[other])
        self.save()
        return "\n".join(profiles)

    def products(self) -> None:
        """Time the layers of one block of the tower and one of the language model by themselves."""
        patches, tokens = len(self.mixed[0][0].patches.pixels), len(self.mixed[0][0])
        parts = (("tower", self.eager.model.visual.blocks[0], patches),)
        parts += (("language", self.eager.model.language_model.layers[0], tokens),)
        for part, block, rows in parts:
            for path, layer in block.named_modules():
                if not isinstance(layer, torch.nn.Linear) or not can_round(f".0.{path}", layer):
                    continue
                weight = layer.weight.detach()
                hidden = torch.randn((rows, layer.in_features), device=self.device, dtype=weight.dtype)
                given, levels = (round_rows(each) for each in (hidden, weight))
                found = {HALF: self.median(lambda h=hidden, w=weight: F.linear(h, w))}
                found["rounding"] = self.median(lambda h=hidden: round_rows(h))
                for name, fast in (("float8, fast sums", True), ("float8, exact sums", False)):

                    def multiply(given=given, levels=levels, out=weight.dtype, fast=fast) -> torch.Tensor:
                        scales = {"scale_a": given[1], "scale_b": levels[1].t()}
                        return torch._scaled_mm(given[0], levels[0].t(), **scales, out_dtype=out, use_fast_accum=fast)

                    found[name] = self.median(multiply)
                size = f"{rows} × {layer.in_features} → {layer.out_features}"
                self.out.setdefault("products", {})[f"{part} {path}, {size}"] = found

    def median(self, action: Any) -> float | None:
        """Milliseconds of one call of ten in a row; None if it fails, which is reported."""
        try:
            return measure(lambda _: [action() for _ in range(10)], 10, self.device, seconds=5).median / 10
        except RuntimeError as error:
            print(f"{self.name}: failed: {str(error).splitlines()[0][:200]}")
            return None


def print_results(results: dict[str, Any]) -> None:
    """Print the tables of all models."""
    console = Console(width=140)
    for name, about in results["models"].items():
        times = about.get("times", {})
        table = Table("input", f"{HALF}, ms", f"{EIGHTH}, ms", "ratio", title=f"{name}, {results['device']}")
        for part in (part.removeprefix(f"{HALF}: ") for part in times if part.startswith(f"{HALF}: ")):
            one, other = (times.get(f"{dtype}: {part}", {}).get("median_ms") for dtype in (HALF, EIGHTH))
            if one and other:
                table.add_row(part, f"{one:.2f}", f"{other:.2f}", f"{other / one:.2f}")
        console.print(table)
        columns = (HALF, "rounding", "float8, fast sums", "float8, exact sums")
        table = Table("layer", *columns, title=f"{name}: products, ms")
        for part, found in about.get("products", {}).items():
            table.add_row(part, *("–" if found[column] is None else f"{found[column]:.3f}" for column in columns))
        console.print(table)
        for fact in ("tokens", "layers", "graphs", "weights_gb"):
            console.print(f"{fact}: {about.get(fact)}")
        for part, gap in about.get("apart", {}).items():
            console.print(f"1 − cos, {part}: {gap:.1e}")


def main() -> None:
    parser = make_parser(__doc__, "qwen3-vl-8b,qwen3-vl-2b", 30)
    options = parser.parse_args()
    options.deadline = time.monotonic() + 60 * options.minutes
    options.samples = 2 if options.tiny else options.samples
    device = "CPU" if options.tiny else torch.cuda.get_device_name()
    results: dict[str, Any] = {"torch": torch.__version__, "device": device, "models": {}}

    def save() -> None:
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")

    profiles = []
    for name in options.models.split(","):
        torch._dynamo.reset()
        comparison = Float8Comparison(name, options, results["models"], save)
        profiles.append(comparison.compare())
        if options.profile:
            options.profile.write_text("\n".join(profiles))
        del comparison
        gc.collect()
        if not options.tiny:
            torch.cuda.empty_cache()
    print_results(results)


if __name__ == "__main__":
    main()
