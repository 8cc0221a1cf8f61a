"""Tasks of a benchmark of real videos: texts, videos, and which candidate is right."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np

from allocembed.errors import ConfigError, DataError, did_you_mean

BELOW_ANY_COSINE = -2.0


class Wording(NamedTuple):
    """Texts and options as the evaluation of one model family writes them."""

    texts: list[str]
    options: list[list[str]] | None

    def select(self, queries: Iterable[int]) -> "Wording":
        """Keep these queries, in this order."""
        kept = list(queries)
        options = None if self.options is None else [self.options[query] for query in kept]
        return Wording([self.texts[query] for query in kept], options)


@dataclass(frozen=True, eq=False)
class BenchmarkTask:
    """Queries and candidates: a text looks for a video among all, or asks about one video and has its own options."""

    name: str
    prompt: str
    """Introduces a query, in VLM2Vec's words."""
    texts: list[str]
    """(Q) search sentences, or questions with their options written out."""
    videos: list[Path]
    """(V) candidates, each once; for questions (Q), the video of each question."""
    targets: np.ndarray
    """(Q,) index of the right video or option."""
    options: list[list[str]] | None = None
    """Options of each question; None for retrieval."""
    notes: tuple[str, ...] = ()
    """Notes for readers of the numbers, such as what was left out."""
    wordings: Mapping[str, Wording] = field(default_factory=dict)
    """Texts and options of the families whose evaluation does not write them in VLM2Vec's way, by family."""

    @property
    def is_qa(self) -> bool:
        """Whether this is question answering."""
        return self.options is not None

    def first(self, limit: int | None) -> Self:
        """Keep the first `limit` queries and the videos they need. Retrieval gets easier.

        >>> task = BenchmarkTask("t", "Find:", ["a", "b", "c"], [Path("x"), Path("y")], np.array([1, 1, 0]))
        >>> few = task.first(2)
        >>> few.texts, few.videos, few.targets.tolist()
        (['a', 'b'], [PosixPath('y')], [0, 0])
        """
        if limit is None or limit >= len(self.texts):
            return self
        note = f"only the first {limit} of {len(self.texts):,} queries"
        if self.is_qa:
            return self.keep_videos(np.arange(len(self.texts)) < limit, note)
        short = self._select(np.arange(limit))
        return short.keep_videos(np.isin(np.arange(len(self.videos)), short.targets), f"{note} and their videos")

    def keep_videos(self, kept: np.ndarray, note: str) -> Self:
        """Drop videos, by a mask (V,), and the queries that need them; add a note."""
        short = self._select(np.flatnonzero(kept if self.is_qa else kept[self.targets]))
        return replace(
            short,
            videos=[self.videos[i] for i in np.flatnonzero(kept)],
            targets=short.targets if self.is_qa else (np.cumsum(kept) - 1)[short.targets],
            notes=(*self.notes, note),
        )

    def for_family(self, family: str) -> Self:
        """The task in the words of a model family.

        >>> words = {"qwen3_vl": Wording(["Who? (A) me"], [["(A) me"]])}
        >>> asked = BenchmarkTask("t", "", ["Who?"], [Path("x")], np.array([0]), [["me"]], wordings=words)
        >>> asked.for_family("qwen3_vl").options, asked.for_family("qwen2_vl").options
        ([['(A) me']], [['me']])
        """
        words = self.wordings.get(family)
        return self if words is None else replace(self, texts=words.texts, options=words.options)

    def _select(self, queries: np.ndarray) -> Self:
        """Keep these queries and all videos."""
        texts, options = Wording(self.texts, self.options).select(queries)
        wordings = {family: words.select(queries) for family, words in self.wordings.items()}
        return replace(self, texts=texts, targets=self.targets[queries], options=options, wordings=wordings)

    def find_videos(
        self, find: Callable[[Path], Path | None], *, allow_missing: bool, remedy: Callable[[list[Path]], str]
    ) -> Self:
        """Replace videos by what `find` gives. Raise DataError if it gives None, unless `allow_missing` drops those.

        `remedy` ends the error message, given the missing videos.
        """
        found = {video: find(video) for video in dict.fromkeys(self.videos)}
        missing = [video for video, path in found.items() if path is None]
        task = replace(self, videos=[found[video] or video for video in self.videos])
        if not missing:
            return task
        note = f"{len(missing):,} of {len(found):,} videos are missing"
        if not allow_missing or len(missing) == len(found):
            raise DataError(f"{self.name}: {note}{remedy(missing)}")
        return task.keep_videos(np.array([found[video] is not None for video in self.videos]), note)

    @property
    def candidate_texts(self) -> list[str]:
        """The texts that are compared with videos: the options of all questions in order, or the queries."""
        return self.texts if self.options is None else [option for own in self.options for option in own]

    def scores(self, texts: np.ndarray, videos: np.ndarray) -> np.ndarray:
        """Cosines (Q, candidates) from the vectors of `candidate_texts` (T, d) and of the videos (V, d).

        Rows of questions with fewer options are filled with -2.

        >>> asked = BenchmarkTask("t", "", ["?", "?"], [Path("x")] * 2, np.array([0, 0]), [["a", "b"], ["c"]])
        >>> asked.scores(np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), np.eye(2)).tolist()
        [[1.0, 0.0], [1.0, -2.0]]
        """
        if self.options is None:
            return texts @ videos.T
        counts = [len(own) for own in self.options]
        scores = np.full((len(videos), max(counts)), BELOW_ANY_COSINE)
        for row, video, own in zip(scores, videos, np.split(texts, np.cumsum(counts)[:-1]), strict=True):
            row[: len(own)] = own @ video
        return scores


def check_names(kind: str, names: Sequence[str], known: Iterable[str]) -> list[str]:
    """The names as the benchmark spells them, whatever their case. Raise ConfigError for an unknown one.

    >>> check_names("task", ["msvd", "Video-MME"], ["MSVD", "Video-MME"])
    ['MSVD', 'Video-MME']
    >>> check_names("task", ["MSVDD"], ["MSVD", "Video-MME"])
    Traceback (most recent call last):
    allocembed.errors.ConfigError: unknown task 'MSVDD' (did you mean MSVD?): use some of MSVD,Video-MME
    """
    spelled = {name.lower(): name for name in known}
    listed = f"use some of {','.join(spelled.values())}"
    if not names:
        raise ConfigError(f"there is no {kind} to run: {listed}")
    for name in names:
        if name.lower() not in spelled:
            raise ConfigError(f"unknown {kind} {name!r}{did_you_mean(name, spelled.values())}: {listed}")
    return list(dict.fromkeys(spelled[name.lower()] for name in names))


def instruction_for(prompt: str, family: str) -> str:
    """The prompt as the evaluation of a model family words it; families without words of their own take it as it is.

    VLM2Vec writes prompt, space, text; its prompt for questions ends in a space itself, which makes two.
    Qwen3-VL-Embedding writes the prompt as a sentence in the system turn.

    >>> instruction_for("Find a video:", "qwen2_vl"), instruction_for("Find a video:", "qwen3_vl")
    ('Find a video:', 'Find a video.')
    >>> instruction_for("Return the exact text. Question: ", "qwen3_vl")
    'Return the exact text.'
    """
    if family != "qwen3_vl":
        return prompt
    sentence = prompt.removesuffix(" Question: ").removesuffix(":")
    return sentence if sentence.endswith(".") else f"{sentence}."
