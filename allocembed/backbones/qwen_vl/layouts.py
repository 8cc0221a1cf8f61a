"""The texts that the tokenizers of the Qwen-VL models read, by the name of the layout, without torch.

A layout says how a prompt is written out, how its tokens are numbered, and with which instruction a search sentence is
introduced. It is data: a registry entry names the one that its model was trained on. All of them pool the last token.

- `vlm2vec`: VLM2Vec's evaluation code. No chat template; `<|video_pad|> text` for a video, the text alone for a text,
  and an instruction before the text it belongs to. A video without either gets MMEB-V2's constant text. A picture has
  the layout of a video, and its own constant text.
- `transformers-4.57`, `transformers-5.10`: Qwen3-VL-Embedding's chat template, written out: system = instruction,
  user = video then text, and the opening of the assistant's turn. Each chunk has its time before it; a picture has
  none. From transformers 5.10 on, the template's own pair of vision tokens stays around the chunks, each of which has a
  pair already.
- `gme`: GME-Qwen2-VL's own code. A chat turn that ends in an end-of-text token. Its code numbers tokens one by one. It
  reads texts and pictures only; the chunks of a video are written as pictures.
- `ops-mm`: Ops-MM-embedding's own code. As `gme`, with the numbering of Qwen-VL. It reads the frames of a video as
  pictures; a chunk of ours is two frames.
- `qwen2-chat`, `qwen2-chat-5`: the stock template of Qwen2-VL and Qwen2.5-VL, whose system turn has a default.
- `qwen3-chat`: the stock template of Qwen3-VL and newer, which has a system turn only if there is an instruction.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allocembed.backbones.base import Prompt

# The place of visual tokens, also of a picture's: what the models read there are features, whatever the placeholder is.
VIDEO_PAD = "<|video_pad|>"
CHUNK = f"<|vision_start|>{VIDEO_PAD}<|vision_end|>"
INSTRUCTION = "Represent the user's input."  # Qwen3-VL-Embedding's default
ASSISTANT = "You are a helpful assistant."  # that of Qwen2-VL and Qwen2.5-VL, of GME and of Ops-MM-embedding
QUERY_QWEN3 = "Find a video that contains the following visual content."  # as for MSR-VTT in MMEB-V2
QUERY_QWEN2 = "Find a video that contains the following visual content:"  # MMEB-V2, MSR-VTT
QUERY_GME = "Find an image that matches the given text."  # the example of GME's model card
VIDEO_TEXT = "Understand the content of the provided video."  # the constant text of the video side in MMEB-V2
PICTURE_TEXT = "Represent the given image."  # that of a picture in MMEB


@dataclass(frozen=True)
class Sentence:
    """A prompt without a video, for those who do without torch."""

    text: str
    instruction: str | None = None
    seconds: None = None
    picture: bool = False


@dataclass(frozen=True)
class Layout:
    """The words of a prompt, and the settings that belong to them."""

    write: Callable[[Prompt | Sentence], str]
    """The string that the tokenizer reads, with one `<|video_pad|>` per chunk."""
    positions: str
    """Name of the position rule."""
    query: str | None = None
    """Instruction that introduces a search sentence; None for the default of the layout."""


def write_vlm2vec(prompt: Prompt | Sentence) -> str:
    given = [part for part in (prompt.instruction or None, prompt.text) if part is not None]
    text = " ".join(given) if given else PICTURE_TEXT if prompt.picture else VIDEO_TEXT
    return text if prompt.seconds is None else VIDEO_PAD * len(prompt.seconds) + " " + text


def write_qwen3_embedding(prompt: Prompt | Sentence) -> str:
    return chat_turn(timed_chunks(prompt) + (prompt.text or ""), as_sentence(prompt.instruction or "") or INSTRUCTION)


def write_qwen3_embedding_newer(prompt: Prompt | Sentence) -> str:
    content = outer_pair(prompt) + (prompt.text or "")
    return chat_turn(content, as_sentence(prompt.instruction or "") or INSTRUCTION)


def write_gme(prompt: Prompt | Sentence) -> str:
    pictures = "" if prompt.seconds is None else CHUNK * len(prompt.seconds)
    return chat_turn(pictures + (prompt.text or ""), prompt.instruction or ASSISTANT) + "<|endoftext|>"


def write_qwen2_chat(prompt: Prompt | Sentence) -> str:
    count = 0 if prompt.seconds is None else len(prompt.seconds)
    video = f"<|vision_start|>{VIDEO_PAD * count}<|vision_end|>" if count else ""
    return chat_turn(video + (prompt.text or ""), prompt.instruction or ASSISTANT)


def write_qwen3_chat(prompt: Prompt | Sentence) -> str:
    return chat_turn(outer_pair(prompt) + (prompt.text or ""), prompt.instruction)


def chat_turn(content: str, system: str | None) -> str:
    """The system turn, if there is one, what the user gives, and the opening of an answer."""
    first = f"<|im_start|>system\n{system}<|im_end|>\n" if system else ""
    return f"{first}<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n"


def timed_chunks(prompt: Prompt | Sentence) -> str:
    """Each chunk with its time before it, or a picture without one."""
    if prompt.seconds is None or prompt.picture:
        return "" if prompt.seconds is None else CHUNK
    return "".join(f"<{second:.1f} seconds>{CHUNK}" for second in prompt.seconds)


def outer_pair(prompt: Prompt | Sentence) -> str:
    """The chunks of a video with one more pair of vision tokens around all of them."""
    chunks = timed_chunks(prompt)
    return chunks if prompt.seconds is None or prompt.picture else f"<|vision_start|>{chunks}<|vision_end|>"


def as_sentence(instruction: str) -> str:
    """End an instruction with a full stop if it has no final punctuation, as Qwen3-VL-Embedding's own code does.

    >>> as_sentence(" Find the video "), as_sentence("Which one?"), as_sentence("")
    ('Find the video.', 'Which one?', '')
    """
    instruction = instruction.strip()
    if instruction and not unicodedata.category(instruction[-1]).startswith("P"):
        instruction += "."
    return instruction


LAYOUTS = {
    "vlm2vec": Layout(write_vlm2vec, "sequential", QUERY_QWEN2),
    "transformers-4.57": Layout(write_qwen3_embedding, "interleaved", QUERY_QWEN3),
    "transformers-5.10": Layout(write_qwen3_embedding_newer, "interleaved", QUERY_QWEN3),
    "gme": Layout(write_gme, "sequential", QUERY_GME),
    "ops-mm": Layout(write_gme, "interleaved"),
    "qwen2-chat": Layout(write_qwen2_chat, "timed"),
    "qwen2-chat-5": Layout(write_qwen2_chat, "timed-5"),
    "qwen3-chat": Layout(write_qwen3_chat, "interleaved"),
}
FIRST = {
    "qwen2_vl": "vlm2vec",
    "qwen2_5_vl": "qwen2-chat",
    "qwen3_vl": "transformers-4.57",
    "qwen3_vl_moe": "qwen3-chat",
    "qwen3_5": "qwen3-chat",
}
"""The layout of each model type, where its inputs do not name one."""


def find_layout(name: str, family: str) -> Layout:
    """The layout with that name, or the first one of the family if there is no name.

    >>> find_layout("", "qwen2_vl").positions
    'sequential'
    """
    return LAYOUTS[name or FIRST[family]]
