"""Measure allocations in the nano world: sensitivity in many forms, a learned allocator, and the best that a
search finds.

    python recipes/allocation_study.py --backbone nano-qwen3 --seeds 31 32 --videos 250 --out study.json

For every form it prints text→video Hit@1, averaged over the four retrieval subsets, and the mean distance 1 − cos to
the full-resolution vector. A form is a product of looks with exponents, such as 6-12^0.1*12-2^0.12: "6-12" embeds the
video with all chunks at 6 tokens, and again with one chunk after the other at 12; "n" is the native size. "@0.02" after
it raises all moves to at least this share of their mean. With --whole every row of a look is computed in full, not only
what the change reaches directly. "L" are the scales of a learned allocator (--allocator). `search` is the cross-entropy
method towards the full vector.
"""

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch

from allocembed.allocators.base import AllocationRequest
from allocembed.allocators.learned import Learned
from allocembed.allocators.sensitivity import Sensitivity
from allocembed.backbones.base import Backbone
from allocembed.backbones.loading import load_backbone
from allocembed.backbones.variants import variant_grids
from allocembed.budget import Budget, Grid, project
from allocembed.policy.preview import preview_grid
from allocembed.rdpo.data.base import VideoBatch
from allocembed.rdpo.rollouts import RolloutEncoder
from allocembed.video import Clip, candidate_indices
from allocembed_nano import nanoret, world

RANGE = (0.2, 1.8)
FORMS = (
    *(f"6-12^{p}" for p in (0.1, 0.15, 0.2)),
    *(f"12-2^{p}" for p in (0.1, 0.15, 0.2)),
    *(f"12-24^{p}" for p in (0.1, 0.15, 0.2)),
    *(f"6-24^{p}" for p in (0.1, 0.15, 0.2)),
    *(f"24-6^{p}" for p in (0.1, 0.15, 0.2)),
    *("6-12^0.1*12-2^0.1", "6-12^0.1*12-24^0.1", "12-2^0.1*12-24^0.1", "6-12^0.1*24-6^0.1", "12-2^0.1*24-6^0.1"),
    *("12-24^0.1*24-6^0.1", "6-12^0.07*12-2^0.07*12-24^0.07", "6-12^0.07*12-2^0.07*24-6^0.07", "6-n^0.1", "12-n^0.1"),
    *("24-n^0.1", "12-2^0.1*12-n^0.06"),
)


@dataclass(frozen=True, eq=False)
class Videos:
    """Rendered videos of one set and one orientation, and what is known of them."""

    batch: VideoBatch
    native: Grid
    tokens: np.ndarray
    full: torch.Tensor


class Study:
    """One backbone, and the vectors and looks of a set of videos."""

    def __init__(
        self, backbone: Backbone, budget: str, candidates: int, allocator: str | None, *, whole: bool = False
    ) -> None:
        self.backbone, self.budget, self.candidates = backbone.with_patch_product(), Budget.parse(budget), candidates
        self.whole, self.looks = whole, {}
        self.encoder = RolloutEncoder(self.backbone, 262_144, query_instruction=self.backbone.query_instruction)
        self.learned = Learned.from_pretrained(allocator, backbone) if allocator else None

    def render(self, videos: nanoret.VideoSet, members: np.ndarray) -> Videos:
        """Candidate frames and full vectors of some videos of one orientation."""
        indices = candidate_indices(nanoret.NOMINAL_FRAMES, self.candidates)
        chosen = videos.timelines.select(members)
        fractions = indices / (nanoret.NOMINAL_FRAMES - 1)
        frames = world.render(chosen, fractions, device=self.backbone.device)
        times = fractions * chosen.duration[:, None]
        batch = VideoBatch(members, frames, times, np.full(len(members), nanoret.NOMINAL_FRAMES))
        native = self.backbone.geometry.native(*frames.shape[-2:])
        tokens = np.full(len(members), self.budget.tokens(native, nanoret.NOMINAL_FRAMES))
        chunks = self.candidates // 2
        grids = np.tile([native.rows, native.cols], (len(members), 1, chunks, 1))
        return Videos(batch, native, tokens, self.embed(batch, grids)[:, 0])

    def embed(self, batch: VideoBatch, grids: np.ndarray) -> torch.Tensor:
        return self.encoder.embed(batch, [None] * len(batch), grids)

    def moves(self, videos: Videos, look: str) -> np.ndarray:
        """(b, C) how far each chunk moves the vector, or the learned allocator's scales for "L"."""
        if look == "L":
            return self.learned_scales(videos)
        usual, changed = (self.size(videos.native, name) for name in look.split("-"))
        if not self.whole:
            return self.direct_moves(videos, (usual.tokens, changed.tokens))
        chunks = self.candidates // 2
        vectors = self.embed(videos.batch, np.tile(variant_grids(usual, changed, chunks), (len(videos.batch), 1, 1, 1)))
        return (1 - (vectors[:, 1:] * vectors[:, :1]).sum(-1)).clamp(min=1e-6).double().cpu().numpy()

    def direct_moves(self, videos: Videos, look: tuple[int, int]) -> np.ndarray:
        """As the allocator finds them, one video after the other."""
        allocator = self.looks.setdefault(look, Sensitivity(self.backbone, [look]))
        request, found = AllocationRequest(self.backbone.geometry, self.budget), []
        frames = videos.batch.frames.permute(0, 1, 3, 4, 2)
        for own, times, total in zip(frames, videos.batch.times, videos.batch.totals, strict=True):
            pixels = cast(np.ndarray, own.contiguous() if own.is_cuda else own.contiguous().numpy())
            clip = Clip(pixels, times, np.arange(len(times)), int(total), float(times[-1]), "study")
            found.append(allocator.look(clip, request).moves[0])
        return np.maximum(found, 1e-6)

    def size(self, native: Grid, name: str) -> Grid:
        return native if name == "n" else preview_grid(native, int(name))

    def learned_scales(self, videos: Videos) -> np.ndarray:
        assert self.learned is not None
        frames = videos.batch.frames.permute(0, 1, 3, 4, 2).contiguous()
        low, high = self.learned.scale_range
        return np.stack([low + self.learned.actions(each) * (high - low) for each in frames])

    def fit(self, videos: Videos, scales: np.ndarray) -> np.ndarray:
        """Grids (b, K, C, 2) of requested scales (b, K, C) under the budget."""
        count, k, chunks = scales.shape
        sides = np.array([videos.native.rows, videos.native.cols])
        _, grids = project(scales.reshape(-1, chunks), sides, np.repeat(videos.tokens, k), RANGE)
        return grids.reshape(count, k, chunks, 2)

    def search(self, videos: Videos, start: np.ndarray, rounds: int, population: int, seed: int) -> np.ndarray:
        """Scales (b, C) whose vector is nearest to the full one: the cross-entropy method on log scales."""
        chance = np.random.default_rng(seed)
        mean, spread = np.log(start), np.full_like(start, 0.5)
        best, nearest = start.copy(), np.full(len(start), -2.0)
        for _ in range(rounds):
            drawn = mean[:, None] + spread[:, None] * chance.standard_normal((len(start), population, start.shape[1]))
            drawn[:, 0] = mean
            scales = np.clip(np.exp(drawn), *RANGE)
            vectors = self.embed(videos.batch, self.fit(videos, scales))
            cosine = (vectors * videos.full[:, None]).sum(-1).double().cpu().numpy()
            order = np.argsort(-cosine, 1)[:, : max(2, population // 6)]
            elite = np.take_along_axis(drawn, order[..., None], 1)
            mean, spread = 0.3 * mean + 0.7 * elite.mean(1), 0.3 * spread + 0.7 * elite.std(1) + 0.02
            top = order[:, 0]
            better = cosine[np.arange(len(top)), top] > nearest
            best[better] = scales[np.arange(len(top)), top][better]
            nearest = np.maximum(nearest, cosine[np.arange(len(top)), top])
        return best


def combine(moves: dict[str, np.ndarray], form: str) -> np.ndarray:
    """Scales (b, C) of a form."""
    total = 0.0
    form, _, least = form.partition("@")
    for part in form.split("*"):
        look, exponent = part.split("^")
        found = np.maximum(moves[look], float(least or 0) * moves[look].mean(1, keepdims=True))
        total = total + float(exponent) * np.log(found / found.mean(1, keepdims=True))
    return np.clip(np.exp(total), 0.02, 50)


def hit1(
    videos: nanoret.VideoSet, vectors: np.ndarray, backbone: Backbone, encoder: RolloutEncoder
) -> dict[str, float]:
    """Hit@1 of every form's vectors (V, F, dim), averaged over the subsets of the set: (F,)."""
    found = []
    for subset in (name for name, kind in nanoret.SUBSETS.items() if kind == videos.name):
        task = nanoret.make_task(subset, videos)
        texts = encoder.texts(task.candidate_texts, [True] * len(task.candidate_texts)).cpu().numpy()
        scores = np.einsum("qd,vfd->fqv", texts, vectors)
        found.append((scores.argmax(-1) == task.targets).mean(-1))
    return 100 * np.mean(found, 0)


def study(options: argparse.Namespace, backbone: Backbone, seed: int) -> dict[str, dict[str, float]]:
    """Hit@1 and distance to the full vector of every form, on fresh videos of one seed."""
    bench = Study(backbone, options.budget, options.candidates, options.allocator, whole=options.whole)
    forms = [*options.forms, *(["L^1"] if options.allocator else [])]
    names = ["uniform", *forms, *(["search"] if options.search else []), "full"]
    hits, distances = [], []
    for kind in ("short", "long"):
        videos = nanoret.draw_videos(kind, options.videos, seed)
        vectors = np.zeros((len(videos), len(names), backbone.dim), np.float32)
        upright = videos.timelines.portrait
        for members in (np.flatnonzero(~upright), np.flatnonzero(upright)):
            for part in np.array_split(members, max(1, -(-len(members) // options.at_once))):
                vectors[part] = measure(bench, bench.render(videos, part), forms, options, seed)
        distances.append(1 - (vectors * vectors[:, -1:]).sum(-1))
        hits.append(hit1(videos, vectors, backbone, bench.encoder))
    hit, distance = np.mean(hits, 0), np.concatenate(distances).mean(0)
    return {name: {"hit1": float(hit[i]), "distance": float(distance[i])} for i, name in enumerate(names)}


def measure(bench: Study, videos: Videos, forms: Sequence[str], options: argparse.Namespace, seed: int) -> np.ndarray:
    """Vectors (b, F, dim) of uniform, the forms, the search and full."""
    looks = dict.fromkeys(part.split("^")[0] for form in forms for part in form.partition("@")[0].split("*"))
    moves = {look: bench.moves(videos, look) for look in looks}
    scales = [np.ones((len(videos.batch), options.candidates // 2)), *(combine(moves, form) for form in forms)]
    if options.search:
        start = np.clip(scales[1], *RANGE)
        scales.append(bench.search(videos, start, options.search, options.population, seed))
    vectors = bench.embed(videos.batch, bench.fit(videos, np.stack(scales, 1)))
    return torch.cat([vectors, videos.full[:, None]], 1).cpu().numpy()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="nano-qwen3")
    parser.add_argument("--allocator", help="folder of a learned allocator, as the form L^1 and in products")
    parser.add_argument("--seeds", type=int, nargs="+", default=[31])
    parser.add_argument("--videos", type=int, default=250, help="of each set, at most 500")
    parser.add_argument("--at-once", type=int, default=125)
    parser.add_argument("--budget", default="8f")
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--forms", nargs="*", default=FORMS)
    parser.add_argument("--whole", action="store_true", help="compute every row of a look in full")
    parser.add_argument("--search", type=int, default=0, help="rounds of the search; 0 for none")
    parser.add_argument("--population", type=int, default=24)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(False)
    backbone = load_backbone(options.backbone, dtype=options.dtype)
    results = {}
    for seed in options.seeds:
        started = time.monotonic()
        results[seed] = study(options, backbone, seed)
        low, high = results[seed]["uniform"]["hit1"], results[seed]["full"]["hit1"]
        print(f"{options.backbone}, seed {seed}, {time.monotonic() - started:.0f} s", flush=True)
        for name, found in results[seed].items():
            way = 100 * (found["hit1"] - low) / max(high - low, 1e-9)
            print(f"  {name:36} {found['hit1']:6.2f} {way:6.1f} % {found['distance']:.4f}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(results))


if __name__ == "__main__":
    main()
