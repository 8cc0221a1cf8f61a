"""Videos of the procedural world as small MP4 files, with sentences about them whose answers are known."""

import random
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from allocembed_nano import world

FRAMES = 160


@dataclass(frozen=True)
class Sentence:
    """A search sentence, the file it is about and, for one about a moment, when that is."""

    text: str
    name: str
    moment: tuple[float, float] | None


def draw_videos(short: int, long: int, seed: int) -> world.Timelines:
    parts = [
        world.draw(count, seed, kind, split="test", orientation="mixed")
        for kind, count in (("short", short), ("long", long))
        if count
    ]
    return world.concat(parts)


def write_videos(timelines: world.Timelines, folder: Path) -> None:
    for number in range(len(timelines)):
        size = (192, 144) if timelines.portrait[number] else (144, 192)
        rate = Fraction(FRAMES, int(timelines.duration[number]))
        world.write_mp4(timelines, number, folder / f"{number:03}.mp4", size, rate)


def sentences(timelines: world.Timelines, moments: int, whole: int, seed: int) -> list[Sentence]:
    """Sentences about a number of moments and of whole videos, each of another video."""
    source = random.Random(seed)
    chosen = source.sample(range(len(timelines)), moments + whole)
    made = []
    for place, video in enumerate(chosen):
        if place < moments:
            event = source.randrange(int(timelines.events[video]))
            text, moment = world.describe_moment(timelines, video, event, source), timelines.moment(video, event)
        else:
            text, moment = world.describe_video(timelines, video, source), None
        made.append(Sentence(text, f"{video:03}.mp4", moment))
    return made
