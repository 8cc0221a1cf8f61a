"""The input pipeline of a model: the sizes, frames, clock and prompt that it was published with.

A model may have more than one, by name: pipelines differ between versions of a library, or between an evaluation and a
demo. Plain values: nothing here needs torch or a loaded model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from allocembed.errors import BackboneError, did_you_mean
from allocembed.geometry import Geometry


@dataclass(frozen=True)
class Inputs:
    """One pipeline of a model."""

    geometry: Geometry
    layout: str = ""
    """Name of the prompt layout, where a family has more than one."""
    rounds: bool = False
    """Whether the positions of evenly spread frames of a video file are rounded. Otherwise they are cut off."""
    list_rate: float = 1.0
    """Frames per second of the sampled frames of a list, if nobody says at which rate the list was made."""
    longest: int = 32_768
    """Most tokens of a row, visual ones included. A longer text is cut."""
    # Not in the repr, which indexes compare: vectors of videos do not depend on how pictures are read.
    picture_pixels: tuple[int, int] | None = field(default=None, repr=False)
    """Fewest and most pixels of a native picture, if they are not those of a frame."""

    @property
    def picture_geometry(self) -> Geometry:
        """How a picture is cut: limits of its own, and none for a whole video."""
        lowest, highest = self.picture_pixels or (self.geometry.min_pixels, self.geometry.max_pixels)
        apart = {"file_tokens": None, "list_tokens": None, "list_multiple": None}
        return replace(self.geometry, min_pixels=lowest, max_pixels=highest, **apart)


def choose_inputs(available: Mapping[str, Inputs], name: str | None, model: str) -> Inputs:
    """The pipeline with that name; the first one if there is no name."""
    if name is None:
        return next(iter(available.values()))
    if name not in available:
        hint = did_you_mean(name, available)
        raise BackboneError(f"{model} has no inputs {name!r}{hint}: use {' or '.join(available)}")
    return available[name]
