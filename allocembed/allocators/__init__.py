"""Allocation policies, one a file, by the six names used everywhere: base, full, uniform, content, select, learned."""

from __future__ import annotations

from allocembed.allocators.base import Allocator, Plan
from allocembed.allocators.base_frames import BaseFrames
from allocembed.allocators.content import ContentAware
from allocembed.allocators.full import Full
from allocembed.allocators.select import ContentSelect
from allocembed.allocators.uniform import Uniform

METHODS: dict[str, type[Allocator]] = {
    cls.name: cls for cls in (BaseFrames, Full, Uniform, ContentAware, ContentSelect)
}
DEFAULT_ALLOCATOR = "uniform"  # needs no training; a learned one must be named


def load_allocator(name: str | Allocator = DEFAULT_ALLOCATOR) -> Allocator:
    """An allocator by name.

    >>> load_allocator("uniform").name
    'uniform'
    """
    if isinstance(name, Allocator):
        return name
    if name == "learned":
        raise ValueError("there is no learned allocator yet; take uniform, the best method without training")
    if name not in METHODS:
        raise ValueError(f"there is no allocator {name!r}: take one of {', '.join(METHODS)}")
    return METHODS[name]()


__all__ = ["DEFAULT_ALLOCATOR", "METHODS", "Allocator", "Plan", "load_allocator"]
