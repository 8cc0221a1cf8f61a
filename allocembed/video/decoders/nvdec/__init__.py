"""Decode on the decoders of an NVIDIA GPU, through PyNvVideoCodec. Pictures stay on the GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class CannotDecodeHere(Exception):  # noqa: N818 (caught inside the package)
    """This hardware cannot decode this file; the text says why."""


class HardwareError(Exception):
    """The library of the hardware has failed; the text is the name of its own error."""

    @classmethod
    @contextmanager
    def wrapped(cls) -> Iterator[None]:
        """Raise this instead of any error inside, which only calls the library. Errors of ours stay what they are."""
        try:
            yield
        except Exception as error:  # of many kinds
            raise cls(type(error).__name__) from error
