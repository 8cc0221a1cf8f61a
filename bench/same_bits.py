"""Record what the package computes on a CPU, bit for bit, so that a rebuild can be compared with what was before.

    python bench/same_bits.py record FOLDER            make 24 videos once, write FOLDER/NAME.json (--name NAME)
    python bench/same_bits.py compare BEFORE.json AFTER.json

Recorded are, for both nano backbones and every method: a digest of each vector, its cost, and its whole allocation; the
vectors of texts; and one RDPO run of four steps, weights and log. Only the public API and the command line are used, so
that the same script runs before and after a change of everything else.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import av
import numpy as np
import torch
from safetensors.torch import load_file

from allocembed import AllocEmbed
from allocembed_nano import world
from allocembed_nano.world import write_mp4

BACKBONES = ("nano-qwen3", "nano-qwen2")
METHODS = ("base", "full", "uniform", "content", "select", "learned")
VARIANTS = {
    "keyframe": {"allocator": "uniform", "seek": "keyframe"},
    "tokens": {"allocator": "content", "budget": 150},
    "sixteen": {"allocator": "learned", "budget": "16f", "candidates": 48},
    "range": {"allocator": "learned", "scale_range": (0.3, 1.5), "dim": 96},
}
QUESTION = "What is written near the gear?"
TEXTS = ("a red car drives past a house", "the word MOON on a blue sign", "Was ist das?")
WORLD_VIDEOS = 18
# Sizes and codecs that the world's own videos don't have: odd sides, portrait, few frames, other containers.
OTHERS = (
    ("odd.mp4", "libx264", (270, 354), 61, {"bf": "3", "g": "30"}),
    ("small.avi", "mpeg4", (120, 160), 40, {}),
    ("wide.mkv", "libx264", (180, 640), 90, {"g": "12"}),
    ("tall.mp4", "libx264", (480, 272), 75, {"g": "250"}),
    ("three.mp4", "libx264", (144, 192), 3, {}),
    ("one.mkv", "mpeg4", (96, 96), 1, {}),
)
TRAINING = {
    "preset": "nano",
    "steps": 4,
    "examples": 8,
    "rollouts": 4,
    "mini-batch": 4,
    "micro-batch": 4,
    "validation": 16,
    "validate-every": 2,
    "pool": 64,
    "global-negatives": 16,
    "budgets": "8f/24",
    "device": "cpu",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    record = commands.add_parser("record")
    record.add_argument("folder", type=Path)
    record.add_argument("--name", default="bits")
    compare = commands.add_parser("compare")
    compare.add_argument("files", type=Path, nargs=2)
    given = parser.parse_args()
    if given.command == "compare":
        sys.exit(compare_files(*given.files))
    torch.set_num_threads(2)
    videos = make_videos(given.folder / "videos")
    found = {"files": {path.name: digest(path.read_bytes()) for path in videos}}
    for backbone in BACKBONES:
        for method in METHODS:
            found[f"{backbone} {method}"] = embed(videos, backbone, allocator=method)
        for name, settings in VARIANTS.items():
            found[f"{backbone} {name}"] = embed(videos, backbone, **settings)
        found[f"{backbone} question"] = embed(videos, backbone, QUESTION, allocator="learned")
        embedder = AllocEmbed.from_pretrained(backbone, "uniform", device="cpu")
        texts = embedder.encode_texts(TEXTS, instruction=embedder.backbone.query_instruction)
        found[f"{backbone} texts"] = [digest(text.vector.tobytes()) for text in texts]
    found["rdpo"] = train()
    path = given.folder / f"{given.name}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{sum(map(len, found.values()))} entries → {path}")


def make_videos(folder: Path) -> list[Path]:
    """24 files, made once: the world's videos, and a few of other sizes and codecs."""
    folder.mkdir(parents=True, exist_ok=True)
    timelines = world.draw(WORLD_VIDEOS, 20_261_116, "short", split="test", orientation="mixed")
    paths = [folder / f"world-{number:02}.mp4" for number in range(WORLD_VIDEOS)]
    for number, path in enumerate(paths):
        if not path.exists():
            write_mp4(timelines, number, path, (192, 144) if timelines.portrait[number] else (144, 192))
    for name, codec, size, frames, options in OTHERS:
        path = folder / name
        if not path.exists():
            write_noise(path, codec, size, frames, options)
        paths.append(path)
    return paths


def write_noise(path: Path, codec: str, size: tuple[int, int], frames: int, options: dict[str, str]) -> None:
    random = np.random.default_rng(len(path.name))
    still = random.integers(0, 255, (*size, 3), np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=10, options=options)
        stream.height, stream.width, stream.pix_fmt = *size, "yuv420p"
        for number in range(frames):
            frame = av.VideoFrame.from_ndarray(np.roll(still, 3 * number, axis=1), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def embed(videos: list[Path], backbone: str, question: str | None = None, **settings) -> dict[str, object]:
    embedder = AllocEmbed.from_pretrained(backbone, device="cpu", **settings)
    results = embedder.encode_videos(videos, question)
    return {path.name: describe(result) for path, result in zip(videos, results, strict=True)}


def describe(result) -> dict[str, object]:
    allocation = result.allocation
    return {
        "vector": digest(result.vector.tobytes()),
        "cost": int(allocation.cost),
        "budget": int(allocation.budget),
        "base_cost": int(allocation.base_cost),
        "frames": [list(map(int, frames)) for frames in allocation.frames],
        "scales": [float(scale).hex() for scale in allocation.scales],
        "grids": [[int(grid.rows), int(grid.cols)] for grid in allocation.grids],
    }


def train() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        options = [f"--{name}={value}" for name, value in TRAINING.items()]
        command = [sys.executable, "-m", "allocembed", "train", *options, f"--out={out}"]
        subprocess.run(command, check=True)
        weights = load_file(out / "best" / "model.safetensors")
        lines = [json.loads(line) for line in (out / "train.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("seconds", None)
    return {
        "weights": {name: digest(tensor.numpy().tobytes()) for name, tensor in sorted(weights.items())},
        "log": lines,
    }


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:24]


def compare_files(before: Path, after: Path) -> int:
    old, new = (json.loads(path.read_text()) for path in (before, after))
    differing = 0
    for name in sorted({*old, *new}):
        if old.get(name) != new.get(name):
            differing += 1
            parts = [part for part in old.get(name, ()) if old[name] != new.get(name)] if name in new else []
            one, other = old.get(name), new.get(name)
            if isinstance(one, dict) and isinstance(other, dict):
                parts = [part for part in one if one[part] != other.get(part)]
            print(f"differs: {name}: {', '.join(map(str, parts[:6]))}")
    print(f"{len(old)} groups, {differing} differ" if differing else f"{len(old)} groups, the same bits")
    return 1 if differing else 0


if __name__ == "__main__":
    main()
