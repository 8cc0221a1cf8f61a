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
from collections.abc import Iterator
from functools import cache
from importlib import resources
from itertools import groupby
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

from allocembed.budget import SCALE_RANGE, Allocation, Grid
from allocembed.resize import resize

if TYPE_CHECKING:
    from allocembed.video import Clip

Colour: TypeAlias = tuple[int, int, int]
Box: TypeAlias = tuple[int, int, int, int]

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
    linear = [(part / 255) ** 2.2 for part in colour]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return (12, 14, 18) if luminance > 0.18 else (255, 255, 255)


# ---------------------------------------------------------------------------------------------- what both forms say


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
        self._tenths = len(clip) > 1 and float(np.diff(clip.times).min()) < 1

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
        if self.factor is None or owner is None:
            return Image.fromarray(pixels)
        grid = self.allocation.grids[owner]
        size = (grid.rows * self.factor, grid.cols * self.factor)
        if size[0] >= pixels.shape[0] and size[1] >= pixels.shape[1]:
            return Image.fromarray(pixels)  # enlarging adds no detail
        batch = torch.from_numpy(np.ascontiguousarray(pixels)).permute(2, 0, 1)[None]
        return Image.fromarray(resize(batch, size)[0].permute(1, 2, 0).contiguous().numpy())

    @property
    def facts(self) -> list[str]:
        kept = len(self.clip) - self.dropped
        sampled = _count(len(self.clip), "candidate frame") + (f", {kept} kept" if self.dropped else "")
        facts = [sampled, _count(len(self.allocation), "chunk"), format_time(self.seconds, tenths=self._tenths)]
        return [self.method, *facts] if self.method else facts

    @property
    def spent(self) -> str:
        return f"{self.allocation.cost:,} of {self.allocation.budget:,} tokens"

    @property
    def relative(self) -> str:
        return f"{self.allocation.relative_cost:.3f}× Base"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


# ------------------------------------------------------------------------------------------------------- the picture

_WIDTH, _MARGIN, _GAP = 1600, 44, 14
_BORDER, _FOOT = 6, 34
_HEADER = 214
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
    slot = (_WIDTH - 2 * _MARGIN + _GAP) // per_row
    thumb = (slot - _GAP - 2 * _BORDER, max(48, min(640, round((slot - _GAP) * clip.height / clip.width))))
    row_height = thumb[1] + _BORDER + _FOOT + _GAP
    rows = -(-len(clip) // per_row)
    canvas = Image.new("RGB", (_WIDTH, _HEADER + rows * row_height - _GAP + _MARGIN), _PAGE)
    _draw_header(canvas, film)
    for row in range(rows):
        start = row * per_row
        for chunk, frames in film.runs(range(start, min(start + per_row, len(clip)))):
            left, top = _MARGIN + (frames[0] - start) * slot, _HEADER + row * row_height
            box = (left, top, left + len(frames) * slot - _GAP, top + row_height - _GAP)
            _draw_panel(canvas, film, box, chunk, frames, slot, thumb)
    canvas.save(path, format="PNG", optimize=True)


def _frames_per_row(count: int, aspect: float) -> int:
    """An even number, so that no pair is torn; rows come out equally long where they can.

    >>> _frames_per_row(24, 16 / 9), _frames_per_row(8, 16 / 9), _frames_per_row(24, 9 / 16), _frames_per_row(1, 1)
    (6, 4, 12, 4)
    """
    ideal = (_WIDTH - 2 * _MARGIN) / math.sqrt(_THUMB_AREA * aspect)
    ideal = min(12, max(4, 2 * round(ideal / 2)))
    rows = math.ceil(count / ideal)
    return max(4, 2 * math.ceil(count / rows / 2))


def _draw_header(canvas: Image.Image, film: _Film) -> None:
    draw = ImageDraw.Draw(canvas)
    right = _WIDTH - _MARGIN
    legend = right - 320
    title = _shorten(film.title, _font(34, bold=True), legend - 60 - _MARGIN)
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

    over = film.allocation.cost > film.allocation.budget
    draw.text((_MARGIN, 150), film.spent, _ALARM if over else _TEXT, _font(22, bold=True), anchor="ls")
    draw.text((right, 150), f"= {film.relative}", _TEXT, _font(22), anchor="rs")
    _draw_budget(canvas, film, (_MARGIN, 164, right, 186))


def _draw_budget(canvas: Image.Image, film: _Film, box: Box) -> None:
    """The chunks' tokens end to end in temporal order, on a track as long as the budget."""
    left, top, right, bottom = box
    allocation = film.allocation
    unit = (right - left) / max(allocation.cost, allocation.budget)
    draw = ImageDraw.Draw(canvas)
    draw.rectangle((left, top, left + round(allocation.budget * unit) - 1, bottom - 1), _TRACK)
    spent = 0
    for chunk, grid in enumerate(allocation.grids):
        start, stop = (left + round(tokens * unit) for tokens in (spent, spent + grid.tokens))
        draw.rectangle((start, top, max(start, stop - 2), bottom - 1), film.colour(chunk))
        spent += grid.tokens
    if allocation.cost > allocation.budget:
        x = left + round(allocation.budget * unit)
        draw.rectangle((x - 2, top - 8, x + 1, bottom + 7), _ALARM)


def _draw_panel(canvas, film: _Film, box: Box, chunk: int | None, frames: list[int], slot: int, thumb) -> None:
    """Frames on a mount in their scale's colour, the label beneath; dropped ones are grey and dim."""
    left, _, right, bottom = box
    mount = _TRACK if chunk is None else film.colour(chunk)
    _fill(canvas, box, mount, radius=9)
    draw = ImageDraw.Draw(canvas)
    width = (right - left - _BORDER * (len(frames) + 1)) // len(frames)
    for place, frame in enumerate(frames):
        picture = film.seen(frame).resize((width, thumb[1]), Image.Resampling.BICUBIC)
        if chunk is None:
            picture = Image.blend(Image.new("RGB", picture.size, _PAGE), picture.convert("L").convert("RGB"), 0.3)
        x, y = left + _BORDER + place * (width + _BORDER), box[1] + _BORDER
        canvas.paste(picture, (x, y))
        stamp = film.time(frame)
        foot = y + thumb[1] - 6
        chip = (x + 6, foot - 22, x + 18 + round(_font(14).getlength(stamp)), foot)
        _fill(canvas, chip, (0, 0, 0), radius=5, opacity=0.66)
        draw.text((x + 12, foot - 6), stamp, (255, 255, 255), _font(14), anchor="ls")
    ink = _MUTED if chunk is None else _ink(mount)
    start, middle, end = _label(film, chunk, frames)
    line = bottom - 11
    draw.text((left + 12, line), start, ink, _font(18, bold=chunk is not None), anchor="ls")
    draw.text((right - 12, line), end, ink, _font(16), anchor="rs")
    free = right - left - 48 - _font(18, bold=True).getlength(start) - _font(16).getlength(end)
    if _font(16).getlength(middle) < free:
        draw.text(((left + right) // 2, line), middle, ink, _font(16), anchor="ms")


def _label(film: _Film, chunk: int | None, frames: list[int]) -> tuple[str, str, str]:
    """Left, middle and right of a panel's foot; the second half of a torn pair names its partner, not the price."""
    if chunk is None:
        return "dropped", "", ""
    pair, grid = film.allocation.frames[chunk], film.allocation.grids[chunk]
    scale, tokens = f"{film.allocation.scales[chunk]:.2f}×", f"{grid.tokens} tok"
    if len(set(pair)) == len(frames):
        return scale, f"{grid.rows}×{grid.cols}", tokens
    return scale, f"pair {chunk + 1}", tokens if frames[0] == pair[0] else f"with {film.time(pair[0])}"


def _fill(canvas: Image.Image, box: Box, colour: Colour, *, radius: int, opacity: float = 1.0) -> None:
    """A rounded rectangle with smooth corners, which Pillow alone draws jagged."""
    width, height = box[2] - box[0], box[3] - box[1]
    mask = Image.new("L", (width * 4, height * 4))
    shape = (0, 0, width * 4 - 1, height * 4 - 1)
    ImageDraw.Draw(mask).rounded_rectangle(shape, radius * 4, round(255 * opacity))
    canvas.paste(colour, box[:2], mask.resize((width, height), Image.Resampling.BOX))


@cache
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    from matplotlib import get_data_path

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(get_data_path(), "fonts", "ttf", name)), size)


def _shorten(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text.rstrip() + "…"


# ---------------------------------------------------------------------------------------------------------- the page

_SHOWN_SIDE = 720  # pixels of the longer side of an embedded frame: 24 pairs of pictures stay under 3 MB
_JPEG_QUALITY = 74


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
    most = max(allocation.cost, allocation.budget)
    spare = max(0, allocation.budget - allocation.cost)
    tall = max(*(grid.tokens for grid in allocation.grids), allocation.native.tokens) * 1.06
    firsts = {pair[0]: chunk for chunk, pair in enumerate(allocation.frames)}
    cards = (
        _chunk_card(film, firsts[frame]) if frame in firsts else _dropped_card(film, frame)
        for frame, owner in enumerate(film.owners)
        if frame in firsts or owner is None
    )
    page = Template(resources.files("allocembed").joinpath("film.html").read_text(encoding="utf-8"))
    filled = page.substitute(
        title=html.escape(film.title),
        facts=" · ".join(f"<span>{html.escape(fact)}</span>" for fact in film.facts),
        story=_story(film),
        spent=f"{allocation.cost:,}",
        budget=f"{allocation.budget:,}",
        relative=film.relative,
        over="over" if allocation.cost > allocation.budget else "within",
        mark=f"{100 * allocation.budget / most:.3f}",
        segments="".join(
            f'<i data-chunk="{chunk}" style="flex:{grid.tokens};background:{_css(film.colour(chunk))}"></i>'
            for chunk, grid in enumerate(allocation.grids)
        )
        + f'<i class="spare" style="flex:{spare}"></i>',
        gradient=",".join(_css(tuple(stop)) for stop in _STOPS.tolist()),
        ticks="".join(f'<b style="left:{100 * _place(s):.1f}%">{s:.1f}×</b>' for s in LEGEND_SCALES),
        bars="".join(_bars(film, tall)),
        native=allocation.native.tokens,
        native_height=f"{100 * allocation.native.tokens / tall:.2f}",
        times="".join(
            f"<span>{format_time(film.seconds * quarter / 4, tenths=film.seconds < 8)}</span>" for quarter in range(5)
        ),
        shape="portrait" if clip.height > clip.width else "landscape",
        ratio=f"{clip.width} / {clip.height}",
        views="" if factor else "hidden",
        cards="".join(cards),
    )
    Path(path).write_text(filled, encoding="utf-8")


def _story(film: _Film) -> str:
    """The one sentence under the heading."""
    small, large = min(film.allocation.scales), max(film.allocation.scales)
    span = f"at {small:.2f}×" if f"{small:.2f}" == f"{large:.2f}" else f"at {small:.2f}× to {large:.2f}×"
    dropped = f"{film.dropped} of its {len(film.clip)} candidate frames are dropped and the rest" if film.dropped else ""
    who = dropped or f"its {_count(len(film.clip), 'frame')}"
    return f"The model reads this video in chunks of two frames: {who} are read {span} of native resolution."


def _bars(film: _Film, tall: float) -> Iterator[str]:
    """Bars over the time each candidate stands for; a torn pair has two, of which the keyboard meets the first."""
    times = np.asarray(film.clip.times, dtype=np.float64)
    edges = np.concatenate([[0.0], (times[1:] + times[:-1]) / 2, [film.seconds]]) * 100 / film.seconds
    for chunk, frames in film.runs(range(len(times))):
        if chunk is None:
            continue
        left, right = edges[frames[0]], edges[frames[-1] + 1]
        height = 100 * film.allocation.grids[chunk].tokens / tall
        place = f"left:{left:.3f}%;width:{right - left:.3f}%;height:{height:.2f}%"
        again = ' tabindex="-1" aria-hidden="true"' if frames[0] != film.allocation.frames[chunk][0] else ""
        said = html.escape(_said(film, chunk))
        yield f'<a href="#chunk-{chunk}" data-chunk="{chunk}" aria-label="{said}" title="{said}"{again} '
        yield f'style="{place};--c:{_css(film.colour(chunk))}"></a>'


def _said(film: _Film, chunk: int) -> str:
    grid = film.allocation.grids[chunk]
    times = " – ".join(film.time(frame) for frame in dict.fromkeys(film.allocation.frames[chunk]))
    return f"{times}: {film.allocation.scales[chunk]:.2f}×, {grid.rows}×{grid.cols}, {grid.tokens} tokens"


def _chunk_card(film: _Film, chunk: int) -> str:
    grid, colour = film.allocation.grids[chunk], film.colour(chunk)
    frames = list(dict.fromkeys(film.allocation.frames[chunk]))
    style = f"--c:{_css(colour)};--ink:{_css(_ink(colour))};--rows:{grid.rows};--cols:{grid.cols}"
    return (
        f'<li id="chunk-{chunk}" class="card of{len(frames)}" data-chunk="{chunk}" data-tokens="{grid.tokens}"'
        f' tabindex="-1" style="{style}"><div class="frames">'
        + "".join(_frame(film, frame, grid) for frame in frames)
        + f"</div><p><strong>{film.allocation.scales[chunk]:.2f}×</strong>"
        f"<span>{grid.rows}×{grid.cols}</span><span>{grid.tokens} tokens</span></p></li>\n"
    )


def _dropped_card(film: _Film, frame: int) -> str:
    return (
        f'<li class="card of1 dropped" data-tokens="0"><div class="frames">{_frame(film, frame, None)}</div>'
        "<p><span>dropped</span></p></li>\n"
    )


def _frame(film: _Film, frame: int, grid: Grid | None) -> str:
    """One frame that opens the comparison; the model's view is embedded only where it shows less than the original."""
    original = Image.fromarray(film.clip.frames[frame])
    original.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE), Image.Resampling.BICUBIC)
    stamp = film.time(frame)
    pictures = f'<img class="original" alt="" src="{_data_uri(original)}">'
    said = f"Frame at {stamp}"
    if film.factor and grid:
        seen = film.seen(frame)
        said += f", {grid.cols * film.factor}×{grid.rows * film.factor} pixels"
        if seen.width < original.width or seen.height < original.height:
            pictures += f'<img class="seen" alt="" src="{_data_uri(seen)}">'
    return f'<button type="button" aria-label="{said}">{pictures}<i class="mesh"></i><time>{stamp}</time></button>'


def _data_uri(picture: Image.Image) -> str:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=_JPEG_QUALITY, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _css(colour: Colour) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
