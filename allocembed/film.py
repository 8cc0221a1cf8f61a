"""The filmstrip: every candidate frame of a video with its scale, its tokens, and the total against the budget.

Three forms of one thing: `as_json` for programs, `save_png` for papers, `save_html` for people. The page is one file
that asks nothing of a network; it is filled into `film.html`. Frames are drawn with the pixels the backbone gets when
`factor`, its pixels per token side, is given; otherwise as they were sampled.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from string import Template
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from allocembed.budget import FRAMES_PER_CHUNK, SCALE_RANGE, Allocation, Grid
from allocembed.output import whole_file
from allocembed.resize import resize
from allocembed.video import Clip

Colour: TypeAlias = tuple[int, int, int]

# Matplotlib's viridis from 0.14 to 0.97: the ends left out would drown in a dark page or a white one.
_STOPS = np.array(
    [(70, 48, 126), (55, 90, 140), (40, 124, 142), (31, 158, 137), (64, 189, 114), (142, 214, 69), (236, 229, 27)]
)
LEGEND_SCALES = (0.2, 0.4, 0.6, 1.0, 1.8)


def as_json(clip: Clip, allocation: Allocation) -> dict:
    """The allocation in plain numbers: totals, and for each chunk its times in seconds, scale, grid and tokens."""
    return {
        "budget": int(allocation.budget),
        "cost": int(allocation.cost),
        "base_cost": int(allocation.base_cost),
        "chunks": [
            {
                "times": [round(float(clip.times[frame]), 3) for frame in frames],
                "scale": round(float(scale), 4),
                "rows": grid.rows,
                "cols": grid.cols,
                "tokens": grid.tokens,
            }
            for frames, scale, grid in zip(allocation.frames, allocation.scales, allocation.grids, strict=True)
        ],
    }


def base_frames(clip: Clip, allocation: Allocation) -> int:
    """Native frames that cost as much as Base; an odd one costs as much as two."""
    return min(FRAMES_PER_CHUNK * allocation.base_cost // allocation.native.tokens, clip.total)


def format_time(seconds: float, *, tenths: bool = False) -> str:
    """Seconds as a clock shows them.

    >>> format_time(3723.9), format_time(192), format_time(0)
    ('1:02:03', '03:12', '00:00')
    >>> format_time(9.96, tenths=True)
    '00:09.9'
    """
    # A clock never runs ahead, so parts are cut off; the nudge is for 0.3 / 0.1 and its kind.
    count = max(0, math.floor(float(seconds) * 10 + 1e-6))
    minutes, rest = divmod(count // 10, 60)
    clock = f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes:02}:{rest:02}"
    return f"{clock}.{count % 10}" if tenths else clock


def scale_colour(scale: float) -> Colour:
    """The colour of a scale, dark blue for 0.2 to yellow for 1.8; equal ratios are equal steps.

    >>> scale_colour(0.2), scale_colour(0.6), scale_colour(1.8), scale_colour(9)
    ((70, 48, 126), (31, 158, 137), (236, 229, 27), (236, 229, 27))
    """
    places = np.linspace(0, 1, len(_STOPS))
    return tuple(round(float(np.interp(_place(scale), places, channel))) for channel in _STOPS.T)


def _place(scale: float) -> float:
    """Where a scale stands between the smallest (0) and the largest (1)."""
    low, high = (math.log(bound) for bound in SCALE_RANGE)
    return min(1.0, max(0.0, (math.log(scale) - low) / (high - low)))


def _ink(colour: Colour) -> Colour:
    """Black or white, whichever reads better on a colour."""
    return (12, 14, 18) if np.dot(colour, (0.299, 0.587, 0.114)) > 104 else (255, 255, 255)


class _Film:
    """A clip and its allocation with the words and pictures that the PNG and the page share."""

    def __init__(self, clip: Clip, allocation: Allocation, title: str | None, method: str | None, factor: int | None):
        self.clip, self.allocation, self.method, self.factor = clip, allocation, method, factor
        self.title = " ".join((title or Path(clip.source).name or str(clip.source)).split())
        self.seconds = max(float(clip.duration), float(clip.times[-1])) or 1.0
        self.owners: list[int | None] = [None] * len(clip)
        for chunk, frames in enumerate(allocation.frames):
            for frame in frames:
                self.owners[frame] = chunk
        self.dropped = self.owners.count(None)
        self._tenths = len(clip) > 1 and float(np.median(np.diff(clip.times))) < 1

    def time(self, frame: int) -> str:
        return format_time(self.clip.times[frame], tenths=self._tenths)

    def colour(self, chunk: int) -> Colour:
        return scale_colour(self.allocation.scales[chunk])

    def runs(self, frames: range) -> Iterator[tuple[int | None, list[int]]]:
        """Neighbouring frames of one chunk together, dropped ones each alone."""
        for (owner, _), run in groupby(frames, lambda i: (self.owners[i], i if self.owners[i] is None else -1)):
            yield owner, list(run)

    def seen(self, frame: int) -> Image.Image:
        """A frame with no more detail than its chunk's grid keeps."""
        pixels, owner = self.clip.frames[frame], self.owners[frame]
        if self.factor and owner is not None:
            grid = self.allocation.grids[owner]
            size = (grid.rows * self.factor, grid.cols * self.factor)
            if size[0] < self.clip.height or size[1] < self.clip.width:  # enlarging would add no detail
                batch = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
                pixels = resize(batch, size)[0].permute(1, 2, 0).contiguous().numpy()
        return Image.fromarray(pixels)

    @property
    def facts(self) -> list[str]:
        count, chunks = len(self.clip), len(self.allocation)
        kept = f", {count - self.dropped} kept" if self.dropped else ""
        sampled = f"{count} candidate frame{'s' * (count != 1)}{kept}"
        length = format_time(self.seconds, tenths=self._tenths)
        return [*filter(None, [self.method]), sampled, f"{chunks} chunk{'s' * (chunks != 1)}", length]

    @property
    def limit(self) -> str:
        over = self.allocation.cost - self.allocation.budget
        return f"of {self.allocation.budget:,} tokens" + (f", {over:,} over the budget" if over > 0 else "")


_WIDTH, _MARGIN, _GAP, _BORDER, _FOOT, _HEADER = 1600, 44, 14, 6, 34, 214  # pixels
_THUMB_AREA = 36_000  # pixels of a thumbnail, about 250 × 142 for a 16:9 video
_PAGE, _TEXT, _MUTED, _TRACK, _ALARM = (17, 19, 24), (240, 242, 246), (148, 155, 168), (40, 44, 53), (255, 107, 107)


def save_png(
    clip: Clip,
    allocation: Allocation,
    path: str | Path,
    *,
    title: str | None = None,
    method: str | None = None,
    factor: int | None = None,
) -> None:
    """Writes the filmstrip as a picture 1600 pixels wide: header, budget bar, all candidates in temporal order."""
    film = _Film(clip, allocation, title, method, factor)
    per_row = _frames_per_row(len(clip), clip.width / clip.height)
    slot = (_WIDTH - 2 * _MARGIN + _GAP) / per_row
    # Two frames and three borders fill two slots; among dropped frames, each alone, a slot holds a frame with two.
    width = int(slot - _GAP - 2 * _BORDER if film.dropped else slot - (_GAP + 3 * _BORDER) / 2)
    thumb = (width, max(48, min(640, round(width * clip.height / clip.width))))
    row_height = _BORDER + thumb[1] + _FOOT + _GAP
    starts = range(0, len(clip), per_row)
    canvas = Image.new("RGB", (_WIDTH, _HEADER + len(starts) * row_height - _GAP + _MARGIN), _PAGE)
    _draw_header(canvas, film)
    for row, start in enumerate(starts):
        for chunk, frames in film.runs(range(start, min(start + per_row, len(clip)))):
            left, top = _MARGIN + round((frames[0] - start) * slot), _HEADER + row * row_height
            right = left + max(width + 2 * _BORDER, round(len(frames) * slot) - _GAP)
            _draw_panel(canvas, film, (left, top, right, top + row_height - _GAP), chunk, frames, thumb)
    with whole_file(Path(path)) as scratch:
        canvas.save(scratch, format="PNG")


def _frames_per_row(count: int, aspect: float) -> int:
    """An even number, so that no pair is torn; rows come out equally long where they can.

    >>> _frames_per_row(24, 16 / 9), _frames_per_row(8, 16 / 9), _frames_per_row(24, 9 / 16), _frames_per_row(1, 1)
    (6, 4, 8, 4)
    """
    ideal = (_WIDTH - 2 * _MARGIN) / math.sqrt(_THUMB_AREA * aspect)
    rows = math.ceil(count / min(12, max(4, 2 * round(ideal / 2))))
    return max(4, 2 * math.ceil(count / rows / 2))


def _draw_header(canvas: Image.Image, film: _Film) -> None:
    draw = ImageDraw.Draw(canvas)
    title, legend, right = film.title, _WIDTH - _MARGIN - 320, _WIDTH - _MARGIN
    while _font(34, bold=True).getlength(title) > legend - 110 - _MARGIN:
        title = title.removesuffix("…")[:-1] + "…"
    draw.text((_MARGIN, 66), title, _TEXT, _font(34, bold=True), anchor="ls")
    draw.text((_MARGIN, 102), "  ·  ".join(film.facts), _MUTED, _font(19), anchor="ls")
    for x in range(legend, right):
        low, high = SCALE_RANGE
        scale = low * (high / low) ** ((x - legend) / (right - 1 - legend))
        draw.line((x, 54, x, 70), scale_colour(scale))
    draw.text((legend - 16, 62), "scale", _MUTED, _font(16), anchor="rm")
    for scale in LEGEND_SCALES:
        x = legend + _place(scale) * (right - 1 - legend)
        anchor = {0.2: "ls", 1.8: "rs"}.get(scale, "ms")
        draw.text((x, 94), f"{scale:.1f}×", _MUTED, _font(16), anchor=anchor)
    _draw_budget(draw, film)


def _draw_budget(draw: ImageDraw.ImageDraw, film: _Film) -> None:
    """The chunks' tokens end to end in temporal order, on a track as long as the budget."""
    allocation, left, right = film.allocation, _MARGIN, _WIDTH - _MARGIN
    over = allocation.cost > allocation.budget
    colour = _ALARM if over else _TEXT
    draw.text((left, 150), f"{allocation.cost:,} {film.limit}", colour, _font(22, bold=True), anchor="ls")
    base = f"Base, {base_frames(film.clip, allocation)} native frames"
    draw.text((right, 150), f"= {allocation.relative_cost:.3f}× {base}", _TEXT, _font(22), anchor="rs")
    unit = (right - left) / max(allocation.cost, allocation.budget)
    end = left + round(allocation.budget * unit)
    draw.rectangle((left, 164, end - 1, 185), _TRACK)
    edges = [left + round(unit * tokens) for tokens in accumulate((g.tokens for g in allocation.grids), initial=0)]
    for chunk, (start, stop) in enumerate(pairwise(edges)):
        draw.rectangle((start, 164, max(start, stop - 2), 185), film.colour(chunk))
    if over:
        draw.rectangle((end - 2, 156, end + 1, 193), _ALARM)


def _draw_panel(canvas, film: _Film, box, chunk: int | None, frames: list[int], thumb) -> None:
    """Frames on a mount in their scale's colour, the label beneath; dropped ones are grey and dim."""
    left, top, right, bottom = box
    mount = _TRACK if chunk is None else film.colour(chunk)
    _fill(canvas, box, mount, radius=9)
    draw = ImageDraw.Draw(canvas)
    for frame, x in zip(frames, (left + _BORDER, right - _BORDER - thumb[0]), strict=False):
        picture = film.seen(frame).resize(thumb, Image.Resampling.BICUBIC)
        if chunk is None:
            picture = Image.blend(Image.new("RGB", thumb, _PAGE), picture.convert("L").convert("RGB"), 0.3)
        canvas.paste(picture, (x, top + _BORDER))
        stamp, foot = film.time(frame), top + _BORDER + thumb[1] - 6
        chip = (x + 6, foot - 22, x + 18 + round(_font(14).getlength(stamp)), foot)
        _fill(canvas, chip, (0, 0, 0), radius=5, opacity=0.66)
        draw.text((x + 12, foot - 6), stamp, (255, 255, 255), _font(14), anchor="ls")
    strong, plain, line = _font(18, bold=chunk is not None), _font(16), bottom - 11
    start, middle, end = _label(film, chunk, frames)
    ink = _MUTED if chunk is None else _ink(mount)
    draw.text((left + 12, line), start, ink, strong, anchor="ls")
    draw.text((right - 12, line), end, ink, plain, anchor="rs")
    free_from, free_to = left + 12 + strong.getlength(start), right - 12 - plain.getlength(end)
    if plain.getlength(middle) + 20 < free_to - free_from:
        draw.text(((free_from + free_to) / 2, line), middle, ink, plain, anchor="ms")


def _label(film: _Film, chunk: int | None, frames: list[int]) -> tuple[str, str, str]:
    """Left, middle and right of a panel's foot; the second half of a torn pair names its partner, not the price."""
    if chunk is None:
        return "dropped", "", ""
    pair, grid = film.allocation.frames[chunk], film.allocation.grids[chunk]
    scale, tokens = f"{film.allocation.scales[chunk]:.2f}×", f"{grid.tokens} tok"
    if len(set(pair)) == len(frames):
        return scale, f"{grid.rows}×{grid.cols}", tokens
    return scale, f"pair {chunk + 1}", tokens if frames[0] == pair[0] else f"with {film.time(pair[0])}"


def _fill(canvas: Image.Image, box, colour: Colour, *, radius: int, opacity: float = 1.0) -> None:
    """A rounded rectangle with smooth corners, which Pillow alone draws jagged."""
    width, height = box[2] - box[0], box[3] - box[1]
    mask = Image.new("L", (width * 4, height * 4))
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, *mask.size), radius * 4, round(255 * opacity))
    canvas.paste(colour, box[:2], mask.resize((width, height), Image.Resampling.BOX))


@cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(get_data_path(), "fonts", "ttf", name)), size)


_SHOWN_SIDE = 960  # pixels of the longer side of an embedded frame; 24 of 720p, seen and original, stay under 3 MB


def save_html(
    clip: Clip,
    allocation: Allocation,
    path: str | Path,
    *,
    title: str | None = None,
    method: str | None = None,
    factor: int | None = None,
) -> None:
    """Writes the filmstrip as one self-contained page: budget, timeline, and a card for every chunk."""
    film = _Film(clip, allocation, title, method, factor)
    tall = max(*(grid.tokens for grid in allocation.grids), allocation.native.tokens) * 1.06
    quarters = [(25 * i, format_time(film.seconds * i / 4, tenths=film.seconds < 8)) for i in range(5)]
    page = Template(resources.files("allocembed").joinpath("film.html").read_text(encoding="utf-8"))
    filled = page.substitute(
        title=html.escape(film.title),
        facts=html.escape(" · ".join(film.facts)),
        story=_story(film),
        cost=f"{allocation.cost:,}",
        limit=film.limit,
        relative=f"{allocation.relative_cost:.3f}×",
        base=f"{allocation.base_cost:,}",
        base_frames=base_frames(clip, allocation),
        state="over" if allocation.cost > allocation.budget else "within",
        mark=f"{100 * min(1, allocation.budget / allocation.cost):.3f}",
        segments="".join(
            f'<i data-chunk="{chunk}" style="flex:{grid.tokens};background:{_css(film.colour(chunk))}"></i>'
            for chunk, grid in enumerate(allocation.grids)
        ),
        spare=max(0, allocation.budget - allocation.cost),
        gradient=",".join(_css(stop) for stop in _STOPS.tolist()),
        scales=_ticks([(100 * _place(scale), f"{scale:.1f}×") for scale in LEGEND_SCALES]),
        times=_ticks(quarters),
        bars="".join(_bars(film, tall)),
        native=allocation.native.tokens,
        native_height=f"{100 * allocation.native.tokens / tall:.2f}",
        shape="portrait" if clip.height > clip.width else "landscape",
        size=f"{clip.width}×{clip.height}",
        ratio=f"{clip.width} / {clip.height}",
        side=_SHOWN_SIDE,
        views="" if factor else "hidden",
        cards="\n".join(_cards(film)),
    )
    with whole_file(Path(path)) as scratch:
        scratch.write_text(filled, encoding="utf-8", errors="replace")


def _story(film: _Film) -> str:
    """The one sentence under the heading."""
    small, large = (f"{bound(film.allocation.scales):.2f}×" for bound in (min, max))
    span = small if small == large else f"{small} to {large}"
    dropped = f", and {film.dropped} of {len(film.clip)} frames are left out" if film.dropped else ""
    return f"The model reads frames in chunks of two, each chunk at a size of its own: here {span} native{dropped}."


def _ticks(places: list[tuple[float, str]]) -> str:
    return "".join(f'<b style="left:{place:.1f}%">{text}</b>' for place, text in places)


def _bars(film: _Film, tall: float) -> Iterator[str]:
    """Bars over the time each candidate stands for; a torn pair has two, of which the keyboard meets the first."""
    times = np.asarray(film.clip.times, dtype=np.float64)
    edges = np.concatenate([[0.0], (times[1:] + times[:-1]) / 2, [film.seconds]]) * 100 / film.seconds
    for chunk, run in film.runs(range(len(times))):
        if chunk is None:
            continue
        frames, grid = film.allocation.frames[chunk], film.allocation.grids[chunk]
        left, right = edges[run[0]], edges[run[-1] + 1]
        when = " – ".join(film.time(frame) for frame in dict.fromkeys(frames))
        said = f"{when}: {film.allocation.scales[chunk]:.2f}×, {grid.tokens} tokens"
        again = ' tabindex="-1" aria-hidden="true"' if run[0] != frames[0] else ""
        yield (
            f'<a href="#chunk-{chunk}" data-chunk="{chunk}" aria-label="{said}" title="{said}"{again} style="left:'
            f"{left:.3f}%;width:{right - left:.3f}%;height:{100 * grid.tokens / tall:.2f}%;"
            f'--c:{_css(film.colour(chunk))}"></a>'
        )


def _cards(film: _Film) -> Iterator[str]:
    """In temporal order a card for each chunk, with both its frames, and for each dropped frame."""
    for position, chunk in enumerate(film.owners):
        if chunk is None:
            picture = _frame(film, position, None)
            yield f'<li class="card of1 dropped" data-tokens="0"><div class="frames">{picture}</div><p>dropped</p></li>'
        elif position == film.allocation.frames[chunk][0]:
            grid, colour = film.allocation.grids[chunk], film.colour(chunk)
            frames = list(dict.fromkeys(film.allocation.frames[chunk]))
            style = f"--c:{_css(colour)};--ink:{_css(_ink(colour))};--rows:{grid.rows};--cols:{grid.cols}"
            yield (
                f'<li id="chunk-{chunk}" class="card of{len(frames)}" data-chunk="{chunk}" data-tokens="{grid.tokens}" '
                f'tabindex="-1" style="{style}"><div class="frames">'
                f"{''.join(_frame(film, frame, grid) for frame in frames)}</div>"
                f"<p><strong>{film.allocation.scales[chunk]:.2f}×</strong><span>{grid.rows}×{grid.cols}</span>"
                f"<span>{grid.tokens} tokens</span></p></li>"
            )


def _frame(film: _Film, frame: int, grid: Grid | None) -> str:
    """One frame that opens the comparison; the model's view is embedded only where it shows less than the original."""
    original = Image.fromarray(film.clip.frames[frame])
    original.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE), Image.Resampling.BICUBIC)
    pictures, note, stamp = [("original", original)], "", film.time(frame)
    if film.factor and grid:
        note = f"{grid.cols * film.factor}×{grid.rows * film.factor} pixels"
        seen = film.seen(frame)
        if seen.width < original.width or seen.height < original.height:
            pictures.append(("seen", seen))
    images = "".join(f'<img class="{name}" alt="" src="{_data_uri(picture)}">' for name, picture in pictures)
    return (
        f'<button type="button" aria-label="Frame at {stamp}" data-note="{note}">'
        f'{images}<i class="mesh"></i><time>{stamp}</time></button>'
    )


def _data_uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=62)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _css(colour: Sequence[int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
