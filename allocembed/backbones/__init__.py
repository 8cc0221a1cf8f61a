"""Frozen embedding models, one adapter a family: z = E(X̃, q), equation 10 of the paper."""

from allocembed.backbones.base import Backbone, BackboneError, Item
from allocembed.backbones.loading import DEFAULT_BACKBONE, REGISTRY, load_backbone

__all__ = ["DEFAULT_BACKBONE", "REGISTRY", "Backbone", "BackboneError", "Item", "load_backbone"]
