"""The frame that a video shows at a time, as a small JPEG."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from allocembed.video import DecodeLimits, open_video
from allocembed.video.source import Part

SIDE = 768  # pixels on the longer side
LIMITS = DecodeLimits(max_seconds=60.0)


def frame_jpeg(path: str | Path, second: float) -> tuple[bytes, float]:
    """The frame shown at a second, and when it begins. Raise VideoError if it cannot be read."""
    with open_video(path, limits=LIMITS) as video:
        times = video.table.times
        shown = max(0, int(np.searchsorted(times, second, side="right")) - 1)
        video.part = Part(float(times[shown]), float(times[shown + 1]) if shown + 1 < len(times) else None)
        clip = video.sample(1)
    picture = Image.fromarray(clip.frames[0])
    picture.thumbnail((SIDE, SIDE), Image.Resampling.BICUBIC)
    made = io.BytesIO()
    picture.save(made, format="JPEG", quality=85)
    return made.getvalue(), float(clip.times[0])
