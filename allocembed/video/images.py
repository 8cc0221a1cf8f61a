"""Videos made of images: a folder, one image file, or frames in memory.

Not supported: animated WebP and APNG. Frames are resized only to give one clip a common size.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from PIL import Image, ImageOps

from allocembed.errors import VideoError
from allocembed.video.clip import IMAGE_SUFFIXES, IN_MEMORY, DecodeLimits, Stopwatch, check_regular
from allocembed.video.decoders.base import Decoder, FrameTable, Picture


class Images(NamedTuple):
    """Images that are the frames of a video."""

    read: Callable[[int], np.ndarray]
    """(H, W, 3) uint8 RGB, by number."""
    total: int


class FrameSequence(Decoder):
    """Images as the frames of a video, at a constant `rate` per second."""

    def __init__(self, images: Images, rate: float, stopwatch: Stopwatch) -> None:
        self.images, self.rate, self.stopwatch = images, rate, stopwatch

    def find_frames(self) -> FrameTable:
        every = np.arange(self.images.total)
        return FrameTable(every, every, self.images.total, self.rate)

    def pictures(self, table: FrameTable, exact: Sequence[int], keyframes: Sequence[int] = ()) -> Iterator[Picture]:
        for index in (*keyframes, *exact):
            self.stopwatch.check()
            yield index, index, self.images.read(index)

    def in_order(self, wanted: frozenset[int]) -> Iterator[tuple[int | None, np.ndarray | None]]:
        for index in range(self.images.total):
            yield index, self.images.read(index) if index in wanted else None


def list_images(folder: Path, source: str) -> list[Path]:
    """Return the images of a folder in natural order, without hidden files and files of other types."""
    try:
        found = [path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES]
    except OSError as error:
        raise VideoError(source, f"cannot list the folder ({error}); check its permissions") from error
    paths = sorted((path for path in found if not path.name.startswith(".")), key=natural_order)
    if not paths:
        kinds = " ".join(sorted(IMAGE_SUFFIXES))
        remedy = f"to read the videos in it, name them ({folder}/*.mp4), or use allocembed embed --recursive"
        raise VideoError(source, f"the folder holds no images; put frames in it ({kinds}); {remedy}")
    return paths


def check_frames(frames: np.ndarray | Sequence[np.ndarray | Image.Image]) -> None:
    """Raise VideoError unless there are frames: a (T, H, W, 3) array, or a list."""
    if isinstance(frames, np.ndarray) and frames.ndim != 4:
        fix = "add the time axis with frames[None]" if frames.ndim < 4 else "drop the extra axes"
        raise VideoError(IN_MEMORY, f"an array of frames is (T, H, W, 3), not {frames.shape}; {fix}")
    if not len(frames):
        raise VideoError(IN_MEMORY, "there are no frames; pass at least one")


def natural_order(path: Path) -> tuple[list[str | int], str]:
    """Sort key that compares digits as numbers.

    >>> [path.name for path in sorted([Path("f10.png"), Path("f2.png")], key=natural_order)]
    ['f2.png', 'f10.png']
    """
    parts = re.split(r"(\d+)", path.name.casefold())
    return [int(part) if part.isdecimal() else part for part in parts], path.name


def over_white(rgba: np.ndarray) -> np.ndarray:
    """Composite (..., 4) uint8 over white, the background that most transparent images are made for.

    >>> over_white(np.array([[10, 20, 30, 255], [10, 20, 30, 0]], np.uint8)).tolist()
    [[10, 20, 30], [255, 255, 255]]
    """
    alpha = rgba[..., 3:].astype(np.uint16)
    # 255 * 255 + 127 still fits 16 bits, so no wider arithmetic is needed.
    return ((rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def read_image(path: Path, limits: DecodeLimits) -> np.ndarray:
    """Read an image file as (H, W, 3) uint8 RGB, upright."""
    return decode_image(path, str(path), limits)


def decode_image(file: Path | BinaryIO, name: str, limits: DecodeLimits, *, first: bool = False) -> np.ndarray:
    """Decode an image as (H, W, 3) uint8 RGB, upright. With `first`, an animation is its first frame."""
    try:
        if isinstance(file, Path):
            check_regular(file, name)
        with Image.open(file) as image:
            limits.check_pixels(image.width, image.height, name)
            if image.format in ("WEBP", "PNG") and getattr(image, "n_frames", 1) > 1 and not first:
                raise VideoError(name, "animated WebP and PNG are not supported; convert it to GIF or MP4")
            return pillow_to_rgb(image)
    except VideoError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise VideoError(name, f"{error}; scale the image down first") from error
    except Exception as error:  # Pillow's plugins raise whatever their parsers run into
        cause = f"cannot read the image ({error}); it is truncated, corrupt or not an image: save it again"
        raise VideoError(name, cause) from error


def pillow_to_rgb(image: Image.Image) -> np.ndarray:
    """A picture as (H, W, 3) uint8 RGB, upright, over white where it is transparent."""
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip to white instead of scaling
        grey = (np.asarray(image).astype(np.int64) // 257).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.has_transparency_data:
        return over_white(np.asarray(image.convert("RGBA")))
    return np.asarray(image.convert("RGB"))


def to_rgb(frame: np.ndarray | Image.Image, name: str) -> np.ndarray:
    """Convert a frame in memory to (H, W, 3) uint8 RGB; `name` stands for it in errors."""
    if isinstance(frame, Image.Image):
        try:
            return pillow_to_rgb(frame)
        except Exception as error:  # Pillow reads a picture only now, and its plugins raise errors of all kinds
            raise VideoError(IN_MEMORY, f"{name} cannot be read ({error}); check the picture") from error
    if not isinstance(frame, np.ndarray):
        cause = f"{name} is a {type(frame).__name__}; pass NumPy arrays or Pillow images"
        raise VideoError(IN_MEMORY, f"{cause}, or the path of a video or of a folder of images")
    if frame.dtype != np.uint8:
        fix = "use (frames * 255).round().astype('uint8') if its range is 0..1, .astype('uint8') if 0..255"
        raise VideoError(IN_MEMORY, f"{name} is {frame.dtype}, not uint8; {fix}")
    if frame.ndim == 2:
        frame = frame[..., None]
    if frame.ndim != 3 or frame.shape[2] not in (1, 3, 4) or not frame.size:
        cause = f"{name} has shape {frame.shape}; it must be (H, W), (H, W, 3) or (H, W, 4)"
        raise VideoError(IN_MEMORY, f"{cause}: move channels last with numpy.moveaxis if they come first")
    if frame.shape[2] == 4:
        return over_white(frame)
    return np.broadcast_to(frame, (*frame.shape[:2], 3)).copy() if frame.shape[2] == 1 else frame
