"""Qwen3-VL as Qwen3-VL-Embedding uses it: a chat turn with an instruction and a time before each chunk.

The layout is the checkpoints' own chat template, written out: system = instruction, user = video then text, and the
opening of the assistant's turn. The last token is pooled. From transformers 5.10 on, the template's own pair of vision
tokens stays around the chunks, each of which has a pair already.
"""

import unicodedata

from allocembed.backbones.base import Prompt
from allocembed.backbones.qwen_vl.backbone import VIDEO_PAD, QwenVLBackbone

INSTRUCTION = "Represent the user's input."  # Qwen3-VL-Embedding's default


class Qwen3VLBackbone(QwenVLBackbone):
    """Qwen3-VL-Embedding-2B and -8B, and other models with this layout."""

    family = "qwen3_vl"
    position_rule = "interleaved"
    query_instruction = "Find a video that contains the following visual content."  # as for MSR-VTT in MMEB-V2

    def layout(self, prompt: Prompt) -> str:
        video = ""
        if prompt.seconds is not None:
            chunk = "<{:.1f} seconds><|vision_start|>" + VIDEO_PAD + "<|vision_end|>"
            video = "".join(chunk.format(second) for second in prompt.seconds)
            if self.inputs.layout == "transformers-5.10":
                video = f"<|vision_start|>{video}<|vision_end|>"
        return (
            f"<|im_start|>system\n{as_sentence(prompt.instruction or '') or INSTRUCTION}<|im_end|>\n"
            f"<|im_start|>user\n{video}{prompt.text or ''}<|im_end|>\n"
            "<|im_start|>assistant\n"
        )


def as_sentence(instruction: str) -> str:
    """End an instruction with a full stop if it has no final punctuation, as the model's own code does.

    >>> as_sentence(" Find the video "), as_sentence("Which one?"), as_sentence("")
    ('Find the video.', 'Which one?', '')
    """
    instruction = instruction.strip()
    if instruction and not unicodedata.category(instruction[-1]).startswith("P"):
        instruction += "."
    return instruction
