"""Allocators by name. Importing this does not import torch.

A name is a method, or the folder or hub id of a learned allocator. Options stand behind a colon (sensitivity:24-48).
`+sensitivity` multiplies a learned allocator. An installed package adds methods through the entry-point group
`allocembed.allocators`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from allocembed.errors import ConfigError, did_you_mean
from allocembed.paths import is_folder
from allocembed.plugins import Names

if TYPE_CHECKING:
    from allocembed.allocators.base import Allocator
    from allocembed.backbones.base import Backbone
    from allocembed.backbones.variants import LookSize

LEARNED, SENSITIVITY, AUTO = "learned", "sensitivity", "auto"
_OWN = {
    "base": "allocembed.allocators.base_frames:BaseFrames",
    "full": "allocembed.allocators.full:Full",
    "uniform": "allocembed.allocators.uniform:Uniform",
    "content": "allocembed.allocators.content:ContentAware",
    "select": "allocembed.allocators.select:ContentSelect",
    SENSITIVITY: "allocembed.allocators.sensitivity:Sensitivity",
    LEARNED: "allocembed.allocators.learned:Learned",
}
ALL_METHODS = tuple(_OWN)
"""Our own methods, in the order of tables."""
METHODS: Names[type[Allocator]] = Names("allocembed.allocators", _OWN)
"""These and those of installed packages."""


def is_method(name: str) -> bool:
    """Whether this is the name of a method, not of a folder or hub repository.

    >>> is_method("uniform"), is_method("sensitivity:24-48"), is_method("auto"), is_method("you/allocator")
    (True, True, True, False)
    """
    return name == AUTO or split_looks(name)[0].partition(":")[0] in METHODS


def split_looks(name: str) -> tuple[str, str]:
    """A learned allocator, and the sensitivity by which it is multiplied, if any.

    >>> split_looks("learned+sensitivity:12-24@2"), split_looks("my-allocator"), split_looks("sensitivity:6-12+12-24")
    (('learned', 'sensitivity:12-24@2'), ('my-allocator', ''), ('sensitivity:6-12+12-24', ''))
    """
    head, _, tail = name.partition(f"+{SENSITIVITY}")
    looks = SENSITIVITY + tail
    if head == name or not head or (looks != SENSITIVITY and parse_looks(looks) is None):
        return name, ""
    return head, looks


def parse_looks(name: str) -> tuple[list[tuple[LookSize, LookSize]], float | None] | None:
    """Looks and exponent (None if not stated) in a name such as "sensitivity:24-48"; None for any other name. Sizes are
    tokens, or shares of the native ones in percent.

    >>> parse_looks("sensitivity:6-12+12-24@1.5"), parse_looks("sensitivity:25%-100%"), parse_looks("uniform")
    (([(6, 12), (12, 24)], 1.5), ([(0.25, 1.0)], None), None)
    """
    form = re.fullmatch(rf"{SENSITIVITY}:(\d+%?-\d+%?(?:\+\d+%?-\d+%?)*)(?:@(\d+(?:\.\d+)?))?", name)
    if form is None:
        return None
    pairs = [look.split("-") for look in form[1].split("+")]
    return [(_size(usual), _size(changed)) for usual, changed in pairs], float(form[2]) if form[2] else None


def _size(stated: str) -> LookSize:
    number = max(1, int(stated.rstrip("%")))
    return min(1.0, number / 100) if stated.endswith("%") else number


def check_allocator(name: str) -> None:
    """Raise ConfigError for a name that cannot be an allocator's, before any weights are read."""
    learned = split_looks(name)[0]
    malformed = learned.startswith(f"{SENSITIVITY}:") and parse_looks(learned) is None
    if (is_method(name) and not malformed) or "/" in learned.strip("/") or (learned and is_folder(learned)):
        return
    hint = did_you_mean(name, (*METHODS, AUTO))
    raise ConfigError(
        f"unknown allocator {name!r}{hint}: use one of {', '.join(METHODS)}, auto, or the folder or hub id of a "
        "learned allocator"
    )


def needs_backbone(name: str) -> bool:
    """Whether an allocator looks with the weights of the backbone, or may share them.

    >>> needs_backbone("uniform"), needs_backbone("sensitivity"), needs_backbone("learned+sensitivity")
    (False, True, True)
    """
    method = name.partition(":")[0]
    return method not in METHODS or METHODS[method].needs_backbone


def load_allocator(name: str = AUTO, backbone: Backbone | None = None) -> Allocator:
    """Load an allocator by method name, or a learned one by folder or hub id; `+sensitivity` multiplies it.

    `learned` is the allocator bundled for the backbone; `auto` is that one if it exists, else `uniform`.

    >>> load_allocator("auto").name
    'uniform'
    """
    check_allocator(name)
    learned, looks = split_looks(name)
    if looks:
        from allocembed.allocators.both import ScaleProduct

        return ScaleProduct.of(load_allocator(learned, backbone), load_allocator(looks, backbone), learned)
    if name == AUTO:
        bundled = None if backbone is None else backbone.allocator
        name = LEARNED if bundled and Path(bundled).is_dir() else "uniform"
    method, _, options = name.partition(":")
    if method not in METHODS:
        from allocembed.allocators.learned import Learned

        return Learned.from_pretrained(name, backbone)
    return METHODS[method].from_options(options, backbone)
