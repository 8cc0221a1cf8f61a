"""What a sampled clip is, and how to make one from images: a folder, one file, or frames already in memory.

Video files are read in `allocembed.video`, which re-exports everything public from here. Left out on purpose:
animated WebP and APNG (refused with a remedy), and any resizing but to make one clip's frames the same size.
"""

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

IMAGE_SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp"})
IN_MEMORY = "<frames>"


class VideoError(Exception):
    """A source that cannot be read, and why.

    >>> str(VideoError("talk.mp4", "the file is empty; copy or download it again"))
    'talk.mp4: the file is empty; copy or download it again'
    """

    def __init__(self, source: str, cause: str) -> None:
        super().__init__(source, cause)
        self.source = source
        self.cause = cause

    def __str__(self) -> str:
        return f"{self.source}: {self.cause}"


@dataclass(frozen=True)
class DecodeLimits:
    """How much one file may ask for, so that a hostile or broken one cannot take the whole machine."""

    max_pixels: int = 8192 * 4320
    """Pixels in one frame; the default admits 8K."""
    max_seconds: float = 600.0
    """Wall-clock seconds spent on one file."""
    threads: int = 0
    """Threads of its decoder; 0 for about one on every core."""

    def check_pixels(self, width: int, height: int, source: str) -> None:
        """Refuse a frame of `width` x `height` when it is over the limit."""
        if width * height > self.max_pixels:
            cause = f"a frame of {width}x{height} is over the limit of {self.max_pixels} pixels"
            raise VideoError(source, f"{cause}; raise it with DecodeLimits(max_pixels={width * height})")


class Stopwatch:
    """Holds the reading of one source to `DecodeLimits.max_seconds`."""

    def __init__(self, limits: DecodeLimits, source: str) -> None:
        self.seconds = limits.max_seconds
        self.source = source
        self.started = time.monotonic()

    def check(self) -> None:
        """Raise once the time is up."""
        if time.monotonic() - self.started > self.seconds:
            cause = f"reading took longer than {self.seconds:g} s"
            raise VideoError(self.source, f"{cause}; raise the limit with DecodeLimits(max_seconds=...)")


@dataclass(frozen=True, eq=False)
class Clip:
    """Candidate frames of one source, ascending in time."""

    frames: np.ndarray
    """(T, H, W, 3) uint8 RGB, upright, square pixels."""
    times: np.ndarray
    """(T,) float64 seconds after the first frame of the source: the frames' own presentation timestamps."""
    indices: np.ndarray
    """(T,) int64: which frame of the source each one is."""
    total: int
    """Frames in the source."""
    duration: float
    """Seconds from the first frame's start to the last one's end."""
    source: str
    """The path as given, or `<frames>` for frames from memory."""

    def __len__(self) -> int:
        return len(self.frames)

    @property
    def height(self) -> int:
        return self.frames.shape[1]

    @property
    def width(self) -> int:
        return self.frames.shape[2]


@dataclass(frozen=True)
class VideoInfo:
    """What a source holds, without its pixels."""

    width: int
    """Pixels across when upright, with square pixels."""
    height: int
    """Pixels down when upright, with square pixels."""
    total: int
    """Frames in the source."""
    duration: float
    """Seconds."""
    rate: float
    """Frames per second on average."""
    source: str


def candidate_indices(total: int, count: int) -> np.ndarray:
    """Which of `total` frames to look at: `count` of them evenly spread, or all when there are fewer.

    >>> candidate_indices(100, 4).tolist(), candidate_indices(3, 24).tolist()
    ([0, 33, 66, 99], [0, 1, 2])
    """
    return np.linspace(0, total - 1, min(count, total), dtype=np.int64)


class Canvas:
    """The clip's pixels, filled slot by slot; all of them have the size of the frame that came first."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.frames = np.empty((0, 0, 0, 3), np.uint8)

    def put(self, slot: int, image: np.ndarray) -> None:
        """Keep `image` (H, W, 3), resized when the frame that came first had another size."""
        if not len(self.frames):
            self.frames = np.empty((self.count, *image.shape), np.uint8)
        height, width = self.frames.shape[1:3]
        if image.shape[:2] != (height, width):
            image = np.asarray(Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC))
        self.frames[slot] = image


def over_white(rgba: np.ndarray) -> np.ndarray:
    """Flatten (..., 4) uint8 onto white, the page a transparent picture is usually drawn for.

    >>> over_white(np.array([[10, 20, 30, 255], [10, 20, 30, 0]], np.uint8)).tolist()
    [[10, 20, 30], [255, 255, 255]]
    """
    alpha = rgba[..., 3:].astype(np.uint16)
    # 255 * 255 + 127 still fits 16 bits, so no wider arithmetic is needed.
    return ((rgba[..., :3] * alpha + 255 * (255 - alpha) + 127) // 255).astype(np.uint8)


def sample_images(paths: Sequence[Path], source: str, count: int, rate: float, limits: DecodeLimits) -> Clip:
    """Candidates from image files taken as the frames of a video, `rate` of them a second."""
    stopwatch = Stopwatch(limits, source)

    def read(index: int) -> np.ndarray:
        stopwatch.check()
        return _read_image(paths[index], limits)

    indices = candidate_indices(len(paths), count)
    return _clip(map(read, indices.tolist()), indices, len(paths), rate, source)


def sample_folder(folder: Path, source: str, count: int, rate: float, limits: DecodeLimits) -> Clip:
    """Candidates from a folder of images in natural order; other files and hidden ones are passed over."""
    try:
        found = [path for path in folder.iterdir() if path.suffix.lower() in IMAGE_SUFFIXES]
    except OSError as error:
        raise VideoError(source, f"the folder cannot be listed ({error}); check its permissions") from error
    paths = sorted((path for path in found if not path.name.startswith(".")), key=natural_order)
    if not paths:
        kinds = " ".join(sorted(IMAGE_SUFFIXES))
        cause = "the folder holds no images, so it is no video"
        remedy = f"for videos in a folder name them, as in {folder.name}/*.mp4, or use allocembed index"
        raise VideoError(source, f"{cause}; put frames in it as {kinds}; {remedy}")
    return sample_images(paths, source, count, rate, limits)


def sample_arrays(frames: np.ndarray | Sequence[np.ndarray | Image.Image], count: int, rate: float) -> Clip:
    """Candidates from frames in memory: a (T, H, W, 3) uint8 array, or a list of arrays and Pillow images."""
    if isinstance(frames, np.ndarray) and frames.ndim != 4:
        fix = "add the time axis with frames[None]" if frames.ndim < 4 else "drop the extra axes"
        raise VideoError(IN_MEMORY, f"an array of frames is (T, H, W, 3), not {frames.shape}; {fix}")
    if not len(frames):
        raise VideoError(IN_MEMORY, "there are no frames; pass at least one")
    indices = candidate_indices(len(frames), count)
    images = (_to_rgb(frames[index], f"frame {index}") for index in indices.tolist())
    return _clip(images, indices, len(frames), rate, IN_MEMORY)


def natural_order(path: Path) -> tuple[list[str | int], str]:
    """Sort key that counts as people do.

    >>> [path.name for path in sorted([Path("f10.png"), Path("f2.png")], key=natural_order)]
    ['f2.png', 'f10.png']
    """
    parts = re.split(r"(\d+)", path.name.casefold())
    return [int(part) if part.isdecimal() else part for part in parts], path.name


def _clip(images: Iterable[np.ndarray], indices: np.ndarray, total: int, rate: float, source: str) -> Clip:
    canvas = Canvas(len(indices))
    for slot, image in enumerate(images):
        canvas.put(slot, image)
    return Clip(canvas.frames, indices / rate, indices, total, total / rate, source)


def _read_image(path: Path, limits: DecodeLimits) -> np.ndarray:
    try:
        with Image.open(path) as image:
            limits.check_pixels(image.width, image.height, str(path))
            if image.format in ("WEBP", "PNG") and getattr(image, "n_frames", 1) > 1:
                raise VideoError(str(path), "animated WebP and PNG are not read; convert it to GIF or MP4")
            return _pillow_to_rgb(image)
    except VideoError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise VideoError(str(path), f"{error}; scale the image down first") from error
    except Exception as error:  # Pillow's plugins let out whatever their parsers trip over
        cause = f"the image cannot be read ({error}); it is truncated, corrupt or not an image: save it again"
        raise VideoError(str(path), cause) from error


def _pillow_to_rgb(image: Image.Image) -> np.ndarray:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # 16-bit grey, which Pillow would clip to white instead of scaling
        grey = (np.asarray(image).astype(np.int64) // 257).clip(0, 255).astype(np.uint8)
        return np.repeat(grey[..., None], 3, axis=2)
    if image.has_transparency_data:
        return over_white(np.asarray(image.convert("RGBA")))
    return np.asarray(image.convert("RGB"))


def _to_rgb(frame: np.ndarray | Image.Image, name: str) -> np.ndarray:
    if isinstance(frame, Image.Image):
        return _pillow_to_rgb(frame)
    if not isinstance(frame, np.ndarray):
        cause = f"{name} is a {type(frame).__name__}; pass NumPy arrays or Pillow images"
        raise VideoError(IN_MEMORY, f"{cause}, or the path of a video or of a folder of images")
    if frame.dtype != np.uint8:
        fix = "use (frames * 255).round().astype('uint8') if it lies in 0..1, .astype('uint8') if in 0..255"
        raise VideoError(IN_MEMORY, f"{name} is {frame.dtype}, not uint8; {fix}")
    if frame.ndim == 2:
        frame = frame[..., None]
    if frame.ndim != 3 or frame.shape[2] not in (1, 3, 4) or not frame.size:
        cause = f"{name} has shape {frame.shape}; it must be (H, W), (H, W, 3) or (H, W, 4)"
        raise VideoError(IN_MEMORY, f"{cause}: move channels last with numpy.moveaxis if they come first")
    if frame.shape[2] == 4:
        return over_white(frame)
    return np.broadcast_to(frame, (*frame.shape[:2], 3)).copy() if frame.shape[2] == 1 else frame
