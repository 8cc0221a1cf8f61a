"""Read one picture: a file, the bytes of a file, or pixels in memory. It becomes a clip of one frame."""

import io
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from allocembed.errors import VideoError
from allocembed.video.clip import Clip, DecodeLimits, is_video
from allocembed.video.images import decode_image, to_rgb

PictureSource: TypeAlias = str | Path | bytes | np.ndarray | Image.Image
IN_MEMORY = "<picture>"


def read_picture(source: PictureSource, limits: DecodeLimits = DecodeLimits()) -> Clip:  # noqa: B008 (frozen)
    """A picture as a clip of one frame, upright. Pillow reads the file, so that its format is free.

    >>> read_picture(np.zeros((4, 6, 3), np.uint8)).frames.shape
    (1, 4, 6, 3)
    """
    name = str(source) if isinstance(source, str | Path) else IN_MEMORY
    frame = np.require(_read(source, name, limits), requirements="W")  # Pillow's pixels are read-only
    return Clip(frame[None], np.zeros(1), np.zeros(1, np.int64), 1, 1.0, name, listed=True, timed=False)


def _read(source: PictureSource, name: str, limits: DecodeLimits) -> np.ndarray:
    if isinstance(source, bytes):
        return decode_image(io.BytesIO(source), name, limits, first=True)
    if isinstance(source, str | Path):
        path = Path(source)
        try:
            path.stat()
        except FileNotFoundError as error:
            raise VideoError(name, "no such file; check the path") from error
        except (OSError, ValueError) as error:
            raise VideoError(name, f"cannot be read ({error}); check the path and its permissions") from error
        if is_video(path) and path.suffix.lower() != ".gif":
            raise VideoError(name, "this is a video, not a picture; embed or search by it as a video (--like)")
        return decode_image(path, name, limits, first=True)
    if isinstance(source, np.ndarray | Image.Image):
        height, width = source.shape[:2] if isinstance(source, np.ndarray) else (source.height, source.width)
        limits.check_pixels(width, height, name)
        return to_rgb(source, "the picture")
    kind = type(source).__name__
    raise TypeError(f"cannot read a {kind} as a picture; pass a path, bytes, a Pillow image or an (H, W, 3) array")
