"""Train a nano backbone from scratch: a Qwen3-VL, Qwen2-VL or EmbeddingGemma 2 of 8 M parameters for its own world.

    python recipes/nano_backbone.py --family qwen3 --minutes 9 --out out/nano-qwen3
    python recipes/nano_backbone.py --family qwen2 --minutes 9 --out out/nano-qwen2
    python recipes/nano_backbone.py --family gemma --minutes 9 --out out/nano-gemma

It needs one GPU; `--tiny` runs a miniature on a CPU. It writes a folder in the hub's layout (config, bf16 safetensors,
tokenizer, preprocessor settings, model card) and a log. How the model learns:

- **reading first**: for the first third of the time, the vision tower learns to name the object, colour, word and place
  under every token of single chunks. Separately, the language model learns to name those in a text. Both losses stay
  active afterwards. In an earlier experiment, a contrastive loss alone did not start to fall;
- **glimpses before videos**: most batches of the second stage start as one to four chunks with a sentence for each;
  whole videos replace them over 400 steps;
- **a concept loss on the embedding**: videos and texts must name their content through one shared head, which aligns
  the two before the contrastive loss is useful. So must the language model for every chunk, which gives a dozen labels
  per video instead of one: by its state at the end of the chunk or, if it is bidirectional, by the mean of the chunk;
- **the contrastive losses**: whole descriptions and single moments against videos, each with its own weight;
- **resolution as data**: random frame counts, budgets and scales per chunk in every batch.

Matrices are trained with Muon in many small steps: 1,250 steps of 960 chunks named 93 % of objects, 600 steps of 3,072
with AdamW named 12 % (`docs/internals/experiments.md`). Weights are bf16 with fp32 masters. Layers are compiled,
because eager elementwise kernels took most of a step. cuDNN attention is off: it makes a new plan for every shape.
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
from typing import Any

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
import torch.nn.functional as F
from nano_data import GLIMPSE_STEPS, EmbeddingBatch, ReadingBatch, SeededBatches, VideoGroup, make_batch, make_reading
from nano_heads import Heads, TokenPositions
from nano_model import FAMILY_NAMES, build_backbone, fuse_norms, layers_of, read_model_card, save_backbone
from nano_muon import Muon
from nano_rows import Rows, read_rows
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils.data import DataLoader
from transformers import AutoModel

from allocembed.backbones.base import Backbone, TowerOutput
from allocembed.benchmarks import report
from allocembed.geometry import Geometry
from allocembed.resize import normalise, resize
from allocembed_nano import nanoret, world
from allocembed_nano.world.atlas import WORD_HEIGHT

CHECK_SEED = 777_001
ASK_SHARE = 0.4  # share of the videos that have a question
DECAY = 0.35  # share of a stage over which the learning rate falls to zero

Losses = dict[str, torch.Tensor]


class BackboneTrainer:
    """Renders, cuts, embeds and scores batches on one device."""

    def __init__(self, backbone: Backbone, device: torch.device, atlas: world.Atlas) -> None:
        self.backbone, self.device, self.atlas = backbone, device, atlas

    @torch.no_grad()
    def pixels(self, groups: list[VideoGroup]) -> tuple[torch.Tensor, np.ndarray]:
        """Normalised patches of all chunks in order, and their grids (C, 2) in tokens."""
        geometry = self.backbone.geometry
        grids = np.concatenate([group.grids.reshape(-1, 2) for group in groups])
        ends = np.cumsum(grids.prod(-1) * geometry.patches_per_token)
        starts = np.concatenate([[0], ends[:-1]])
        patches = torch.empty((int(ends[-1]), geometry.patch_values), dtype=torch.uint8, device=self.device)
        first = 0
        for group in groups:
            frames = world.render(group.timelines, group.fractions, atlas=self.atlas, device=self.device)
            self._cut(frames.flatten(0, 1), group, starts[first:], patches, geometry)
            first += group.grids.shape[0] * group.grids.shape[1]
        return normalise(patches, geometry, self.backbone.dtype), grids

    def _cut(
        self, frames: torch.Tensor, group: VideoGroup, starts: np.ndarray, patches: torch.Tensor, geometry: Geometry
    ) -> None:
        """Resize the frames of a group and write their patches, all chunks of one grid at once."""
        flat = group.grids.reshape(-1, 2)
        for rows, cols in np.unique(flat, axis=0):
            chunks = np.flatnonzero((flat == (rows, cols)).all(-1))
            count = int(rows * cols) * geometry.patches_per_token
            where = torch.from_numpy((starts[chunks][:, None] + np.arange(count)).ravel()).to(self.device)
            together = geometry.frames_per_chunk
            shown = torch.from_numpy((chunks[:, None] * together + np.arange(together)).ravel()).to(self.device)
            sized = resize(frames[shown], (int(rows) * geometry.factor, int(cols) * geometry.factor))
            patches[where] = geometry.patchify(sized)

    def embed(self, rows: Rows) -> torch.Tensor:
        """Unit vectors (N, width) in fp32 of rows without a video."""
        return read_rows(self.backbone, rows)[0]

    def embed_videos(self, batch: EmbeddingBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Vectors of the videos, vectors of their chunks, and all visual tokens.

        The vision tower processes all chunks at once; the language model reads group by group, which saves padding.
        """
        seen = self.backbone.see(*self.pixels(batch.groups))
        ends = np.cumsum([group.grids.prod(-1).sum() for group in batch.groups])
        videos, chunks = [], []
        for rows, start, end in zip(batch.videos, [0, *ends[:-1]], ends, strict=True):
            read = read_rows(self.backbone, rows, slice_output(seen, start, end))
            videos.append(read[0])
            chunks.append(read[1])
        return torch.cat(videos), torch.cat(chunks), seen.tokens

    def reading_losses(self, reading: ReadingBatch, heads: Heads) -> tuple[Losses, Losses]:
        """The loss terms of the first stage, and accuracies to log: dense on single chunks, concepts of texts."""
        tokens = self.backbone.see(*self.pixels(reading.groups)).tokens
        terms, watch = self._dense(heads, tokens, reading)
        terms["concept"] = heads.concept_loss(self.embed(reading.phrases), reading.phrase_concepts.to(self.device))
        return terms, watch

    def _dense(self, heads: Heads, tokens: torch.Tensor, batch: ReadingBatch | EmbeddingBatch) -> tuple[Losses, Losses]:
        """The dense loss of visual tokens as one term, and its parts to log."""
        grids = np.concatenate([group.grids.reshape(-1, 2) for group in batch.groups])
        sides = [np.tile(frame_sides(group), (group.grids[..., 0].size, 1)) for group in batch.groups]
        arrays = (torch.from_numpy(grids), torch.from_numpy(np.concatenate(sides)).float())
        places = TokenPositions.of(*(array.to(self.device) for array in arrays), total=len(tokens))
        labels, marks = batch.chunk_labels.to(self.device), batch.chunk_marks.to(self.device)
        parts = heads.dense_losses(tokens, places, labels, marks)
        total = sum(parts[name] for name in ("object", "colour", "word", "place", "letter"))
        return {"dense": total}, {name: parts[name] for name in ("letter", "object@1", "colour@1", "word@1")}

    def losses(self, batch: EmbeddingBatch, heads: Heads) -> tuple[Losses, Losses]:
        """The loss terms of the second stage, and accuracies to log."""

        def to(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self.device, non_blocking=True)

        vectors, chunks, tokens = self.embed_videos(batch)
        dense, watch = self._dense(heads, tokens, batch)
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


def frame_sides(group: VideoGroup) -> tuple[float, float]:
    """Height and width of the frames of a group, in short sides."""
    height, width = world.PORTRAIT if group.timelines.portrait[0] else world.LANDSCAPE
    return height / min(height, width), width / min(height, width)


def slice_output(seen: TowerOutput, start: int, end: int) -> TowerOutput:
    """The visual tokens from `start` to `end`."""
    return TowerOutput(seen.tokens[start:end], tuple(layer[start:end] for layer in seen.deepstack))


WEIGHTS = {"dense": 0.3, "chunk": 0.5, "concept": 0.5, "video": 0.5, "moment": 1.0, "question": 2.0}


class Optimiser:
    """Muon for the matrices inside blocks, AdamW for the rest, both on fp32 masters of weights that may be bf16."""

    def __init__(self, weights: dict[str, nn.Parameter]) -> None:
        self.weights = list(weights.values())
        self.masters = [nn.Parameter(weight.detach().float().clone()) for weight in self.weights]
        inner = [weight.ndim == 2 and (".blocks." in name or ".layers." in name) for name, weight in weights.items()]
        matrices = [master for master, is_inner in zip(self.masters, inner, strict=True) if is_inner]
        others = [master for master, is_inner in zip(self.masters, inner, strict=True) if not is_inner]
        fused = others[0].is_cuda
        self.skipped = torch.zeros((), device=others[0].device)
        self.parts = [
            Muon(matrices, lr=0.0, weight_decay=0.05),
            torch.optim.AdamW(others, lr=0.0, weight_decay=0.05, betas=(0.9, 0.98), fused=fused),
        ]

    def step(self, rate: float) -> None:
        """Make one step; gradients are clipped to norm 1 and cleared. If they are not finite, they count as zero."""
        for master, weight in zip(self.masters, self.weights, strict=True):
            master.grad = torch.zeros_like(master) if weight.grad is None else weight.grad.float()
            weight.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.skipped += ~norm.isfinite()
        for master in self.masters:
            if master.grad is not None:
                # Without asking the device, which would wait for it.
                master.grad = torch.where(norm.isfinite(), master.grad, 0.0)
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
        with torch.no_grad():
            torch._foreach_copy_(self.weights, self.masters)


def run_stage(
    name: str,
    make: Callable[[list[int]], object],
    losses: Callable[[Any], tuple[Losses, Losses]],
    optimiser: Optimiser,
    rate: float,
    minutes: float,
    options: argparse.Namespace,
) -> int:
    """Train on a stream of batches until the time of the stage is over; return the number of steps."""
    workers = {"num_workers": options.workers, "prefetch_factor": 4 if options.workers else None}
    loader = iter(DataLoader(SeededBatches(make, options.seed), batch_size=None, **workers))
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
                "skipped": int(optimiser.skipped.item()),
                **means,
            }
            with (options.out / "train.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(" ".join(f"{key} {value}" for key, value in line.items()), flush=True)
        if step == options.profile:
            _profile(partial(_backward, losses, next(loader)))
    return step


def train(options: argparse.Namespace) -> None:
    """Run both stages and the final evaluation, and write the folder."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if options.compile is None:
        # Compiled with torch 2.11, 80 % of gemma's gradients of videos were not finite; not compiled, none.
        options.compile = device.type == "cuda" and options.family != "gemma"
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    backbone = build_backbone(options.family, tiny=options.tiny).with_patch_product()
    parameters = sum(parameter.numel() for parameter in backbone.model.parameters())
    print(f"nano-{options.family}: {parameters:,} parameters, {2 * parameters / 1e6:.1f} MB as bf16", flush=True)
    atlas = world.load_atlas(str(device))
    aspects = (atlas.words.amax(dim=1) > 0).sum(dim=1).float() / WORD_HEIGHT
    heads = Heads(backbone.dim, aspects, backbone.geometry.frames_per_chunk).to(device)
    if options.init:
        backbone.model.load_state_dict(AutoModel.from_pretrained(options.init).state_dict())
        heads.load_state_dict(load_file(options.init / "heads.safetensors"))
    model = backbone.model.to(device).requires_grad_(True).train()
    # fp32 masters are taken before the weights become bf16.
    named = {**dict(model.named_parameters()), **{f"heads.{name}": head for name, head in heads.named_parameters()}}
    optimiser = Optimiser(named)
    if device.type == "cuda":
        # Not the buffers: frequencies of rotary embeddings are fp32 when the folder is loaded.
        for weight in model.parameters():
            weight.data = weight.data.to(torch.bfloat16)
    if options.compile:
        torch._dynamo.config.recompile_limit = 64
        for layer in layers_of(backbone):
            layer.compile(dynamic=True)
    else:
        fuse_norms(model)
    trainer = BackboneTrainer(backbone, device, atlas)
    reading = partial(make_reading, backbone, options.chunks)
    batches = partial(make_batch, backbone, options.batch, ASK_SHARE, GLIMPSE_STEPS if options.init else 0)
    read, embed = partial(trainer.reading_losses, heads=heads), partial(trainer.losses, heads=heads)
    first = options.minutes * options.reading_share
    steps = [run_stage("reading", reading, read, optimiser, options.lr, first, options)]
    rest = options.minutes - (time.monotonic() - started) / 60
    steps += [run_stage("embedding", batches, embed, optimiser, 0.75 * options.lr, rest, options)]
    model.eval().requires_grad_(False)
    # The final evaluation uses videos of neither the training nor the shipped test.
    with torch.compiler.set_stance("force_eager"):  # compiling again without gradients does not pay off
        scores = nanoret.evaluate(backbone, ("base", "uniform", "full"), limit=options.limit, seed=CHECK_SEED)
    print(report.markdown(scores, nanoret.LAYOUT, f"{options.limit} of every {nanoret.VIDEOS} videos"), flush=True)
    summary = {
        "reading steps": steps[0],
        "embedding steps": steps[1],
        "minutes": round((time.monotonic() - started) / 60, 2),
        "seed": options.seed,
    }
    earlier = read_model_card(options.init)["runs"] if options.init else []
    save_file(heads.state_dict(), options.out / "heads.safetensors")
    save_backbone(backbone, options.out, {"family": options.family, "runs": [*earlier, summary]})
    print(f"{summary} → {options.out}", flush=True)


def _backward(losses: Callable[[Any], tuple[Losses, Losses]], batch: object) -> None:
    sum(losses(batch)[0].values()).backward()


def _profile(action: Callable[[], object]) -> None:
    """Print the profile of one step."""
    from torch.profiler import ProfilerActivity, profile

    cuda = torch.cuda.is_available()
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as profiler:
        action()
    by = "self_cuda_time_total" if cuda else "self_cpu_time_total"
    print(profiler.key_averages().table(sort_by=by, row_limit=24, max_name_column_width=90), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=FAMILY_NAMES, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=9.0, help="wall-clock limit; the schedule follows it")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--reading-share", type=float, default=0.3, help="share of the time for the first stage")
    parser.add_argument("--chunks", type=int, default=960, help="chunks per step of the first stage")
    parser.add_argument("--batch", type=int, default=192, help="videos per step of the second stage")
    parser.add_argument("--lr", type=float, default=2e-3, help="rate of the first stage; three quarters in the second")
    parser.add_argument("--workers", type=int, default=max(0, (os.cpu_count() or 1) - 2))
    parser.add_argument("--every", type=int, default=100, help="steps between log lines")
    parser.add_argument("--limit", type=int, default=60, help="videos of each set in the final evaluation")
    parser.add_argument("--init", type=Path, help="resume from this folder of an earlier run")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="compile layers (default on a GPU, except for gemma)"
    )
    parser.add_argument("--profile", type=int, default=0, help="print a profile after this many steps")
    parser.add_argument("--tiny", action="store_true", help="a miniature, to test the script on a CPU")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
