"""Timelines: the scenes that each video shows, drawn at random in numpy for a whole batch.

A video is divided into slots. Every event has a fixed slot, with up to `PIECES` slots of other material before it and
after the last event. A slot of zero length is unused. With fixed slots every draw is an array operation, and batches of
different kinds can be joined. Lengths are in units of the frame's short side, so objects are equally large in landscape
and portrait videos. `render` makes the pixels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Literal

import numpy as np

from allocembed_nano.world import vocabulary as vocab

MAX_EVENTS = 8
PIECES = 3
SLOTS = PIECES + MAX_EVENTS * (PIECES + 1)
EVENT_SLOTS = PIECES + (PIECES + 1) * np.arange(MAX_EVENTS)
LONG_SIDE = 4 / 3

# Size of a glyph turned by 10 degrees, relative to an upright one. Its outline is inside the margin.
_TURNED = 1.16
_MARGIN = 0.015
# Size of the plate around the letters, relative to the height of the word sprite (see `atlas`).
PLATE_HEIGHT = 1.2
PLATE_PADDING = 0.5

Kind = Literal["short", "long"]
Split = Literal["train", "test"]
Orientation = Literal["landscape", "portrait", "mixed"]


class Scene(IntEnum):
    """The content of a slot. Texts mention only EVENT."""

    EVENT = 0
    PLACE = 1
    DECOY = 2
    CARD = 3
    BUSY = 4
    BLACK = 5
    BLUR = 6


@dataclass(frozen=True)
class WorldConfig:
    """The difficulty of the world. Ranges are inclusive (low, high) pairs."""

    duration: tuple[float, float] = (60, 300)
    """Seconds, log-uniform, rounded to whole seconds."""
    events: tuple[int, int] = (4, 5)
    event_length: tuple[float, float] = (0.035, 0.09)
    """Share of the video that one event takes."""
    adjacent: float = 0.12
    """Probability that one event directly follows another."""
    object_size: tuple[float, float] = (0.12, 0.48)
    """Size of the glyph, in short sides."""
    object_skew: float = 2.2
    """Sizes are low + (high - low) * u**skew. Values above 1 favour small objects."""
    word_size: tuple[float, float] = (0.064, 0.167)
    """Height of the word sprite, in short sides. The letters fill seven eighths of it."""
    word_skew: float = 1.8
    drift: float = 0.06
    """Largest distance that an object moves during its event, in short sides."""
    tilt: float = 10.0
    """Largest rotation of an object, in degrees."""
    fade: float = 0.3
    """Probability that an event fades in and out over a tenth of its length."""
    mixture: Mapping[Scene, float] = field(
        default_factory=lambda: {
            Scene.PLACE: 0.08,
            Scene.DECOY: 0.32,
            Scene.CARD: 0.14,
            Scene.BUSY: 0.36,
            Scene.BLACK: 0.05,
            Scene.BLUR: 0.05,
        }
    )
    """Relative weights of the scenes between events."""
    pieces: tuple[float, float, float] = (0.05, 0.25, 0.70)
    """Probabilities that a gap between events has one, two or three scenes."""

    def __post_init__(self) -> None:
        low, high = self.events
        if not 1 <= low <= high <= MAX_EVENTS:
            raise ValueError(f"events={self.events}: need 1 <= low <= high <= {MAX_EVENTS}")
        if high * self.event_length[1] > 0.9:
            raise ValueError(f"{high} events of length {self.event_length[1]} leave no room; lower one of them")


SHORT = WorldConfig()
LONG = replace(SHORT, duration=(600, 3600), events=(3, 4), event_length=(0.03, 0.065))
PRESETS: dict[str, WorldConfig] = {"short": SHORT, "long": LONG}


@dataclass(frozen=True)
class Timelines:
    """A batch of B videos. Every (B, SLOTS) array lists the slots in temporal order."""

    duration: np.ndarray
    """(B,) whole seconds."""
    portrait: np.ndarray
    """(B,) bool."""
    events: np.ndarray
    """(B,) number of events."""
    end: np.ndarray
    """(B, SLOTS) float64: where each slot ends, as a share of the video. The last is 1."""
    scene: np.ndarray
    """(B, SLOTS) of `Scene`."""
    place: np.ndarray
    picture: np.ndarray
    """Index of a background picture in the atlas."""
    object: np.ndarray
    """Index in OBJECTS + FILLER_OBJECTS, or -1 for none. The same holds for `word`."""
    colour: np.ndarray
    word: np.ndarray
    plate: np.ndarray
    object_size: np.ndarray
    object_x: np.ndarray
    object_y: np.ndarray
    drift_x: np.ndarray
    drift_y: np.ndarray
    tilt: np.ndarray
    """Radians."""
    word_size: np.ndarray
    word_x: np.ndarray
    word_y: np.ndarray
    zoom: np.ndarray
    shift_x: np.ndarray
    """Position of the camera at the start of the slot, from -1 to 1 within the range that the zoom leaves."""
    shift_y: np.ndarray
    pan_x: np.ndarray
    """Change of `shift_x` during the slot."""
    pan_y: np.ndarray
    fade: np.ndarray

    def __len__(self) -> int:
        return len(self.duration)

    @property
    def start(self) -> np.ndarray:
        """(B, SLOTS) where each slot begins, as a share of the video."""
        return np.concatenate([np.zeros_like(self.end[:, :1]), self.end[:, :-1]], axis=1)

    def select(self, indices: Sequence[int] | np.ndarray) -> "Timelines":
        """The videos at `indices`: integers, or a boolean mask."""
        chosen = np.asarray(indices)
        return Timelines(**{item.name: getattr(self, item.name)[chosen] for item in fields(self)})

    def moment(self, video: int, event: int) -> tuple[float, float]:
        """Start and end of an event of a video, in seconds.

        >>> start, end = draw(1, seed=0).moment(0, 0)
        >>> 0 <= start < end <= 300
        True
        """
        if not 0 <= event < self.events[video]:
            raise IndexError(f"event {event}: video {video} has events 0 to {self.events[video] - 1}")
        slot = EVENT_SLOTS[event]
        before = self.end[video, slot - 1]
        return float(before * self.duration[video]), float(self.end[video, slot] * self.duration[video])


def concat(parts: Sequence[Timelines]) -> Timelines:
    """Join batches of any kinds."""
    return Timelines(
        **{item.name: np.concatenate([getattr(p, item.name) for p in parts]) for item in fields(Timelines)}
    )


def draw(
    count: int,
    seed: int | Sequence[int],
    kind: Kind = "short",
    split: Split = "train",
    orientation: Orientation = "landscape",
    config: WorldConfig | None = None,
) -> Timelines:
    """Draw `count` videos. Equal arguments give equal videos.

    `config` replaces the preset of `kind`. Held-out combinations of object and colour, and of object and word, occur
    only in the test split.

    >>> batch = draw(3, seed=1, kind="long")
    >>> len(batch), batch.end.shape == (3, SLOTS), bool((batch.duration >= 600).all())
    (3, True, True)
    """
    for name, value, known in (
        ("kind", kind, tuple(PRESETS)),
        ("split", split, ("train", "test")),
        ("orientation", orientation, ("landscape", "portrait", "mixed")),
    ):
        if value not in known:
            raise ValueError(f"unknown {name} {value!r}; choose one of {known}")
    config = config or PRESETS[kind]
    stream = (int(kind == "long"), int(split == "test"))
    rng = np.random.default_rng([*np.atleast_1d(seed).tolist(), *stream])
    shape = (count, SLOTS)

    shortest, longest = np.log(config.duration)
    duration = np.round(np.exp(rng.uniform(shortest, longest, count))).astype(np.int64)
    portrait = {"landscape": np.zeros(count, bool), "portrait": np.ones(count, bool), "mixed": rng.random(count) < 0.5}[
        orientation
    ]
    events = rng.integers(config.events[0], config.events[1] + 1, count)
    scene = rng.choice(list(config.mixture), shape, p=_normalised(config.mixture.values()))
    scene[:, EVENT_SLOTS] = Scene.EVENT
    length = _lengths(rng, config, events, scene)
    end = np.cumsum(length, axis=1)
    end /= end[:, -1:]

    place = rng.integers(len(vocab.PLACES), size=shape)
    picture = place * vocab.PLACE_VARIANTS + rng.integers(vocab.PLACE_VARIANTS, size=shape)
    busy = vocab.FIRST_BUSY + rng.integers(vocab.BUSY_PICTURES, size=shape)
    card = vocab.FIRST_CARD + rng.integers(vocab.CARD_PICTURES, size=shape)
    picture = np.where(scene == Scene.BUSY, busy, np.where(scene == Scene.CARD, card, picture))
    # A blurred transition shows the picture of the last used slot before it.
    in_use = np.maximum.accumulate(np.where(length > 0, np.arange(SLOTS), 0), axis=1)
    before = np.concatenate([np.zeros_like(in_use[:, :1]), in_use[:, :-1]], axis=1)
    picture = np.where(scene == Scene.BLUR, np.take_along_axis(picture, before, axis=1), picture)

    things = _things(rng, scene, split)
    layout = _layout(rng, config, things, np.where(portrait, 1.0, LONG_SIDE), np.where(portrait, LONG_SIDE, 1.0))
    is_card = scene == Scene.CARD
    shift = rng.uniform(-1, 1, (2, *shape)) * ~is_card
    target = np.clip(shift + rng.uniform(-0.5, 0.5, (2, *shape)), -1, 1) * ~is_card
    camera = {
        "zoom": np.where(is_card, rng.uniform(1.0, 1.05, shape), rng.uniform(1.0, 1.35, shape)),
        "shift_x": shift[0],
        "shift_y": shift[1],
        "pan_x": target[0] - shift[0],
        "pan_y": target[1] - shift[1],
    }
    small = {name: values.astype(np.float32) for name, values in (layout | camera).items()}
    return Timelines(
        duration=duration,
        portrait=portrait,
        events=events,
        end=end,
        scene=scene.astype(np.int8),
        place=place,
        picture=picture,
        fade=(scene == Scene.EVENT) & (rng.random(shape) < config.fade),
        **things,
        **small,
    )


def sample_fractions(count: int) -> np.ndarray:
    """(count,) positions of evenly spaced candidates: frame i of n is at i / (n - 1).

    >>> sample_fractions(5).tolist()
    [0.0, 0.25, 0.5, 0.75, 1.0]
    """
    return np.linspace(0.0, 1.0, count)


def slots_at(timelines: Timelines, fractions: np.ndarray) -> np.ndarray:
    """(B, T) slot on screen at each of the (B, T) fractions, or at the same (T,) fractions of every video."""
    times = np.minimum(np.broadcast_to(fractions, (len(timelines), np.shape(fractions)[-1])), 1 - 1e-9)
    return (timelines.end[:, None, :] <= times[:, :, None]).sum(axis=-1)


def events_at(timelines: Timelines, fractions: np.ndarray) -> np.ndarray:
    """(B, T) number of the event on screen at each of the (B, T) fractions; -1 between events.

    >>> batch = draw(1, seed=0)
    >>> start, end = batch.moment(0, 2)
    >>> events_at(batch, np.array([[(start + end) / 2 / batch.duration[0]]])).item()
    2
    """
    slots = slots_at(timelines, fractions)
    number = np.full(SLOTS, -1)
    number[EVENT_SLOTS] = np.arange(MAX_EVENTS)
    return number[slots]


def _normalised(weights: Iterable[float]) -> np.ndarray:
    values = np.array(list(weights), dtype=float)
    return values / values.sum()


def _lengths(rng: np.random.Generator, config: WorldConfig, events: np.ndarray, scene: np.ndarray) -> np.ndarray:
    """(B, SLOTS) length of each slot as a share of the video, zero if unused."""
    count = len(events)
    length = np.zeros((count, SLOTS))
    active = np.arange(MAX_EVENTS) < events[:, None]
    length[:, EVENT_SLOTS] = rng.uniform(*config.event_length, (count, MAX_EVENTS)) * active
    rest = 1 - length.sum(axis=1)

    gaps = rng.gamma(1.5, size=(count, MAX_EVENTS + 1)) + 0.05
    inner = np.arange(MAX_EVENTS + 1)
    touching = (rng.random(gaps.shape) < config.adjacent) & (inner > 0) & (inner < events[:, None])
    gaps *= (inner <= events[:, None]) & ~touching
    used = rng.choice(PIECES, gaps.shape, p=_normalised(config.pieces)) + 1
    share = rng.uniform(0.3, 1.0, (*gaps.shape, PIECES)) * (np.arange(PIECES) < used[..., None])
    is_event = np.zeros(SLOTS, bool)
    is_event[EVENT_SLOTS] = True
    # Black and blur are transitions: shorter than the scenes around them.
    passing = np.isin(scene[:, ~is_event], (Scene.BLACK, Scene.BLUR))
    other = (gaps[..., None] * share).reshape(count, -1) * np.where(passing, 0.25, 1.0)
    length[:, ~is_event] = other * (rest / other.sum(axis=1))[:, None]
    return length


def _things(rng: np.random.Generator, scene: np.ndarray, split: Split) -> dict[str, np.ndarray]:
    """Objects and words of each slot: distinct within a video for events, fillers for decoys."""
    count = len(scene)
    objects, words = len(vocab.OBJECTS), len(vocab.WORDS)
    every = split == "test"
    event_object = rng.random((count, objects)).argpartition(MAX_EVENTS, axis=1)[:, :MAX_EVENTS]
    allowed = vocab.SEEN_OBJECT_COLOUR[event_object] | every
    event_colour = (rng.random((count, MAX_EVENTS, len(vocab.COLOURS))) * allowed).argmax(axis=-1)
    event_word = np.empty((count, MAX_EVENTS), dtype=np.int64)
    score = rng.random((count, words))
    for event in range(MAX_EVENTS):
        event_word[:, event] = (score * (vocab.SEEN_OBJECT_WORD[event_object[:, event]] | every)).argmax(axis=1)
        score[np.arange(count), event_word[:, event]] = 0

    # A decoy shows an object, a sign, or both.
    decoy = scene == Scene.DECOY
    shown = rng.choice(3, scene.shape)
    filler_object = objects + rng.integers(len(vocab.FILLER_OBJECTS), size=scene.shape)
    filler_word = words + rng.integers(len(vocab.FILLER_WORDS), size=scene.shape)
    object_ = np.where(decoy & (shown != 1), filler_object, -1)
    word = np.where(decoy & (shown != 0), filler_word, -1)
    colour = rng.integers(len(vocab.COLOURS), size=scene.shape)
    object_[:, EVENT_SLOTS] = event_object
    word[:, EVENT_SLOTS] = event_word
    colour[:, EVENT_SLOTS] = event_colour
    plate = rng.integers(len(vocab.PLATES), size=scene.shape)
    return {"object": object_, "colour": colour, "word": word, "plate": plate}


def _layout(
    rng: np.random.Generator, config: WorldConfig, things: dict[str, np.ndarray], width: np.ndarray, height: np.ndarray
) -> dict[str, np.ndarray]:
    """Sizes and centres of object and sign, without overlap and within a frame of `width` by `height` (B,)."""
    shape = things["object"].shape
    width, height = width[:, None], height[:, None]
    letters = np.array([len(word) for word in (*vocab.WORDS, *vocab.FILLER_WORDS)])[things["word"]]

    def skewed(limits: tuple[float, float], skew: float) -> np.ndarray:
        return limits[0] + (limits[1] - limits[0]) * rng.random(shape) ** skew

    size = skewed(config.object_size, config.object_skew)
    # A letter is at most as wide as high, which bounds the plate for any font.
    plate_aspect = letters + PLATE_PADDING
    word = np.minimum(skewed(config.word_size, config.word_skew), (width - 2 * _MARGIN) / plate_aspect)
    drift = rng.uniform(-1, 1, (2, *shape)) * config.drift / np.sqrt(2)
    box = _TURNED * size + np.abs(drift).max(axis=0)
    shrink = np.minimum(1, (height - 4 * _MARGIN) / (box + PLATE_HEIGHT * word))
    size, word, drift, box = size * shrink, word * shrink, drift * shrink, box * shrink
    plate_width, plate_height = plate_aspect * word, PLATE_HEIGHT * word

    beside = (box + plate_width + 4 * _MARGIN <= width) & (rng.random(shape) < 0.5)
    object_first = rng.random(shape) < 0.5
    along_word = np.where(beside, plate_width, plate_height)
    free = np.where(beside, width, height) - box - along_word - 3 * _MARGIN
    gap_before, gap_until = np.sort(rng.random((2, *shape)), axis=0) * free
    first = np.where(object_first, box, along_word)
    second = np.where(object_first, along_word, box)
    centre_first = _MARGIN + gap_before + first / 2
    centre_second = 2 * _MARGIN + gap_until + first + second / 2
    object_along = np.where(object_first, centre_first, centre_second)
    word_along = np.where(object_first, centre_second, centre_first)

    across = np.where(beside, height, width)

    def anywhere(extent: np.ndarray) -> np.ndarray:
        return extent / 2 + _MARGIN + rng.random(shape) * (across - extent - 2 * _MARGIN)

    object_across = anywhere(box)
    word_across = anywhere(np.where(beside, plate_height, plate_width))
    return {
        "object_size": size,
        "object_x": np.where(beside, object_along, object_across),
        "object_y": np.where(beside, object_across, object_along),
        "drift_x": drift[0],
        "drift_y": drift[1],
        "tilt": np.radians(rng.uniform(-config.tilt, config.tilt, shape)),
        "word_size": word,
        "word_x": np.where(beside, word_along, word_across),
        "word_y": np.where(beside, word_across, word_along),
    }
