"""Run the official VLM2Vec on tiny checkpoints and write what it returned: V2, V1, and the demo of both.

    git clone https://github.com/TIGER-AI-Lab/VLM2Vec official
    python recipes/official/vlm2vec.py --official official

Needs an environment of its own: requirements-vlm2vec.txt. `environment.py` says what stands in for missing packages.

- `vlm2vec-v2` and `vlm2vec-v1` take the path of `eval.py`: folders of frames, `process_video_frames`, the collator, the
  processor and `MMEBModel.encode_input`, with the arguments of `eval_8gpu.sh` (V2) and of `eval_vlm2vecv1_8gpu.sh`
  (V1). The official code cuts files into JPEG frames; here the frames are PNG, so that pixels can be compared.
- `vlm2vec-demo` takes the path of `demo_v1_video.py` and `demo_v2_video.py`, which are equal up to the model: a file,
  one frame per second.

The models run in float32 with SDPA on a CPU. The official code asks for bfloat16 and FlashAttention 2.
"""

from __future__ import annotations

import argparse
import logging
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
from cases import Case, demo_cases, picture_cases, vlm2vec_cases, vlm2vec_v1_cases
from PIL import Image

from tests import official

BASELINES = "src.model.baseline_backbone"
UNUSED = (
    "datasets",
    "pandas",
    BASELINES,
    f"{BASELINES}.colpali",
    f"{BASELINES}.gme",
    f"{BASELINES}.gme.gme_inference",
    f"{BASELINES}.internvideo2",
    f"{BASELINES}.internvideo2.modeling_internvideo2",
    f"{BASELINES}.lamra",
    f"{BASELINES}.lamra.lamra_inference",
    f"{BASELINES}.lamra.lamra_qwen25_inference",
    f"{BASELINES}.llava_next",
    f"{BASELINES}.phi3_v",
    f"{BASELINES}.phi3_v.modeling_phi3_v",
    "src.model.vlm_backbone.qwen2_5_vl",
    "src.model.vlm_backbone.qwen2_5_vl_tokenselection",
    "src.model.vlm_backbone.qwen2_vl_tokenselection",
    "src.utils.vision_utils.video_transforms",
)
PACKAGES = ("src.data", "src.data.collator", "src.data.eval_dataset")  # their own files import all datasets
USED = {
    "src.arguments": ("DataArguments", "ModelArguments"),
    "src.data.collator.eval_collator": ("MultimodalEvalDataCollator",),
    "src.data.eval_dataset.base_eval_dataset": ("RESOLUTION_MAPPING",),
    "src.model.model": ("MMEBModel",),
    "src.model.processor": ("QWEN2_VL", "VLM_VIDEO_TOKENS", "backbone2model", "load_processor", "process_input_text"),
    "src.model.vlm_backbone.qwen2_vl.qwen_vl_utils": ("process_vision_info",),
    "src.utils.vision_utils.vision_utils": ("process_video_frames",),
}
DEMO_PIXELS, DEMO_RATE = 360 * 420, 1.0
VIDEO_INPUTS = ("pixel_values_videos", "video_grid_thw")


def import_official(repository: Path) -> dict[str, Any]:
    """The parts of the official repository that its evaluation and its demo use."""
    sys.path.insert(0, str(repository))
    environment.leave_out(UNUSED)
    vars(torchvision.io).setdefault("write_video", None)
    for name in PACKAGES:
        package = ModuleType(name)
        package.__path__ = [str(repository / name.replace(".", "/"))]
        package.__spec__ = ModuleSpec(name, None, is_package=True)
        sys.modules[name] = package
    return {name: getattr(import_module(module), name) for module, names in USED.items() for name in names}


class Recorder:
    """An official model, and what passed through it. `high` is V1's evaluation: `--image_resolution high`."""

    def __init__(self, parts: dict[str, Any], folder: Path, *, high: bool) -> None:
        self.parts, self.backbone = parts, parts["QWEN2_VL"]
        model_arguments = parts["ModelArguments"](model_name=str(folder), model_backbone=self.backbone, pooling="eos")
        resize = {"resize_use_processor": False, "image_resolution": "high"} if high else {}
        self.data_arguments = parts["DataArguments"](**resize)
        self.processor = parts["load_processor"](model_arguments, self.data_arguments)
        self.collator = parts["MultimodalEvalDataCollator"](
            self.processor, model_arguments, self.data_arguments, "cand"
        )
        config = transformers.AutoConfig.from_pretrained(folder)
        for part in (config, config.vision_config):
            setattr(part, "_attn_implementation", "sdpa")  # noqa: B010 (no public name)
        kind = parts["backbone2model"][self.backbone]
        encoder = kind.from_pretrained(folder, config=config, torch_dtype=torch.float32)
        self.model = parts["MMEBModel"](encoder, pooling="eos", normalize=True).eval()
        self.positions = np.empty((3, 0), np.int64)

        def keep_positions(_: Any, __: Any, options: dict[str, Any]) -> None:
            self.positions = options["position_ids"][:, 0].numpy()

        encoder.model.register_forward_pre_hook(keep_positions, with_kwargs=True)

    def evaluate(self, case: Case, folder: Path) -> dict[str, Any]:
        """The path of the official evaluation."""
        text, indices = self.text(case), None
        images: Any = None
        if "source" in case:
            paths = self.frames(case, folder)
            indices = [int(Path(path).stem) for path in paths]
            size = self.parts["RESOLUTION_MAPPING"].get(self.data_arguments.image_resolution, None)
            images = {"bytes": [None] * len(paths), "paths": paths, "resolutions": [size] * len(paths)}
        try:
            example = {"cand_text": [text], "cand_image": [images], "dataset_infos": {}}
            inputs, _ = self.collator([example])
            vector = self.encode(inputs) if case.get("vector", True) else None
        except (ValueError, IndexError, RuntimeError) as error:
            if "differs" not in case:
                raise
            return {"error": f"{type(error).__name__}: {str(error)[:160]}"}
        return self.describe(case, inputs, vector, indices)

    def demonstrate(self, case: Case, folder: Path) -> dict[str, Any]:
        """The path of the official demo."""
        frames = official.make_frames(case["width"], case["height"], range(case["total"]))
        path = official.write_video(folder / "case.avi", frames, case["rate"])
        content = [{"type": "video", "video": str(path), "max_pixels": DEMO_PIXELS, "fps": DEMO_RATE}]
        _, videos = self.parts["process_vision_info"]([{"role": "user", "content": content}])
        text = f"{self.parts['VLM_VIDEO_TOKENS'][self.backbone]} {case['instruction']}"
        inputs = dict(self.processor(text=text, videos=videos, return_tensors="pt"))
        for name in ("pixel_values_videos", "video_grid_thw"):
            inputs[name] = inputs[name].unsqueeze(0)
        vector = self.encode(inputs)
        inputs = {name: value[0] if "video" in name else value for name, value in inputs.items()}
        inputs |= {name: [inputs[name].numpy()] for name in ("pixel_values_videos", "video_grid_thw")}
        indices = torch.linspace(0, case["total"] - 1, len(videos[0])).round().long().tolist()
        return self.describe(case, inputs, vector, indices)

    def text(self, case: Case) -> str:
        """The prompt that the official code makes for a case."""
        video, picture = "source" in case, case.get("source") == "picture"
        words = official.make_text(case["long"]) if "long" in case else case.get("text", "")
        if not video and "instruction" not in case:
            return words
        # The official code has one constant for the video side; a question alone stands in its place.
        constant = "Represent the given image." if picture else "Understand the content of the provided video."
        instruction = case.get("instruction") or case.get("question") or constant
        question = case.get("question") if "instruction" in case else None
        make = self.parts["process_input_text"]
        tokens = {"add_video_token": video and not picture, "add_image_token": picture}
        return make(instruction, self.backbone, text=question if video else words, **tokens)

    def frames(self, case: Case, folder: Path) -> list[str]:
        """The frames that the official code chooses from a folder of all."""
        where = folder / case["name"].replace(",", "")
        where.mkdir()
        frames = official.make_frames(case["width"], case["height"], range(case["total"]))
        for index, frame in enumerate(frames):
            Image.fromarray(frame).save(where / f"{index:04d}.png", compress_level=0)
        return self.parts["process_video_frames"](str(where), num_frames=case["count"])

    @torch.no_grad()
    def encode(self, inputs: dict[str, Any]) -> torch.Tensor:
        self.model.encoder.rope_deltas = None  # kept between calls by the official class, for generation
        return self.model.encode_input(dict(inputs))[0]

    def describe(
        self, case: Case, inputs: Any, vector: torch.Tensor | None, indices: list[int] | None
    ) -> dict[str, Any]:
        """The recorded parts of the official processor's inputs, and the vector."""
        ids = inputs["input_ids"][0].numpy()
        result: dict[str, Any] = {"ids": official.summarise_ids(ids)}
        if "long" not in case and "source" not in case:
            result["prompt"] = self.processor.tokenizer.decode(ids)
        if vector is not None:
            result["positions"] = official.summarise_positions(self.positions)
            result["vector"] = [float(np.float32(value)) for value in vector.tolist()]
        if indices is not None:
            kind = ("pixel_values", "image_grid_thw") if case["source"] == "picture" else VIDEO_INPUTS
            pixels, grid = (np.asarray(inputs[name][0]) for name in kind)
            mean, std = (np.asarray(values)[:, None] for values in official.CLIP)
            levels = (pixels.reshape(len(pixels), 3, -1).astype(np.float64) * std + mean) * 255
            result |= {"grid": grid.reshape(-1).tolist()} | ({} if case["source"] == "picture" else {"frames": indices})
            result["pixels"] = official.summarise_pixels(levels.round().reshape(len(pixels), -1))
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path, required=True, help="checkout of TIGER-AI-Lab/VLM2Vec")
    parser.add_argument("--model", help="only this model")
    parser.add_argument("--pictures", action="store_true", help="write only the fixtures of pictures")
    arguments = parser.parse_args()
    logging.getLogger("PIL").setLevel(logging.WARNING)
    parts = import_official(arguments.official.resolve())
    runs = [
        ("vlm2vec-v2-2b", "vlm2vec-v2", vlm2vec_cases()),
        ("vlm2vec-qwen2vl-7b", "vlm2vec-v1", vlm2vec_v1_cases()),
        ("vlm2vec-qwen2vl-7b", "vlm2vec-demo", demo_cases()),
    ]
    for model, pipeline, cases in runs[: 2 if arguments.pictures else None]:
        if arguments.model not in (None, model):
            continue
        with tempfile.TemporaryDirectory() as temporary:
            folder = official.save_checkpoint(model, Path(temporary) / "checkpoint")
            recorder = Recorder(parts, folder, high=pipeline == "vlm2vec-v1")
            done = []
            if arguments.pictures:
                cases = picture_cases(few=pipeline == "vlm2vec-v1")
            for case in cases:
                run = recorder.demonstrate if pipeline == "vlm2vec-demo" else recorder.evaluate
                done.append(case | {"expected": run(case, Path(temporary))})
                print(model, case["name"], done[-1]["expected"].get("grid"), done[-1]["expected"].get("error", ""))
            content = {
                "model": model,
                "inputs": pipeline,
                "part": "pictures" if arguments.pictures else "",
                "repository": "TIGER-AI-Lab/VLM2Vec",
                "commit": environment.commit(arguments.official),
                "versions": environment.versions(),
                "weights": official.digest_weights(official.make_weights(folder)),
                "cases": done,
            }
            environment.write_fixture(content)


if __name__ == "__main__":
    main()
