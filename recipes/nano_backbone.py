"""Trains a nano backbone from nothing: an 8 M parameter Qwen3-VL or Qwen2-VL, to retrieve in its own world.

    python recipes/nano_backbone.py --family qwen3 --minutes 9 --out out/nano-qwen3
    python recipes/nano_backbone.py --family qwen2 --minutes 9 --out out/nano-qwen2

One GPU; `--tiny` runs a miniature of it on a CPU. It writes a folder in the hub's layout (config, bf16 safetensors,
tokenizer, preprocessor settings, card) and a log. How it is made to learn:

- **reading first**: for the first third of the time the vision tower learns to name the object, colour, word and
  place under every token of single chunks, and the language model apart from it to name those in a text. The same
  losses go on beside the others afterwards. A contrastive loss alone did not start in
  an earlier probe;
- **glimpses before videos**: most batches of the second part begin as one to four chunks with a sentence for each, and
  give way to whole videos over 400 steps;
- **a concept loss on the embedding**: videos and texts must name what they hold through one shared head, which lines
  the two up before the contrastive loss has anything to sharpen; so must the language model at the end of every chunk,
  which is a dozen lessons a video instead of one;
- **the contrastive losses**: whole description and single moments against videos, each with its own weight;
- **resolution as data**: random frame counts, budgets and per-chunk scales in every batch.

Matrices are trained with Muon in many small steps: 1,250 of 960 chunks named 93 % of objects, where AdamW in 600 of
3,072 named 12 % (`docs/experiments.md`). Weights are bf16 with fp32 masters, layers are compiled (eager elementwise
kernels took most of a step), and cuDNN attention is off: it rebuilds its plan for every new shape.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import torch.nn.functional as F
from nano_data import GLIMPSE_STEPS, Batch, Group, Reading, Stream, Tokens, make_batch, make_reading
from nano_heads import Heads, TokenPlaces
from nano_model import build_backbone, read_card, save_backbone
from nano_muon import Muon
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModel

from allocembed import world
from allocembed.backbones.base import Backbone
from allocembed.benchmarks import nano, report
from allocembed.resize import Geometry, normalise, patchify, resize
from allocembed.world.atlas import WORD_HEIGHT

CHECK_SEED = 777_001
ASK_SHARE = 0.4  # of the videos come with a question
DECAY = 0.35  # share of a stage over which the rate falls to nothing


class Trainer:
    """Renders, cuts, embeds and scores batches on one device."""

    def __init__(self, backbone: Backbone, device: torch.device, atlas: world.Atlas) -> None:
        self.backbone, self.device, self.atlas = backbone, device, atlas
        backbone.by_product = True

    @torch.no_grad()
    def pixels(self, groups: list[Group]) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalised patches of all chunks in order, and their grids (C, 3) in patches."""
        geometry = self.backbone.geometry
        grids = np.concatenate([group.grids.reshape(-1, 2) for group in groups])
        ends = np.cumsum(grids.prod(-1) * geometry.merge**2)
        starts = np.concatenate([[0], ends[:-1]])
        patches = torch.empty((int(ends[-1]), 6 * geometry.patch**2), dtype=torch.uint8, device=self.device)
        first = 0
        for group in groups:
            frames = world.render(group.timelines, group.fractions, atlas=self.atlas, device=self.device)
            self._cut(frames.flatten(0, 1), group, starts[first:], patches, geometry)
            first += group.grids.shape[0] * group.grids.shape[1]
        sizes = np.concatenate([np.ones((len(grids), 1), int), grids * geometry.merge], 1)
        return normalise(patches, geometry, self.backbone.dtype), torch.from_numpy(sizes)

    def _cut(self, frames, group: Group, starts: np.ndarray, patches: torch.Tensor, geometry: Geometry) -> None:
        flat = group.grids.reshape(-1, 2)
        for rows, cols in np.unique(flat, axis=0):
            chunks = np.flatnonzero((flat == (rows, cols)).all(-1))
            count = int(rows * cols) * geometry.merge**2
            where = torch.from_numpy((starts[chunks][:, None] + np.arange(count)).ravel()).to(self.device)
            pairs = torch.from_numpy((chunks[:, None] * 2 + np.arange(2)).ravel()).to(self.device)
            sized = resize(frames[pairs], (int(rows) * geometry.factor, int(cols) * geometry.factor))
            patches[where] = patchify(sized, geometry)

    def embed(self, tokens: Tokens) -> torch.Tensor:
        """Unit vectors (N, width) in fp32 of token rows without a video."""
        return self._read(tokens, tokens.last[:, None])[:, 0]

    def embed_videos(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Vectors of the videos, of their chunks where each ends, and the merged vision tokens.

        The vision tower sees all chunks at once; the language model reads group by group, which saves padding.
        """
        pixels, grids = self.pixels(batch.groups)
        features = self.backbone.see(pixels, grids)
        ends = np.cumsum([group.grids.prod(-1).sum() for group in batch.groups])
        videos, chunks = [], []
        for tokens, where, start, end in zip(batch.videos, batch.chunk_ends, [0, *ends[:-1]], ends, strict=True):
            at = torch.cat([where, tokens.last[:, None]], 1)
            read = self._read(tokens, at, slice_features(features, start, end))
            videos.append(read[:, -1])
            chunks.append(read[:, :-1].flatten(0, 1))
        return torch.cat(videos), torch.cat(chunks), features.pooler_output

    def _read(self, tokens: Tokens, at: torch.Tensor, features: object = None) -> torch.Tensor:
        """Unit vectors (N, k, width) in fp32 of what the language model holds `at` (N, k) tokens of each row."""
        tokens = tokens.to(self.device)
        hidden = self.backbone.read(tokens.ids, tokens.positions, features)
        rows = torch.arange(len(at), device=self.device)[:, None]
        return F.normalize(hidden[rows, at.to(self.device, non_blocking=True)].float(), dim=-1)

    def reading_losses(self, reading: Reading, heads: Heads) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The dense losses on single chunks, and the concepts of texts."""
        tokens = self.backbone.see(*self.pixels(reading.groups)).pooler_output
        terms, watch = self._dense(heads, tokens, reading)
        terms["concept"] = heads.concept_loss(self.embed(reading.phrases), reading.phrase_concepts.to(self.device))
        return terms, watch

    def _dense(self, heads: Heads, tokens: torch.Tensor, batch: Reading | Batch) -> tuple[dict, dict]:
        """The dense loss of merged tokens as one term, and its parts to watch."""
        grids = np.concatenate([group.grids.reshape(-1, 2) for group in batch.groups])
        sides = [np.tile(frame_sides(group), (group.grids[..., 0].size, 1)) for group in batch.groups]
        arrays = (torch.from_numpy(grids), torch.from_numpy(np.concatenate(sides)).float())
        places = TokenPlaces.of(*(array.to(self.device) for array in arrays), total=len(tokens))
        labels, marks = batch.chunk_labels.to(self.device), batch.chunk_marks.to(self.device)
        parts = heads.dense_losses(tokens, places, labels, marks)
        total = sum(parts[name] for name in ("object", "colour", "word", "place", "letter"))
        return {"dense": total}, {name: parts[name] for name in ("letter", "object@1", "colour@1", "word@1")}

    def losses(self, batch: Batch, heads: Heads) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The loss terms of a batch, and accuracies to watch."""
        to = lambda tensor: tensor.to(self.device, non_blocking=True)  # noqa: E731
        vectors, chunks, merged = self.embed_videos(batch)
        dense, watch = self._dense(heads, merged, batch)
        named = heads.chunk_losses(chunks, to(batch.chunk_labels))
        asks = to(batch.asks)
        plain, asked = vectors[~asks], vectors[asks]
        described = self.embed(batch.descriptions)
        moments, options = self.embed(batch.phrases).split([2 * len(plain), 4 * len(asked)])
        present = to(batch.video_concepts)
        scale = heads.logit_scale.clamp(max=math.log(60.0)).exp()
        order = torch.arange(len(plain), device=self.device)
        whole = scale * described @ plain.T
        single = scale * moments @ plain.T
        terms = {
            **dense,
            "chunk": named.pop("chunk"),
            "concept": heads.concept_loss(vectors, present) + heads.concept_loss(moments, to(batch.moment_concepts)),
            "video": (F.cross_entropy(whole, order) + F.cross_entropy(whole.T, order)) / 2,
            "moment": F.cross_entropy(single, order.repeat_interleave(2)),
        }
        watch |= named | {
            "video@1": (whole.argmax(1) == order).float().mean(),
            "moment@1": (single.argmax(1) == order.repeat_interleave(2)).float().mean(),
        }
        if len(asked):
            scores = scale * (options.view(len(asked), 4, -1) @ asked[:, :, None])[:, :, 0]
            answers = to(batch.answers)
            terms["question"] = F.cross_entropy(scores, answers)
            watch["qa"] = (scores.argmax(1) == answers).float().mean()
        return terms, watch


def frame_sides(group: Group) -> tuple[float, float]:
    """Height and width of a group's frames, in short sides."""
    height, width = world.PORTRAIT if group.timelines.portrait[0] else world.LANDSCAPE
    return height / min(height, width), width / min(height, width)


def slice_features(features: object, start: int, end: int) -> SimpleNamespace:
    """The merged tokens from `start` to `end` of a vision tower's output."""
    layers = [layer[start:end] for layer in getattr(features, "deepstack_features", None) or ()]
    return SimpleNamespace(pooler_output=features.pooler_output[start:end], deepstack_features=layers)


WEIGHTS = {"dense": 0.3, "chunk": 0.5, "concept": 0.5, "video": 0.5, "moment": 1.0, "question": 2.0}


class Optimiser:
    """Muon on the matrices inside blocks, AdamW on the rest, both on fp32 masters of weights that may be bf16."""

    def __init__(self, weights: dict[str, nn.Parameter]) -> None:
        self.weights = list(weights.values())
        self.masters = [nn.Parameter(weight.detach().float().clone()) for weight in self.weights]
        inner = [weight.ndim == 2 and (".blocks." in name or ".layers." in name) for name, weight in weights.items()]
        matrices = [master for master, is_inner in zip(self.masters, inner, strict=True) if is_inner]
        others = [master for master, is_inner in zip(self.masters, inner, strict=True) if not is_inner]
        fused = others[0].is_cuda
        self.parts = [
            Muon(matrices, lr=0.0, weight_decay=0.05),
            torch.optim.AdamW(others, lr=0.0, weight_decay=0.05, betas=(0.9, 0.98), fused=fused),
        ]

    def step(self, rate: float) -> None:
        """One step; gradients are clipped to norm 1 and cleared."""
        for master, weight in zip(self.masters, self.weights, strict=True):
            master.grad = torch.zeros_like(master) if weight.grad is None else weight.grad.float()
            weight.grad = None
        torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)


def run_stage(
    name: str,
    make: Callable[[list[int]], object],
    losses: Callable[[object], tuple[dict, dict]],
    optimiser: Optimiser,
    rate: float,
    minutes: float,
    options: argparse.Namespace,
) -> int:
    """Steps through a stream of batches until the stage's time is up; returns the number of steps."""
    workers = {"num_workers": options.workers, "prefetch_factor": 4 if options.workers else None}
    loader = iter(DataLoader(Stream(make, options.seed), batch_size=None, **workers))
    started, step, waited, sums = time.monotonic(), 0, 0.0, {}
    while (elapsed := time.monotonic() - started) < minutes * 60 and step < options.steps:
        progress = max(elapsed / (minutes * 60), step / options.steps)
        share = min(1, (step + 1) / 150, max(0.02, (1 - progress) / DECAY))
        asked = time.monotonic()
        batch = next(loader)
        waited += time.monotonic() - asked
        terms, watch = losses(batch)
        sum(WEIGHTS[term] * value for term, value in terms.items()).backward()
        optimiser.step(rate * share)
        for key, value in {**terms, **watch}.items():
            sums.setdefault(key, []).append(value.detach())
        step += 1
        if step % options.every == 0 or step == options.steps:
            means = {key: round(torch.stack(values).mean().item(), 4) for key, values in sums.items()}
            sums = {}
            line = {
                "stage": name,
                "step": step,
                "seconds": round(time.monotonic() - started, 1),
                "waited": round(waited, 1),
                **means,
            }
            with (options.out / "train.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(" ".join(f"{key} {value}" for key, value in line.items()), flush=True)
        if step == options.profile:
            _profile(partial(_backward, losses, next(loader)))
    return step


def train(options: argparse.Namespace) -> None:
    """Both stages, the closing check, and the folder."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    backbone = build_backbone(options.family, tiny=options.tiny)
    parameters = sum(parameter.numel() for parameter in backbone.model.parameters())
    print(f"nano-{options.family}: {parameters:,} parameters, {2 * parameters / 1e6:.1f} MB as bf16", flush=True)
    atlas = world.load_atlas(str(device))
    aspects = (atlas.words.amax(dim=1) > 0).sum(dim=1).float() / WORD_HEIGHT
    heads = Heads(backbone.dim, aspects).to(device)
    if options.init:
        backbone.model.load_state_dict(AutoModel.from_pretrained(options.init).state_dict())
        heads.load_state_dict(load_file(options.init / "heads.safetensors"))
    model = backbone.model.to(device).requires_grad_(True).train()
    # fp32 masters are taken before the weights become bf16.
    named = {**dict(model.named_parameters()), **{f"heads.{name}": head for name, head in heads.named_parameters()}}
    optimiser = Optimiser(named)
    if device.type == "cuda":
        model.to(torch.bfloat16)
    if options.compile:
        torch._dynamo.config.recompile_limit = 64
        for layer in (*model.visual.blocks, *model.language_model.layers):
            layer.compile(dynamic=True)
    trainer = Trainer(backbone, device, atlas)
    reading = partial(make_reading, backbone, options.chunks)
    batches = partial(make_batch, backbone, options.batch, ASK_SHARE, GLIMPSE_STEPS if options.init else 0)
    read = lambda batch: trainer.reading_losses(batch, heads)  # noqa: E731
    embed = lambda batch: trainer.losses(batch, heads)  # noqa: E731
    first = options.minutes * options.reading_share
    steps = [run_stage("reading", reading, read, optimiser, options.lr, first, options)]
    rest = options.minutes - (time.monotonic() - started) / 60
    steps += [run_stage("embedding", batches, embed, optimiser, 0.75 * options.lr, rest, options)]
    model.eval().requires_grad_(False)
    # A closing look at worlds that are neither the training's nor the shipped test's.
    with torch.compiler.set_stance("force_eager"):  # not worth compiling again without gradients
        rows = nano.evaluate(backbone, ("base", "uniform", "full"), limit=options.limit, seed=CHECK_SEED)
    print(report.markdown(rows, nano.LAYOUT, f"{options.limit} of every {nano.VIDEOS} videos"), flush=True)
    summary = {
        "reading steps": steps[0],
        "embedding steps": steps[1],
        "minutes": round((time.monotonic() - started) / 60, 2),
        "seed": options.seed,
    }
    earlier = read_card(options.init)["runs"] if options.init else []
    save_file(heads.state_dict(), options.out / "heads.safetensors")
    save_backbone(backbone, options.out, {"family": options.family, "runs": [*earlier, summary]})
    print(f"{summary} → {options.out}", flush=True)


def _backward(losses: Callable[[object], tuple[dict, dict]], batch: object) -> None:
    sum(losses(batch)[0].values()).backward()


def _profile(action: Callable[[], object]) -> None:
    """Prints where the time of one step goes."""
    from torch.profiler import ProfilerActivity, profile

    cuda = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        action()
    by = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=by, row_limit=24, max_name_column_width=90), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=("qwen3", "qwen2"), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0, help="wall-clock limit; the schedule follows it")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--reading-share", type=float, default=0.3, help="share of the time the tower reads alone")
    parser.add_argument("--chunks", type=int, default=960, help="chunks a step while reading")
    parser.add_argument("--batch", type=int, default=192, help="videos a step while embedding")
    parser.add_argument("--lr", type=float, default=2e-3, help="while reading; three quarters of it while embedding")
    parser.add_argument("--workers", type=int, default=max(0, (os.cpu_count() or 1) - 2))
    parser.add_argument("--every", type=int, default=100, help="steps between log lines")
    parser.add_argument("--limit", type=int, default=60, help="videos of each set in the closing check")
    parser.add_argument("--init", type=Path, help="go on from this folder of an earlier run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=torch.cuda.is_available())
    parser.add_argument("--profile", type=int, default=0, help="print where the time goes after so many steps")
    parser.add_argument("--tiny", action="store_true", help="a miniature, to try the script on a CPU")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
