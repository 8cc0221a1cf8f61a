"""Qwen2-VL and Qwen2.5-VL: one tower each, the same language model. `layouts` has what their embedders read.

Qwen2.5-VL's tower attends within windows of 8 × 8 patches, and within the whole chunk in four of its blocks.
"""

from allocembed.backbones.qwen_vl.backbone import QwenVLBackbone


class Qwen2VLBackbone(QwenVLBackbone):
    """VLM2Vec-V2-2B, VLM2Vec-Qwen2VL-7B, GME-Qwen2-VL, UniME-V2, Ops-MM-embedding."""

    family = "qwen2_vl"


class Qwen25VLBackbone(QwenVLBackbone):
    """Embedders based on Qwen2.5-VL. The default is the stock chat template of the base model."""

    family = "qwen2_5_vl"
