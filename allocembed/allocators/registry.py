"""Allocators by name. Importing this does not import torch."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from allocembed.errors import ConfigError, PolicyError, did_you_mean
from allocembed.paths import is_folder

if TYPE_CHECKING:
    from allocembed.allocators.base import Allocator
    from allocembed.backbones.base import Backbone

LEARNED, SENSITIVITY, AUTO = "learned", "sensitivity", "auto"
METHODS = {
    "base": "base_frames.BaseFrames",
    "full": "full.Full",
    "uniform": "uniform.Uniform",
    "content": "content.ContentAware",
    "select": "select.ContentSelect",
}
"""Methods that look at frames only, and their classes."""
ALL_METHODS = (*METHODS, SENSITIVITY, LEARNED)


def is_method(name: str) -> bool:
    """Whether this is the name of a method, not of a folder or hub repository."""
    return split_looks(name)[0] in (*ALL_METHODS, AUTO) or parse_looks(name) is not None


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


def parse_looks(name: str) -> tuple[list[tuple[int, int]], float | None] | None:
    """Looks and exponent (None if not stated) in a name such as "sensitivity:24-48"; None for any other name.

    >>> parse_looks("sensitivity:6-12+12-24@1.5"), parse_looks("sensitivity:24-48"), parse_looks("uniform")
    (([(6, 12), (12, 24)], 1.5), ([(24, 48)], None), None)
    """
    form = re.fullmatch(rf"{SENSITIVITY}:(\d+-\d+(?:\+\d+-\d+)*)(?:@(\d+(?:\.\d+)?))?", name)
    if form is None:
        return None
    pairs = [look.split("-") for look in form[1].split("+")]
    looks = [(max(1, int(usual)), max(1, int(changed))) for usual, changed in pairs]
    return looks, float(form[2]) if form[2] else None


def check_allocator(name: str) -> None:
    """Raise ConfigError for a name that cannot be an allocator's, before any weights are read."""
    learned = split_looks(name)[0]
    if is_method(name) or "/" in learned.strip("/") or (learned and is_folder(learned)):
        return
    hint = did_you_mean(name, (*ALL_METHODS, AUTO))
    raise ConfigError(
        f"unknown allocator {name!r}{hint}: use one of {', '.join(ALL_METHODS)}, auto, or the folder or hub id of a "
        "learned allocator"
    )


def make_method(name: str) -> Allocator:
    """A method that looks at frames only.

    >>> make_method("uniform").name
    'uniform'
    """
    module, cls = METHODS[name].split(".")
    return getattr(import_module(f"allocembed.allocators.{module}"), cls)()


def load_allocator(name: str = AUTO, backbone: Backbone | None = None) -> Allocator:
    """Load an allocator by method name, or a learned one by folder or hub id; `+sensitivity` multiplies it.

    `learned` is the allocator bundled for the backbone; `auto` is that one if it exists, else `uniform`.

    >>> load_allocator("auto").name
    'uniform'
    """
    check_allocator(name)
    learned, looks = split_looks(name)
    if looks:
        return _both(learned, looks, backbone)
    bundled = None if backbone is None else backbone.allocator
    if name == AUTO:
        name = LEARNED if bundled and Path(bundled).is_dir() else "uniform"
    if name in METHODS:
        return make_method(name)
    stated = parse_looks(name)
    if name == SENSITIVITY or stated:
        if backbone is None:
            raise PolicyError("sensitivity looks with the backbone: pass one, or use content")
        from allocembed.allocators.sensitivity import EXPONENT, LOOKS, Sensitivity

        looks, exponent = stated or (LOOKS, None)
        return Sensitivity(backbone, looks, EXPONENT if exponent is None else exponent)
    from allocembed.allocators.learned import Learned

    return Learned.from_pretrained(_bundled(bundled, backbone) if name == LEARNED else name, backbone)


def _both(learned: str, looks: str, backbone: Backbone | None) -> Allocator:
    from allocembed.allocators.both import Both
    from allocembed.allocators.learned import Learned
    from allocembed.allocators.sensitivity import Sensitivity

    first, second = load_allocator(learned, backbone), load_allocator(looks, backbone)
    if not isinstance(first, Learned) or not isinstance(second, Sensitivity):
        raise PolicyError(
            f"cannot multiply {learned} by sensitivity: write learned+sensitivity, or the folder of an allocator made "
            "by allocembed train with +sensitivity after it"
        )
    return Both(first, second)


def _bundled(folder: str | None, backbone: Backbone | None) -> str:
    if folder is None:
        target = "without a backbone" if backbone is None else f"for {backbone.name}"
        raise PolicyError(
            f"no learned allocator is bundled {target}: pass --allocator FOLDER_OR_HUB_ID, train one with "
            f"allocembed train --backbone {'NAME' if backbone is None else backbone.name}, or use uniform"
        )
    if not is_folder(folder):
        raise PolicyError(
            f"the bundled allocator is missing from this installation ({folder}): reinstall allocembed, or make it "
            "with recipes/nano_allocator.py and pass its folder with --allocator"
        )
    return folder
