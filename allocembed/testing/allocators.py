"""The contract of allocators: inherit `AllocatorContract` and give the name that users write.

    class TestMine(AllocatorContract):
        @pytest.fixture
        def name(self):
            return "mine"             # or "mine:OPTIONS"

An allocator that looks with a backbone also gives a fixture `backbone`.
"""

import pickle
from collections.abc import Callable

import numpy as np
import pytest

from allocembed import EmbedConfig
from allocembed.allocators.base import AllocationRequest, Allocator, allocate_clip
from allocembed.allocators.registry import METHODS, check_allocator, load_allocator, needs_backbone
from allocembed.backbones.base import Backbone
from allocembed.budget import Budget
from allocembed.errors import AllocEmbedError
from allocembed.geometry import Geometry
from allocembed.testing.videos import picture
from allocembed.video import Clip

HALF = (0.5, 0.5, 0.5)
GEOMETRY = Geometry(14, 2, HALF, HALF, 4 * 28**2, 60 * 28**2)


def make_clip(frames: int, *, width: int = 200, height: int = 120) -> Clip:
    """A clip of moving pictures, two of three black."""
    pictures = [picture(9 * number, width, height) * (number % 3 == 0) for number in range(frames)]
    return Clip(np.stack(pictures), np.arange(frames) * 1.5, np.arange(frames), frames, frames * 1.5, "test")


class AllocatorContract:
    """Tests of one name."""

    @pytest.fixture
    def name(self) -> str:
        """The name that users write behind --allocator."""
        raise NotImplementedError("give a fixture `name`")

    @pytest.fixture
    def backbone(self) -> Backbone | None:
        """The backbone in use. An allocator that does not look with it works without."""
        return None

    @pytest.fixture
    def allocator(self, name: str, backbone: Backbone | None) -> Allocator:
        return load_allocator(name, backbone)

    @pytest.fixture
    def request_of(self, backbone: Backbone | None) -> Callable[..., AllocationRequest]:
        """Makes requests, by default for the usual budget."""
        geometry = GEOMETRY if backbone is None else backbone.geometry
        return lambda budget="8f", **more: AllocationRequest(geometry, Budget.parse(budget), **more)

    @pytest.fixture
    def clip(self) -> Callable[..., Clip]:
        return make_clip

    @pytest.mark.parametrize("frames", [1, 2, 11, 24])
    @pytest.mark.parametrize("size", [(200, 120), (60, 180), (15, 15)])
    def test_a_plan_keeps_frames_in_order_and_requests_a_scale_for_each_chunk(
        self, allocator, clip, request_of, frames, size
    ):
        plan = allocator.plan(clip(frames, width=size[0], height=size[1]), request_of())
        assert len(plan.kept) and np.all(np.diff(plan.kept) > 0) and plan.kept[0] >= 0 and plan.kept[-1] < frames
        assert plan.scales.shape == request_of().native_scales(len(plan.kept)).shape
        assert np.isfinite(plan.scales).all() and (plan.scales > 0).all()

    @pytest.mark.parametrize("budget", ["2f", "8f", "12", "300"])
    @pytest.mark.parametrize("scale_range", [(0.2, 1.8), (0.05, 1.0)])
    def test_what_it_requests_fits_into_the_budget(self, allocator, clip, request_of, budget, scale_range):
        asked, seen = request_of(budget, scale_range=scale_range), clip(20)
        plan = allocator.plan(seen, asked)
        allocation = allocate_clip(seen, plan, asked)
        assert not plan.bounded or 0 < allocation.cost <= allocation.budget

    def test_a_plan_is_the_same_twice_and_after_pickling(self, allocator, clip, request_of):
        plans = [
            each.plan(clip(15), request_of()) for each in (allocator, allocator, pickle.loads(pickle.dumps(allocator)))
        ]
        for other in plans[1:]:
            assert np.array_equal(plans[0].kept, other.kept) and np.array_equal(plans[0].scales, other.scales)

    def test_a_plan_leaves_the_clip_as_it_was(self, allocator, clip, request_of):
        seen = clip(6)
        allocator.plan(seen, request_of())
        assert np.array_equal(seen.frames, clip(6).frames)

    def test_it_wants_at_least_one_frame(self, allocator):
        assert allocator.frames_wanted(Budget.parse("1f"), 24) >= 1 <= allocator.frames_wanted(Budget.parse("8f"), 1)

    def test_its_name_survives_settings_and_says_which_allocator_it_is(self, name, allocator, backbone):
        check_allocator(name)
        again = load_allocator(EmbedConfig.from_json(EmbedConfig(allocator=name).as_json()).allocator, backbone)
        assert again.identity() == allocator.identity() and isinstance(again, METHODS[allocator.name])
        assert needs_backbone(name) == allocator.needs_backbone

    def test_options_that_it_does_not_have_are_refused(self, allocator, backbone):
        with pytest.raises(AllocEmbedError, match=allocator.name):
            load_allocator(f"{allocator.name}:no such option", backbone)
