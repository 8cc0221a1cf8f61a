"""Run GME-Qwen2-VL's own code, as VLM2Vec's repository holds it, on a tiny checkpoint and write what it returned.

    git clone https://github.com/TIGER-AI-Lab/VLM2Vec official
    python recipes/official/gme.py --official official

Needs an environment of its own: requirements-vlm2vec.txt. `environment.py` says what stands in for missing packages.
GME reads texts and pictures. Its class is used as it is, with the processor and the limits that the published script
gives it, in float32 with SDPA on a CPU, one input at a time; the script asks for bfloat16 and FlashAttention 2.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib import import_module
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import environment
import numpy as np
import torch
import torchvision.io
import transformers
from cases import Case, picture_cases, vlm2vec_texts
from PIL import Image

from tests import official

MODEL = "gme-qwen2-vl-2b"
LIMITS: dict[str, Any] = {"min_pixels": 256 * 28**2, "max_pixels": 1280 * 28**2}
MODULE = "src.model.baseline_backbone.gme"
# Packages whose own files import all models.
PACKAGES = ("src.model", "src.model.baseline_backbone", MODULE, "src.model.vlm_backbone")


class Recorder:
    """The official embedder, and what passed through it."""

    def __init__(self, repository: Path, folder: Path) -> None:
        sys.path.insert(0, str(repository))
        vars(torchvision.io).setdefault("write_video", None)
        for name in PACKAGES:
            package = ModuleType(name)
            package.__path__ = [str(repository / name.replace(".", "/"))]
            package.__spec__ = ModuleSpec(name, None, is_package=True)
            sys.modules[name] = package
        kind = import_module(f"{MODULE}.gme_inference").GmeQwen2VL
        config = transformers.AutoConfig.from_pretrained(folder)
        for part in (config, config.vision_config):
            setattr(part, "_attn_implementation", "sdpa")  # noqa: B010 (no public name)
        base = import_module("src.model.vlm_backbone.qwen2_vl").Qwen2VLForConditionalGeneration
        self.embedder: Any = kind.__new__(kind)  # its constructor loads FlashAttention 2
        torch.nn.Module.__init__(self.embedder)
        self.embedder.base = base.from_pretrained(folder, config=config, torch_dtype=torch.float32).eval()
        self.embedder.normalize, self.embedder.device, self.embedder.max_length = True, "cpu", 1800
        self.embedder.defualt_instruction = "You are a helpful assistant."  # spelt so there
        processor = transformers.Qwen2VLProcessor(
            image_processor=transformers.Qwen2VLImageProcessor.from_pretrained(folder, **LIMITS),
            tokenizer=transformers.Qwen2TokenizerFast.from_pretrained(folder, padding_side="left"),
            video_processor=transformers.Qwen2VLVideoProcessor.from_pretrained(folder),
        )
        self.seen: dict[str, Any] = {}

        def process_and_keep(**options: Any) -> Any:
            self.seen["inputs"] = processor(**options)
            return self.seen["inputs"]

        def keep_positions(rotary: Any, given: Any) -> None:
            self.seen["positions"] = given[1]

        self.embedder.processor = process_and_keep
        self.embedder.base.model.rotary_emb.register_forward_pre_hook(keep_positions)

    def run(self, case: Case) -> dict[str, Any]:
        """Output of the official code for a case."""
        self.seen.clear()
        text = official.make_text(case["long"]) if "long" in case else case.get("text", case.get("question"))
        image = None
        if "source" in case:
            image = Image.fromarray(official.make_frames(case["width"], case["height"], [0])[0])
        given = {"instruction": case.get("instruction"), "is_query": True}
        vector = self.embedder.embed(texts=[text], images=[image], **given)[0]
        inputs = self.seen["inputs"]
        result: dict[str, Any] = {"ids": official.summarise_ids(inputs["input_ids"][0].numpy())}
        result["positions"] = official.summarise_positions(self.seen["positions"][:, 0].numpy())
        if image is not None:
            pixels = inputs["pixel_values"].double().numpy()
            mean, std = (np.array(values)[:, None] for values in official.CLIP)
            levels = (pixels.reshape(len(pixels), 3, -1) * std + mean) * 255
            summary = official.summarise_pixels(levels.round().reshape(len(pixels), -1))
            result |= {"grid": inputs["image_grid_thw"][0].tolist(), "pixels": summary}
        return result | {"vector": [float(np.float32(value)) for value in vector.tolist()]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path, required=True, help="checkout of TIGER-AI-Lab/VLM2Vec")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    given = [*vlm2vec_texts(), *picture_cases()]
    cases = [case for case in given if case.get("vector", True) and "differs" not in case]
    with tempfile.TemporaryDirectory() as temporary:
        folder = official.save_checkpoint(MODEL, Path(temporary) / "checkpoint")
        recorder = Recorder(arguments.official, folder)
        done = []
        for case in cases:
            done.append(case | {"expected": recorder.run(case)})
            print(case["name"], done[-1]["expected"].get("grid"))
        content = {
            "model": MODEL,
            "inputs": "gme",
            "part": "",
            "repository": "TIGER-AI-Lab/VLM2Vec",
            "commit": environment.commit(arguments.official),
            "versions": environment.versions(),
            "weights": official.digest_weights(official.make_weights(folder)),
            "cases": done,
        }
        environment.write_fixture(content)


if __name__ == "__main__":
    main()
