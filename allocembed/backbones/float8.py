"""Linear layers that multiply in float8, for NVIDIA GPUs of Ada and Hopper: half the bytes of bfloat16, and up to
twice the rate of products.

Weights are rounded once, with a scale for each output. The inputs of a layer are rounded as it runs, with a scale for
each token, so that no calibration data is needed. Products are returned in the model's own format. Attention, norms,
embeddings, patch embeddings, pooling and projections of vectors stay as they are.
"""

import logging
import re
from types import ModuleType
from typing import Self

import torch
from torch import nn

from allocembed.backbones.rounded import RoundedLinear, replace_linears
from allocembed.kernels import find_kernel

logger = logging.getLogger("allocembed")

FORMAT = torch.float8_e4m3fn
LARGEST_FLOAT8 = torch.finfo(FORMAT).max
LEAST_ROW_MAXIMUM = 1e-12  # the largest value of a row of zeros
MULTIPLE = 16  # the products need widths that are multiples of this
ROUNDED_PATHS = re.compile(r"\.\d+\.|\bmerger\.")  # paths of layers in the blocks of a model, and in Qwen-VL's merger
# Few outputs that steer all others: decays, and the choice of experts.
UNROUNDED_LAYERS = ("in_proj_a", "in_proj_b", "gate")
# Layers that get the same input, in the order in which they get it.
TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("in_proj_qkv", "in_proj_z"))
Rounded = tuple[torch.Tensor, torch.Tensor]


def round_rows(rows: torch.Tensor) -> Rounded:
    """Rows (N, width) as float8 (N, width), and the scale (N, 1), float32, of each: rows ≈ float8 · scale.

    >>> rounded, scale = round_rows(torch.tensor([[1.0, -2.0, 0.0], [0.0, 0.0, 0.0]]))
    >>> (rounded.float() * scale).tolist()
    [[1.0, -2.0, 0.0], [0.0, 0.0, 0.0]]
    """
    kernel = own_kernel() if rows.is_cuda and not torch.compiler.is_compiling() else None
    if kernel is not None and kernel.fits(rows):
        return kernel.round_rows(rows, FORMAT, LARGEST_FLOAT8, LEAST_ROW_MAXIMUM)
    top = rows.abs().amax(-1, keepdim=True).float().clamp(min=LEAST_ROW_MAXIMUM)
    # Not LARGEST_FLOAT8 / top: torch takes that for a product with the reciprocal, which is rounded twice.
    return (rows.float() * torch.full_like(top, LARGEST_FLOAT8).div(top)).to(FORMAT), top / LARGEST_FLOAT8


def own_kernel() -> ModuleType | None:
    """Our kernel; None where there is no Triton."""
    return find_kernel("allocembed.backbones.float8_kernel")


class SharedInput:
    """The input of several layers, which is rounded for the first and dropped by the last of them.

    Another input than the one at hand is rounded anew, so threads may run the same layers at the same time.
    """

    def __init__(self) -> None:
        self.last: tuple[torch.Tensor, Rounded] | None = None

    def round(self, hidden: torch.Tensor, *, drop: bool) -> Rounded:
        """`hidden` (..., width), rounded; `drop` if no other layer will ask for it."""
        last = self.last
        if last is not None and last[0] is hidden:
            rounded = last[1]
        else:
            rounded = round_rows(hidden.reshape(-1, hidden.shape[-1]))
        self.last = None if drop else (hidden, rounded)
        return rounded


class Float8Linear(RoundedLinear):
    """A linear layer whose scale is (1, out)."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor, bias: nn.Parameter | None) -> None:
        super().__init__(weight, scale, bias)
        self.shared: SharedInput | None = None
        self.drops = False

    @classmethod
    def of(cls, layer: nn.Linear, device: torch.device | None = None) -> Self:
        """Round the weights of a layer, on `device` if given, where they stay."""
        rounded, scale = round_rows(layer.weight.detach().to(device))
        return cls(rounded, scale.t().contiguous(), layer.bias)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if self.shared is None:
            rounded, scale = round_rows(hidden.reshape(-1, self.in_features))
        else:
            rounded, scale = self.shared.round(hidden, drop=self.drops)
        # Private, but the one product of float8 matrices that torch 2.11 has, and what torchao calls.
        product = torch._scaled_mm(  # pyright: ignore[reportPrivateImportUsage, reportPrivateUsage]
            rounded,
            self.weight.t(),
            scale_a=scale,
            scale_b=self.scale,
            bias=self.bias,
            out_dtype=hidden.dtype,
            use_fast_accum=True,
        )
        return product.view(*hidden.shape[:-1], self.out_features)


def can_round(path: str, layer: nn.Module) -> bool:
    """Whether a layer at a path in a model is one to replace."""
    if type(layer) is not nn.Linear or not ROUNDED_PATHS.search(path) or path.rpartition(".")[2] in UNROUNDED_LAYERS:
        return False
    return layer.in_features % MULTIPLE == 0 and layer.out_features % MULTIPLE == 0


def round_linears(model: nn.Module, device: torch.device | None = None) -> int:
    """Replace the linear layers of a model's blocks, and return how many.

    The new layers are on `device` if given, so that a GPU need not hold the whole model in the format it had.
    """
    made = replace_linears(model, lambda layer: Float8Linear.of(layer, device), can_round)
    _share_inputs(made)
    if not made:
        logger.warning(
            f"float8 changes nothing: no layer of the model's blocks has widths that are multiples of {MULTIPLE}; "
            "use --dtype bfloat16"
        )
    return len(set(made.values()))


def _share_inputs(layers: dict[str, Float8Linear]) -> None:
    """Let layers by path that get the same input share its rounded form."""
    for path in layers:
        for first, *others in TOGETHER:
            found = re.fullmatch(rf"(.*\.){first}(\.linear)?", path)  # some families wrap their layers
            if found is None:
                continue
            start, end = found.group(1), found.group(2) or ""
            group = [layers[path], *(layers[name] for other in others if (name := f"{start}{other}{end}") in layers)]
            if len(group) > len(others) and len({layer.in_features for layer in group}) == 1:
                shared = SharedInput()
                for layer in group:
                    layer.shared, layer.drops = shared, layer is group[-1]
