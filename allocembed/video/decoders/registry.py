"""Decoders by name: ours, and those of packages, in the group `allocembed.decoders`. `auto` asks them all."""

from __future__ import annotations

from functools import cache
from threading import Lock

from allocembed.errors import ConfigError, did_you_mean
from allocembed.plugins import Names
from allocembed.video.decoders.base import Decoders

AUTO, PYAV = "auto", "pyav"
_OWN = {PYAV: "allocembed.video.decoders.pyav:PyAV", "nvdec": "allocembed.video.decoders.nvdec.gpu:Nvdec"}
DECODERS: Names[type[Decoders]] = Names("allocembed.decoders", _OWN)
_finding = Lock()


def is_interchangeable(name: str) -> bool:
    """Whether `auto` may take the place of these decoders elsewhere: ours read the same files, and give equal frames.

    >>> is_interchangeable("nvdec"), is_interchangeable("a_strangers")
    (True, False)
    """
    return name == AUTO or name in _OWN


def check_decoder(name: str) -> None:
    """Raise ConfigError unless this is `auto` or a registered name."""
    known = (AUTO, *DECODERS)
    if name not in known:
        raise ConfigError(f"decoder must be {' or '.join(known)}, not {name!r}{did_you_mean(name, known)}")


def find_decoders(name: str = AUTO, device: str | None = None) -> Decoders:
    """The decoders to use beside a model on `device`, or None for pictures in main memory.

    For all who ask, they are one object for each device and name.
    """
    check_decoder(name)
    kinds = tuple(map(DECODERS.__getitem__, DECODERS if name == AUTO else [name]))
    with _finding:
        return _find(kinds, device, named=name != AUTO)


def forget_decoders() -> None:
    """Let the next one who asks start anew: counts, and what was learned from earlier files."""
    _find.cache_clear()


@cache
def _find(kinds: tuple[type[Decoders], ...], device: str | None, *, named: bool) -> Decoders:
    offers = (kind.find(device, named=named) for kind in kinds)
    return next((each for each in offers if each is not None), None) or DECODERS[PYAV]()
