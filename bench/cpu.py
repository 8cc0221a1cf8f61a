"""Videos a minute and peak memory on a CPU: EmbeddingGemma 2 in three number formats, SigLIP 2 base, Qwen3-VL-2B.

    python bench/cpu.py [--videos 5] [--files 12] [--out FILE.json] [--only embeddinggemma-2,siglip2-base] [--tiny]
    python bench/cpu.py --from FILE.json     # the table of an earlier run

Exact shapes with random weights, saved in the hub's layout and loaded as any checkpoint, each in a process of its own.
24 frames of 640 × 360 in memory, the budget of 8 native frames, Uniform. With `--files`, also from files of a minute to
vectors by `stream`, with EmbeddingGemma 2: videos a minute, and how busy the cores are.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from allocembed.benchmarks.report import markdown_table

WIDTH, HEIGHT, FRAMES = 640, 360, 24
GEMMA, SIGLIP, QWEN = "embeddinggemma-2", "siglip2-base", "qwen3-vl-2b"
SMALLER = "70-tokens"  # inputs of EmbeddingGemma 2 with half as many tokens a native frame
RUNS = (
    (GEMMA, "float32", ""),
    (GEMMA, "bfloat16", ""),
    (GEMMA, "int8", ""),
    (GEMMA, "bfloat16", SMALLER),
    (GEMMA, "int8", SMALLER),
    (SIGLIP, "bfloat16", ""),
    (QWEN, "bfloat16", ""),
)


def save_gemma(folder: Path, *, tiny: bool) -> None:
    """The sizes that transformers states as the defaults of the type, without the audio tower."""
    from transformers import EmbeddingGemma2Config, EmbeddingGemma2Model

    from tests.tiny import save_gemma as save_tiny
    from tests.tiny import save_gemma_tokenizer

    if tiny:
        save_tiny(folder)
        return
    tokenizer = save_gemma_tokenizer(folder)
    known = {name: tokenizer.convert_tokens_to_ids(word) for name, word in _gemma_words(folder).items()}
    vision: dict[str, Any] = {"model_type": "gemma4_vision"}
    config = EmbeddingGemma2Config(text_config={}, vision_config=vision, audio_config=None, **known)
    save(EmbeddingGemma2Model, config, folder)
    plain = {"do_normalize": False, "image_mean": [0.0] * 3, "image_std": [1.0] * 3}
    settings = {"image_processor": {"max_soft_tokens": 280, **plain}}
    settings["video_processor"] = {"max_soft_tokens": 140, **plain}
    (folder / "processor_config.json").write_text(json.dumps(settings))


def _gemma_words(folder: Path) -> dict[str, str]:
    from tests.official_gemma import GEMMA_TOKENS

    words = {f"{name}_token_id": GEMMA_TOKENS[f"{name}_token"] for name in ("image", "video", "audio", "boi", "eoi")}
    return words | {"boa_token_id": "<|audio>", "eoa_token_index": "<audio|>"}


def save_siglip(folder: Path, *, tiny: bool) -> None:
    """SigLIP 2 base with NaFlex: the defaults of the type, and the published table of 256,000 words."""
    from transformers import Siglip2Config, Siglip2Model

    from tests.families.siglip import save as save_tiny
    from tests.families.siglip import save_tokenizer

    if tiny:
        save_tiny(folder)
        return
    save_tokenizer(folder)
    config = Siglip2Config(text_config={"vocab_size": 256_000}, vision_config={})
    save(Siglip2Model, config, folder)
    settings = {"image_processor_type": "Siglip2ImageProcessor", "max_num_patches": 256, "patch_size": 16}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def save(kind: Any, config: Any, folder: Path) -> None:
    """Random weights in bfloat16."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    kind(config).save_pretrained(folder)


def load(name: str, dtype: str, inputs: str, folder: Path, *, tiny: bool) -> Any:
    from allocembed import AllocEmbed, EmbedConfig
    from allocembed.backbones.loading import load_backbone

    if name == QWEN:
        from shapes import make_backbone

        backbone = make_backbone(QWEN, "cpu", getattr(torch, dtype), tiny=tiny)
    else:
        backbone = load_backbone(folder, device="cpu", dtype=dtype, inputs=inputs or None)
    return AllocEmbed(backbone, "uniform", EmbedConfig(budget="8f", candidates=FRAMES))


def one(name: str, dtype: str, inputs: str, folder: Path, videos: int, *, tiny: bool) -> dict[str, Any]:
    """Frames in memory to vectors, in this process."""
    embedder = load(name, dtype, inputs, folder, tiny=tiny)
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 255, (FRAMES, HEIGHT // 40, WIDTH // 40, 3), np.uint8).repeat(40, 1).repeat(40, 2)
    taken = []
    for _ in range(videos + 1):
        started = time.perf_counter()
        found = embedder.encode_video(frames)
        taken.append(time.perf_counter() - started)
    return {
        "model": name,
        "dtype": dtype,
        "inputs": inputs,
        "videos_per_minute": 60 / statistics.median(taken[1:]),
        "seconds": taken[1:],
        "tokens": found.cost,
        "parameters": embedder.backbone.parameter_count,
        "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9,
    }


def from_files(dtype: str, folder: Path, count: int, *, tiny: bool) -> dict[str, Any]:
    """Files to vectors by `stream`, in this process."""
    from decode import RATE, write_video

    embedder = load(GEMMA, dtype, "", folder, tiny=tiny)
    with tempfile.TemporaryDirectory() as place:
        first = Path(place) / "0.mp4"
        write_video(first, (4 if tiny else 60) * RATE, 250 if not tiny else 25, (WIDTH, HEIGHT), groups=2)
        files = [first, *(Path(place) / f"{number}.mp4" for number in range(1, count))]
        for file in files[1:]:
            os.link(first, file)
        embedder.encode_videos(files[:1])
        started, used = time.perf_counter(), time.process_time()
        done = list(embedder.stream(files))
        seconds, used = time.perf_counter() - started, time.process_time() - used
    cores = len(os.sched_getaffinity(0))
    rate = {"files": len(done), "videos_per_minute": 60 * len(done) / seconds, "cores_busy": used / seconds / cores}
    return rate | {"dtype": dtype, "peak_gb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9}


def in_own_process(folder: Path, options: argparse.Namespace, *arguments: str) -> dict[str, Any]:
    command = [sys.executable, __file__, "--videos", str(options.videos), "--folder", str(folder), *arguments]
    done = subprocess.run(command + ["--tiny"] * options.tiny, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stderr[-2000:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    print(found, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--videos", type=int, default=5, help="measured videos of each run, after one to warm up")
    parser.add_argument("--files", type=int, default=0, help="also measure this many files")
    parser.add_argument("--only", default="", help="names of models, separated by commas")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--from", type=Path, dest="source", help="print the table of an earlier run's --out")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to try the script")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--stream", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.getLogger("allocembed").setLevel(logging.ERROR)
    if options.one:
        print(json.dumps(one(*options.one, options.folder, options.videos, tiny=options.tiny)))
        return
    if options.stream:
        dtype, count = options.stream
        print(json.dumps(from_files(dtype, options.folder, int(count), tiny=options.tiny)))
        return
    results = json.loads(options.source.read_text()) if options.source else measure(options)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(table(results))
    for run in results["files"]:
        rate, busy = run["videos_per_minute"], run["cores_busy"]
        print(f"- From files of a minute, {GEMMA} in {run['dtype']}: {rate:.1f} videos a minute, cores {busy:.0%} busy")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All runs that are wanted, each in a process of its own."""
    results: dict[str, Any] = {"cores": len(os.sched_getaffinity(0)), "runs": [], "files": []}
    wanted = [name for name in options.only.split(",") if name] or [GEMMA, SIGLIP, QWEN]
    with tempfile.TemporaryDirectory() as place:
        folders = {name: Path(place) / name for name in (GEMMA, SIGLIP, QWEN)}
        for name, write in ((GEMMA, save_gemma), (SIGLIP, save_siglip)):
            folders[name].mkdir()
            if name in wanted:
                write(folders[name], tiny=options.tiny)
        for name, dtype, inputs in RUNS:
            if name in wanted:
                results["runs"].append(in_own_process(folders[name], options, "--one", name, dtype, inputs))
        for dtype in ("bfloat16", "int8") if options.files and GEMMA in wanted else ():
            found = in_own_process(folders[GEMMA], options, "--stream", dtype, str(options.files))
            results["files"].append(found)
    return results


def table(results: dict[str, Any]) -> str:
    """A Markdown table of all runs."""
    lines = [["model", "format", "parameters, M", "tokens", "videos a minute", "peak memory, GB"]]
    for run in results["runs"]:
        model = f"{run['model']}, {run['inputs']}" if run["inputs"] else run["model"]
        cells = [f"{run['parameters'] / 1e6:,.0f}", f"{run['tokens']:,}", f"{run['videos_per_minute']:.1f}"]
        lines.append([model, run["dtype"], *cells, f"{run['peak_gb']:.2f}"])
    return markdown_table(f"{results['cores']} cores, {FRAMES} frames of {WIDTH} × {HEIGHT}, 8f, random weights", lines)


if __name__ == "__main__":
    main()
