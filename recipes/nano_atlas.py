"""Draw the pictures of the toy world: object sprites, word sprites and a bank of backgrounds.

    python recipes/nano_atlas.py        writes packages/allocembed-nano/allocembed_nano/assets/nano-world/atlas.npz

The result is bundled, so that the world does not depend on the installed versions of Pillow and of the fonts
(matplotlib's copy of DejaVu). A test draws it again and compares.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch

from allocembed_nano.world import vocabulary as vocab
from allocembed_nano.world.atlas import (
    BANK_HEIGHT,
    BANK_WIDTH,
    BUNDLED,
    OBJECT_GLYPH,
    OBJECT_SIDE,
    WORD_HEIGHT,
    WORD_LETTERS,
    WORD_WIDTH,
    Atlas,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw


def build_atlas() -> Atlas:
    """Rasterise all pictures. The result is the same on every call."""
    objects = [_object_sprite(glyph) for glyph in (*vocab.GLYPHS.values(), *vocab.FILLER_GLYPHS.values())]
    words = [_word_sprite(word) for word in (*vocab.WORDS, *vocab.FILLER_WORDS)]
    pictures = [
        _place(draw_place, np.random.default_rng([7, number, variant]))
        for number, draw_place in enumerate(_PLACE_PAINTERS[name] for name in vocab.PLACES)
        for variant in range(vocab.PLACE_VARIANTS)
    ]
    pictures += [_busy(number) for number in range(vocab.BUSY_PICTURES)]
    pictures += [_card(number) for number in range(vocab.CARD_PICTURES)]
    bank = np.stack(pictures).transpose(0, 3, 1, 2)
    return Atlas(
        objects=torch.from_numpy(np.stack(objects)),
        words=torch.from_numpy(np.stack(words)),
        pictures=torch.from_numpy(np.ascontiguousarray(bank)),
    )


def _ink(text: str, size: int, stroke: int) -> Image:
    """A text as a tightly cropped grey image."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    for name in ("DejaVuSans-Bold.ttf", "DejaVuSans.ttf"):
        font = ImageFont.truetype(str(folder / name), size)
        # A font draws every missing character like this one, which is never assigned.
        drawn, missing = (bytes(cast(Any, font.getmask(each))) for each in (text, "\uffff"))
        if drawn != missing:
            break
    else:
        raise ValueError(f"no DejaVu Sans font has {text!r}; choose another character")
    left, top, right, bottom = font.getbbox(text, stroke_width=stroke)
    image = Image.new("L", (int(right - left) + 8, int(bottom - top) + 8))
    ImageDraw.Draw(image).text((4 - left, 4 - top), text, fill=255, font=font, stroke_width=stroke)
    return image.crop(image.getbbox())


def _object_sprite(glyph: str) -> np.ndarray:
    from PIL import Image

    # The stroke thickens outlines, which would otherwise disappear at 16 pixels.
    ink = _ink(glyph, size=256, stroke=4)
    scale = OBJECT_GLYPH / max(ink.size)
    ink = ink.resize([max(1, round(side * scale)) for side in ink.size], Image.Resampling.LANCZOS)
    sprite = Image.new("L", (OBJECT_SIDE, OBJECT_SIDE))
    sprite.paste(ink, ((OBJECT_SIDE - ink.width) // 2, (OBJECT_SIDE - ink.height) // 2))
    return np.asarray(sprite)


def _word_sprite(word: str) -> np.ndarray:
    from PIL import Image

    ink = _ink(word, size=96, stroke=0)
    # Narrowed if needed so that no letter is wider than high: `timeline` relies on it.
    width = min(round(ink.width * WORD_LETTERS / ink.height), WORD_LETTERS * len(word))
    ink = ink.resize((width, WORD_LETTERS), Image.Resampling.LANCZOS)
    sprite = Image.new("L", (WORD_WIDTH, WORD_HEIGHT))
    sprite.paste(ink, ((WORD_WIDTH - width) // 2, (WORD_HEIGHT - WORD_LETTERS) // 2))
    return np.asarray(sprite)


def _smooth_noise(rng: np.random.Generator, cells: int) -> np.ndarray:
    """(288, 384) noise in -1..1 with `cells` cells along the height."""
    from PIL import Image

    values = rng.uniform(-1, 1, (cells + 1, cells * 4 // 3 + 1)).astype(np.float32)
    return np.asarray(Image.fromarray(values).resize((2 * BANK_WIDTH, 2 * BANK_HEIGHT), Image.Resampling.BICUBIC))


def _gradient(top: tuple[int, ...], bottom: tuple[int, ...]) -> Image:
    from PIL import Image

    mix = np.linspace(0, 1, 2 * BANK_HEIGHT)[:, None, None]
    column = np.array(top) * (1 - mix) + np.array(bottom) * mix
    return Image.fromarray(np.broadcast_to(column, (2 * BANK_HEIGHT, 2 * BANK_WIDTH, 3)).astype(np.uint8))


def _finish(image: Image) -> np.ndarray:
    """Reduce a picture painted at twice its size, which smooths the edges."""
    from PIL import Image

    return np.asarray(image.resize((BANK_WIDTH, BANK_HEIGHT), Image.Resampling.BOX))


_Painter = Callable[["ImageDraw", np.random.Generator, int], None]


def _place(painter: tuple[tuple[int, ...], tuple[int, ...], _Painter], rng: np.random.Generator) -> np.ndarray:
    from PIL import Image, ImageDraw

    top, bottom, paint = painter
    image = _gradient(top, bottom)
    horizon = int(rng.integers(120, 180))
    paint(ImageDraw.Draw(image), rng, horizon)
    shade = 1 + 0.10 * _smooth_noise(rng, 4) + 0.05 * _smooth_noise(rng, 16)
    tint = rng.uniform(0.93, 1.07, 3)
    return _finish(Image.fromarray(np.clip(np.asarray(image) * shade[..., None] * tint, 0, 255).astype(np.uint8)))


def _ridge(rng: np.random.Generator, base: int, height: int) -> list[tuple[float, float]]:
    """A wavy line from left to right, closed along the bottom."""
    x = np.arange(-4, 392, 4)
    phase, length = rng.uniform(0, 6.3, 2), rng.uniform(50, 110)
    y = base - height * (0.5 + 0.35 * np.sin(x / length + phase[0]) + 0.15 * np.sin(2.7 * x / length + phase[1]))
    return [*zip(x.tolist(), y.tolist(), strict=True), (400, 300), (-8, 300)]


def _beach(canvas: ImageDraw, rng: np.random.Generator, horizon: int) -> None:
    shore = horizon + int(rng.integers(35, 60))
    canvas.rectangle((0, horizon - 30, 384, 288), fill=(20, 120, 190))
    for y in range(horizon - 20, shore, 12):
        x = int(rng.integers(0, 384))
        canvas.line((x - 50, y, x + 50, y), fill=(150, 210, 240), width=3)
    canvas.polygon(_ridge(rng, shore + 10, 14), fill=(245, 250, 250))
    canvas.polygon(_ridge(rng, shore + 22, 14), fill=(238, 214, 160))
    x = int(rng.integers(40, 340))
    canvas.ellipse((x - 22, 16, x + 22, 60), fill=(255, 244, 180))


def _forest(canvas: ImageDraw, rng: np.random.Generator, horizon: int) -> None:
    canvas.rectangle((0, horizon + 60, 384, 288), fill=(42, 66, 28))
    for x in rng.permutation(np.arange(0, 400, 32)) + rng.integers(-10, 10, 13):
        width, foot = int(rng.integers(7, 13)), int(horizon + rng.integers(60, 120))
        canvas.rectangle((x - width, 0, x + width, foot), fill=(74, 48, 28))
        for _ in range(3):
            y, r = int(rng.integers(-20, 70)), int(rng.integers(28, 48))
            green = int(rng.integers(60, 110))
            canvas.ellipse((x - r, y - r, x + r, y + r), fill=(14, green, 26))


def _desert(canvas: ImageDraw, rng: np.random.Generator, horizon: int) -> None:
    x = int(rng.integers(60, 320))
    canvas.ellipse((x - 30, 20, x + 30, 80), fill=(255, 236, 170))
    for step, sand in enumerate(((222, 150, 78), (206, 128, 58), (188, 108, 44))):
        canvas.polygon(_ridge(rng, horizon + 10 + 50 * step, 60), fill=sand)
    for x in rng.integers(30, 350, 2):
        y = horizon + int(rng.integers(10, 50))
        canvas.rounded_rectangle((x - 7, y - 50, x + 7, y + 20), 7, fill=(60, 104, 56))
        canvas.rounded_rectangle((x - 24, y - 36, x - 14, y - 8), 5, fill=(60, 104, 56))
        canvas.rectangle((x - 24, y - 14, x, y - 6), fill=(60, 104, 56))


def _night(canvas: ImageDraw, rng: np.random.Generator, horizon: int) -> None:
    for x, y in rng.integers(0, (384, 170), (60, 2)):
        canvas.ellipse((x - 1, y - 1, x + 2, y + 2), fill=(220, 220, 200))
    x = int(rng.integers(40, 340))
    canvas.ellipse((x - 24, 22, x + 24, 70), fill=(236, 232, 200))
    canvas.polygon(_ridge(rng, horizon + 70, 60), fill=(10, 12, 26))
    canvas.polygon(_ridge(rng, horizon + 110, 50), fill=(5, 6, 14))


def _snow(canvas: ImageDraw, rng: np.random.Generator, horizon: int) -> None:
    canvas.polygon(_ridge(rng, horizon + 20, 70), fill=(206, 216, 230))
    canvas.polygon(_ridge(rng, horizon + 50, 30), fill=(240, 244, 250))
    for x in rng.integers(10, 374, 5):
        y, r = int(horizon + rng.integers(20, 90)), int(rng.integers(20, 34))
        for step in range(3):
            top, half = y - (3 - step) * r, r * (2 + step) // 4
            canvas.polygon(((x, top - r), (x - half, top + r // 2), (x + half, top + r // 2)), fill=(96, 130, 132))
            canvas.polygon(((x, top - r), (x - half // 2, top), (x + half // 2, top)), fill=(246, 250, 255))
    for x, y in rng.integers(0, (384, 288), (60, 2)):
        canvas.ellipse((x - 2, y - 2, x + 2, y + 2), fill=(255, 255, 255))


def _city(canvas: ImageDraw, rng: np.random.Generator, horizon: int) -> None:
    ground = horizon + 70
    left = -10
    while left < 384:
        width, height = int(rng.integers(40, 76)), int(rng.integers(90, 190))
        grey = int(rng.integers(70, 140))
        canvas.rectangle((left, ground - height, left + width, ground), fill=(grey, grey, grey + 12))
        for x in range(left + 7, left + width - 9, 15):
            for y in range(ground - height + 8, ground - 12, 18):
                lit = rng.random() < 0.4
                canvas.rectangle((x, y, x + 7, y + 9), fill=(240, 220, 140) if lit else (50, 56, 70))
        left += width + int(rng.integers(2, 10))
    canvas.rectangle((0, ground, 384, ground + 14), fill=(160, 156, 150))
    canvas.rectangle((0, ground + 14, 384, 288), fill=(58, 58, 62))
    for x in range(int(rng.integers(-40, 0)), 384, 60):
        canvas.rectangle((x, ground + 38, x + 32, ground + 43), fill=(220, 216, 200))


def _meadow(canvas: ImageDraw, rng: np.random.Generator, horizon: int) -> None:
    canvas.polygon(_ridge(rng, horizon, 50), fill=(120, 178, 76))
    canvas.polygon(_ridge(rng, horizon + 30, 24), fill=(92, 168, 48))
    for x in rng.integers(20, 364, 3):
        y = int(rng.integers(24, 70))
        for step in (-22, 0, 22):
            canvas.ellipse((x + step - 18, y - 10, x + step + 18, y + 12), fill=(246, 248, 252))
    for x, y in rng.integers((0, horizon + 40), (384, 288), (70, 2)):
        petal = ((250, 210, 60), (240, 240, 240), (226, 110, 150))[int(rng.integers(3))]
        canvas.ellipse((x - 3, y - 3, x + 3, y + 3), fill=petal)


def _room(canvas: ImageDraw, rng: np.random.Generator, horizon: int) -> None:
    floor = horizon + 60
    canvas.rectangle((0, floor, 384, 288), fill=(134, 90, 56))
    for x in range(-200, 584, 48):
        canvas.line((x + (192 - x) // 4, floor, x, 288), fill=(108, 70, 42), width=3)
    canvas.rectangle((0, floor - 8, 384, floor), fill=(240, 232, 220))
    x = int(rng.integers(30, 120))
    canvas.rectangle((x, 26, x + 90, 120), fill=(244, 240, 232))
    canvas.rectangle((x + 7, 33, x + 83, 113), fill=(150, 200, 236))
    canvas.rectangle((x + 42, 26, x + 48, 120), fill=(244, 240, 232))
    x, sofa = int(rng.integers(170, 230)), ((120, 60, 70), (70, 90, 120), (96, 110, 80))[int(rng.integers(3))]
    canvas.rounded_rectangle((x, floor - 62, x + 140, floor + 22), 16, fill=sofa)
    canvas.rounded_rectangle((x - 12, floor - 30, x + 152, floor + 30), 14, fill=tuple(c - 24 for c in sofa))


_PLACE_PAINTERS = {
    "beach": ((130, 200, 240), (210, 236, 248), _beach),
    "forest": ((50, 90, 50), (90, 120, 60), _forest),
    "desert": ((250, 190, 110), (252, 226, 170), _desert),
    "night": ((8, 10, 40), (30, 30, 80), _night),
    "snow": ((176, 192, 214), (226, 232, 240), _snow),
    "city": ((150, 166, 188), (206, 206, 210), _city),
    "meadow": ((90, 170, 236), (190, 222, 246), _meadow),
    "room": ((222, 196, 168), (206, 176, 150), _room),
}


def _busy(number: int) -> np.ndarray:
    """A sharp texture without meaning, so that sharpness alone does not reveal an event."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng([11, number])
    y, x = np.mgrid[: 2 * BANK_HEIGHT, : 2 * BANK_WIDTH]
    one = rng.integers(0, 256, 3)
    two = (one + rng.integers(80, 177, 3)) % 256
    pitch = int(rng.integers(10, 30))
    style = number % 6
    if style == 0:
        angle = rng.uniform(0, np.pi)
        pattern = (np.cos(angle) * x + np.sin(angle) * y) // (pitch // 2) % 2
        return _finish(Image.fromarray(np.where(pattern[..., None] > 0, one, two).astype(np.uint8)))
    if style == 1:
        pattern = (x // pitch + y // pitch) % 2
        return _finish(Image.fromarray(np.where(pattern[..., None] > 0, one, two).astype(np.uint8)))
    if style == 2:
        plaid = 0.5 * one * (x // pitch % 2)[..., None] + 0.5 * two * (y // (pitch + 6) % 2)[..., None] + 40
        return _finish(Image.fromarray(np.clip(plaid, 0, 255).astype(np.uint8)))
    if style == 3:
        grains = rng.integers(0, 256, (2 * BANK_HEIGHT // 4, 2 * BANK_WIDTH // 4, 3)).astype(np.uint8)
        return _finish(Image.fromarray(grains).resize((2 * BANK_WIDTH, 2 * BANK_HEIGHT), Image.Resampling.NEAREST))
    image = Image.new("RGB", (2 * BANK_WIDTH, 2 * BANK_HEIGHT), tuple(one.tolist()))
    if style == 4:
        canvas = ImageDraw.Draw(image)
        for left, top, width, height in rng.integers((0, 0, 6, 6), (384, 288, 26, 26), (500, 4)).tolist():
            canvas.ellipse((left, top, left + width, top + height), fill=tuple(rng.integers(0, 256, 3).tolist()))
        return _finish(image)
    sprites = [Image.fromarray(_object_sprite(glyph)) for glyph in vocab.FILLER_GLYPHS.values()]
    for left, top, side, which in rng.integers((-20, -20, 24, 0), (384, 288, 60, len(sprites)), (180, 4)).tolist():
        colour = tuple(rng.integers(0, 256, 3).tolist())
        image.paste(colour, (left, top), sprites[which].resize((side, side)))
    return _finish(image)


def _card(number: int) -> np.ndarray:
    """A station card. Its content is in the middle 108 columns, which a portrait crop keeps."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng([13, number])
    dark, light = rng.integers(10, 110, 3), rng.integers(150, 256, 3)
    image = _gradient(tuple(dark), tuple(dark + 60))
    canvas = ImageDraw.Draw(image)
    if number % 3 == 0:
        canvas.ellipse((92, 10, 292, 210), fill=tuple((dark // 2).tolist()))
    elif number % 3 == 1:
        canvas.polygon(((0, 288), (384, 288), (384, 120)), fill=tuple((dark + 90).tolist()))
    else:
        canvas.rectangle((100, 14, 284, 274), outline=tuple(light.tolist()), width=6)
    glyph = list(vocab.FILLER_GLYPHS.values())[number % len(vocab.FILLER_GLYPHS)]
    logo = Image.fromarray(_object_sprite(glyph)).resize((150, 150), Image.Resampling.BICUBIC)
    image.paste(tuple(light.tolist()), (117, 34), logo)
    name = Image.fromarray(_word_sprite(vocab.FILLER_WORDS[number % len(vocab.FILLER_WORDS)]))
    image.paste((250, 250, 250), (96, 210), name)
    return _finish(image)


if __name__ == "__main__":
    BUNDLED.parent.mkdir(parents=True, exist_ok=True)
    print(build_atlas().save(BUNDLED))
