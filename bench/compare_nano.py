"""Does `allocembed compare` order methods and budgets as retrieval does? In the nano world both can be measured.

    python bench/compare_nano.py --videos 250 --seeds 41 42 43
    python bench/compare_nano.py --videos 8 --budgets 2f 8f --methods base uniform learned --device cpu

The second command is a miniature for a CPU. For every method × budget the script prints what `compare` sees (the mean
cosine to the full vector, and how often a video finds its own full vector) beside text→video Hit@1, mean of the four
retrieval subsets of NanoRet, on the same fresh videos. The last lines are the rank correlations (Spearman's) over all
settings. With several seeds, ± is the standard error.
"""

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from allocembed.allocators.registry import LEARNED
from allocembed.backbones.base import Backbone
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import compare
from allocembed.benchmarks.fidelity import FidelityTable
from allocembed.benchmarks.metrics import hits
from allocembed.config import EmbedConfig
from allocembed.video import Clip
from allocembed_nano import nanoret

METHODS = (*compare.METHODS, LEARNED)
VIDEOS_IN_MEMORY = 32  # videos in memory
MEASURES = {"cosine": "cosine to full", "own": "finds own full vector, %", "hit1": "text→video Hit@1, %"}


def clips(videos: nanoret.VideoSet, counts: Sequence[int], device: torch.device) -> Iterator[dict[int, Clip]]:
    """The clips of one video after the other, rendered a few videos at a time."""
    for start in range(0, len(videos), VIDEOS_IN_MEMORY):
        members = range(start, min(start + VIDEOS_IN_MEMORY, len(videos)))
        made = nanoret.clips_of(videos, members, counts, device)
        for place in range(len(members)):
            yield {count: made[count][place] for count in counts}


def retrieval(table: FidelityTable, videos: nanoret.VideoSet, candidates: compare.ComparedMethods) -> np.ndarray:
    """(subsets, S) Hit@1 in percent of each setting on the subsets that search these videos."""
    reader, found = candidates.full, []
    for subset in (name for name in nanoret.RETRIEVAL if nanoret.SUBSETS[name] == videos.name):
        task = nanoret.make_task(subset, videos)
        texts = reader.encode_texts(task.candidate_texts, instruction=reader.backbone.query_instruction)
        asked = np.stack([text.vector for text in texts]).astype(np.float64)
        scores = [task.scores(asked, table.vectors[:, place]) for place in range(len(table.settings))]
        found.append([100 * hits(each, task.targets).mean() for each in scores])
    return np.array(found)


def measure(backbone: Backbone, options: argparse.Namespace, seed: int) -> dict[str, dict[str, float]]:
    """All three measures of each setting, on fresh videos of one seed."""
    config = EmbedConfig(candidates=options.candidates)
    candidates = compare.make_candidates(backbone, config, options.methods, options.budgets, options.allocator)
    cosines, own, hit1 = [], [], []
    for kind in ("short", "long"):
        videos = nanoret.draw_videos(kind, options.videos, seed)
        table = compare.measure(candidates, clips(videos, candidates.counts, backbone.device))
        if table.left_out:
            raise SystemExit(f"choose larger budgets: {table.left_out[0]}")
        cosines.append(table.cosines.mean(0))
        own.append(100 * table.found.mean(0))
        hit1.append(retrieval(table, videos, candidates))
    found = zip(np.mean(cosines, 0), np.mean(own, 0), np.concatenate(hit1).mean(0), strict=True)
    names = [" ".join(setting) for setting in candidates.settings]
    return {name: dict(zip(MEASURES, map(float, each), strict=True)) for name, each in zip(names, found, strict=True)}


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation; equal values share their mean rank.

    >>> round(spearman([1, 2, 3], [10, 30, 20]), 3), round(spearman([1, 1, 2], [5, 5, 9]), 3)
    (0.5, 1.0)
    """
    return float(np.corrcoef(ranks(first), ranks(second))[0, 1])


def ranks(values: Sequence[float]) -> np.ndarray:
    """(N,) rank of each value, from below; equal values share their mean rank."""
    array = np.asarray(values, float)
    return (array[:, None] > array).sum(1) + (array[:, None] == array).sum(1) / 2


def column(found: dict[str, dict[str, float]], name: str) -> list[float]:
    return [each[name] for each in found.values()]


def report(results: dict[int, dict[str, dict[str, float]]]) -> dict[str, float]:
    """Print the means over seeds and the correlations; return the correlations of the means."""
    names = list(next(iter(results.values())))
    mean = {
        name: {part: float(np.mean([found[name][part] for found in results.values()])) for part in MEASURES}
        for name in names
    }
    print(f"{'':24}" + "".join(f"{title:>28}" for title in MEASURES.values()))
    for name in sorted(names, key=lambda name: -mean[name]["hit1"]):
        print(f"{name:24}" + "".join(f"{mean[name][part]:28.4g}" for part in MEASURES))
    correlations = {}
    for part in ("cosine", "own"):
        each = [spearman(column(found, part), column(found, "hit1")) for found in results.values()]
        correlations[part] = spearman(column(mean, part), column(mean, "hit1"))
        error = f" ± {np.std(each, ddof=1) / len(each) ** 0.5:.3f}" if len(each) > 1 else ""
        words = f"Spearman, {MEASURES[part]} with Hit@1, over {len(names)} settings: {np.mean(each):.3f}{error}"
        print(f"{words} (seeds: {', '.join(f'{value:.3f}' for value in each)}; of the means: {correlations[part]:.3f})")
    return correlations


def main(words: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="nano-qwen3")
    parser.add_argument("--methods", nargs="+", default=METHODS)
    parser.add_argument("--budgets", nargs="+", default=compare.BUDGETS)
    parser.add_argument("--allocator", help="another allocator, such as the folder of a learned one")
    parser.add_argument("--candidates", type=int, default=24)
    parser.add_argument("--videos", type=int, default=250, help="of each set, at most 500")
    parser.add_argument("--seeds", type=int, nargs="+", default=[41])
    parser.add_argument("--minutes", type=float, help="start no seed that would end later than this")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--out", type=Path, help="JSON file, written after each seed")
    options = parser.parse_args(words)
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape
    backbone = load_backbone(options.backbone, device=options.device, dtype=options.dtype)
    results: dict[int, dict[str, dict[str, float]]] = {}
    begun = time.monotonic()
    for seed in options.seeds:
        taken = (time.monotonic() - begun) / 60
        if results and options.minutes and taken * (1 + 1 / len(results)) > options.minutes:
            print(f"stopped before seed {seed}: {taken:.1f} minutes are over")
            break
        results[seed] = measure(backbone, options, seed)
        print(f"{options.backbone}, seed {seed}, {options.videos} videos of each set: {time.monotonic() - begun:.0f} s")
        if options.out:
            options.out.write_text(json.dumps(results))
    return report(results)


if __name__ == "__main__":
    main()
