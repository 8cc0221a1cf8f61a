"""The text half of a backbone: vectors of sentences without the vision tower, and without importing transformers.

A search needs the vector of one sentence. With nano-qwen3 on a CPU, that takes 1.1 s of work and 260 MB from the start
of the process to the vector. Loading the language model alone by transformers' own text class takes 3.7 s and 484 MB,
the whole backbone 3.7 s and 509 MB: nearly all of it is the import of transformers. So families may say how to read
their language model alone (`sentence_model`). It gives the same vectors, bit for bit; where that is not certain, as on
a GPU, `load_backbone` has to be called.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from allocembed.backbones.checkpoint import ADAPTER, find_entry
from allocembed.backbones.hub import cached_folder
from allocembed.backbones.registry import FAMILIES
from allocembed.inputs import choose_inputs
from allocembed.paths import is_folder

if TYPE_CHECKING:
    import numpy as np


class TextHalf(Protocol):
    """Embeds sentences."""

    query_instruction: str | None
    """Instruction that introduces a search sentence."""

    def vector(self, text: str, instruction: str | None = None) -> np.ndarray | None:
        """The unit vector (dim,), fp32, of a text; None if only the whole backbone can tell."""
        ...


def load_text_half(
    name: str, *, device: str = "auto", dtype: str = "auto", inputs: str | None = None, dim: int | None = None
) -> TextHalf | None:
    """The text half of a backbone that is on this machine; None if the whole one has to be loaded."""
    try:
        entry = find_entry(name)
        folder = Path(entry.source) if is_folder(entry.source) else cached_folder(entry.source)
        if folder is None or (folder / ADAPTER).exists():
            return None
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        family = FAMILIES[config["model_type"]]
        if family.text_half is None:
            return None
        pipeline = choose_inputs(family.inputs, inputs or entry.inputs, name)
        return family.load_text_half()(folder, config, device, dtype, pipeline, dim)
    except Exception:  # damaged files raise errors of every kind
        return None  # loading the whole backbone says what is wrong
