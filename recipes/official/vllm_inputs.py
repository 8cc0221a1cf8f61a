"""Give random mixed layouts to vLLM's own code and write the prompts, positions and pixels that it made of them.

    python recipes/official/vllm_inputs.py

Needs an environment of its own: requirements-vllm.txt. Nothing of vLLM is replaced: its registry makes the processor of
the model, which parses the payload, calls transformers' processors and expands the prompt; the model's class makes the
positions. No weights are loaded and no GPU is needed. VLM2Vec is our subclass, registered as in a server.
"""

from __future__ import annotations

import json
import os
import tempfile
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ |= {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}

import environment  # noqa: F401 (makes torchvision importable, so it comes first)
import numpy as np
import torch
from vllm import ModelRegistry
from vllm.config import ModelConfig
from vllm.model_executor.models.qwen3_vl import Qwen3VLForConditionalGeneration
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.inputs import MultiModalFeatureSpec

from allocembed.integrations.vllm import ARCHITECTURE, Payload, picture_payload, video_payload
from allocembed.integrations.vllm_plugin import VLM2Vec
from tests.integrations.layouts import FIXTURES, MODELS, PICTURES, VIDEOS, WITH_PIXELS, Layout, digest, load_embedder

PACKAGES = ("vllm", "torch", "transformers", "tokenizers", "numpy")


class Engine:
    """The part of vLLM that handles a prompt before the model runs."""

    def __init__(self, folder: Path, cls: type) -> None:
        overrides = {"architectures": [ARCHITECTURE]} if cls is VLM2Vec else {}
        self.config = ModelConfig(
            model=str(folder),
            runner="pooling",
            dtype="float32",
            max_model_len=32768,
            hf_overrides=overrides,
            limit_mm_per_prompt={"video": 64, "image": 4},
            mm_processor_cache_gb=0,
        )
        self.cls = cls
        self.processor: Any = MULTIMODAL_REGISTRY.create_processor(self.config)

    def run(self, payload: Payload, *, pixels: bool) -> dict[str, Any]:
        """Token ids and positions, and the pixels, which vLLM normalises on the device."""
        data = payload.prompt["multi_modal_data"]
        items = self.processor.info.parse_mm_data(data)
        options = payload.prompt["mm_processor_kwargs"]
        made = self.processor(payload.prompt["prompt"], items, hf_processor_mm_kwargs=options)
        (kind,) = data
        ids, kwargs = made["prompt_token_ids"], made["mm_kwargs"][kind]
        features = [
            MultiModalFeatureSpec(data=item, modality=kind, identifier=str(i), mm_position=place)
            for i, (item, place) in enumerate(zip(kwargs, made["mm_placeholders"][kind], strict=True))
        ]
        model = SimpleNamespace(config=self.config.hf_config)
        model._get_mrope_input_positions = getattr(self.cls, "_get_mrope_input_positions", None)
        positions, _ = self.cls.get_mrope_input_positions(model, ids, features)
        result = {"tokens": len(ids), "ids": digest(np.array(ids)), "positions": digest(positions.numpy())}
        if pixels:
            result["prompt"] = payload.prompt["prompt"]
            name = "pixel_values_videos" if kind == "video" else "pixel_values"
            levels = torch.cat([item[name].data for item in kwargs])
            if levels.dtype != torch.uint8:
                raise RuntimeError(f"{name} is {levels.dtype}: this vLLM no longer normalises on the device")
            result["pixels"] = digest(levels.numpy())
        return result


def main() -> None:
    ModelRegistry.register_model("Qwen3VLForConditionalGeneration", Qwen3VLForConditionalGeneration)
    ModelRegistry.register_model(ARCHITECTURE, VLM2Vec)
    FIXTURES.mkdir(parents=True, exist_ok=True)
    for model, pipelines in MODELS.items():
        for inputs in pipelines:
            with tempfile.TemporaryDirectory() as folder:
                embedder = load_embedder(model, inputs, Path(folder))
                engine = Engine(Path(folder), VLM2Vec if "vlm2vec" in model else Qwen3VLForConditionalGeneration)
                cases = []
                for number in range(VIDEOS + PICTURES):
                    layout = Layout(embedder, number)
                    if number < VIDEOS:
                        payload = video_payload(
                            layout.embedder, layout.clip(), layout.text, instruction=layout.instruction
                        )
                    else:
                        payload = picture_payload(
                            layout.embedder, layout.picture(), layout.text, instruction=layout.instruction
                        )
                    pixels = number % WITH_PIXELS == 0 or number >= VIDEOS
                    cases.append(engine.run(payload, pixels=pixels))
            head = {"model": model, "inputs": inputs, "versions": {name: metadata.version(name) for name in PACKAGES}}
            lines = ",\n".join(json.dumps(case) for case in cases)
            path = FIXTURES / f"{model}_{inputs}.json"
            path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "cases": [\n{lines}\n]}}\n', encoding="utf-8")
            print(f"{path.name}: {len(cases)} layouts, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
