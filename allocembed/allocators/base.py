"""The interface of every allocator: look at a clip and the question, request a scale for each chunk."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from allocembed.budget import (
    SCALE_RANGE,
    Allocation,
    Budget,
    Grid,
    base_cost,
    check_range,
    chunk_count,
    chunk_frames,
    grids_at,
    project,
)
from allocembed.geometry import Geometry
from allocembed.video.clip import Clip


@dataclass(frozen=True)
class AllocationRequest:
    """What an allocator is asked for, besides the clip."""

    geometry: Geometry
    """How the backbone cuts frames."""
    budget: Budget
    scale_range: tuple[float, float] = SCALE_RANGE
    question: str | None = None
    """What is asked about this video, if anything."""

    def native_scales(self, frames: int) -> np.ndarray:
        """Scale 1 for every chunk that `frames` frames make."""
        return np.ones(chunk_count(frames, self.geometry.frames_per_chunk))


@dataclass(frozen=True, eq=False)
class Plan:
    """What an allocator requests, before the budget is applied.

    `kept` are rising positions in the clip, `scales` one positive number per chunk of kept frames. `grow` lets the
    projection enlarge chunks beyond their request to use up the budget. `bounded=False` ignores the budget (Full only).
    `look_tokens` are those that the backbone's language model read to make the plan.
    """

    kept: np.ndarray
    scales: np.ndarray
    grow: bool = True
    bounded: bool = True
    look_tokens: int = 0

    def fit(self, clip: Clip, request: AllocationRequest) -> Allocation:
        """Project the plan onto the budget."""
        geometry, budget, per_chunk = request.geometry, request.budget, request.geometry.frames_per_chunk
        native = geometry.native(clip.height, clip.width, frames=len(self.kept), listed=clip.listed)
        # A budget in frames means as many frames embedded alone, which may be larger than these many together.
        alone = min(budget.base_frames, clip.total)
        base = geometry.native(clip.height, clip.width, frames=alone, listed=clip.listed)
        tokens = budget.tokens(base, clip.total, per_chunk)
        if self.bounded:
            scales, grids = project(self.scales, native, tokens, check_range(request.scale_range), grow=self.grow)
        else:
            scales, grids = self.scales, grids_at(self.scales, np.array([native.rows, native.cols]))
        return Allocation(
            frames=chunk_frames(self.kept, per_chunk),
            scales=tuple(float(scale) for scale in scales),
            grids=tuple(Grid(int(rows), int(cols)) for rows, cols in grids),
            native=native,
            budget=tokens,
            base_cost=base_cost(base, budget.base_frames, clip.total, per_chunk),
            base_frames=alone,
            look_tokens=self.look_tokens,
        )


class Allocator(ABC):
    """A policy over chunks. Subclasses set `name` and implement `plan`."""

    name: str
    scale_range: tuple[float, float] = SCALE_RANGE
    """Smallest and largest scale if the user gives none."""
    takes_tensors: bool = False
    """Whether `plan` accepts a clip whose frames are a tensor on the backbone's device."""

    def frames_wanted(self, budget: Budget, candidates: int) -> int:
        """How many frames to sample from the video."""
        return candidates

    def identity(self) -> str:
        """What tells this allocator from others of the same name: for a learned one, a digest of its weights."""
        return self.name

    @abstractmethod
    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        """Decide which frames of a clip to keep, and how large each chunk should be."""
