"""The Qwen3-VL family as Qwen3-VL-Embedding uses it: a chat turn with an instruction and a time before each chunk.

The layout is the checkpoints' own chat template, written out: system = instruction, user = video then text, and the
opening of the assistant's turn. The last token is pooled.
"""

from __future__ import annotations

import unicodedata

from allocembed.backbones.base import VIDEO_PAD, Backbone, Item
from allocembed.resize import Geometry

INSTRUCTION = "Represent the user's input."  # Qwen3-VL-Embedding's default


class Qwen3VLBackbone(Backbone):
    """Qwen3-VL-Embedding-2B and -8B, and whatever else has this layout."""

    family = "qwen3_vl"
    position_rule = "interleaved"
    query_instruction = "Find a video that contains the following visual content."  # as for MSR-VTT in MMEB-V2
    # 4 to 768 tokens of 32² pixels a frame; the upper end is the model's own for video files (qwen-vl-utils).
    default_geometry = Geometry(
        patch=16,
        merge=2,
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
        min_pixels=4 * 32**2,
        max_pixels=768 * 32**2,
    )

    def layout(self, item: Item) -> str:
        video = ""
        if item.patches is not None:
            chunk = "<{:.1f} seconds><|vision_start|>" + VIDEO_PAD + "<|vision_end|>"
            video = "".join(chunk.format(second) for second in item.patches.seconds)
        return (
            f"<|im_start|>system\n{as_sentence(item.instruction or '') or INSTRUCTION}<|im_end|>\n"
            f"<|im_start|>user\n{video}{item.text or ''}<|im_end|>\n"
            "<|im_start|>assistant\n"
        )


def as_sentence(instruction: str) -> str:
    """Ends an instruction with a full stop where it has no punctuation, as the model's own code does.

    >>> as_sentence(" Find the video "), as_sentence("Which one?"), as_sentence("")
    ('Find the video.', 'Which one?', '')
    """
    instruction = instruction.strip()
    if instruction and not unicodedata.category(instruction[-1]).startswith("P"):
        instruction += "."
    return instruction
