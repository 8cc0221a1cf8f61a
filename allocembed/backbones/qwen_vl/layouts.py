"""The strings that the tokenizers of both families read, without torch. Each variant's own module says where from."""

import unicodedata

# The place of visual tokens, also of a picture's: what the models read there are features, whatever the placeholder is.
VIDEO_PAD = "<|video_pad|>"
INSTRUCTION = "Represent the user's input."  # Qwen3-VL-Embedding's default
QUERY_QWEN3 = "Find a video that contains the following visual content."  # as for MSR-VTT in MMEB-V2
QUERY_QWEN2 = "Find a video that contains the following visual content:"  # MMEB-V2, MSR-VTT


def chat_turn(content: str, instruction: str | None) -> str:
    """Qwen3-VL-Embedding's chat template: the instruction, what the user gives, and the opening of an answer."""
    return (
        f"<|im_start|>system\n{as_sentence(instruction or '') or INSTRUCTION}<|im_end|>\n"
        f"<|im_start|>user\n{content}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def plain_text(text: str | None, instruction: str | None) -> str | None:
    """VLM2Vec's text: the instruction, if there is one, before the text; None without both."""
    given = [part for part in (instruction or None, text) if part is not None]
    return " ".join(given) if given else None


def as_sentence(instruction: str) -> str:
    """End an instruction with a full stop if it has no final punctuation, as the model's own code does.

    >>> as_sentence(" Find the video "), as_sentence("Which one?"), as_sentence("")
    ('Find the video.', 'Which one?', '')
    """
    instruction = instruction.strip()
    if instruction and not unicodedata.category(instruction[-1]).startswith("P"):
        instruction += "."
    return instruction
