"""Pictures and short video files that tests make on the spot."""

from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np


def picture(index: int, width: int = 64, height: int = 48) -> np.ndarray:
    """(H, W, 3) uint8: a gradient that moves, so that no two frames are alike."""
    y, x = np.mgrid[:height, :width]
    channels = (x * 3 + index * 5, y * 4 + index * 3, x + y + index * 11)
    return np.stack([channel % 256 for channel in channels], axis=-1).astype(np.uint8)


def write_videos(folder: Path, count: int) -> list[Path]:
    """Short video files that show different things."""
    paths = [folder / f"{number}.avi" for number in range(count)]
    for number, path in enumerate(paths):
        write_pictures(path, [picture(40 * number + index, 96, 64) for index in range(30)])
    return paths


def write_pictures(path: Path, pictures: Sequence[np.ndarray]) -> None:
    """A video file of these pictures (H, W, 3), 25 a second."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        (stream.height, stream.width), stream.pix_fmt = pictures[0].shape[:2], "yuv420p"
        for number, pixels in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(pixels)
            frame.pts, frame.time_base = number, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
