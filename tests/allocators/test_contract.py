"""Our allocators under the suite that every allocator must pass."""

import pytest

from allocembed.allocators.registry import ALL_METHODS
from allocembed.backbones.loading import load_backbone
from allocembed.testing.allocators import AllocatorContract
from tests.allocators.test_learned import save_policy


class TestWithoutModel(AllocatorContract):
    @pytest.fixture(params=[name for name in ALL_METHODS if name not in ("sensitivity", "learned")])
    def name(self, request):
        return request.param


class TestWithModel(AllocatorContract):
    @pytest.fixture(scope="class")
    def backbone(self, qwen3_folder):
        return load_backbone(qwen3_folder, device="cpu")

    @pytest.fixture(params=["sensitivity", "sensitivity:6-12+25%-100%@2", "learned"])
    def name(self, request, qwen3_folder, tmp_path):
        if request.param == "learned":
            return str(save_policy(tmp_path, "backbone", str(qwen3_folder)))
        return request.param
