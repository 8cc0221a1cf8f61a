"""How long MMEB-V2 and LongRet take on one H200 with 16 cores, estimated from measured parts.

    python bench/estimate.py

The times of the GPU and of decoders are those of docs/internals/performance.md, for 720p; reading an image is measured
here. Sixteen decoders side by side are slower than one alone, and images are taken to be slowed as much. The GPU's own
decoders are left out. The GPU and the cores work at the same time, so the slower of the two decides. Most videos of
MMEB-V2 are smaller than 720p, and many films have more keyframes than one in ten seconds, so the figures are upper
bounds.
"""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from allocembed.benchmarks.mmeb_v2 import SPECS
from allocembed.benchmarks.paper import CORPORA, QUERIES
from allocembed.benchmarks.report import markdown_table
from allocembed.video import DecodeLimits
from allocembed.video.clip import candidate_indices
from allocembed.video.images import read_image

CORES = 16
EXACT, KEYFRAME = 6.35, 0.43  # seconds for 24 frames of a 10-minute file, one thread ("Candidates from a long file")
# One of 16 decoders side by side on that machine (growth_files_qwen3-vl-2b.json of docs/internals/measured) against one
# alone (decoding_tried.json there): exact frames of a minute of 720p, keyframe every two seconds.
CROWDED = 2.36 / 2.18
FRAMES, BASE_FRAMES, FOLDER = 24, 8, 64  # candidates, Base's frames, images in a folder of MMEB-V2
QA_VIDEOS = {"Video-MME": 900, "NExTQA": 1000}  # the other tasks: at most one video per question
OPTIONS = {"Video-MME": 4, "NExTQA": 5, "EgoSchema": 5, "MVBench": 5, "ActivityNetQA": 2}  # at most
SHORT_TEXT, LONG_TEXT = 64, 8192  # tokens, at most: a caption or option; a description of a whole video


@dataclass(frozen=True)
class ModelCost:
    """Milliseconds per video of a model ("On a GPU"), and tokens of an allocated video ("Preprocessing")."""

    allocated: float
    """From frames to vector with the self-preview: what a method within the budget takes at most."""
    learned: float
    """As `allocated`, with SmolVLM2's previews."""
    full: float
    tokens: int

    def seconds(self, embeddings: int, text_tokens: int, *, all_methods: bool) -> float:
        """Time for Base and a learned allocator, or for all six methods, and for the texts.

        A text token costs no more than a visual one, which goes through the vision tower too.
        """
        per_video = self.allocated + self.learned + all_methods * (3 * self.allocated + self.full)
        return (embeddings * per_video + text_tokens * self.allocated / self.tokens) / 1000


MODEL_COSTS = {
    "Qwen2-VL-2B (VLM2Vec-V2)": ModelCost(108, 120, 384, 4780),
    "Qwen3-VL-2B": ModelCost(56, 61, 139, 2878),
    "Qwen3-VL-8B": ModelCost(118, 131, 360, 2878),
}


@dataclass(frozen=True)
class Workload:
    """Work of a benchmark for the GPU and for the decoders."""

    name: str
    videos: int
    embeddings: int
    """Videos, or questions about them, that one method embeds."""
    text_tokens: int
    decode: float
    """Seconds of one core to read a video once for all methods and questions."""
    alone: float
    """Seconds of one core to read it for one method and one question."""

    def line(self, model: str, cost: ModelCost) -> list[str]:
        decode = self.videos * self.decode * CROWDED / CORES
        apart = 6 * self.embeddings * self.alone * CROWDED / CORES
        gpu = [cost.seconds(self.embeddings, self.text_tokens, all_methods=every) for every in (False, True)]
        hours = [seconds / 3600 for seconds in (*gpu, decode, apart, *(max(each, decode) for each in gpu))]
        counts = [f"{self.videos:,}", f"{self.embeddings:,}"]
        return [self.name, model, *counts, *(f"{each:.1f}" for each in hours[:4]), *(f"**{h:.1f}**" for h in hours[4:])]


def image_seconds() -> float:
    """Time to read a JPEG of 1280×720 on one core."""
    pixels = np.random.default_rng(0).integers(0, 255, (45, 80, 3)).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "frame.jpg")
        Image.fromarray(pixels).resize((1280, 720), Image.Resampling.BICUBIC).save(path, quality=90)
        started = time.perf_counter()
        for _ in range(50):
            read_image(path, DecodeLimits())
    return (time.perf_counter() - started) / 50


def workloads(image: float) -> list[Workload]:
    """The two benchmarks; LongRet with exact seeking and with keyframes."""
    retrieval = sum(spec.queries for name, spec in SPECS.items() if name not in OPTIONS)
    questions = sum(SPECS[name].queries for name in OPTIONS)
    options = sum(SPECS[name].queries * count for name, count in OPTIONS.items())
    videos = retrieval + sum(QA_VIDEOS.get(name, SPECS[name].queries) for name in OPTIONS)
    union = len(np.union1d(*(candidate_indices(FOLDER, count) for count in (FRAMES, BASE_FRAMES))))
    mmeb = Workload(
        "MMEB-V2, frame folders",
        videos,
        retrieval + questions,
        (retrieval + options) * SHORT_TEXT,
        union * image,
        (5 * FRAMES + BASE_FRAMES) / 6 * image,
    )
    targets = sum(corpus.videos for corpus in CORPORA.values())
    tokens = sum(count * (LONG_TEXT if name.endswith("Video") else SHORT_TEXT) for name, count in QUERIES.items())
    both = (FRAMES + BASE_FRAMES - 2) / FRAMES  # the first and the last frame are the same
    mean = (5 * FRAMES + BASE_FRAMES) / 6 / FRAMES
    return [mmeb] + [
        Workload(f"LongRet, {seek}", targets, targets, tokens, seconds * both, seconds * mean)
        for seek, seconds in (("exact", EXACT), ("keyframe", KEYFRAME))
    ]


def main() -> None:
    image = image_seconds()
    heads = ["benchmark", "model", "videos", "embeddings per method", "GPU: Base and learned", "GPU: six methods"]
    heads += ["decoding, shared", "decoding, not shared", "**Base and learned**", "**six methods**"]
    lines = [heads, *(work.line(model, cost) for work in workloads(image) for model, cost in MODEL_COSTS.items())]
    print(markdown_table("Hours on one H200 with 16 cores", lines, f"An image takes {1000 * image:.1f} ms to read."))


if __name__ == "__main__":
    main()
