"""Results of reading a video, a `Clip` or a `VideoInfo`, and the limits on reading it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

import numpy as np

from allocembed.errors import VideoError

if TYPE_CHECKING:
    import torch

Pixels: TypeAlias = "np.ndarray | torch.Tensor"
"""uint8 RGB, in main memory or where a GPU has decoded it."""
FETCH_AGAIN = "download or copy it again"
IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
VIDEO_SUFFIXES = frozenset(
    {".mp4", ".m4v", ".mov", ".3gp", ".mkv", ".webm", ".ogv", ".avi", ".wmv", ".asf", ".flv", ".f4v", ".mxf"}
    | {".ts", ".mts", ".m2ts", ".mpg", ".mpeg", ".vob", ".m2v", ".h264", ".h265", ".hevc", ".ivf", ".y4m", ".gif"}
)
IN_MEMORY = "<frames>"
Seek = Literal["exact", "keyframe"]


@dataclass(frozen=True, eq=False)
class Clip:
    """Sampled frames of one source, ascending in time."""

    frames: Pixels
    """(T, H, W, 3) uint8 RGB, upright, square pixels. A tensor if they are on a GPU."""
    times: np.ndarray
    """(T,) float64 seconds after the first frame of the source: the frames' presentation timestamps."""
    indices: np.ndarray
    """(T,) int64 frame numbers in the source."""
    total: int
    """Frames in the source, or in the part of it that was opened."""
    duration: float
    """Seconds from the start of the first frame to the end of the last, in the source or the opened part."""
    source: str
    """The path as given, or `<frames>` for frames in memory."""
    start: float = 0.0
    """Second of the source at which this clip begins. A model sees `times - start`."""
    listed: bool = False
    """Whether the source is a list of frames: a folder of images, an image, or frames in memory."""
    timed: bool = True
    """Whether the times are real. The frames of a list have none unless its rate is given, and are then numbered."""

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def pixels(self) -> np.ndarray:
        """The frames in main memory: copied if they are on a GPU."""
        return on_host(self.frames)

    def on_host(self) -> Self:
        """The clip with its frames in main memory."""
        return self if isinstance(self.frames, np.ndarray) else replace(self, frames=self.pixels)

    def picture(self, number: int) -> np.ndarray:
        """One frame (H, W, 3) in main memory."""
        return on_host(self.frames[number])

    @property
    def height(self) -> int:
        return self.frames.shape[1]

    @property
    def width(self) -> int:
        return self.frames.shape[2]


@dataclass(frozen=True)
class VideoInfo:
    """Size, length and rate of a source."""

    width: int
    """Pixels across when upright, with square pixels."""
    height: int
    """Pixels down when upright, with square pixels."""
    total: int
    """Frames in the source, or in the part of it that was opened."""
    duration: float
    """Seconds."""
    rate: float
    """Average frames per second."""
    source: str


@dataclass(frozen=True)
class DecodeLimits:
    """Resources that one source may use; they stop a hostile or broken file from exhausting the machine."""

    max_pixels: int = 8192 * 4320
    """Pixels in one frame; the default admits 8K."""
    max_seconds: float = 600.0
    """Wall-clock seconds spent on one source."""
    threads: int = 0
    """Decoder threads; 0 means about one per core."""

    def check_pixels(self, width: int, height: int, source: str) -> None:
        """Raise VideoError if a frame of `width` x `height` exceeds the limit."""
        if width * height > self.max_pixels:
            cause = f"a frame of {width}x{height} is over the limit of {self.max_pixels} pixels"
            raise VideoError(source, f"{cause}; raise it with max_pixels={width * height} (--max-pixels)")


class Stopwatch:
    """Enforce `DecodeLimits.max_seconds` while one source is read."""

    def __init__(self, limits: DecodeLimits, source: str) -> None:
        self.seconds = limits.max_seconds
        self.source = source
        self.restart()

    def restart(self) -> None:
        """Start counting from zero."""
        self.started = time.monotonic()

    def check(self) -> None:
        """Raise VideoError once the time is up."""
        if time.monotonic() - self.started > self.seconds:
            cause = f"reading took longer than {self.seconds:g} s"
            raise VideoError(self.source, f"{cause}; raise the limit with max_seconds (--max-seconds)")


def candidate_indices(total: int, count: int, *, rounds: bool = False) -> np.ndarray:
    """Indices of `count` evenly spread frames out of `total`, or of all when there are fewer.

    They are cut off to whole numbers, or with `rounds` rounded to the nearest, with the float32 steps of
    `torch.linspace`, which the pipelines that round use.

    >>> candidate_indices(99, 4).tolist(), candidate_indices(99, 4, rounds=True).tolist()
    ([0, 32, 65, 98], [0, 33, 65, 98])
    >>> candidate_indices(3, 24).tolist()
    [0, 1, 2]
    """
    count = min(count, total)
    if not rounds or count < 2:
        return np.linspace(0, total - 1, count, dtype=np.int64)
    step, order = np.float32(total - 1) / np.float32(count - 1), np.arange(count)
    # Counted from the nearer end, each value rounded once.
    spread = np.where(order < count // 2, float(step) * order, (total - 1) - float(step) * order[::-1])
    return np.rint(spread.astype(np.float32)).astype(np.int64)


def check_regular(path: Path, source: str) -> None:
    """Raise VideoError unless `path` is a regular file: opening a FIFO or a device can block for ever."""
    if not path.is_file():
        raise VideoError(source, "not a regular file (a FIFO, socket or device); pass a file or a folder of images")


def on_host(pixels: Pixels) -> np.ndarray:
    """Pixels in main memory: copied if they are on a GPU."""
    return pixels if isinstance(pixels, np.ndarray) else pixels.cpu().numpy()


def is_video(path: str | Path) -> bool:
    """Whether the file name has a video suffix.

    >>> is_video("talk.MP4"), is_video("notes.txt")
    (True, False)
    """
    return Path(path).suffix.lower() in VIDEO_SUFFIXES
