"""The models and the preset that this package adds to AllocEmbed. Importing this does not import torch."""

from pathlib import Path

from allocembed.backbones.registry import BackboneEntry

ASSETS = Path(__file__).parent / "assets"
PRESET = Path(__file__).parent / "nano.toml"
"""Options of `allocembed train`."""


def _entry(name: str, family: str) -> BackboneEntry:
    # They never saw a picture in training, but find more by one in the family's image layout than as a still video.
    notice = f"{name} knows only its own toy world (allocembed_nano.world); its vectors of real videos mean nothing."
    return BackboneEntry(str(ASSETS / name), family, notice, str(ASSETS / "nano-allocator"))


QWEN3 = _entry("nano-qwen3", "qwen3_vl")
QWEN2 = _entry("nano-qwen2", "qwen2_vl")
GEMMA = _entry("nano-gemma", "embedding_gemma2")
