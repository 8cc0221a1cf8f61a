"""Qwen2-VL as VLM2Vec uses it: no chat template, a bare video placeholder, positions that count straight through.

The layouts follow VLM2Vec-V2's evaluation code: `<|video_pad|> text` for a video, the text alone for a text, and an
instruction before the text it belongs to. A video without either gets MMEB-V2's constant text. A picture has the layout
of a video, and its own constant text.
"""

from allocembed.backbones.base import Prompt
from allocembed.backbones.qwen_vl.backbone import QwenVLBackbone
from allocembed.backbones.qwen_vl.layouts import QUERY_QWEN2, VIDEO_PAD, plain_text

VIDEO_TEXT = "Understand the content of the provided video."  # the constant text of the video side in MMEB-V2
PICTURE_TEXT = "Represent the given image."  # that of a picture in MMEB


class Qwen2VLBackbone(QwenVLBackbone):
    """VLM2Vec-V2-2B, VLM2Vec-Qwen2VL-7B, and other models with this layout."""

    family = "qwen2_vl"
    position_rule = "sequential"
    query_instruction = QUERY_QWEN2

    def layout(self, prompt: Prompt) -> str:
        text = plain_text(prompt.text, prompt.instruction)
        if text is None:
            text = PICTURE_TEXT if prompt.picture else VIDEO_TEXT
        if prompt.seconds is None:
            return text
        return VIDEO_PAD * len(prompt.seconds) + " " + text
