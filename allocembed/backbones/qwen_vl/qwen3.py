"""Qwen3-VL as Qwen3-VL-Embedding uses it: a chat turn with an instruction and a time before each chunk.

The layout is the checkpoints' own chat template, written out: system = instruction, user = video then text, and the
opening of the assistant's turn. A picture stands in the place of the video, without a time. The last token is pooled.
From transformers 5.10 on, the template's own pair of vision tokens stays around the chunks, each of which has a pair
already.
"""

from allocembed.backbones.base import Prompt
from allocembed.backbones.qwen_vl.backbone import QwenVLBackbone
from allocembed.backbones.qwen_vl.layouts import QUERY_QWEN3, VIDEO_PAD, chat_turn


class Qwen3VLBackbone(QwenVLBackbone):
    """Qwen3-VL-Embedding-2B and -8B, and other models with this layout."""

    family = "qwen3_vl"
    position_rule = "interleaved"
    query_instruction = QUERY_QWEN3

    def layout(self, prompt: Prompt) -> str:
        video = ""
        if prompt.picture:
            video = "<|vision_start|>" + VIDEO_PAD + "<|vision_end|>"
        elif prompt.seconds is not None:
            chunk = "<{:.1f} seconds><|vision_start|>" + VIDEO_PAD + "<|vision_end|>"
            video = "".join(chunk.format(second) for second in prompt.seconds)
            if self.inputs.layout == "transformers-5.10":
                video = f"<|vision_start|>{video}<|vision_end|>"
        return chat_turn(f"{video}{prompt.text or ''}", prompt.instruction)
