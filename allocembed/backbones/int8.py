"""Linear layers that multiply in eight bits, for CPUs: a quarter of float32's weights, and faster than bfloat16, also
on cores that compute in it.

Weights are rounded once, with a scale for each output. The inputs of a layer are rounded as it runs, with a scale for
each token, so that no calibration data is needed. Everything else (attention, norms, embeddings) stays as it is.
"""

from typing import Self

import torch
from torch import nn

from allocembed.backbones.rounded import RoundedLinear, replace_linears

LEVELS = 127
LEAST_SCALE = 1e-12  # scale of a row of zeros
BLOCK_ROWS = 512  # rows at a time, so that intermediate tensors fit in the cache


class Int8Linear(RoundedLinear):
    """A linear layer whose scale is (out,)."""

    @classmethod
    def of(cls, layer: nn.Linear) -> Self:
        """Round the weights of a layer."""
        weight = layer.weight.detach().float()
        scale = weight.abs().amax(1).clamp_(min=LEAST_SCALE) / LEVELS
        return cls((weight / scale[:, None]).round_().to(torch.int8), scale, layer.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        flat = hidden.reshape(-1, self.in_features)
        if torch.compiler.is_compiling():  # a loop over the rows would be one graph for each number of tokens
            return self._multiply(flat).to(hidden.dtype).view(*hidden.shape[:-1], self.out_features)
        output = hidden.new_empty((len(flat), self.out_features))
        for start in range(0, len(flat), BLOCK_ROWS):
            output[start : start + BLOCK_ROWS] = self._multiply(flat[start : start + BLOCK_ROWS])
        return output.view(*hidden.shape[:-1], self.out_features)

    def _multiply(self, rows: torch.Tensor) -> torch.Tensor:
        """Rows (N, in) to (N, out), float32."""
        rows = rows.float()  # first, because operations on two formats are not vectorised
        level = rows.abs().amax(-1, keepdim=True).clamp_(min=LEAST_SCALE).div_(LEVELS)
        rounded = (rows / level).round_().to(torch.int8)
        # Private, but the one product of int8 matrices that torch has, and what torchao calls.
        product = torch._int_mm(rounded, self.weight.t())  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
        output = product.float().mul_(level).mul_(self.scale)
        return output if self.bias is None else output.add_(self.bias.float())


def round_linears(model: nn.Module) -> None:
    """Replace all linear layers of a model."""
    replace_linears(model, Int8Linear.of, lambda path, layer: True)
