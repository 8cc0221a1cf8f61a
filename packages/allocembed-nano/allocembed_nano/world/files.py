"""Write a video of the world as an H.264 file, for the demo and for tests of decoding."""

from fractions import Fraction
from pathlib import Path

import numpy as np

from allocembed_nano.world.atlas import load_atlas
from allocembed_nano.world.render import render
from allocembed_nano.world.timeline import Timelines, sample_fractions

USUAL_FRAMES = 480
KEYFRAME_INTERVAL = 24
_BATCH = 32


def write_mp4(
    timelines: Timelines,
    video: int,
    path: str | Path,
    size: tuple[int, int] | None = None,
    rate: Fraction | int | None = None,
) -> Path:
    """Write one video of the batch, at `size` (H, W) and `rate` frames per second.

    The default size is 288 by 384, transposed for a portrait video. The default rate gives 480 frames, so a long video
    is no larger file than a short one. Frame i of n shows the fraction i / (n - 1), like `sample_fractions`. Only one
    batch of frames is in memory at a time.
    """
    import av

    path = Path(path)
    alone = timelines.select([video])
    height, width = size or ((384, 288) if alone.portrait[0] else (288, 384))
    duration = int(alone.duration[0])
    rate = Fraction(USUAL_FRAMES, duration) if rate is None else Fraction(rate)
    fractions = sample_fractions(max(2, round(duration * rate)))
    atlas = load_atlas()
    # The format is explicit because a scratch file may have any name.
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=rate, options={"crf": "18", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.codec_context.gop_size = KEYFRAME_INTERVAL
        for first in range(0, len(fractions), _BATCH):
            part = fractions[first : first + _BATCH]
            frames = render(alone, part, (height, width), atlas)[0].permute(0, 2, 3, 1).numpy()
            for picture in frames:
                frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
                container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path
