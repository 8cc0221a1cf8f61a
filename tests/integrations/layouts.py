"""Random mixed layouts of videos, and pictures, that vLLM's code and ours both read: equal on every machine.

`recipes/official/vllm_inputs.py` gives them to vLLM and writes `tests/fixtures/vllm`; the test gives them to ours.
"""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import numpy as np
from PIL import Image

from allocembed.allocators.base import AllocationRequest, Allocator, Plan
from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.integrations.vllm import load_without_weights
from allocembed.video import Clip
from tests import official

FIXTURES = Path(__file__).parents[1] / "fixtures" / "vllm"
MODELS = {
    "qwen3-vl-embedding-2b": ("transformers-4.57", "transformers-5.10"),
    "qwen3-vl-embedding-8b": ("transformers-4.57",),
    "vlm2vec-v2-2b": ("vlm2vec-v2",),
}
"""Tiny checkpoints, by the model they stand for, and the pipelines that are compared."""
VIDEOS, PICTURES = 200, 20
WITH_PIXELS = 20
"""In one of this many layouts the pixels are compared too."""
TEXTS = (
    None,
    "",
    "What does the dog fetch?",
    "  two blanks, a line end \n",
    "Ein Hund läuft. 狗在雪地里跑。🐕",
    "<9.9 seconds>",
)
INSTRUCTIONS = (None, None, "Retrieve videos that answer the question", "Find it.")


class Drawn(Allocator):
    """Keeps random frames and requests random scales."""

    name = "drawn"

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw

    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        kept = np.array(sorted(self.draw.sample(range(len(clip)), self.draw.randint(1, len(clip)))))
        scales = [self.draw.uniform(0.1, 2.0) for _ in request.native_scales(len(kept))]
        return Plan(kept, np.array(scales), grow=self.draw.random() < 0.5)


class Layout:
    """One random layout: a clip and how it is asked for."""

    def __init__(self, embedder: AllocEmbed, number: int) -> None:
        draw = random.Random(number)
        self.width, self.height = draw.randint(40, 260), draw.randint(40, 260)
        self.text, self.instruction = draw.choice(TEXTS), draw.choice(INSTRUCTIONS)
        self.frames, self.timed = draw.randint(1, 14), draw.random() < 0.7
        self.times = np.cumsum([0.0, *(draw.uniform(0.01, 40.0) for _ in range(self.frames - 1))])
        budget = str(draw.randint(60, 900))
        config = EmbedConfig(budget=budget, scale_range=(0.1, 2.0))
        self.embedder = AllocEmbed(embedder.backbone, Drawn(draw), config)

    def clip(self, *, pixels: bool = True) -> Clip:
        """The clip; without pixels, all black and free."""
        size = (self.frames, self.height, self.width, 3)
        if pixels:
            frames = official.make_frames(self.width, self.height, range(self.frames))
        else:
            frames = np.broadcast_to(np.zeros((), np.uint8), size)
        numbers = np.arange(self.frames)
        duration = float(self.times[-1]) + 1
        return Clip(
            frames, self.times, numbers, self.frames, duration, "drawn", listed=not self.timed, timed=self.timed
        )

    def picture(self) -> Image.Image:
        return Image.fromarray(official.make_frames(self.width, self.height, [0])[0])


def load_embedder(model: str, inputs: str, folder: Path) -> AllocEmbed:
    """Ours for a tiny checkpoint, which is written into the folder."""
    saved = official.save_checkpoint(model, folder)
    return load_without_weights(EmbedConfig(backbone=str(saved), inputs=inputs, allocator="uniform", device="cpu"))


def digest(values: np.ndarray) -> str:
    """Of token ids, positions or grey levels."""
    values = np.ascontiguousarray(values, dtype=np.uint8 if values.dtype == np.uint8 else np.int64)
    return hashlib.sha256(values.tobytes()).hexdigest()[:12]
