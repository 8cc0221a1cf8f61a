"""Procedural videos with text: seeded timelines, frames rendered in torch, descriptions and questions.

>>> import random
>>> batch = draw(2, seed=0, kind="short", split="train")
>>> frames = render(batch, sample_fractions(4))
>>> frames.shape
torch.Size([2, 4, 3, 144, 192])
>>> len(question(batch, 0, random.Random(0)).options)
4
"""

from allocembed_nano.world.atlas import Atlas, load_atlas
from allocembed_nano.world.files import write_mp4
from allocembed_nano.world.render import LANDSCAPE, PORTRAIT, render
from allocembed_nano.world.text import Question, corpus, describe_moment, describe_video, question
from allocembed_nano.world.timeline import (
    LONG,
    SHORT,
    Timelines,
    WorldConfig,
    concat,
    draw,
    events_at,
    sample_fractions,
)
