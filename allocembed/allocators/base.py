"""The one thing an allocator does: look at a clip (and the task text), say which frames to keep and how large."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from allocembed.frames import Clip


@dataclass(frozen=True, eq=False)
class Plan:
    """What an allocator wishes for, before the budget has its say.

    `kept` are positions in the clip, rising; `scales` one positive number per chunk of kept frames. `grow` lets the
    projection enlarge chunks beyond their wish to use the budget up; `bounded=False` ignores the budget (Full only).
    """

    kept: np.ndarray
    scales: np.ndarray
    grow: bool = True
    bounded: bool = True


class Allocator(ABC):
    """A policy over chunks. Subclasses set `name` and implement `plan`."""

    name: str
    scale_range: tuple[float, float] = SCALE_RANGE
    """Smallest and largest scale where the user gives none."""
    takes_tensors: bool = False
    """Whether `plan` can look at a clip whose frames are a tensor on the backbone's device."""

    def frames_wanted(self, budget: Budget, candidates: int) -> int:
        """How many frames to sample from the video."""
        return candidates

    @abstractmethod
    def plan(self, clip: Clip, text: str | None, budget: Budget, scale_range: tuple[float, float]) -> Plan:
        """Wishes for one clip; `text` is the task text, where there is one, `scale_range` what will be allowed."""

    def allocate(
        self,
        clip: Clip,
        native: Grid,
        budget: Budget,
        *,
        text: str | None = None,
        scale_range: tuple[float, float] | None = None,
    ) -> Allocation:
        """Plans for a clip and projects the plan onto the budget."""
        scale_range = check_range(scale_range or self.scale_range)
        plan = self.plan(clip, text, budget, scale_range)
        tokens = budget.tokens(native, clip.total)
        if plan.bounded:
            scales, grids = project(plan.scales, native, tokens, scale_range, grow=plan.grow)
        else:
            scales, grids = plan.scales, grids_at(plan.scales, np.array([native.rows, native.cols]))
        return Allocation(
            frames=chunk_frames(plan.kept),
            scales=tuple(float(scale) for scale in scales),
            grids=tuple(Grid(int(rows), int(cols)) for rows, cols in grids),
            native=native,
            budget=tokens,
            base_cost=base_cost(native, budget.base_frames, clip.total),
        )


def native_scales(frames: int) -> np.ndarray:
    """Scale 1 for every chunk that `frames` frames make."""
    return np.ones(chunk_count(frames))
