"""Video embeddings under a hard token budget.

>>> from allocembed import AllocEmbed                                # doctest: +SKIP
>>> AllocEmbed.from_pretrained().encode_video("talk.mp4").vector     # doctest: +SKIP
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allocembed.backbones.loading import load_backbone
    from allocembed.budget import Allocation, Budget
    from allocembed.config import EmbedConfig
    from allocembed.embedder import AllocEmbed, Failure, ImageEmbedding, TextEmbedding, VideoEmbedding
    from allocembed.errors import AllocEmbedError, VideoError
    from allocembed.video import Clip, open_video

__version__ = "0.3.0.dev0"
__all__ = [
    "AllocEmbed",
    "AllocEmbedError",
    "Allocation",
    "Budget",
    "Clip",
    "EmbedConfig",
    "Failure",
    "ImageEmbedding",
    "TextEmbedding",
    "VideoEmbedding",
    "VideoError",
    "load_backbone",
    "open_video",
]
_HOMES = {
    "backbones.loading": ("load_backbone",),
    "budget": ("Allocation", "Budget"),
    "config": ("EmbedConfig",),
    "embedder": ("AllocEmbed", "Failure", "ImageEmbedding", "TextEmbedding", "VideoEmbedding"),
    "errors": ("AllocEmbedError", "VideoError"),
    "video": ("Clip", "open_video"),
}


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Import on first use, so that `allocembed --help` does not wait for torch."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"allocembed.{module}"), name)
    raise AttributeError(f"module 'allocembed' has no attribute {name!r}")
