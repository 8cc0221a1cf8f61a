"""The base of linear layers with rounded weights, whatever format they multiply in."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn


class RoundedLinear(nn.Module):
    """A linear layer: (..., in) to (..., out). A subclass rounds and multiplies."""

    weight: nn.Parameter
    """(out, in), in the format of the subclass."""
    scale: nn.Parameter
    """float32: what one level of each output's weights is worth."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor, bias: nn.Parameter | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self.scale = nn.Parameter(scale, requires_grad=False)
        self.bias = bias
        self.out_features, self.in_features = weight.shape


Layer = TypeVar("Layer", bound=RoundedLinear)


def replace_linears(
    model: nn.Module, make: Callable[[nn.Linear], Layer], fits: Callable[[str, nn.Module], bool]
) -> dict[str, Layer]:
    """Replace the linear layers of a model that fit, by path. A layer that is shared stays shared."""
    made: dict[nn.Module, Layer] = {}
    replaced: dict[str, Layer] = {}
    for path, layer in list(model.named_modules(remove_duplicate=False)):
        if type(layer) is nn.Linear and fits(path, layer):
            if layer not in made:
                made[layer] = make(layer)
            parent, _, name = path.rpartition(".")
            setattr(model.get_submodule(parent), name, made[layer])
            replaced[path] = made[layer]
    return replaced
