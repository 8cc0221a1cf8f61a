"""Measure the value of a question to an untrained allocator, and how sharply the allocator should decide.

    python recipes/question.py [--seed 41] [--limit 500] [--asked 3,1.2,0 4,1.5,0 …]

First: how often the chunk that a question is about fits it best among all chunks of its video, by the cosine of the
chunk's summary to the question, and by that cosine minus the cosine to the default task, which the frame module uses.
Then: Hit@1 on such questions for the bundled allocator, with the question hidden, with its own three numbers
(steepness, threshold, share kept of a chunk's other worth), and with the given ones. The questions are fresh, not
NanoRet's.
"""

from __future__ import annotations

import argparse
import copy

import numpy as np
import torch
import torch.nn.functional as F
from limits import Oracle, QuestionBlind

from allocembed.allocators.learned import Learned
from allocembed.allocators.registry import load_allocator
from allocembed.backbones.loading import load_backbone
from allocembed.resize import as_chunks
from allocembed_nano import nanoret, world


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=41)
    parser.add_argument("--limit", type=int, default=500, help="questions")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--asked", nargs="*", default=["3,1.2,0", "4,1.5,0", "6,1.8,0"], help="three numbers each")
    options = parser.parse_args()
    backbone = load_backbone("nano-qwen3", dtype=options.dtype)
    learned = load_allocator("learned", backbone)
    alone, better, count = nearest(learned, options.limit, options.seed)
    print(f"the nearest chunk is the one asked about: {alone:.1%} of {count}; minus the default task: {better:.1%}")
    methods = [QuestionBlind(learned), learned, *(changed(learned, given) for given in options.asked)]
    methods.append(Oracle(options.limit, options.seed, given_question=True))
    for score in nanoret.evaluate(backbone, methods, subsets=["qa"], limit=options.limit, seed=options.seed):
        print(f"{score.method}: {score.hit1:.1f} % of {score.n}, cost {score.cost:.3f}×")


def nearest(learned: Learned, limit: int, seed: int) -> tuple[float, float, int]:
    """Share of videos whose best chunk shows what is asked, by two measures, and the number that show it at all."""
    videos, previewer = nanoret.draw_videos("qa", limit, seed), learned.previewer
    per_chunk = previewer.frames_per_chunk
    questions, right = nanoret.questions(videos), []
    for first in range(0, limit, nanoret.VIDEOS_IN_MEMORY):
        chosen = range(first, min(first + nanoret.VIDEOS_IN_MEMORY, limit))
        for number, clip in zip(chosen, nanoret.clips_of(videos, chosen, [24], previewer.device)[24], strict=True):
            question = questions[number]
            timeline = videos.timelines.select(np.array([number]))
            seen = world.events_at(timeline, clip.indices / (nanoret.NOMINAL_FRAMES - 1))[0]
            shown = (seen == question.event).reshape(-1, per_chunk).any(1)
            if not shown.any():
                continue
            summary = F.normalize(previewer.look(as_chunks(clip.frames, per_chunk))[:, 0], dim=-1)
            words = previewer.read([question.text])[0]
            asked, nothing = summary @ F.normalize(words[-1], dim=0), summary @ F.normalize(words[0], dim=0)
            right.append([shown[int(asked.argmax())], shown[int((asked - nothing).argmax())]])
    alone, better = np.mean(right, 0)
    return alone, better, len(right)


def changed(learned: Learned, given: str) -> Learned:
    """The allocator with three other numbers for questions."""
    policy = copy.deepcopy(learned.policy)
    with torch.no_grad():
        policy.frame_module.asked.copy_(torch.tensor([float(number) for number in given.split(",")]))
    other = Learned(policy, learned.previewer)
    other.name = given
    return other


if __name__ == "__main__":
    main()
