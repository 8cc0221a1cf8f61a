"""Run the official Qwen3-VL-Embedding on tiny checkpoints and write what it returned.

    git clone https://github.com/QwenLM/Qwen3-VL-Embedding official
    python recipes/official/qwen3.py --official official

Needs an environment of its own: requirements-qwen3.txt. `environment.py` says what stands in for torchvision's
operators and for decord. The official embedder is used as it is, in float32 on a CPU, one input at a time. With
transformers 5.10 or newer the fixture gets the name of that prompt layout.
"""

from __future__ import annotations

import argparse
import importlib
import logging
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import environment
import numpy as np
import torch
import transformers
from cases import Case, picture_cases, qwen3_cases, qwen3_few
from PIL import Image

from tests import official

MODELS = ("qwen3-vl-embedding-2b", "qwen3-vl-embedding-8b")
NEW = int(transformers.__version__.split(".")[0]) >= 5


class Recorder:
    """The official embedder, and what passed through it."""

    def __init__(self, module: Any, folder: Path) -> None:
        self.embedder = module.Qwen3VLEmbedder(str(folder))
        self.embedder.model.float()
        self.sample_frames = module.sample_frames
        self.seen: dict[str, Any] = {}
        read, preprocess = module.process_vision_info, self.embedder._preprocess_inputs

        def read_and_keep(*arguments: Any, **options: Any) -> Any:
            images, videos, more = read(*arguments, **options)
            self.seen["metadata"] = videos[0][1] if videos else None
            return images, videos, more

        def preprocess_and_keep(conversations: Any) -> Any:
            self.seen["inputs"] = preprocess(conversations)
            return self.seen["inputs"]

        def keep_positions(_: Any, __: Any, options: dict[str, Any]) -> None:
            self.seen["positions"] = options["position_ids"]

        module.process_vision_info, self.embedder._preprocess_inputs = read_and_keep, preprocess_and_keep
        self.embedder.model.language_model.register_forward_pre_hook(keep_positions, with_kwargs=True)

    def run(self, case: Case, folder: Path) -> dict[str, Any]:
        """Output of the official code for a case, or the error that it raised."""
        self.seen.clear()
        self.embedder.max_length = case.get("max_length", 8192)
        self.embedder.max_frames = case["count"] if case.get("source") == "list" else 64
        try:
            vector = self.embedder.process([self.request(case, folder)])[0]
        except ValueError as error:
            if "differs" not in case:
                raise
            return {"error": f"{type(error).__name__}: {str(error)[:160]}"}
        return self.describe(case, vector)

    def request(self, case: Case, folder: Path) -> dict[str, Any]:
        """A case as the official embedder takes it."""
        text = official.make_text(case["long"]) if "long" in case else case.get("text", case.get("question"))
        request = {"text": text, "instruction": case.get("instruction")}
        if "source" not in case:
            return request
        frames = official.make_frames(case["width"], case["height"], range(case["total"]))
        if case["source"] == "picture":
            return request | {"image": Image.fromarray(frames[0])}
        if case["source"] == "list":
            return request | {"video": [Image.fromarray(frame) for frame in frames]}
        path = official.write_video(folder / "case.avi", frames, case["rate"])
        request["video"] = str(path)
        if not case.get("official_defaults"):
            # As many frames per second as there are, and at most those wanted.
            request |= {"fps": 1000.0, "max_frames": case["count"]}
        return request

    def describe(self, case: Case, vector: torch.Tensor) -> dict[str, Any]:
        """The recorded parts of the official processor's inputs, and the vector."""
        inputs = self.seen["inputs"]
        ids = inputs["input_ids"][0].numpy()
        prompt = self.embedder.processor.tokenizer.decode(ids)
        result: dict[str, Any] = {"ids": official.summarise_ids(ids)}
        if "source" not in case and "long" not in case:
            result["prompt"] = prompt
        if self.seen["positions"] is not None:  # newer versions leave those of a text to the language model
            result["positions"] = official.summarise_positions(self.seen["positions"][-3:, 0].numpy())
        if "pixel_values" in inputs:
            pixels = ((inputs["pixel_values"].double() * 0.5 + 0.5) * 255).round().numpy()
            result |= {"grid": inputs["image_grid_thw"][0].tolist(), "pixels": official.summarise_pixels(pixels)}
        elif "pixel_values_videos" in inputs:
            grid = inputs["video_grid_thw"][0].tolist()
            indices = [int(index) for index in self.seen["metadata"]["frames_indices"]]
            if case["source"] == "list":
                indices = self.sample_frames(list(range(case["total"])), case["count"])
            pixels = ((inputs["pixel_values_videos"].double() * 0.5 + 0.5) * 255).round().numpy()
            result |= {"grid": grid, "frames": indices, "times": re.findall(r"<(\d+\.\d) seconds>", prompt)}
            result["pixels"] = official.summarise_pixels(pixels)
        elif "source" in case and "differs" not in case:
            raise RuntimeError(f"{case['name']}: the official code read no video")
        if case.get("vector", True):
            result["vector"] = [float(np.float32(value)) for value in vector.tolist()]
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path, required=True, help="checkout of QwenLM/Qwen3-VL-Embedding")
    parser.add_argument("--pictures", action="store_true", help="write only the fixtures of pictures")
    arguments = parser.parse_args()
    logging.getLogger("qwen_vl_utils").setLevel(logging.ERROR)
    torch.manual_seed(0)
    sys.path.insert(0, str(arguments.official / "src" / "models"))
    for model in MODELS[: 1 if NEW else 2]:
        module = importlib.reload(importlib.import_module("qwen3_vl_embedding"))
        with tempfile.TemporaryDirectory() as temporary:
            folder = official.save_checkpoint(model, Path(temporary) / "checkpoint")
            recorder = Recorder(module, folder)
            cases = qwen3_few() if NEW or model == MODELS[1] else qwen3_cases()
            cases = picture_cases(few=model == MODELS[1]) if arguments.pictures else cases
            done = []
            for case in cases:
                done.append(case | {"expected": recorder.run(case, Path(temporary))})
                print(model, case["name"], done[-1]["expected"].get("grid"), done[-1]["expected"].get("error", ""))
            content = {
                "model": model,
                "inputs": "transformers-5.10" if NEW else "transformers-4.57",
                "part": "pictures" if arguments.pictures else "",
                "repository": "QwenLM/Qwen3-VL-Embedding",
                "commit": environment.commit(arguments.official),
                "versions": environment.versions(),
                "weights": official.digest_weights(official.make_weights(folder)),
                "cases": done,
            }
            environment.write_fixture(content)


if __name__ == "__main__":
    main()
