"""AllocEmbed's inputs for vLLM, which then runs the backbone.

vLLM reads a video as one size of frames. So each chunk goes as an item of its own, at its own size, with its own time,
and vLLM neither samples nor resizes. The prompt that it makes of these items, and its positions, are ours token by
token (`tests/integrations/test_vllm.py`, made with vLLM 0.32.0).

    embedder = load_without_weights(EmbedConfig(backbone="qwen3-vl-embedding-2b", allocator="uniform", budget="8f"))
    llm = LLM("Qwen/Qwen3-VL-Embedding-2B", runner="pooling", limit_mm_per_prompt={"video": 12})
    payload = video_payload(embedder, "talk.mp4")
    vector = llm.embed(payload.prompt)[0].outputs.embedding

Nothing here imports vLLM; `vllm_plugin` does. Both run in vLLM's own environment: `pip install allocembed` without
extras, because the pins of vLLM and of our search server collide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image

from allocembed.backbones.base import Backbone, Prompt
from allocembed.backbones.loading import load_skeleton
from allocembed.budget import Allocation
from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.errors import BackboneError
from allocembed.geometry import Geometry
from allocembed.planner import Source
from allocembed.resize import prompt_seconds, resize
from allocembed.video import Clip, PictureSource, read_picture

ARCHITECTURE = "AllocEmbedVLM2Vec"
"""Name under which vLLM knows VLM2Vec with its own positions: --hf-overrides '{"architectures": [...]}'."""
PICTURE_PAD = "<|image_pad|>"
_CHUNK = re.compile(r"<\d+\.\d seconds><\|vision_start\|>(<\|video_pad\|>)<\|vision_end\|>")
_AS_THEY_ARE = {"do_resize": False, "do_sample_frames": False}


@dataclass(frozen=True, eq=False)
class Payload:
    """An input of `LLM.embed` and `LLM.encode`, and where its tokens go; a text has no allocation."""

    prompt: dict[str, Any]
    allocation: Allocation | None = None


def text_payload(embedder: AllocEmbed, text: str, *, instruction: str | None = None) -> Payload:
    """A text: a caption or, with `embedder.backbone.query_instruction`, a search sentence."""
    return Payload({"prompt": _layout(embedder.backbone, Prompt(text, instruction))})


def video_payload(
    embedder: AllocEmbed, source: Source, question: str | None = None, *, instruction: str | None = None
) -> Payload:
    """A video, with a question about it if there is one. Raises VideoError if it cannot be read."""
    clip = embedder.read(source)
    allocation = embedder.allocate(clip, embedder.plan(clip, question))
    seconds = prompt_seconds(clip, allocation.frames, embedder.inputs.list_rate)
    prompt = Prompt(question, instruction, seconds)
    frames = chunk_pictures(clip, allocation, embedder.backbone.geometry)
    items = [(chunk, _metadata(second, len(chunk))) for chunk, second in zip(frames, seconds, strict=True)]
    # vLLM writes the time and the marks around each chunk itself.
    text = _CHUNK.sub(r"\1", _layout(embedder.backbone, prompt))
    return Payload(
        {"prompt": text, "multi_modal_data": {"video": items}, "mm_processor_kwargs": dict(_AS_THEY_ARE)}, allocation
    )


def picture_payload(
    embedder: AllocEmbed, source: PictureSource, question: str | None = None, *, instruction: str | None = None
) -> Payload:
    """A picture, with a text about it if there is one."""
    clip = read_picture(source, embedder.config.limits)
    allocation, item = embedder.prepare_picture(clip, question, instruction)
    (frames,) = chunk_pictures(clip, allocation, embedder.backbone.inputs.picture_geometry)
    # vLLM writes a time before each chunk of a video, and a picture has none, so it goes as a picture.
    text = _layout(embedder.backbone, item.prompt).replace("<|video_pad|>", PICTURE_PAD)
    data = {"image": [Image.fromarray(frames[0])]}
    return Payload({"prompt": text, "multi_modal_data": data, "mm_processor_kwargs": {"do_resize": False}}, allocation)


def chunk_pictures(clip: Clip, allocation: Allocation, geometry: Geometry) -> list[np.ndarray]:
    """The frames of each chunk at its size, (frames_per_chunk, H, W, 3) uint8: what `to_patches` cuts."""
    video = torch.from_numpy(np.array(clip.frames)).permute(0, 3, 1, 2)
    canvas = geometry.canvas(clip.height, clip.width, listed=clip.listed)
    chunks = []
    for frames, grid in zip(allocation.frames, allocation.grids, strict=True):
        size = (grid.rows * geometry.factor, grid.cols * geometry.factor)
        resized = [resize(resize(video[frame][None], canvas), size) for frame in frames]
        chunks.append(torch.cat(resized).permute(0, 2, 3, 1).contiguous().numpy())
    return chunks


def load_without_weights(config: EmbedConfig) -> AllocEmbed:
    """An embedder that reads, allocates and writes prompts, but cannot embed: vLLM holds the weights.

    A learned allocator brings its own preview model. `sensitivity` looks with the backbone, so it cannot be used.
    """
    backbone = load_skeleton(config.backbone, device=config.device, dtype=config.dtype, inputs=config.inputs)
    return AllocEmbed(backbone, config.allocator, replace(config, dim=None))


def register() -> None:
    """Entry point of `vllm.general_plugins`: make VLM2Vec known."""
    from vllm import ModelRegistry  # pyright: ignore[reportAttributeAccessIssue] (takes this file for the library)

    ModelRegistry.register_model(ARCHITECTURE, "allocembed.integrations.vllm_plugin:VLM2Vec")


def processor_name() -> str:
    """Entry point of `vllm.io_processor_plugins`: `--io-processor-plugin allocembed`."""
    return "allocembed.integrations.vllm_plugin.AllocEmbedProcessor"


def _layout(backbone: Backbone, prompt: Prompt) -> str:
    """The string that the tokenizer reads."""
    layout = getattr(backbone, "layout", None)
    if layout is None:
        raise BackboneError(f"cannot serve {backbone.name} with vLLM: only the Qwen-VL families have a layout for it")
    for text in filter(None, (prompt.text, prompt.instruction)):
        backbone.check_text(text)
        if PICTURE_PAD in text:
            raise BackboneError(f"the text contains {PICTURE_PAD}, which stands for a picture: remove it from the text")
    return layout(prompt)


def _metadata(second: float, frames: int) -> dict[str, Any]:
    """The time of a chunk as vLLM takes it: frame numbers at ten per second, because a prompt shows tenths."""
    tenths = int(f"{second:.1f}".replace(".", ""))
    return {"fps": 10.0, "frames_indices": [tenths] * frames, "total_num_frames": frames, "do_sample_frames": False}
