"""Open a video and read frames from it: `with open_video("talk.mp4") as video: video.sample(24)`.

Frames come out upright, as 8-bit RGB with square pixels, with their true presentation times. Memory is bounded by the
number of frames requested, however long the video is. Files in object storage (s3://, gs://) are read by ranges: of an
MP4, only the header and what the frames need.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from allocembed.errors import ConfigError, VideoError
from allocembed.remote.objects import is_remote
from allocembed.remote.ranged import RangedFile
from allocembed.video.clip import (
    FETCH_AGAIN,
    IMAGE_SUFFIXES,
    IN_MEMORY,
    Clip,
    DecodeLimits,
    Seek,
    Stopwatch,
    VideoInfo,
    check_regular,
)
from allocembed.video.decoders.base import Decoders, VideoInput
from allocembed.video.decoders.registry import PYAV, find_decoders
from allocembed.video.images import FrameSequence, Images, check_frames, list_images, read_image, to_rgb
from allocembed.video.source import Part, VideoSource

Source: TypeAlias = str | Path | np.ndarray | Sequence[np.ndarray | Image.Image]


def open_video(
    source: Source,
    *,
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (frozen)
    rate: float | None = None,
    start: float | None = None,
    end: float | None = None,
    rounds: bool = False,
    decoders: Decoders | None = None,
) -> VideoSource:
    """Open a video file, also one in object storage (s3://bucket/a.mp4), a folder of images, one image, or frames.

    `rate` is the frames per second of images and frames in memory; without it they are numbered, one a second, and the
    clip is not `timed`. Video files have their own clock. With `start` and `end` in seconds, only frames with
    start <= time < end exist: counts and lengths are those of that part, times and frame numbers stay those of the
    source. `rounds` chooses frames of a file as `candidate_indices` explains. `decoders` decode files, by default
    PyAV's; if those are of a GPU, frames may be tensors there.
    """
    if rate is not None and not rate > 0:
        raise ConfigError(f"rate must be frames per second above 0, not {rate}")
    part = Part(start, end)
    stopwatch = Stopwatch(limits, str(source) if isinstance(source, str | Path) else IN_MEMORY)
    found = _look_at(source, limits)
    if isinstance(found, Images):
        images = FrameSequence(found, rate or 1.0, stopwatch)
        return VideoSource(images, stopwatch, part, listed=True, timed=rate is not None)
    decoder = (decoders or find_decoders(PYAV)).open(VideoInput(found, stopwatch.source, limits, stopwatch))
    return VideoSource(decoder, stopwatch, part, rounds=rounds)


def sample(
    source: Source,
    count: int = 24,
    *,
    seek: Seek = "exact",
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (frozen)
    rate: float | None = None,
) -> Clip:
    """Return `count` evenly spread frames; see `open_video` and `VideoSource.sample`.

    >>> clip = sample(np.zeros((50, 48, 64, 3), np.uint8), count=4, rate=10)
    >>> clip.indices.tolist(), clip.times.tolist(), clip.frames.shape
    ([0, 16, 32, 49], [0.0, 1.6, 3.2, 4.9], (4, 48, 64, 3))
    """
    with open_video(source, limits=limits, rate=rate) as video:
        return video.sample(count, seek)


def probe(
    source: Source,
    *,
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (frozen)
    rate: float | None = None,
) -> VideoInfo:
    """Return size, length and rate of `source`.

    >>> probe(np.zeros((50, 48, 64, 3), np.uint8), rate=25)
    VideoInfo(width=64, height=48, total=50, duration=2.0, rate=25.0, source='<frames>')
    """
    with open_video(source, limits=limits, rate=rate) as video:
        return video.probe()


def _look_at(source: Source, limits: DecodeLimits) -> Path | RangedFile | Images:
    """A file to decode, or the images that are the frames."""
    if isinstance(source, str) and is_remote(source):
        return _look_at_object(source)
    if isinstance(source, str | Path):
        return _look_at_path(Path(source), str(source), limits)
    if isinstance(source, np.ndarray | Sequence):
        check_frames(source)
        return Images(lambda index: to_rgb(source[index], f"frame {index}"), len(source))
    kind = type(source).__name__
    raise TypeError(f"cannot open a {kind} as a video; pass a path, a (T, H, W, 3) uint8 array or a list of frames")


def _look_at_object(address: str) -> RangedFile:
    if Path(address).suffix.lower() in IMAGE_SUFFIXES:
        raise VideoError(address, "a picture in object storage is not read as a video; copy it to a disk")
    try:
        file = RangedFile(address)
    except OSError as error:
        raise VideoError(address, error.strerror or str(error)) from error
    if not file.size:
        raise VideoError(address, f"the file is empty; {FETCH_AGAIN}")
    return file


def _look_at_path(path: Path, name: str, limits: DecodeLimits) -> Path | Images:
    if not name:
        raise VideoError("''", "the path is empty; give a file or a folder")
    try:
        images = list_images(path, name) if path.is_dir() else []
        if not images:
            size = path.stat().st_size
            check_regular(path, name)
            if not size:
                raise VideoError(name, f"the file is empty; {FETCH_AGAIN}")
    except FileNotFoundError as error:
        raise VideoError(name, "no such file or folder; check the path") from error
    except (OSError, ValueError) as error:
        raise VideoError(name, f"cannot be read ({error}); check the path and its permissions") from error
    if not images and path.suffix.lower() not in IMAGE_SUFFIXES:
        return path
    images = images or [path]
    return Images(lambda index: read_image(images[index], limits), len(images))
