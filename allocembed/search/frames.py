"""The frame that a video shows at a time, as a small JPEG."""

import io
from pathlib import Path

from PIL import Image

from allocembed.video import DecodeLimits, open_video

SHOWN_SIDE = 768  # pixels on the longer side


def frame_jpeg(
    path: str | Path,
    second: float,
    limits: DecodeLimits = DecodeLimits(),  # noqa: B008 (frozen)
) -> tuple[bytes, float]:
    """The frame shown at a second, and when it begins. Raise VideoError if it cannot be read."""
    with open_video(path, limits=limits) as video:
        clip = video.frames_at([second])
    picture = Image.fromarray(clip.picture(0))
    picture.thumbnail((SHOWN_SIDE, SHOWN_SIDE), Image.Resampling.BICUBIC)
    made = io.BytesIO()
    picture.save(made, format="JPEG", quality=85)
    return made.getvalue(), float(clip.times[0])
