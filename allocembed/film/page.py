"""The filmstrip as one self-contained page: budget, timeline, and a tile for each chunk."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image

from allocembed.budget import Allocation
from allocembed.film.strip import LEGEND_SCALES, STOPS, Filmstrip, format_time, scale_position, text_colour
from allocembed.output.files import write_text
from allocembed.video.clip import Clip

SHOWN_SIDE = 960  # most pixels of the longer side of an embedded frame: 24 frames of 720p stay under 3 MB


def save_html(
    clip: Clip,
    allocation: Allocation,
    path: str | Path,
    *,
    title: str | None = None,
    method: str | None = None,
    factor: int | None = None,
) -> None:
    """Write the filmstrip as one self-contained HTML page."""
    strip = Filmstrip(clip, allocation, title, method, factor)
    files = PackageLoader("allocembed", "film")
    templates = Environment(
        loader=files, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    templates.filters |= {"css": lambda colour: f"#{bytes(colour).hex()}", "ink": text_colour}
    tenths = strip.seconds < 8
    page = templates.get_template("page.html.j2").render(
        strip=strip,
        clip=clip,
        allocation=allocation,
        tall=max(*(grid.tokens for grid in allocation.grids), allocation.native.tokens) * 1.06,
        stops=STOPS,
        scales=[(100 * scale_position(scale), f"{scale:.1f}×") for scale in LEGEND_SCALES],
        times=[(25 * i, format_time(clip.start + strip.seconds * i / 4, tenths=tenths)) for i in range(5)],
        bars=_bars(strip),
        tiles=_tiles(strip),
        side=SHOWN_SIDE,
    )
    write_text(Path(path), page)


def _bars(strip: Filmstrip) -> Iterator[dict[str, Any]]:
    """One bar for each run of frames of a chunk, as wide as the time for which these frames stand."""
    times = np.asarray(strip.clip.times, dtype=np.float64) - strip.clip.start
    edges = np.concatenate([[0.0], (times[1:] + times[:-1]) / 2, [strip.seconds]]) * 100 / strip.seconds
    for chunk, run in strip.runs(range(len(times))):
        if chunk is not None:
            frames = strip.allocation.frames[chunk]
            yield {
                "chunk": chunk,
                "left": edges[run[0]],
                "width": edges[run[-1] + 1] - edges[run[0]],
                "times": " – ".join(strip.time(frame) for frame in dict.fromkeys(frames)),
                "repeated": run[0] != frames[0],
            }


def _tiles(strip: Filmstrip) -> Iterator[dict[str, Any]]:
    """In temporal order, a tile for each chunk with all its frames, and a tile for each dropped frame."""
    for position, chunk in enumerate(strip.owners):
        frames = (position,) if chunk is None else strip.allocation.frames[chunk]
        if position == frames[0]:
            yield {"chunk": chunk, "frames": [_frame(strip, frame) for frame in dict.fromkeys(frames)]}


def _frame(strip: Filmstrip, frame: int) -> dict[str, Any]:
    """One frame as JPEG. The model's view is embedded only if it shows less than the original."""
    original = Image.fromarray(strip.clip.picture(frame))
    original.thumbnail((SHOWN_SIDE, SHOWN_SIDE), Image.Resampling.BICUBIC)
    pictures, note, owner = {"original": _data_uri(original)}, "", strip.owners[frame]
    if strip.factor and owner is not None:
        grid = strip.allocation.grids[owner]
        note = f"{grid.cols * strip.factor}×{grid.rows * strip.factor} pixels"
        seen = strip.seen(frame)
        if seen.width < original.width or seen.height < original.height:
            pictures["seen"] = _data_uri(seen)
    return {"time": strip.time(frame), "note": note, "pictures": pictures}


def _data_uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=62)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
