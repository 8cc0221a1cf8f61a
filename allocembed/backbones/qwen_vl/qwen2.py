"""Qwen2-VL as VLM2Vec uses it: no chat template, a bare video placeholder, positions that count straight through.

The layouts follow VLM2Vec-V2's evaluation code: `<|video_pad|> text` for a video, the text alone for a text, and an
instruction before the text it belongs to. A video without either gets MMEB-V2's constant text.
"""

from allocembed.backbones.base import Prompt
from allocembed.backbones.qwen_vl.backbone import VIDEO_PAD, QwenVLBackbone

VIDEO_TEXT = "Understand the content of the provided video."  # the constant text of the video side in MMEB-V2


class Qwen2VLBackbone(QwenVLBackbone):
    """VLM2Vec-V2-2B, VLM2Vec-Qwen2VL-7B, and other models with this layout."""

    family = "qwen2_vl"
    position_rule = "sequential"
    query_instruction = "Find a video that contains the following visual content:"  # MMEB-V2, MSR-VTT

    def layout(self, prompt: Prompt) -> str:
        given = [part for part in (prompt.instruction or None, prompt.text) if part is not None]
        text = " ".join(given) if given else VIDEO_TEXT
        if prompt.seconds is None:
            return text
        return VIDEO_PAD * len(prompt.seconds) + " " + text
