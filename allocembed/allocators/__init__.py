"""Allocation policies, one a file, by the six names used everywhere: base, full, uniform, content, select, learned."""

from __future__ import annotations

from pathlib import Path

from allocembed.allocators.base import Allocator, Plan
from allocembed.allocators.base_frames import BaseFrames
from allocembed.allocators.content import ContentAware
from allocembed.allocators.full import Full
from allocembed.allocators.learned import Learned
from allocembed.allocators.select import ContentSelect
from allocembed.allocators.uniform import Uniform
from allocembed.backbones.base import Backbone

METHODS: dict[str, type[Allocator]] = {
    cls.name: cls for cls in (BaseFrames, Full, Uniform, ContentAware, ContentSelect)
}
"""The methods that need no training."""
DEFAULT_ALLOCATOR = "auto"  # learned where one is shipped for the backbone, else uniform


def load_allocator(name: str | Path | Allocator = DEFAULT_ALLOCATOR, backbone: Backbone | None = None) -> Allocator:
    """An allocator by name, or a learned one by its folder or hub id.

    `learned` is the one shipped for the backbone; `auto` is that where there is one, else uniform.

    >>> load_allocator("uniform").name, load_allocator("auto").name
    ('uniform', 'uniform')
    """
    if isinstance(name, Allocator):
        return name
    check_allocator(name)
    shipped = None if backbone is None else backbone.allocator
    if name == "auto":
        name = "learned" if shipped and Path(shipped).is_dir() else Uniform.name
    if name in METHODS:
        return METHODS[name]()
    return Learned.from_pretrained(_shipped(shipped, backbone) if name == Learned.name else name, backbone)


def check_allocator(name: str | Path | Allocator) -> None:
    """Refuses a name that can't be an allocator's, before any weights are read."""
    if isinstance(name, Allocator) or name in (*METHODS, Learned.name, "auto"):
        return
    # A hub id has a slash; without one it is a method misspelt, or a folder that is not there.
    if not str(name) or ("/" not in str(name).strip("/") and not Path(name).is_dir()):
        known = ", ".join((*METHODS, Learned.name))
        raise ValueError(
            f"there is no allocator {str(name)!r}: take one of {known}, auto, or the folder or hub id of a learned one"
        )


def _shipped(folder: str | None, backbone: Backbone | None) -> str:
    if folder is None:
        whom = "without a backbone" if backbone is None else f"for {backbone.name}"
        raise ValueError(
            f"no learned allocator is shipped {whom}: give one with --allocator FOLDER_OR_HUB_ID, train one with "
            f"allocembed train --backbone {'NAME' if backbone is None else backbone.name}, or take uniform"
        )
    if not Path(folder).is_dir():
        raise ValueError(
            f"the learned allocator is missing from this installation ({folder}): install allocembed again, or make it "
            "with recipes/nano_allocator.py and give its folder with --allocator"
        )
    return folder


__all__ = ["DEFAULT_ALLOCATOR", "METHODS", "Allocator", "Learned", "Plan", "check_allocator", "load_allocator"]
