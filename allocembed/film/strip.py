"""Numbers, words, colours and frames of one allocation, for the picture and for the page."""

import math
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from PIL import Image, ImageColor

from allocembed.budget import SCALE_RANGE, Allocation
from allocembed.video.clip import Clip

Colour: TypeAlias = tuple[int, int, int]

# Matplotlib's viridis from 0.14 to 0.97: the omitted ends are hard to see on a dark page or on a white one.
STOPS = ("#46307e", "#375a8c", "#287c8e", "#1f9e89", "#40bd72", "#8ed645", "#ece51b")
LEGEND_SCALES = (0.2, 0.4, 0.6, 1.0, 1.8)


def as_json(clip: Clip, allocation: Allocation) -> dict[str, Any]:
    """The allocation in plain numbers: totals, and times in seconds, scale, grid and tokens of each chunk."""
    chunks = []
    for frames, scale, grid in zip(allocation.frames, allocation.scales, allocation.grids, strict=True):
        times = [round(float(clip.times[frame]), 3) for frame in frames]
        chunks.append({"times": times, "scale": round(float(scale), 4), **asdict(grid), "tokens": grid.tokens})
    totals = {name: int(getattr(allocation, name)) for name in ("budget", "cost", "base_cost", "look_tokens")}
    return {**totals, "chunks": chunks}


def format_time(seconds: float, *, tenths: bool = False) -> str:
    """Format seconds as a clock time, rounded down.

    >>> format_time(3723.9), format_time(192), format_time(0)
    ('1:02:03', '03:12', '00:00')
    >>> format_time(9.96, tenths=True)
    '00:09.9'
    """
    # The small addend corrects products such as 0.3 / 0.1, which are just below a whole number.
    count = max(0, math.floor(float(seconds) * 10 + 1e-6))
    minutes, rest = divmod(count // 10, 60)
    clock = f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes:02}:{rest:02}"
    return f"{clock}.{count % 10}" if tenths else clock


def scale_position(scale: float) -> float:
    """Position of a scale on a logarithmic axis from the smallest (0) to the largest (1)."""
    low, high = (math.log(bound) for bound in SCALE_RANGE)
    return min(1.0, max(0.0, (math.log(scale) - low) / (high - low)))


def scale_colour(scale: float) -> Colour:
    """Colour of a scale, from dark blue for 0.2 to yellow for 1.8. Equal ratios are equal steps.

    >>> scale_colour(0.2), scale_colour(0.6), scale_colour(1.8), scale_colour(9)
    ((70, 48, 126), (31, 158, 137), (236, 229, 27), (236, 229, 27))
    """
    position, places = scale_position(scale), np.linspace(0, 1, len(STOPS))
    channels = zip(*(ImageColor.getrgb(stop) for stop in STOPS), strict=True)
    red, green, blue = (round(float(np.interp(position, places, channel))) for channel in channels)
    return red, green, blue


def text_colour(background: Colour) -> Colour:
    """Black or white, whichever has more contrast with the background."""
    return (12, 14, 18) if np.dot(background, (0.299, 0.587, 0.114)) > 104 else (255, 255, 255)


class Filmstrip:
    """A clip and its allocation, with everything that the picture and the page both show."""

    def __init__(self, clip: Clip, allocation: Allocation, title: str | None, method: str | None, factor: int | None):
        self.clip, self.allocation, self.method, self.factor = clip, allocation, method, factor
        self.title = " ".join((title or Path(clip.source).name or str(clip.source)).split())
        self.seconds = max(float(clip.duration), float(clip.times[-1]) - clip.start) or 1.0
        self.frames_per_chunk = len(allocation.frames[0])
        self.owners: list[int | None] = [None] * len(clip)
        for chunk, frames in enumerate(allocation.frames):
            for frame in frames:
                self.owners[frame] = chunk
        self.dropped = self.owners.count(None)
        self.over_budget = allocation.cost > allocation.budget
        self._tenths = len(clip) > 1 and float(np.median(np.diff(clip.times))) < 1

    def time(self, frame: int) -> str:
        return format_time(self.clip.times[frame], tenths=self._tenths)

    def colour(self, chunk: int) -> Colour:
        return scale_colour(self.allocation.scales[chunk])

    def runs(self, frames: range) -> Iterator[tuple[int | None, list[int]]]:
        """Group adjacent frames of one chunk. Each dropped frame is a group of its own."""
        for (owner, _), run in groupby(frames, lambda i: (self.owners[i], i if self.owners[i] is None else -1)):
            yield owner, list(run)

    def seen(self, frame: int) -> Image.Image:
        """A frame with no more detail than the grid of its chunk keeps."""
        pixels, owner = self.clip.picture(frame), self.owners[frame]
        if self.factor and owner is not None:
            grid = self.allocation.grids[owner]
            size = (grid.rows * self.factor, grid.cols * self.factor)
            if size[0] < self.clip.height or size[1] < self.clip.width:  # enlarging would add no detail
                import torch

                from allocembed.resize import resize

                batch = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
                pixels = resize(batch, size)[0].permute(1, 2, 0).contiguous().numpy()
        return Image.fromarray(pixels)

    @property
    def facts(self) -> list[str]:
        """Method, candidate frames, chunks and length, in words."""
        count, chunks = len(self.clip), len(self.allocation)
        kept = f", {count - self.dropped} kept" if self.dropped else ""
        sampled = f"{count} candidate frame{'s' * (count != 1)}{kept}"
        length = format_time(self.seconds, tenths=self._tenths)
        return [*filter(None, [self.method]), sampled, f"{chunks} chunk{'s' * (chunks != 1)}", length]

    @property
    def limit(self) -> str:
        """The budget, and by how much the cost exceeds it, in words."""
        over = self.allocation.cost - self.allocation.budget
        return f"of {self.allocation.budget:,} tokens" + (f", {over:,} over the budget" if over > 0 else "")
