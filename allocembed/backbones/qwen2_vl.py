"""The Qwen2-VL family as VLM2Vec uses it: no chat template, a bare video placeholder, positions that count on.

Layouts follow VLM2Vec-V2's evaluation code: `<|video_pad|> text` for a video, the text alone for a text, and an
instruction stands before the text it belongs to.
"""

from __future__ import annotations

from allocembed.backbones.base import VIDEO_PAD, Backbone, Item
from allocembed.resize import Geometry

VIDEO_TEXT = "Understand the content of the provided video."  # the video side's constant text in MMEB-V2


class Qwen2VLBackbone(Backbone):
    """VLM2Vec-V2-2B, VLM2Vec-Qwen2VL-7B, and whatever else has this layout."""

    family = "qwen2_vl"
    position_rule = "sequential"
    query_instruction = "Find a video that contains the following visual content:"  # MMEB-V2, MSR-VTT
    # CLIP statistics; 4 to 1,280 tokens of 28² pixels a frame, VLM2Vec-V2's video setting.
    default_geometry = Geometry(
        patch=14,
        merge=2,
        mean=(0.48145466, 0.4578275, 0.40821073),
        std=(0.26862954, 0.26130258, 0.27577711),
        min_pixels=4 * 28**2,
        max_pixels=1280 * 28**2,
    )

    def layout(self, item: Item) -> str:
        text = VIDEO_TEXT if item.text is None else item.text
        if item.instruction:
            text = f"{item.instruction} {text}"
        if item.patches is None:
            return text
        return VIDEO_PAD * len(item.patches.grids) + " " + text
