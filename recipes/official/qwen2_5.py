"""Run stock Qwen2.5-VL of transformers on a tiny checkpoint and write what it returned.

    python recipes/official/qwen2_5.py

Needs an environment of its own: requirements-qwen3.txt. `environment.py` says what stands in for torchvision's
operators. Processor, chat template and model are the library's own, in float32 on a CPU, one input at a time; the
vector is the last state, of length one. With transformers 5 the fixture gets the name of that rule of positions.
The processor gets the rate of the frames: 2 a second for a list, that of the file for a file, which is read whole.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import environment
import numpy as np
import torch
import transformers
from cases import Case, picture_cases, qwen25_cases, qwen25_few
from PIL import Image

from tests import official

MODEL = "qwen2.5-vl-3b"
NEW = int(transformers.__version__.split(".")[0]) >= 5
LIST_RATE = 2.0


class Recorder:
    """The library's processor and model, and what passed through them."""

    def __init__(self, folder: Path) -> None:
        self.processor = transformers.AutoProcessor.from_pretrained(folder)
        self.model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        if type(self.processor).__name__ != "Qwen2_5_VLProcessor":
            raise RuntimeError(f"the checkpoint has a {type(self.processor).__name__}")
        self.positions: torch.Tensor | None = None

        def keep_positions(_: Any, __: Any, options: dict[str, Any]) -> None:
            self.positions = options["position_ids"]

        self.model.language_model.register_forward_pre_hook(keep_positions, with_kwargs=True)

    @torch.no_grad()
    def run(self, case: Case, folder: Path) -> dict[str, Any]:
        """Vector and inputs that the library returned for a case."""
        inputs = self.process(case, folder)
        self.positions = None
        result: dict[str, Any] = {"ids": official.summarise_ids(inputs["input_ids"][0].numpy())}
        if "source" not in case:
            result["prompt"] = self.processor.tokenizer.decode(inputs["input_ids"][0])
        kind = ("pixel_values", "image_grid_thw") if case.get("source") == "picture" else None
        kind = ("pixel_values_videos", "video_grid_thw") if case.get("source") in ("file", "list") else kind
        if kind:
            pixels, grid = inputs[kind[0]].double().numpy(), inputs[kind[1]][0].tolist()
            mean, std = (np.array(values)[:, None] for values in official.CLIP)
            levels = (pixels.reshape(len(pixels), 3, -1) * std + mean) * 255
            summary = official.summarise_pixels(levels.round().reshape(len(pixels), -1))
            result |= {"grid": grid, "pixels": summary}
            if case["source"] != "picture":
                result["frames"] = list(range(case["total"]))
        if not case.get("vector", True):
            return result
        hidden = self.model(**inputs).last_hidden_state[0, -1]
        if self.positions is not None:  # newer versions leave those of a text to the language model
            result["positions"] = official.summarise_positions(self.positions[-3:, 0].numpy())
        vector = torch.nn.functional.normalize(hidden, dim=-1)
        return result | {"vector": [float(np.float32(value)) for value in vector.tolist()]}

    def process(self, case: Case, folder: Path) -> Any:
        """The inputs that the processor makes of a case."""
        content, given = [], {}
        if "source" in case:
            frames = official.make_frames(case["width"], case["height"], range(case["total"]))
            if case["source"] == "picture":
                content.append({"type": "image"})
                given = {"images": [Image.fromarray(frames[0])]}
            else:
                rate = LIST_RATE
                if case["source"] == "file":
                    reader = environment.VideoReader(str(official.write_video(folder / "a.avi", frames, case["rate"])))
                    frames, rate = reader.frames, reader.rate
                content.append({"type": "video"})
                given = {"videos": [torch.from_numpy(frames).permute(0, 3, 1, 2)]}
                about = {"fps": rate, "total_num_frames": len(frames), "frames_indices": list(range(len(frames)))}
                given |= {"video_metadata": [about], "do_sample_frames": False} if NEW else {"fps": rate}
        text = case.get("text", case.get("question"))
        if text is not None:
            content.append({"type": "text", "text": text})
        messages = [{"role": "user", "content": content}]
        if case.get("instruction"):
            messages.insert(0, {"role": "system", "content": [{"type": "text", "text": case["instruction"]}]})
        prompt = self.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        return self.processor(text=[prompt], return_tensors="pt", **given)


def main() -> None:
    torch.manual_seed(0)
    parts = {"": qwen25_few()} if NEW else {"": qwen25_cases(), "pictures": picture_cases()}
    with tempfile.TemporaryDirectory() as temporary:
        folder = official.save_checkpoint(MODEL, Path(temporary) / "checkpoint")
        recorder = Recorder(folder)
        for part, cases in parts.items():
            done = []
            for case in cases:
                done.append(case | {"expected": recorder.run(case, Path(temporary))})
                print(case["name"], done[-1]["expected"].get("grid"))
            content = {
                "model": MODEL,
                "inputs": "transformers-5" if NEW else "transformers-4.57",
                "part": part,
                "repository": "huggingface/transformers",
                "commit": f"v{transformers.__version__}",
                "versions": environment.versions(),
                "weights": official.digest_weights(official.make_weights(folder)),
                "cases": done,
            }
            environment.write_fixture(content)


if __name__ == "__main__":
    main()
