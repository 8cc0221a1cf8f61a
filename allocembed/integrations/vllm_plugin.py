"""The part that runs inside vLLM's processes: VLM2Vec with its own positions, and a processor of requests.

    vllm serve Qwen/Qwen3-VL-Embedding-2B --runner pooling --io-processor-plugin allocembed \\
      --limit-mm-per-prompt '{"video": 12}' --allowed-local-media-path /videos \\
      --additional-config '{"allocembed": {"allocator": "uniform", "budget": "8f"}}'

    POST /pooling {"model": "...", "task": "plugin", "data": {"video": "/videos/talk.mp4", "text": "Who speaks?"}}

Data is one input or a list of them. An input has `text`, `video`, `image` or one of the two with a text; a path within
the allowed folder or `{"bytes": "base64 text"}`; `instruction`, or `"query": true` for a search sentence. The answer
has a unit `vector` and the visual `tokens` of each input. Written for vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm import PoolingParams  # pyright: ignore[reportAttributeAccessIssue] (takes vllm.py here for the library)
from vllm.model_executor.models.qwen2_vl import (
    Qwen2VLDummyInputsBuilder,
    Qwen2VLForConditionalGeneration,
    Qwen2VLMultiModalProcessor,
    Qwen2VLProcessingInfo,
)
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.plugins.io_processors.interface import IOProcessor

from allocembed.config import EmbedConfig
from allocembed.errors import AllocEmbedError, ConfigError
from allocembed.integrations.requests import Request
from allocembed.integrations.sources import open_picture, open_source
from allocembed.integrations.vllm import load_without_weights, picture_payload, text_payload, video_payload

FIELDS = ("text", "video", "image", "instruction", "query")


@MULTIMODAL_REGISTRY.register_processor(
    Qwen2VLMultiModalProcessor, info=Qwen2VLProcessingInfo, dummy_inputs=Qwen2VLDummyInputsBuilder
)
class VLM2Vec(Qwen2VLForConditionalGeneration):
    """Qwen2-VL that counts straight through, as VLM2Vec's models saw in training."""

    def get_mrope_input_positions(self, input_tokens: list[int], mm_features: Any) -> tuple[torch.Tensor, int]:
        return torch.arange(len(input_tokens)).expand(3, -1).contiguous(), 0


@dataclass(frozen=True, eq=False)
class RequestedInput:
    """One input of a request, and the instruction for it."""

    request: Request
    instruction: str | None


class AllocEmbedProcessor(IOProcessor[list[RequestedInput], list[dict[str, Any]]]):
    """Makes prompts of the data of a request, and vectors of what the model returns."""

    def __init__(self, vllm_config: Any, renderer: Any) -> None:
        super().__init__(vllm_config, renderer)
        model, stated = vllm_config.model_config, dict(vllm_config.additional_config or {}).get("allocembed", {})
        self.config = EmbedConfig.from_dict({"backbone": model.model, "device": "cpu", **stated})
        self.folder: str = model.allowed_local_media_path
        self.embedder = load_without_weights(self.config)
        about = model.hf_config
        self.visual = (about.video_token_id, about.image_token_id)

    def parse_data(self, data: object) -> list[RequestedInput]:
        given = data if isinstance(data, list) else [data]
        try:
            return [self._parse(each) for each in given]
        except AllocEmbedError as error:
            raise ValueError(str(error)) from error  # vLLM answers a ValueError with status 400

    def pre_process(self, prompt: list[RequestedInput], request_id: str | None = None, **kwargs: Any) -> list[Any]:
        try:
            return [self._prompt(asked) for asked in prompt]
        except AllocEmbedError as error:
            raise ValueError(str(error)) from error

    def post_process(
        self, model_output: Sequence[Any], request_id: str | None = None, **kwargs: Any
    ) -> list[dict[str, Any]]:
        answers = []
        for output in model_output:
            vector = torch.as_tensor(output.outputs.data).float().flatten()[: self.config.dim]
            tokens = int(np.isin(output.prompt_token_ids, self.visual).sum())
            answers.append({"vector": torch.nn.functional.normalize(vector, dim=0).tolist(), "tokens": tokens})
        return answers

    def merge_pooling_params(self, params: PoolingParams | None = None) -> PoolingParams:
        return PoolingParams(task="embed")

    def _parse(self, data: Any) -> RequestedInput:
        if not isinstance(data, Mapping):
            raise ConfigError(f"cannot embed a {type(data).__name__}: give an object with text, video or image")
        if unknown := sorted(set(data) - set(FIELDS)):
            raise ConfigError(f"cannot embed an input with {', '.join(unknown)}: use {', '.join(FIELDS)}")
        for name in ("video", "image"):
            self._check_path(data.get(name))
        instruction = data.get("instruction")
        if data.get("query"):
            instruction = instruction or self.embedder.backbone.query_instruction
        return RequestedInput(Request(data.get("text"), data.get("video"), data.get("image")), instruction)

    def _check_path(self, source: Any) -> None:
        """Refuse files outside the folder that vLLM serves."""
        if isinstance(source, Mapping):
            if source.get("bytes") is not None:
                return
            source = source.get("path")
        if source is None:
            return
        if not isinstance(source, str):
            raise ConfigError('cannot read this source: give a path, or {"bytes": "base64 text"}')
        if not self.folder or not Path(source).resolve().is_relative_to(Path(self.folder).resolve()):
            raise ConfigError(f"cannot read {source}: it is outside --allowed-local-media-path; send its bytes instead")

    def _prompt(self, asked: RequestedInput) -> dict[str, Any]:
        request, instruction = asked.request, asked.instruction
        if request.picture is not None:
            picture = open_picture(request.picture)
            return picture_payload(self.embedder, picture, request.text, instruction=instruction).prompt
        if request.video is None:
            return text_payload(self.embedder, request.text or "", instruction=instruction).prompt
        with ExitStack() as stack:
            source = open_source(request.video, self.embedder, stack)
            return video_payload(self.embedder, source, request.text, instruction=instruction).prompt
