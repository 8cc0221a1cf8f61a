"""Run the official processor and model of EmbeddingGemma 2 on a tiny checkpoint and write what they returned.

    pip install --no-deps --target torchvision torchvision==0.29.2
    PYTHONPATH=torchvision python recipes/official/gemma.py

Runs in the environment of AllocEmbed with transformers 5.19 or newer: its processor and model are the official code.
`environment.py` says what stands in for torchvision's operators. Files are read with the library's own PyAV reader. The
prompt, the video and the text are put together as the published chat template does, and the mean over all tokens is the
one that the library documents. In float32 on a CPU, one input at a time.
"""

from __future__ import annotations

import tempfile
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import environment
import numpy as np
import torch
import torch.nn.functional as F
import transformers
from cases import Case, gemma_cases, gemma_few
from PIL import Image
from transformers import AutoModel, AutoProcessor
from transformers.video_utils import load_video

from tests import official, official_gemma

MODEL = "embeddinggemma-2"
DOCUMENT = "title: none | text: "
PACKAGES = ("torch", "torchvision", "transformers", "tokenizers", "pillow", "numpy", "av")
MERGE = 3


class Recorder:
    """The official processor and model, and what passed through them."""

    def __init__(self, folder: Path, inputs: str) -> None:
        self.processor: Any = AutoProcessor.from_pretrained(folder)
        self.model = AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        self.options: dict[str, Any] = {"add_timestamps": True} if inputs == "timestamps" else {}
        if inputs.endswith("-tokens"):
            self.options = {"max_soft_tokens": int(inputs.split("-")[0])}
        self.positions: torch.Tensor | None = None
        self.model.language_model.rotary_emb.register_forward_pre_hook(self._keep)

    def _keep(self, _: Any, given: tuple[Any, ...]) -> None:
        self.positions = given[1]

    @torch.no_grad()
    def run(self, case: Case, folder: Path) -> dict[str, Any]:
        """Output of the official code for a case."""
        text = case.get("text", case.get("question")) or ""
        prompt = case.get("instruction", DOCUMENT)
        indices = None
        if "source" not in case:
            inputs = self.processor(text=[prompt + text], return_tensors="pt")
        elif case["source"] == "picture":
            frame = official.make_frames(case["width"], case["height"], [0])[0]
            words = [f"{prompt}<|image|>{text}"]
            inputs = self.processor(text=words, images=[[Image.fromarray(frame)]], return_tensors="pt")
        else:
            video, about = self._read(case, folder)
            indices = [int(index) for index in about.frames_indices]
            options = {"videos": [video], "video_metadata": [about], "do_sample_frames": False, **self.options}
            inputs = self.processor(text=[f"{prompt}<|video|>{text}"], return_tensors="pt", **options)
        inputs.pop("video_metadata", None)
        states = self.model(**inputs).last_hidden_state
        mask = inputs["attention_mask"][..., None].float()
        vector = F.normalize((states * mask).sum(1) / mask.sum(1), dim=-1)[0]
        return self._describe(case, inputs, indices, vector)

    def _read(self, case: Case, folder: Path) -> tuple[np.ndarray, Any]:
        """Frames (n, H, W, 3) that the official processor chooses, and what it knows about them."""
        sampler, count = self.processor.video_processor, case["count"]
        frames = official.make_frames(case["width"], case["height"], range(case["total"]))
        options = {"fps": None, "max_frames": count, "overflow_strategy": "uniform"}
        if case["source"] == "list":
            about = transformers.video_utils.VideoMetadata(total_num_frames=len(frames))
            about.frames_indices = sampler.sample_frames(about, **options)
            return frames[about.frames_indices], about
        path = official.write_video(folder / "case.avi", frames, case["rate"])
        choose = partial(_choose, sampler, options)
        return load_video(str(path), backend="pyav", sample_indices_fn=choose)

    def _describe(self, case: Case, inputs: Any, indices: list[int] | None, vector: torch.Tensor) -> dict[str, Any]:
        ids = inputs["input_ids"][0].numpy()
        result: dict[str, Any] = {"ids": official.summarise_ids(ids)}
        places, tokens = None, np.arange(len(ids))[None] if self.positions is None else self.positions.numpy()
        kind = "pixel_values" if case.get("source") == "picture" else "pixel_values_videos"
        if "source" in case:
            pixels, at = inputs[kind], inputs["image_position_ids" if kind == "pixel_values" else "video_position_ids"]
            inside = (at[0] != -1).all(-1)
            pixels, at = pixels[:, inside], at[:, inside]
            cols, rows = (int(side) + 1 for side in at[0].amax(0))
            result["grid"] = [len(pixels), rows, cols]
            pixels, at = (_by_token(each, rows, cols) for each in (pixels, at))
            levels = (pixels.double() * 255).round().numpy()
            assert np.abs(pixels.double().numpy() * 255 - levels).max() < 1e-3
            result["pixels"] = official.summarise_pixels(levels)
            places = at.numpy().T
        else:
            result["prompt"] = self.processor.tokenizer.decode(ids)
        if indices is not None:
            result["frames"] = indices
        result["positions"] = official.summarise_positions(official_gemma.all_positions(tokens, places))
        result["vector"] = [float(np.float32(value)) for value in vector.tolist()]
        return result


def _choose(sampler: Any, options: dict[str, Any], metadata: Any, **_: Any) -> np.ndarray:
    return sampler.sample_frames(metadata, **options)


def _by_token(patches: torch.Tensor, rows: int, cols: int) -> torch.Tensor:
    """Patches (frames, rows · cols, n), row by row, with those of a token together: (frames · rows · cols, n)."""
    blocks = patches.unflatten(1, (rows // MERGE, MERGE, cols // MERGE, MERGE))
    return blocks.transpose(2, 3).flatten(0, 4)


def main() -> None:
    torch.manual_seed(0)
    for inputs in ("token-mean", "70-tokens", "280-tokens", "timestamps"):
        with tempfile.TemporaryDirectory() as temporary:
            folder = official.save_checkpoint(MODEL, Path(temporary) / "checkpoint")
            recorder = Recorder(folder, inputs)
            done = []
            for case in gemma_cases() if inputs == "token-mean" else gemma_few(inputs):
                done.append(case | {"expected": recorder.run(case, Path(temporary))})
                print(inputs, case["name"], done[-1]["expected"].get("grid"), flush=True)
            content = {
                "model": MODEL,
                "inputs": inputs,
                "part": "",
                "repository": "huggingface/transformers",
                "commit": f"v{transformers.__version__}",
                "versions": {name: metadata.version(name) for name in PACKAGES},
                "weights": official.digest_weights(official.make_weights(folder)),
                "cases": done,
            }
            environment.write_fixture(content)


if __name__ == "__main__":
    main()
