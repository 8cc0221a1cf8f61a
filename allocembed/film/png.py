"""The filmstrip as a picture: header, budget bar, and all candidate frames in temporal order."""

import math
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TypeAlias

from PIL import Image, ImageDraw, ImageFont

from allocembed.budget import SCALE_RANGE, Allocation
from allocembed.errors import MissingDependency
from allocembed.film.strip import LEGEND_SCALES, Colour, Filmstrip, scale_colour, scale_position, text_colour
from allocembed.output.files import whole_file
from allocembed.video.clip import Clip
from allocembed.words import counted

Box: TypeAlias = tuple[int, int, int, int]

WIDTH, MARGIN, GAP, BORDER, FOOT, HEADER = 1600, 44, 14, 6, 34, 214  # pixels
THUMB_AREA = 36_000  # pixels of a thumbnail, about 250 × 142 for a 16:9 video
FEWEST_IN_ROW, MOST_IN_ROW = 4, 12  # frames in a row
PAGE, TEXT, MUTED, TRACK, ALARM = (17, 19, 24), (240, 242, 246), (148, 155, 168), (40, 44, 53), (255, 107, 107)


def save_png(
    clip: Clip,
    allocation: Allocation,
    path: str | Path,
    *,
    title: str | None = None,
    method: str | None = None,
    factor: int | None = None,
) -> None:
    """Write the filmstrip as a picture 1600 pixels wide. Its letters are those that matplotlib brings."""
    MissingDependency.check("a filmstrip as PNG", "matplotlib", "plot")
    strip = Filmstrip(clip, allocation, title, method, factor)
    together = strip.frames_per_chunk if strip.frames_per_chunk <= MOST_IN_ROW else 1
    per_row = frames_per_row(len(clip), clip.width / clip.height, together)
    slot = (WIDTH - 2 * MARGIN + GAP) / per_row
    # The frames of a chunk and the borders around them share their slots. A dropped frame has a slot to itself.
    joined = 1 if strip.dropped else together
    width = int(slot - (GAP + (joined + 1) * BORDER) / joined)
    thumb = (width, max(48, min(640, round(width * clip.height / clip.width))))
    row_height = BORDER + thumb[1] + FOOT + GAP
    starts = range(0, len(clip), per_row)
    canvas = Image.new("RGB", (WIDTH, HEADER + len(starts) * row_height - GAP + MARGIN), PAGE)
    _draw_header(canvas, strip)
    for row, start in enumerate(starts):
        for chunk, frames in strip.runs(range(start, min(start + per_row, len(clip)))):
            left, top = MARGIN + round((frames[0] - start) * slot), HEADER + row * row_height
            right = left + max(len(frames) * (width + BORDER) + BORDER, round(len(frames) * slot) - GAP)
            _draw_panel(canvas, strip, (left, top, right, top + row_height - GAP), chunk, frames, thumb)
    with whole_file(Path(path)) as scratch:
        canvas.save(scratch, format="PNG")


def frames_per_row(count: int, aspect: float, together: int = 2) -> int:
    """A multiple of `together`, so that no chunk is split; rows have equal lengths if possible.

    >>> frames_per_row(24, 16 / 9), frames_per_row(8, 16 / 9), frames_per_row(24, 9 / 16), frames_per_row(1, 1)
    (6, 4, 8, 4)
    >>> frames_per_row(24, 16 / 9, together=1), frames_per_row(24, 16 / 9, together=5)
    (6, 5)
    """
    fewest, most = together * math.ceil(FEWEST_IN_ROW / together), together * (MOST_IN_ROW // together)
    ideal = (WIDTH - 2 * MARGIN) / math.sqrt(THUMB_AREA * aspect)
    rows = math.ceil(count / min(most, max(fewest, together * round(ideal / together))))
    return max(fewest, together * math.ceil(count / rows / together))


def _draw_header(canvas: Image.Image, strip: Filmstrip) -> None:
    draw = ImageDraw.Draw(canvas)
    title, legend, right = strip.title, WIDTH - MARGIN - 320, WIDTH - MARGIN
    while _font(34, bold=True).getlength(title) > legend - 110 - MARGIN:
        title = title.removesuffix("…")[:-1] + "…"
    draw.text((MARGIN, 66), title, TEXT, _font(34, bold=True), anchor="ls")
    draw.text((MARGIN, 102), "  ·  ".join(strip.facts), MUTED, _font(19), anchor="ls")
    low, high = SCALE_RANGE
    for x in range(legend, right):
        draw.line((x, 54, x, 70), scale_colour(low * (high / low) ** ((x - legend) / (right - 1 - legend))))
    draw.text((legend - 16, 62), "scale", MUTED, _font(16), anchor="rm")
    for scale in LEGEND_SCALES:
        x = legend + scale_position(scale) * (right - 1 - legend)
        anchor = {0.2: "ls", 1.8: "rs"}.get(scale, "ms")
        draw.text((x, 94), f"{scale:.1f}×", MUTED, _font(16), anchor=anchor)
    _draw_budget(draw, strip)


def _draw_budget(draw: ImageDraw.ImageDraw, strip: Filmstrip) -> None:
    """Draw the tokens of all chunks side by side in temporal order, on a track as long as the budget."""
    allocation, left, right = strip.allocation, MARGIN, WIDTH - MARGIN
    colour = ALARM if strip.over_budget else TEXT
    draw.text((left, 150), f"{allocation.cost:,} {strip.limit}", colour, _font(22, bold=True), anchor="ls")
    base = f"Base, {counted(allocation.base_frames, 'native frame')}"
    draw.text((right, 150), f"= {allocation.relative_cost:.3f}× {base}", TEXT, _font(22), anchor="rs")
    unit = (right - left) / max(allocation.cost, allocation.budget)
    end = left + round(allocation.budget * unit)
    draw.rectangle((left, 164, end - 1, 185), TRACK)
    edges = [left + round(unit * tokens) for tokens in accumulate((g.tokens for g in allocation.grids), initial=0)]
    for chunk, (start, stop) in enumerate(pairwise(edges)):
        draw.rectangle((start, 164, max(start, stop - 2), 185), strip.colour(chunk))
    if strip.over_budget:
        draw.rectangle((end - 2, 156, end + 1, 193), ALARM)


def _draw_panel(
    canvas: Image.Image, strip: Filmstrip, box: Box, chunk: int | None, frames: list[int], thumb: tuple[int, int]
) -> None:
    """Draw frames on a panel in the colour of their scale with a label below. Dropped frames are grey and dim."""
    left, top, right, bottom = box
    mount = TRACK if chunk is None else strip.colour(chunk)
    _fill(canvas, box, mount, radius=9)
    draw = ImageDraw.Draw(canvas)
    step = (right - left - 2 * BORDER - thumb[0]) / max(1, len(frames) - 1)
    for place, frame in enumerate(frames):
        x = left + BORDER + round(place * step)
        picture = strip.seen(frame).resize(thumb, Image.Resampling.BICUBIC)
        if chunk is None:
            picture = Image.blend(Image.new("RGB", thumb, PAGE), picture.convert("L").convert("RGB"), 0.3)
        canvas.paste(picture, (x, top + BORDER))
        stamp, foot = strip.time(frame), top + BORDER + thumb[1] - 6
        chip = (x + 6, foot - 22, x + 18 + round(_font(14).getlength(stamp)), foot)
        _fill(canvas, chip, (0, 0, 0), radius=5, opacity=0.66)
        draw.text((x + 12, foot - 6), stamp, (255, 255, 255), _font(14), anchor="ls")
    strong, plain, line = _font(18, bold=chunk is not None), _font(16), bottom - 11
    start, middle, end = _label(strip, chunk, frames)
    ink = MUTED if chunk is None else text_colour(mount)
    draw.text((left + 12, line), start, ink, strong, anchor="ls")
    draw.text((right - 12, line), end, ink, plain, anchor="rs")
    free_from, free_to = left + 12 + strong.getlength(start), right - 12 - plain.getlength(end)
    if plain.getlength(middle) + 20 < free_to - free_from:
        draw.text(((free_from + free_to) / 2, line), middle, ink, plain, anchor="ms")


def _label(strip: Filmstrip, chunk: int | None, frames: list[int]) -> tuple[str, str, str]:
    """Left, middle and right of a panel's label. Later parts of a split chunk name its first frame, not the cost."""
    if chunk is None:
        return "dropped", "", ""
    whole, grid = strip.allocation.frames[chunk], strip.allocation.grids[chunk]
    scale, tokens = f"{strip.allocation.scales[chunk]:.2f}×", f"{grid.tokens} tok"
    if len(set(whole)) == len(frames):
        return scale, f"{grid.rows}×{grid.cols}", tokens
    name = f"{'pair' if len(whole) == 2 else 'chunk'} {chunk + 1}"
    return scale, name, tokens if frames[0] == whole[0] else f"with {strip.time(whole[0])}"


def _fill(canvas: Image.Image, box: Box, colour: Colour, *, radius: int, opacity: float = 1.0) -> None:
    """Fill a rounded rectangle with smooth corners; Pillow alone draws them jagged."""
    width, height = box[2] - box[0], box[3] - box[1]
    mask = Image.new("L", (width * 4, height * 4))
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, *mask.size), radius * 4, round(255 * opacity))
    canvas.paste(colour, box[:2], mask.resize((width, height), Image.Resampling.BOX))


@cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(get_data_path(), "fonts", "ttf", name)), size)
