"""The interface of every allocator: look at a clip and the question, request a scale for each chunk.

An allocator implements `plan`. `allocate`, below it, turns requested scales into grids within the budget, for one clip
and for the rollouts of training alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

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
from allocembed.errors import ConfigError
from allocembed.geometry import Geometry
from allocembed.video.clip import Clip

if TYPE_CHECKING:
    from allocembed.backbones.base import Backbone


@dataclass(frozen=True)
class AllocationRequest:
    """The inputs of an allocator besides the clip."""

    geometry: Geometry
    """How the backbone cuts frames."""
    budget: Budget
    scale_range: tuple[float, float] = SCALE_RANGE
    question: str | None = None
    """A question about this video, if there is one."""

    def native_scales(self, frames: int) -> np.ndarray:
        """Scale 1 for every chunk that `frames` frames make."""
        return np.ones(chunk_count(frames, self.geometry.frames_per_chunk))


@dataclass(frozen=True, eq=False)
class Plan:
    """The scales that an allocator requests, before the budget is applied.

    `kept` are rising positions in the clip, `scales` one positive number per chunk of kept frames. `grow` lets the
    projection enlarge chunks beyond their request to use up the budget. `bounded=False` ignores the budget (Full only).
    """

    kept: np.ndarray
    scales: np.ndarray
    grow: bool = True
    bounded: bool = True
    look_tokens: int = 0
    """Tokens that a language model read to make the plan; in a family without one, those of the vision tower."""
    look_tower_tokens: int = 0
    """Visual tokens that a vision tower made for the plan."""


class Allocator(ABC):
    """A policy over chunks. Subclasses set `name` and implement `plan`."""

    name: str
    """The name that users write, and that of its entry point."""
    scale_range: tuple[float, float] = SCALE_RANGE
    """Smallest and largest scale if the user gives none."""
    takes_tensors: bool = False
    """Whether `plan` accepts a clip whose frames are a tensor on the backbone's device."""
    needs_backbone: bool = False
    """Whether it looks with the weights of the backbone that embeds."""

    @classmethod
    def from_options(cls, options: str, backbone: Backbone | None) -> Self:
        """Make the allocator of a name such as "middle" or "middle:OPTIONS". Raise ConfigError for unknown options.
        `backbone` is the one in use; None where none is loaded."""
        if options:
            raise ConfigError(f"the allocator {cls.name} has no options: write {cls.name}, not {cls.name}:{options}")
        return cls()

    def frames_wanted(self, budget: Budget, candidates: int) -> int:
        """How many frames to sample from the video."""
        return candidates

    def identity(self) -> str:
        """Options and a digest of weights, which differ between allocators of one name."""
        return self.name

    @abstractmethod
    def plan(self, clip: Clip, request: AllocationRequest) -> Plan:
        """Decide which frames of a clip to keep, and how large each chunk should be."""


@dataclass(frozen=True)
class Footage:
    """Sizes of one clip, or of b videos of equal size, which decide the cost of scales."""

    height: int
    width: int
    frames: int
    """Frames of each video that are embedded."""
    totals: tuple[int, ...]
    """(b,) frames in each source."""
    listed: bool = False
    """Whether they are lists of frames, whose native size may be another."""

    def native(self, geometry: Geometry, frames: int | None = None) -> Grid:
        """The grid of a frame at scale 1, if as many frames are embedded together."""
        return geometry.native(self.height, self.width, frames=frames or self.frames, listed=self.listed)


@dataclass(frozen=True, eq=False)
class FittedScales:
    """Scales within the budget, for K plans of each of b videos."""

    scales: np.ndarray
    """(b, K, C) realised scales."""
    grids: np.ndarray
    """(b, K, C, 2) token rows and cols."""
    limits: np.ndarray
    """(b,) tokens that the budget allows."""
    base_costs: np.ndarray
    """(b,) tokens of Base for these videos."""


def allocate(
    scales: np.ndarray,
    footage: Footage,
    request: AllocationRequest,
    *,
    grow: bool = True,
    bounded: bool = True,
    rungs: int = 0,
) -> FittedScales:
    """Turn requested scales (b, K, C) into grids within the budget: equation 3. `rungs` puts scales on a ladder.

    >>> qwen2 = Geometry(14, 2, (0.5,) * 3, (0.5,) * 3, 1, 10**6)
    >>> video, request = Footage(168, 224, frames=6, totals=(100,)), AllocationRequest(qwen2, Budget(frames=4))
    >>> fitted = allocate(np.array([[[0.4, 1.2, 0.8]]]), video, request)
    >>> fitted.grids.tolist(), fitted.limits.tolist()
    ([[[[3, 3], [7, 9], [4, 6]]]], [96])
    """
    geometry, budget, per_chunk = request.geometry, request.budget, request.geometry.frames_per_chunk
    native = footage.native(geometry)
    sides = np.array([native.rows, native.cols])
    # A budget in frames means as many frames embedded alone, which may be larger than these many together.
    bases = {total: footage.native(geometry, min(budget.base_frames, total)) for total in footage.totals}
    limits = np.array([budget.tokens(bases[total], total, per_chunk) for total in footage.totals])
    if bounded:
        count, k, chunks = scales.shape
        flat = project(
            scales.reshape(count * k, chunks),
            native,
            np.repeat(limits, k),
            check_range(request.scale_range),
            grow=grow,
            rungs=rungs,
        )
        scales, grids = flat[0].reshape(scales.shape), flat[1].reshape(*scales.shape, 2)
    else:
        grids = grids_at(scales, sides)
    costs = [base_cost(bases[total], budget.base_frames, total, per_chunk) for total in footage.totals]
    return FittedScales(scales, grids, limits, np.array(costs))


def allocate_clip(clip: Clip, plan: Plan, request: AllocationRequest) -> Allocation:
    """Project the plan of one clip onto the budget."""
    footage = Footage(clip.height, clip.width, len(plan.kept), (clip.total,), clip.listed)
    fitted = allocate(plan.scales[None, None], footage, request, grow=plan.grow, bounded=plan.bounded)
    return Allocation(
        frames=chunk_frames(plan.kept, request.geometry.frames_per_chunk),
        scales=tuple(fitted.scales[0, 0].tolist()),
        grids=tuple(Grid(rows, cols) for rows, cols in fitted.grids[0, 0].tolist()),
        native=footage.native(request.geometry),
        budget=int(fitted.limits[0]),
        base_cost=int(fitted.base_costs[0]),
        base_frames=min(request.budget.base_frames, clip.total),
        look_tokens=plan.look_tokens,
        look_tower_tokens=plan.look_tower_tokens,
    )
