"""Texts about the world: descriptions of a moment or of a whole video, and questions with four options.

They use `random.Random`, which is several times faster for single draws than a numpy generator.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from allocembed_nano.world import vocabulary as vocab
from allocembed_nano.world.timeline import EVENT_SLOTS, Timelines, draw

MOMENTS = (
    "{a_thing} {where} beside a sign reading {sign}",
    "{a_thing} {where} next to the word {sign}",
    "the word {sign} is written next to {a_thing}, {where}",
    "{where}, {a_thing} appears with a sign that says {sign}",
    "a sign says {sign} near {a_thing} {where}",
    "{a_thing} can be seen {where}, and a sign reads {sign}",
    "we see {a_thing} {where}; the text on screen is {sign}",
    'there is {a_thing} {where} with the label "{sign}"',
    "{sign} is shown together with {a_thing} {where}",
    "{where} there is {a_thing} and the word {sign}",
    "the moment when {a_thing} is shown {where} with the word {sign}",
    "{a_thing} and a sign with {sign} on it, {where}",
    "a scene {where}: {a_thing} and the word {sign}",
    "{a_thing} drifts by a plate reading {sign} {where}",
    "the {thing} {where} with {sign} written beside it",
    'the part {where} where "{sign}" stands next to {a_thing}',
)
CLAUSES = (
    "{a_thing} with the word {sign}",
    "{a_thing} next to {sign}",
    "{a_thing} beside a sign reading {sign}",
    "{a_thing} labelled {sign}",
    "{a_thing} and the word {sign}",
    "the word {sign} near {a_thing}",
    "{a_thing} {where} with the word {sign}",
    "{a_thing} {where}, marked {sign}",
)
BRIEF_CLAUSES = (
    "{a_thing}",
    "{a_thing} {where}",
    "{a_thing} somewhere",
    "a sign reading {sign}",
    "the word {sign}",
    "a sign that says {sign}",
)
REMEMBERED_EVENTS = 3  # events that a description of a whole video mentions
OPENINGS = ("", "", "first ", "it starts with ", "the video shows ", "the video begins with ", "we first see ")
JOINTS = (", then ", ", followed by ", "; next, ", ", after that ", "; later ", ", and then ")
LAST_JOINTS = (", and finally ", "; it ends with ", ", and last ", ", then at the end ")
QUESTIONS = {
    "colour of object": (
        "What colour is the {object}?",
        "Which colour does the {object} have?",
        "The {object} in the video is of which colour?",
    ),
    "word of object": (
        "Which word is shown next to the {thing}?",
        "What does the sign beside the {object} say?",
        "What is written near the {object}?",
    ),
    "object of word": (
        "Which object is next to the word {sign}?",
        "What is shown beside the sign reading {sign}?",
        "What appears together with the word {sign}?",
    ),
    "place of object": (
        "Where is the {object}?",
        "Where does the {thing} appear?",
        "In which place can the {object} be seen?",
    ),
    "colour of word": (
        "What colour is the object next to the word {sign}?",
        "Which colour is the thing beside the sign reading {sign}?",
    ),
}
KINDS = tuple(QUESTIONS)
_SINGULARS = ("caduceus", "tall cross", "maltese cross")
_PLURALS = {name for name in vocab.OBJECTS if name.endswith("s") and name not in _SINGULARS}
_PHRASES = tuple(vocab.PLACE_PHRASES.values())
_ANSWERS = {
    "colour": vocab.COLOURS,
    "word": vocab.WORDS,
    "object": vocab.OBJECTS,
    "place": tuple(phrases[0] for phrases in _PHRASES),
}


@dataclass(frozen=True)
class Question:
    """A question about one event, with its options."""

    text: str
    options: list[str]
    answer: int
    """Index of the right option."""
    event: int
    """Number of the event that answers the question."""


def describe_moment(timelines: Timelines, video: int, event: int, rng: random.Random) -> str:
    """One sentence with the object, colour, word and place of an event.

    >>> describe_moment(draw(1, seed=3), 0, 1, random.Random(0))
    'a scene at the beach: a green dollar sign and the word WATER'
    """
    return rng.choice(MOMENTS).format_map(_facts(timelines, video, event, rng))


def describe_video(timelines: Timelines, video: int, rng: random.Random) -> str:
    """Describe `REMEMBERED_EVENTS` events in order. Each names the object, the word or both; some name the place."""
    count = int(timelines.events[video])
    remembered = sorted(rng.sample(range(count), min(REMEMBERED_EVENTS, count)))
    parts = [rng.choice(OPENINGS)]
    for event in remembered:
        if len(parts) > 1:
            parts.append(rng.choice(LAST_JOINTS if event == remembered[-1] else JOINTS))
        clauses = CLAUSES if rng.random() < 0.5 else BRIEF_CLAUSES
        parts.append(rng.choice(clauses).format_map(_facts(timelines, video, event, rng)))
    return "".join(parts)


def question(
    timelines: Timelines, video: int, rng: random.Random, event: int | None = None, kind: str | None = None
) -> Question:
    """A question about one event. Default: a random event and a random kind of `KINDS`.

    One wrong option comes from another event of the video, so the answer depends on what was shown together. The other
    wrong options do not occur in the video, if enough of those exist. Objects and words are distinct within a video, so
    the question identifies one event.
    """
    count = int(timelines.events[video])
    event = rng.randrange(count) if event is None else event
    kind = rng.choice(KINDS) if kind is None else kind
    asked = kind.split()[0]
    values = getattr(timelines, asked)[video, EVENT_SLOTS[:count]].tolist()
    right = values[event]
    answers = _ANSWERS[asked]
    shown = [value for value in dict.fromkeys(values) if value != right]
    others = [value for value in range(len(answers)) if value not in values]
    rng.shuffle(shown)
    rng.shuffle(others)
    options = [right, *(shown[:1] + others + shown[1:])[:3]]
    rng.shuffle(options)
    text = rng.choice(QUESTIONS[kind]).format_map(_facts(timelines, video, event, rng, capitals=1.0))
    return Question(text, [answers[value] for value in options], options.index(right), event)


def corpus(count: int, seed: int) -> Iterator[str]:
    """Yield `count` strings to train a tokenizer. A few thousand contain every name, template, digit and option.

    >>> len(list(corpus(10, seed=0)))
    10
    """
    rng = random.Random(seed)
    produced = 0
    while produced < count:
        for text in _corpus_round(rng):
            yield text
            produced += 1
            if produced == count:
                return


def _corpus_round(rng: random.Random, videos: int = 256) -> Iterator[str]:
    """Yield every name once, then texts about `videos` videos of each kind."""
    for names in (vocab.OBJECTS, vocab.COLOURS, vocab.WORDS, vocab.PLACES, sum(_PHRASES, ())):
        yield from names
    batches = [
        draw(videos, seed=rng.getrandbits(32), kind=kind, split=split)
        for kind in ("short", "long")
        for split in ("train", "test")
    ]
    for video in range(videos):
        for batch in batches:
            yield describe_video(batch, video, rng)
            for event in range(int(batch.events[video])):
                yield describe_moment(batch, video, event, rng)
                yield f"<{rng.uniform(0, float(batch.duration[video])):.1f} seconds>"
            asked = question(batch, video, rng)
            yield asked.text
            yield " ".join(f"({letter}) {text}" for letter, text in zip("ABCD", asked.options, strict=True))


@cache
def _named(object_: int, colour: int) -> tuple[str, str, str]:
    name = vocab.OBJECTS[object_]
    thing = f"{vocab.COLOURS[colour]} {name}"
    article = "an" if thing[0] in "aeiou" else "a"
    return name, thing, thing if name in _PLURALS else f"{article} {thing}"


def _facts(timelines: Timelines, video: int, event: int, rng: random.Random, capitals: float = 0.85) -> dict[str, str]:
    slot = EVENT_SLOTS[event]
    name, thing, a_thing = _named(int(timelines.object[video, slot]), int(timelines.colour[video, slot]))
    sign = vocab.WORDS[timelines.word[video, slot]]
    if rng.random() >= capitals:
        sign = sign.capitalize()
    where = rng.choice(_PHRASES[timelines.place[video, slot]])
    return {"object": name, "thing": thing, "a_thing": a_thing, "sign": sign, "where": where}
