"""Qwen3-VL, its mixture of experts, and Qwen3.5. `layouts` has what their embedders read.

Of every four layers of Qwen3.5's language model, three are recurrent (gated delta net): what they keep of a row is a
state, which must not pass into the next row. So packed rows are separated for these layers and packed again after them,
which is exact. Right padding comes after the pooled token and never reaches it.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from allocembed.backbones.base import Backbone, Batching, TokenRow
from allocembed.backbones.qwen_vl.backbone import QwenRowInputs, QwenVLBackbone
from allocembed.backbones.qwen_vl.language import unpacked_places
from allocembed.backbones.variants import Look, Variants


class Qwen3VLBackbone(QwenVLBackbone):
    """Qwen3-VL-Embedding-2B and -8B, and other models with this layout."""

    family = "qwen3_vl"


class Qwen3VLMoeBackbone(QwenVLBackbone):
    """Embedders based on Qwen3-VL's mixtures of experts."""

    family = "qwen3_vl_moe"


class Qwen35Backbone(QwenVLBackbone):
    """Embedders based on Qwen3.5."""

    family = "qwen3_5"

    def prepare_rows(self, rows: Sequence[TokenRow], batching: Batching = "pad") -> QwenRowInputs:
        inputs = super().prepare_rows(rows, batching)
        if batching == "pad":
            return inputs
        unpacked = unpacked_places([len(row) for row in rows], self.device)
        return replace(inputs, language=replace(inputs.language, unpacked=unpacked))

    def prepare_variants(self, ids: np.ndarray, looks: Sequence[Look], chunks: int) -> Variants:
        """Every row in full: a recurrent layer cannot begin in the middle of a row."""
        return Backbone.prepare_variants(self, ids, looks, chunks)
