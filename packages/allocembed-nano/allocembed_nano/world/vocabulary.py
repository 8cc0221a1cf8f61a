"""Vocabulary of the world: objects, colours, words and places.

Objects are pictographs of the DejaVu Sans font that can be distinguished at 16 pixels: if the 24-pixel bitmaps of two
glyphs correlated above about 0.85, only one was kept. Fillers appear on screen but in no text, so reading them does not
help a model.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

Colour = tuple[int, int, int]
_STATED: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "assets" / "nano-world" / "vocabulary.json").read_text(encoding="utf-8")
)
GLYPHS: dict[str, str] = _STATED["objects"]
"""Object name to its character, in the order of `OBJECTS`."""
OBJECTS: tuple[str, ...] = tuple(GLYPHS)
FILLER_GLYPHS: dict[str, str] = _STATED["filler_objects"]
FILLER_OBJECTS: tuple[str, ...] = tuple(FILLER_GLYPHS)
WORDS: tuple[str, ...] = tuple(_STATED["words"].split())
"""Words on signs, in capitals."""
FILLER_WORDS: tuple[str, ...] = tuple(_STATED["filler_words"].split())
COLOUR_VALUES: dict[str, Colour] = {name: tuple(value) for name, value in _STATED["colours"].items()}
COLOURS: tuple[str, ...] = tuple(COLOUR_VALUES)
PLACE_PHRASES: dict[str, tuple[str, ...]] = {name: tuple(phrases) for name, phrases in _STATED["places"].items()}
"""Phrases for each place. The first is used as an answer."""
PLACES: tuple[str, ...] = tuple(PLACE_PHRASES)
PLATES: tuple[tuple[Colour, Colour], ...] = tuple((tuple(plate), tuple(ink)) for plate, ink in _STATED["plates"])
"""Sign styles: colour of the plate, colour of the letters."""

# Background pictures: the variants of every place, then busy textures, then filler cards.
PLACE_VARIANTS = 6
BUSY_PICTURES = 32
CARD_PICTURES = 12
FIRST_BUSY = PLACE_VARIANTS * len(PLACES)
FIRST_CARD = FIRST_BUSY + BUSY_PICTURES

_HELD_OUT_SHARE = 0.12
_TABLE_SEED = 20240229


def _seen_table(columns: int, stream: int) -> np.ndarray:
    draws = np.random.default_rng([_TABLE_SEED, stream]).random((len(OBJECTS), columns))
    return draws >= _HELD_OUT_SHARE


SEEN_OBJECT_COLOUR: np.ndarray = _seen_table(len(COLOURS), 0)
"""(objects, colours) bool: combinations in the train split. The others occur only in the test split."""
SEEN_OBJECT_WORD: np.ndarray = _seen_table(len(WORDS), 1)
"""(objects, words) bool: the same for objects and words."""
