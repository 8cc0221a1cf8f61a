"""What a benchmark of real videos asks: texts, videos, and which candidate is right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

BELOW_ANY_COSINE = -2.0


@dataclass(frozen=True, eq=False)
class Task:
    """One task: every text looks for a video among all, or asks about one and chooses from options of its own."""

    name: str
    prompt: str
    """What introduces a query, in VLM2Vec's words."""
    texts: list[str]
    """(Q) search sentences, or questions with their options written out."""
    videos: list[Path]
    """(V) candidates, each once; for questions, the video each of them is about."""
    targets: np.ndarray
    """(Q,) index of the right video, or of the right option."""
    options: list[list[str]] | None = None
    """For questions, what each of them chooses from."""
    notes: tuple[str, ...] = ()
    """What a reader of the numbers must know: what was left out, and why."""

    @property
    def asks(self) -> bool:
        """Whether this is question answering."""
        return self.options is not None

    def first(self, limit: int | None) -> Task:
        """The first so many queries and the videos they need, which makes retrieval easier.

        >>> task = Task("t", "Find:", ["a", "b", "c"], [Path("x"), Path("y")], np.array([1, 1, 0]))
        >>> few = task.first(2)
        >>> few.texts, few.videos, few.targets.tolist()
        (['a', 'b'], [PosixPath('y')], [0, 0])
        """
        if limit is None or limit >= len(self.texts):
            return self
        note = f"only the first {limit} of {len(self.texts):,} queries"
        return self.keep(range(limit), (*self.notes, note if self.asks else f"{note} and their videos"))

    def keep(self, queries: Sequence[int], notes: tuple[str, ...]) -> Task:
        """Some of the queries and the videos they need."""
        queries = list(queries)
        texts, targets = [self.texts[i] for i in queries], self.targets[queries]
        if self.options is not None:
            options, videos = [self.options[i] for i in queries], [self.videos[i] for i in queries]
            return replace(self, texts=texts, videos=videos, targets=targets, options=options, notes=notes)
        used = np.unique(targets)
        videos, targets = [self.videos[i] for i in used], np.searchsorted(used, targets)
        return replace(self, texts=texts, videos=videos, targets=targets, notes=notes)


def instruction_for(prompt: str, family: str) -> str:
    """The prompt as a model family's own evaluation words it.

    VLM2Vec writes prompt, space, text; its prompt for questions ends in a space itself, so that two stand there.
    Qwen3-VL-Embedding says the same as a sentence in the system's turn.

    >>> instruction_for("Find a video:", "qwen2_vl"), instruction_for("Find a video:", "qwen3_vl")
    ('Find a video:', 'Find a video.')
    >>> instruction_for("Return the exact text. Question: ", "qwen3_vl")
    'Return the exact text.'
    """
    if family != "qwen3_vl":
        return prompt
    sentence = prompt.removesuffix(" Question: ").removesuffix(":")
    return sentence if sentence.endswith(".") else f"{sentence}."


def score_options(videos: np.ndarray, options: Sequence[np.ndarray]) -> np.ndarray:
    """(Q, most options) cosines of video vectors (Q, d) with their own options (n, d); below any cosine where none is.

    >>> score_options(np.eye(2), [np.eye(2), np.array([[0.0, 1.0]])]).tolist()
    [[1.0, 0.0], [1.0, -2.0]]
    """
    scores = np.full((len(videos), max(map(len, options), default=0)), BELOW_ANY_COSINE)
    for row, video, own in zip(scores, videos, options, strict=True):
        row[: len(own)] = own @ video
    return scores
