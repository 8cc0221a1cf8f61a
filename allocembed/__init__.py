"""Video embeddings under a hard token budget.

>>> from allocembed import AllocEmbed                                # doctest: +SKIP
>>> AllocEmbed.from_pretrained().encode_video("talk.mp4").vector     # doctest: +SKIP
"""

from importlib import import_module

_HOMES = {
    "AllocEmbed": "embedder",
    "Embedding": "embedder",
    "Failure": "embedder",
    "Allocation": "budget",
    "Budget": "budget",
    "Clip": "video",
    "VideoError": "video",
    "load_backbone": "backbones",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    """Imports on first use, so that `allocembed --help` does not wait for torch."""
    if name in _HOMES:
        return getattr(import_module(f"allocembed.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'allocembed' has no attribute {name!r}")
