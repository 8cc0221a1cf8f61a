"""Our families under the suite that every family must pass, each with its ordinary path written down."""

import pytest
import torch
from torch.nn.functional import normalize

from allocembed.backbones.base import Backbone, Item
from allocembed.resize import normalise
from allocembed.testing.backbones import BackboneContract
from allocembed.testing.items import rows_of
from tests.families import gemma, siglip

FAMILIES = ("qwen2", "qwen25", "qwen3", "qwen3_moe", "qwen35", "gemma", "siglip")


class TestOurFamilies(BackboneContract):
    @pytest.fixture(scope="class", params=FAMILIES)
    def folder(self, request):
        return request.getfixturevalue(f"{request.param}_folder")

    def plain_vector(self, backbone: Backbone, item: Item) -> torch.Tensor:
        assert item.patches is not None
        if backbone.family == "siglip2":
            return siglip.plain_vector(backbone, item)
        row = rows_of(backbone, [item])[0]
        if backbone.family == "embedding_gemma2":
            return gemma.plain_vector(backbone, item, row)
        ids, pixels = torch.from_numpy(row.ids)[None], normalise(item.patches.pixels, backbone.geometry, torch.float32)
        grids = torch.from_numpy(item.grids)
        patches = torch.cat([torch.ones(len(grids), 1, dtype=torch.long), grids * backbone.geometry.merge], 1)
        own = {"mm_token_type_ids": (ids == backbone.video_token).int() * 2}
        if backbone.family == "qwen2_vl":
            own = {"position_ids": torch.arange(len(row)).expand(3, 1, -1)}
        if backbone.family == "qwen2_5_vl":  # refuses mixed grids without positions, which have a test of their own
            own = {"position_ids": torch.from_numpy(row.positions)[:, None]}
        about = {"attention_mask": torch.ones_like(ids), "pixel_values_videos": pixels, "video_grid_thw": patches}
        return normalize(backbone.model(input_ids=ids, **about, **own).last_hidden_state[:, -1], dim=-1)
