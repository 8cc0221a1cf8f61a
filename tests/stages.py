"""The stages in one call, for tests that ask for the allocation alone."""

from allocembed.budget import Allocation
from allocembed.planner import Planner, Source


def allocated(planner: Planner, source: Source, question: str | None = None) -> Allocation:
    clip = planner.read(source)
    return planner.allocate(clip, planner.plan(clip, question))
