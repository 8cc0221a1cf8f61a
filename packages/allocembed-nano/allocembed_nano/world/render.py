"""Render timelines to frames in torch, batched over all frames of all videos.

A frame is a background picture seen by a moving camera, an object with a dark outline, a sign with a word, and sensor
noise. Positions are in units of the frame's short side, and sprites are prefiltered for the size at which they are
shown. A frame therefore looks the same at any resolution, only sharper.
"""

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from allocembed_nano.world import vocabulary as vocab
from allocembed_nano.world.atlas import (
    BANK_HEIGHT,
    BANK_WIDTH,
    LEVELS,
    OBJECT_GLYPH,
    OBJECT_SIDE,
    WORD_HEIGHT,
    WORD_WIDTH,
    Atlas,
    load_atlas,
    pyramid,
)
from allocembed_nano.world.timeline import PLATE_HEIGHT, PLATE_PADDING, Scene, Timelines, slots_at

LANDSCAPE = (144, 192)
PORTRAIT = (192, 144)
_NOISE_FRAMES = 16
_NOISE_LEVEL = 2.5
_FADE_SHARE = 0.1
# A fade starts from this brightness, not from black, so that an event is always visible.
_FADE_FLOOR = 0.2
# Cells along the short side of a blurred transition.
_BLUR_CELLS = 18
# A bias towards sharper levels keeps small letters legible at the cost of slight aliasing.
_LEVEL_BIAS = -0.5
_OUTLINE = (16.0, 16.0, 22.0)
# Values taken from the slot of a frame; `_COLUMNS` adds the computed ones.
_STORED = (
    *("picture", "object", "colour", "word", "plate", "object_size", "object_x", "object_y", "drift_x", "drift_y"),
    *("tilt", "word_size", "word_x", "word_y", "zoom", "shift_x", "shift_y", "pan_x", "pan_y"),
)
_COLUMNS = (*_STORED, "progress", "brightness", "noise")


@torch.no_grad()
def render(
    timelines: Timelines,
    fractions: np.ndarray,
    size: tuple[int, int] | None = None,
    atlas: Atlas | None = None,
    device: str | torch.device = "cpu",
    chunk: int | None = None,
) -> torch.Tensor:
    """Render B videos at (B, T) fractions, or at the same (T,) fractions each, to (B, T, 3, H, W) uint8.

    All videos must have the same orientation: select the portrait ones with `timelines.select(timelines.portrait)`.
    `size` is (H, W), by default 144 by 192 or its transpose. `chunk` frames are rendered at a time, which bounds the
    memory; the default suits the cache of a CPU or a large GPU.

    >>> from allocembed_nano.world.timeline import draw, sample_fractions
    >>> render(draw(2, seed=0), sample_fractions(3)).shape
    torch.Size([2, 3, 3, 144, 192])
    """
    portrait = bool(timelines.portrait.any())
    if portrait and not timelines.portrait.all():
        raise ValueError("cannot render mixed orientations; render timelines.select(timelines.portrait) separately")
    height, width = size or (PORTRAIT if portrait else LANDSCAPE)
    if (height > width) != portrait:
        raise ValueError(f"size={(height, width)} does not fit {'portrait' if portrait else 'landscape'} videos")
    device = torch.device(device)
    sprites = _sprites(atlas or load_atlas(str(device)), device)
    fractions = np.broadcast_to(np.asarray(fractions, float), (len(timelines), np.shape(fractions)[-1]))
    table, scene = _frame_table(timelines, fractions)
    chunk = chunk or (16 if device.type == "cpu" else 2048)
    frames = torch.empty((len(table), 3, height, width), dtype=torch.uint8, device=device)
    for first in range(0, len(table), chunk):
        part = slice(first, first + chunk)
        frames[part] = _render_rows(table[part], scene[part], (height, width), sprites, device)
    return frames.view(*fractions.shape, 3, height, width)


def _frame_table(timelines: Timelines, fractions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Drawing instructions of each frame, (B * T, columns) float32, and its scene (B * T,)."""
    slots = slots_at(timelines, fractions)
    start, end, scene, fade = (
        np.take_along_axis(values, slots, axis=1)
        for values in (timelines.start, timelines.end, timelines.scene, timelines.fade)
    )
    progress = (np.minimum(fractions, 1 - 1e-9) - start) / (end - start)
    ramp = np.minimum(1, np.minimum(progress, 1 - progress) / _FADE_SHARE)
    brightness = np.where(scene == Scene.BLACK, 0, np.where(fade, _FADE_FLOOR + (1 - _FADE_FLOOR) * ramp, 1))
    # Noise differs between adjacent frames and between videos, but must not depend on the rest of the batch.
    noise = np.floor(fractions * 7919 + timelines.end[:, :1] * 104729) % _NOISE_FRAMES
    stored = [np.take_along_axis(getattr(timelines, name), slots, axis=1) for name in _STORED]
    table = np.stack([*stored, progress, brightness, noise], axis=-1, dtype=np.float32, casting="unsafe")
    return table.reshape(-1, len(_COLUMNS)), scene.reshape(-1)


def _render_rows(
    table: np.ndarray, scene: np.ndarray, size: tuple[int, int], sprites: dict[str, torch.Tensor], device: torch.device
) -> torch.Tensor:
    rows = torch.from_numpy(table).to(device)
    column = dict(zip(_COLUMNS, rows.unbind(1), strict=True))
    canvas = _background(column, size, sprites)
    blurred = np.flatnonzero(scene == Scene.BLUR)
    if len(blurred):
        where = torch.from_numpy(blurred).to(device)
        canvas[where] = _blur(canvas[where])
    # Found on the host, so that there is no need to wait for a GPU.
    shows = {name: table[:, _COLUMNS.index(name)] >= 0 for name in ("object", "word")}
    for name, paint in (("object", _paint_object), ("word", _paint_word)):
        where = torch.from_numpy(np.flatnonzero(shows[name])).to(device)
        if len(where):
            chosen = {key: values[where] for key, values in column.items()}
            canvas[where] = paint(canvas[where], chosen, size, sprites)
    noise = _noise(size, str(device))[column["noise"].long()]
    canvas.add_(noise).mul_(column["brightness"][:, None, None, None])
    return canvas.add_(0.5).clamp_(0, 255).to(torch.uint8)


def _background(
    column: dict[str, torch.Tensor], size: tuple[int, int], sprites: dict[str, torch.Tensor]
) -> torch.Tensor:
    """(N, 3, H, W) float in 0..255: the largest crop with the aspect ratio of the frame, zoomed and shifted."""
    height, width = size
    fit = min(BANK_WIDTH / width, BANK_HEIGHT / height)
    reach_x = width * fit / BANK_WIDTH / column["zoom"]
    reach_y = height * fit / BANK_HEIGHT / column["zoom"]
    look_x = (column["shift_x"] + column["pan_x"] * column["progress"]) * (1 - reach_x)
    look_y = (column["shift_y"] + column["pan_y"] * column["progress"]) * (1 - reach_y)
    zero = torch.zeros_like(reach_x)
    pictures = sprites["pictures"][column["picture"].long()].float()
    return _sample(pictures, (reach_x, zero, look_x, zero, reach_y, look_y), size, padding="border")


def _blur(frames: torch.Tensor) -> torch.Tensor:
    height, width = frames.shape[-2:]
    cells = [round(side * _BLUR_CELLS / min(height, width)) for side in (height, width)]
    small = F.interpolate(frames, size=cells, mode="area")
    return F.interpolate(small, size=(height, width), mode="bilinear", align_corners=False)


def _paint_object(
    frames: torch.Tensor, column: dict[str, torch.Tensor], size: tuple[int, int], sprites: dict[str, torch.Tensor]
) -> torch.Tensor:
    short = min(size)
    half = column["object_size"] * (OBJECT_SIDE / OBJECT_GLYPH / 2)
    moved = column["progress"] - 0.5
    x, y = column["object_x"] + column["drift_x"] * moved, column["object_y"] + column["drift_y"] * moved
    cos, sin = torch.cos(column["tilt"]) / half, torch.sin(column["tilt"]) / half
    reach_x, reach_y = size[1] / short / 2, size[0] / short / 2
    theta = (
        *(cos * reach_x, sin * reach_y, cos * (reach_x - x) + sin * (reach_y - y)),
        *(-sin * reach_x, cos * reach_y, cos * (reach_y - y) - sin * (reach_x - x)),
    )
    texels = OBJECT_SIDE / (2 * half * short)
    coverage = _sample(_at_level(sprites["objects"], column["object"], texels), theta, size)
    outline = torch.tensor(_OUTLINE, device=frames.device).view(1, 3, 1, 1)
    colour = sprites["colours"][column["colour"].long()][..., None, None]
    return frames.lerp_(outline, coverage[:, 1:]).lerp_(colour, coverage[:, :1])


def _paint_word(
    frames: torch.Tensor, column: dict[str, torch.Tensor], size: tuple[int, int], sprites: dict[str, torch.Tensor]
) -> torch.Tensor:
    short = min(size)
    high = column["word_size"]
    word = column["word"].long()
    plate, letters = sprites["plates"][column["plate"].long()].unbind(1)
    half_width = (sprites["word_aspects"][word] + PLATE_PADDING) * high / 2
    across = _inside(size[1], short, column["word_x"], half_width)
    down = _inside(size[0], short, column["word_y"], PLATE_HEIGHT * high / 2)
    frames.lerp_(plate[..., None, None], (down[:, :, None] * across[:, None, :])[:, None])

    half_x, half_y = high * (WORD_WIDTH / WORD_HEIGHT / 2), high / 2
    reach_x, reach_y = size[1] / short / 2, size[0] / short / 2
    zero = torch.zeros_like(high)
    theta = (
        *(reach_x / half_x, zero, (reach_x - column["word_x"]) / half_x),
        *(zero, reach_y / half_y, (reach_y - column["word_y"]) / half_y),
    )
    texels = WORD_HEIGHT / (high * short)
    coverage = _sample(_at_level(sprites["words"], column["word"], texels), theta, size)
    return frames.lerp_(letters[..., None, None], coverage)


def _inside(pixels: int, short: int, centre: torch.Tensor, half: torch.Tensor) -> torch.Tensor:
    """(N, pixels) share of each pixel along one axis that is within `half` of `centre`, with smooth edges."""
    position = (torch.arange(pixels, device=centre.device) + 0.5) / short
    return ((half[:, None] - (position - centre[:, None]).abs()) * short + 0.5).clamp_(0, 1)


def _at_level(stack: torch.Tensor, index: torch.Tensor, texels: torch.Tensor) -> torch.Tensor:
    """(N, C, h, w): sprite `index` of an (M, LEVELS, C, h, w) stack, filtered for `texels` per pixel."""
    level = (torch.log2(texels) + _LEVEL_BIAS).clamp(0, LEVELS - 1)
    below = level.floor().clamp(max=LEVELS - 2)
    index, sharp = index.long(), below.long()
    return torch.lerp(stack[index, sharp], stack[index, sharp + 1], (level - below)[:, None, None, None])


def _sample(
    pictures: torch.Tensor, theta: tuple[torch.Tensor, ...], size: tuple[int, int], padding: str = "zeros"
) -> torch.Tensor:
    """Sample (N, C, h, w) pictures at every pixel of a frame through the affine map `theta` of six (N,) tensors."""
    height, width = size
    x = (torch.arange(width, device=pictures.device) + 0.5) * (2 / width) - 1
    y = (torch.arange(height, device=pictures.device) + 0.5) * (2 / height) - 1
    along_x, along_y, offset = torch.stack(theta, dim=1).view(-1, 1, 1, 2, 3).unbind(-1)
    # F.affine_grid multiplies matrices, which loses precision under autocast or TF32. Sums do not.
    grid = along_x * x[:, None] + (along_y * y[:, None, None] + offset)
    return F.grid_sample(pictures, grid, mode="bilinear", padding_mode=padding, align_corners=False)


@lru_cache(maxsize=4)
def _sprites(atlas: Atlas, device: torch.device) -> dict[str, torch.Tensor]:
    """The atlas in the form that the painters use, cached per atlas and device."""
    atlas = atlas.to(device)
    glyphs = atlas.objects[:, None].float() / 255
    outline = F.avg_pool2d(F.max_pool2d(glyphs, 5, stride=1, padding=2), 3, stride=1, padding=1)
    letters = atlas.words[:, None].float() / 255
    return {
        "pictures": atlas.pictures,
        "objects": pyramid(torch.cat([glyphs, outline], dim=1)),
        "words": pyramid(letters),
        "word_aspects": (atlas.words.amax(dim=1) > 0).sum(dim=1).float() / WORD_HEIGHT,
        "colours": torch.tensor(list(vocab.COLOUR_VALUES.values()), dtype=torch.float32, device=device),
        "plates": torch.tensor(vocab.PLATES, dtype=torch.float32, device=device),
    }


@lru_cache(maxsize=8)
def _noise(size: tuple[int, int], device: str) -> torch.Tensor:
    """(16, 1, H, W) brightness noise with the same grain size at any resolution."""
    grains = [round(side * min(LANDSCAPE) / min(size)) for side in size]
    generator = torch.Generator().manual_seed(17)
    noise = torch.randn((_NOISE_FRAMES, 1, *grains), generator=generator) * _NOISE_LEVEL
    return F.interpolate(noise, size=size, mode="bilinear", align_corners=False).to(device)
