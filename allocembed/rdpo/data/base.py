"""Examples and batches of a training step, and the interface of their sources.

Everything a source gives depends on the seed and the step alone, so every process, and a resumed run, sees the same.
`prepare` is the host's part, run ahead in a thread; `finish` puts the frames on the device.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from allocembed.budget import Budget, chunk_frames
from allocembed.rdpo.negatives import TextPool
from allocembed.resize import numbered_seconds

# Independent random streams.
TRAINING, VALIDATION, CORPUS = 271_828_001, 271_828_002, 271_828_003


@dataclass(frozen=True)
class TrainingExample:
    """The target text of a video, and the question about the video, if any."""

    sample: Hashable
    target: str
    question: str | None = None
    query: bool = False
    """Whether the target is a search sentence, embedded with the backbone's query instruction, not an answer."""
    options: tuple[str, ...] = ()
    """Wrong answers that the question comes with."""
    own: bool = False
    """Whether the target is the video's own vector at full resolution; `target` is then only a name for it."""
    instruction: str | None = None
    """Instruction to the backbone, such as "Describe the video."; the policy never sees it."""


def own_example(sample: Hashable, question: str | None = None, instruction: str | None = None) -> TrainingExample:
    """An example without texts: the target is the video's own vector at full resolution."""
    return TrainingExample(sample, f"<the vector of {sample}>", question, own=True, instruction=instruction)


@dataclass(frozen=True, eq=False)
class VideoBatch:
    """Sampled videos of one frame size and frame count."""

    members: np.ndarray
    """(b,) their numbers among the step's examples."""
    frames: Tensor
    """(b, T, 3, H, W) uint8."""
    times: np.ndarray
    """(b, T) seconds."""
    totals: np.ndarray
    """(b,) frames in each source."""
    listed: bool = False
    """Whether they are lists of frames, whose native size may be another."""
    list_rate: float | None = None
    """Frames per second by which the frames are numbered, if they have no times."""

    def __len__(self) -> int:
        return len(self.members)

    def select(self, rows: Tensor) -> Self:
        """Some of the videos."""
        host = rows.cpu().numpy()
        frames = self.frames[rows.to(self.frames.device)]
        return replace(
            self, members=self.members[host], frames=frames, times=self.times[host], totals=self.totals[host]
        )

    def chunks(self, frames_per_chunk: int) -> np.ndarray:
        """(C, frames_per_chunk) frames of each chunk."""
        return np.array(chunk_frames(np.arange(self.frames.shape[1]), frames_per_chunk))

    def seconds(self, frames_per_chunk: int) -> np.ndarray:
        """(b, C) mean time of each chunk's frames."""
        chunks = self.chunks(frames_per_chunk)
        if self.list_rate is not None:
            return np.tile(numbered_seconds(chunks.tolist(), self.list_rate), (len(self), 1))
        return self.times[:, chunks].mean(-1)


@dataclass(frozen=True, eq=False)
class TrainingBatch:
    """The examples of one step on all processes, and the videos of this process."""

    examples: list[TrainingExample]
    videos: list[VideoBatch]
    budget: Budget

    @property
    def answers(self) -> frozenset[str]:
        """Targets that answer a question, and the options beside them."""
        asked = (example for example in self.examples if example.question is not None and not example.own)
        return frozenset(text for example in asked for text in (example.target, *example.options))

    @property
    def targets(self) -> TextPool:
        return TextPool([example.sample for example in self.examples], [example.target for example in self.examples])

    def questions(self, videos: VideoBatch) -> list[str | None]:
        """The question about each of these videos."""
        return [self.examples[member].question for member in videos.members.tolist()]

    def instructions(self, videos: VideoBatch) -> list[str | None]:
        """The instruction that each of these videos is embedded with; None for the backbone's own."""
        return [self.examples[member].instruction for member in videos.members.tolist()]


class Source(ABC):
    """A source of examples."""

    corpus: TextPool
    """Texts from which global negatives are drawn."""
    queries: frozenset[str]
    """Texts of the corpus that are search sentences."""
    answers: frozenset[str]
    """Texts of the corpus that answer a question."""
    skipped: list[str]
    """Files that could not be read, with the reason."""
    held: Sequence[Any] = ()
    """Validation examples, if the source has a list of them."""

    @abstractmethod
    def prepare(self, stream: int, step: int, count: int, budget: Budget, candidates: int, mine: range) -> Any:
        """The host's part of a batch of `count` examples from the stream TRAINING or VALIDATION."""

    @abstractmethod
    def finish(self, prepared: Any, device: torch.device) -> TrainingBatch:
        """The batch, with the frames of the examples `mine` on the device."""
