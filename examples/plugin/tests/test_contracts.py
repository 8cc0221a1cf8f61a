"""The names of the package under the suites that every backbone and allocator must pass."""

import pytest
import torch
import torch.nn.functional as F
from tiny_clip import save

from allocembed.backbones.base import Backbone, Item
from allocembed.resize import normalise
from allocembed.testing.allocators import AllocatorContract
from allocembed.testing.backbones import BackboneContract
from allocembed.testing.items import video


class TestClip(BackboneContract):
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory):
        return save(tmp_path_factory.mktemp("clip"))

    def plain_vector(self, backbone: Backbone, item: Item) -> torch.Tensor:
        """The mean of the model's own image features, and its text features."""
        assert item.patches is not None
        side = backbone.geometry.patch
        pixels = normalise(item.patches.pixels, backbone.geometry, torch.float32).split(item.grids.prod(-1).tolist())
        frames = []
        for (rows, cols), own in zip(item.grids.tolist(), pixels, strict=True):
            picture = own.view(rows, cols, 3, side, side).permute(2, 0, 3, 1, 4).reshape(1, 3, rows * side, cols * side)
            seen = backbone.model.get_image_features(picture, interpolate_pos_encoding=True)
            frames.append(F.normalize(seen.pooler_output, dim=-1))
        vector = F.normalize(torch.cat(frames).mean(0, keepdim=True), dim=-1)
        if item.prompt.text is None:
            return vector
        words = backbone.tokenizer([item.prompt.text], return_tensors="pt")
        text = F.normalize(backbone.model.get_text_features(words["input_ids"]).pooler_output, dim=-1)
        return F.normalize(vector + text, dim=-1)

    def test_a_square_frame_is_read_as_the_models_own_code_reads_it(self, backbone: Backbone) -> None:
        item = video(backbone, [(6, 6), (6, 6)])
        assert backbone.geometry.native(480, 480).tokens == 36, "the checkpoint's own square"
        assert item.patches is not None
        pixels = normalise(item.patches.pixels, backbone.geometry, torch.float32)
        frames = pixels.view(2, 6, 6, 3, 16, 16).permute(0, 3, 1, 4, 2, 5).reshape(2, 3, 96, 96)
        with torch.no_grad():
            official = F.normalize(backbone.model.get_image_features(frames).pooler_output, dim=-1).mean(0)
        assert F.cosine_similarity(backbone.embed([item])[0], official, dim=0) > 1 - 1e-6


class TestClipWithoutTexts(TestClip):
    @pytest.fixture(scope="class")
    def folder(self, tmp_path_factory):
        return save(tmp_path_factory.mktemp("pictures"), image_only=True)


class TestMiddleFirst(AllocatorContract):
    @pytest.fixture(params=["middle", "middle:0.5"])
    def name(self, request):
        return request.param

    def test_the_middle_gets_the_most(self, allocator, request_of, clip) -> None:
        scales = allocator.plan(clip(10), request_of()).scales
        assert scales.argmax() == len(scales) // 2 and scales[0] == scales[-1] == allocator.edge
