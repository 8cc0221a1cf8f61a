"""What the world can show and say: objects, colours, words and places.

Objects are pictographs of the DejaVu Sans font that stay apart at 16 pixels: of any two glyphs whose 24-pixel
bitmaps correlated above about 0.85, one was left out. Fillers appear on screen but are never named in a text, so
nothing can be learned from reading them.
"""

import numpy as np

_OBJECTS = """
    ☀ sun, ☁ cloud, ☂ umbrella, ☃ snowman, ★ star, ⚡ lightning, ☎ telephone, ☕ coffee cup, ☘ shamrock,
    ☛ pointing hand, ☠ skull, ☢ radiation sign, ☣ biohazard sign, ☤ caduceus, ☥ ankh, ☪ crescent star,
    ☮ peace sign, ☯ yin yang, ☰ triple bar, ☸ ship wheel, ☹ sad face, ☻ smiley, ☾ moon, ♀ venus sign,
    ♂ mars sign, ♄ saturn, ♆ trident, ♈ ram horns, ♉ bull sign, ♊ gemini, ♋ cancer sign, ♌ lion sign,
    ♎ libra, ♏ scorpion, ♐ archer sign, ♒ waves, ♓ fish sign, ♚ chess king, ♛ chess queen, ♜ chess rook,
    ♝ chess bishop, ♞ chess knight, ♟ chess pawn, ♠ spade, ♥ heart, ♨ hot spring, ♪ music note,
    ♫ paired notes, ♻ recycling sign, ♿ wheelchair, ⚄ die five, ⚑ flag, ⚒ crossed hammers, ⚓ anchor,
    ⚔ swords, ⚖ scales, ⚗ flask, ⚘ tulip, ⚙ gear, ⚛ atom, ⚜ lily, ⚠ warning sign, ⚰ coffin, ⚱ urn,
    ⚭ linked rings, ⚷ key, ⛃ coin stack, ☗ shogi piece, ✂ scissors, ✇ tape reel, ✈ airplane, ✉ envelope,
    ✌ victory hand, ✍ writing hand, ✎ pencil, ✔ check mark, ✖ cross mark, ✚ plus sign, ✝ tall cross,
    ✠ maltese cross, ✡ hexagram, ✥ four clubs, ✦ sparkle, ✪ star badge, ✱ asterisk, ✸ eight star, ✹ burst,
    ✺ dandelion, ✿ blossom, ❀ daisy, ❂ wreath, ❄ snowflake, ❝ quotation mark, ❢ exclamation mark,
    ❦ ivy leaf, ❰ chevron, ➡ right arrow, ⬅ left arrow, ⬆ up arrow, ⬇ down arrow, ⬈ diagonal arrow,
    ➲ arrow badge, ↺ reload arrow, ↯ zigzag arrow, ↵ return arrow, ⇅ swap arrows, ⇝ wavy arrow,
    ⏏ eject button, ⌂ house, ⌘ knot, ⌨ keyboard, ■ square, ▶ play button, ▼ inverted triangle, ⇶ three arrows,
    ◎ bullseye, ○ ring, ◐ half circle, ◔ pie chart, ◍ striped circle, ▧ striped square, ▦ grid,
    ▣ picture frame, ◢ wedge, ▰ parallelogram, ⬖ split diamond, ◭ tent, ⬚ dotted square, ◫ window, ◠ arch,
    ◗ half disc, 🐭 mouse, 🐮 cow, 🐱 cat, 🐵 monkey, 😎 sunglasses face, 😷 masked face, 😈 devil face,
    & ampersand, ? question mark, @ at sign, $ dollar sign, € euro sign, £ pound sign, ¥ yen sign,
    % percent sign, # hash sign, ∞ infinity, Ω omega, Σ sigma, π pi, Λ lambda, ≈ wavy lines, ∴ three dots,
    🂡 ace card, ⋈ bowtie, ䷀ six bars, ꙮ rosette, ⌑ pillow, ◴ clock
"""

_FILLER_OBJECTS = """
    ♃ jupiter, ♇ pluto, ♑ capricorn, ⌬ benzene, § section sign, ¶ pilcrow, ‡ double dagger, Ψ psi, Φ phi,
    ⸘ interrobang, Ж zhe, ☧ chi rho
"""

_WORDS = """
    actor alarm album alert angle apple apron arena aspen atlas attic autumn bakery bamboo banana barrel
    basil basket beacon beaver berry blade bloom bonus border bottle branch brave bread breeze brick bridge
    bright brook brush bucket buffet bundle butter cabin cable cactus camel camera candle canoe canyon cargo
    carpet castle cedar cellar chain chalk charm cheese cherry circus clay clever cliff cocoa comedy coral
    corner cotton cousin cradle crane crayon cream crown cube dance dawn decade deer delta dinner donkey
    dragon drama drum eagle east echo elbow eleven ember engine falcon family famous farm fence fiddle field
    finger flame flavor fleet flour folder fossil fresh frost fruit funny galaxy garlic gentle giant glove
    goat grain grape gravel guitar hammer harbor hazel helmet hero hollow honest honey humble hunter iron
    island jacket jazz jelly jewel jungle junior kettle kitten ladder lake lamp laser lava lemon linen
    lizard lobby lucky magic magnet mango maple marble market mellow melon metal mint mirror modest motor
    muffin museum needle nickel noble north novel oasis ocean office olive opera orchid otter oven oyster
    paddle palace panda parrot party pastry peach peanut pearl pebble pepper piano picnic pigeon pilot
    pirate planet plaza pocket poem pony prince proud pulse puzzle quartz rabbit radio raven ribbon rice
    robin salad salmon satin school season secret shadow shell silent silk sister sketch soccer spider
    spiral stable statue stone storm sugar summer supper sweet talent temple tennis ticket tiger toast
    tunnel turtle twelve valley velvet violin voyage wagon walnut water wheat willow winter wisdom wonder
    youth zebra zenith
"""

_FILLER_WORDS = "nova apex zeta flux mega turbo pixel vertex lumen vista prime sonic"


def _glyph_table(text: str) -> dict[str, str]:
    entries = " ".join(text.split()).split(", ")
    return {name: glyph for glyph, name in (entry.split(" ", 1) for entry in entries)}


GLYPHS: dict[str, str] = _glyph_table(_OBJECTS)
"""Object name to its character; the order of the keys is the order of `OBJECTS`."""
OBJECTS: tuple[str, ...] = tuple(GLYPHS)
FILLER_GLYPHS: dict[str, str] = _glyph_table(_FILLER_OBJECTS)
FILLER_OBJECTS: tuple[str, ...] = tuple(FILLER_GLYPHS)

WORDS: tuple[str, ...] = tuple(_WORDS.upper().split())
"""Shown on signs, in capitals."""
FILLER_WORDS: tuple[str, ...] = tuple(_FILLER_WORDS.upper().split())

COLOUR_VALUES: dict[str, tuple[int, int, int]] = {
    "red": (226, 26, 30),
    "orange": (255, 132, 0),
    "yellow": (255, 232, 20),
    "green": (28, 178, 50),
    "cyan": (30, 226, 234),
    "blue": (34, 70, 236),
    "purple": (134, 34, 190),
    "pink": (255, 120, 200),
    "white": (252, 252, 252),
}
COLOURS: tuple[str, ...] = tuple(COLOUR_VALUES)

PLACE_PHRASES: dict[str, tuple[str, ...]] = {
    "beach": ("on the beach", "at the beach", "by the sea"),
    "forest": ("in the forest", "in the woods", "among the trees"),
    "desert": ("in the desert", "among sand dunes"),
    "night": ("at night", "under the night sky", "in the dark"),
    "snow": ("in the snow", "on a snowy field"),
    "city": ("in the city", "on a city street", "in town"),
    "meadow": ("in a meadow", "in the meadow", "on the grass"),
    "room": ("in a room", "inside a room", "indoors"),
}
"""The ways to say where something is; the first is the one used as an answer."""
PLACES: tuple[str, ...] = tuple(PLACE_PHRASES)

PLATES: tuple[tuple[tuple[int, int, int], tuple[int, int, int]], ...] = (
    ((250, 250, 250), (10, 10, 10)),
    ((12, 12, 16), (250, 250, 250)),
    ((255, 226, 60), (10, 10, 10)),
    ((16, 30, 92), (250, 250, 250)),
    ((120, 10, 16), (255, 250, 240)),
    ((8, 74, 36), (250, 250, 250)),
    ((246, 236, 206), (70, 30, 6)),
    ((198, 230, 255), (10, 24, 80)),
)
"""Sign styles: the colour of the plate and of its letters."""

# The bank of background pictures holds the variants of every place, then busy textures, then filler cards.
PLACE_VARIANTS = 6
BUSY_PICTURES = 32
CARD_PICTURES = 12
FIRST_BUSY = PLACE_VARIANTS * len(PLACES)
FIRST_CARD = FIRST_BUSY + BUSY_PICTURES

_HELD_OUT_SHARE = 0.12
_TABLE_SEED = 20240229


def _seen_table(columns: int, stream: int) -> np.ndarray:
    draws = np.random.default_rng([_TABLE_SEED, stream]).random((len(OBJECTS), columns))
    return draws >= _HELD_OUT_SHARE


SEEN_OBJECT_COLOUR: np.ndarray = _seen_table(len(COLOURS), 0)
"""(objects, colours) bool: pairs that training may show. The others appear only in the test split."""
SEEN_OBJECT_WORD: np.ndarray = _seen_table(len(WORDS), 1)
"""(objects, words) bool: as above for an object beside a sign."""
