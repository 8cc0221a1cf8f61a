"""Attention within chunks of different size on a GPU: our kernel, FlashAttention 2 and cuDNN, on the tower's shapes.

    python bench/kernel.py [--heads 16] [--samples 50]

Milliseconds of one layer for heads of 64 (Qwen3-VL-2B's tower), bfloat16: 12 chunks as large as 720p makes them, 12 of
different size at a third of that, and 12 previews; and how far each is from float32 at most. cuDNN takes chunks of one
size alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from measure import measure
from rich.console import Console
from rich.table import Table
from torch.nn.attention.varlen import varlen_attn

from allocembed.backbones.attention import _by_cudnn, _by_length, own_kernel

kernel = own_kernel()
CHUNKS = {
    "12 of 3,600": [3600] * 12,
    "12 of 210 to 3,600": [3600, 210, 2260, 680, 1130, 1960, 300, 530, 1430, 830, 980, 600],
    "12 of 48": [48] * 12,
}


def make(lengths: list[int], heads: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Queries, keys and values (N, heads, 64), the values within a larger tensor as the tower has them, and bounds."""
    source = torch.Generator("cuda").manual_seed(0)
    about = {"device": "cuda", "dtype": torch.bfloat16, "generator": source}
    total = sum(lengths)
    query, key = (torch.randn((total, heads, kernel.HEAD), **about) for _ in range(2))
    value = torch.randn((total, 3, heads, kernel.HEAD), **about)[:, 2]
    return [query, key, value], torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)


def ways(tensors: list[torch.Tensor], bounds: torch.Tensor, lengths: list[int]) -> dict[str, Callable]:
    longest, rows = max(lengths), len(lengths)
    found = {
        "ours": lambda: kernel.attend(*tensors, bounds, longest, None),
        "FlashAttention 2": lambda: varlen_attn(*tensors, bounds, bounds, longest, longest),
    }
    if len(set(lengths)) == 1:
        found["cuDNN"] = lambda: _by_cudnn(*tensors, rows, False, None)
    return found


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--samples", type=int, default=50)
    options = parser.parse_args()
    if not torch.cuda.is_available() or kernel is None:
        raise SystemExit("this measures a CUDA device with Triton, and one of them is missing: run it where both are")
    table = Table(title=f"one layer, {options.heads} heads of {kernel.HEAD}, {torch.cuda.get_device_name()}")
    for heading in ("patches", "way", "ms", "against FlashAttention 2", "largest difference to float32"):
        table.add_column(heading, justify="left" if heading in ("patches", "way") else "right")
    for title, lengths in CHUNKS.items():
        tensors, bounds = make(lengths, options.heads)
        truth = _by_length(*(tensor.float() for tensor in tensors), lengths, False, None)
        taken, far = {}, {}
        for name, way in ways(tensors, bounds, lengths).items():
            # Ten at a time, so that launching them costs nothing.
            taken[name] = measure(lambda _, w=way: [w() for _ in range(10)], options.samples, bounds.device).median / 10
            far[name] = float((way().float() - truth).abs().max())
        for name, spent in taken.items():
            ratio = spent / taken["FlashAttention 2"]
            table.add_row(title, name, f"{spent:.3f}", f"{ratio:.2f}×", f"{far[name]:.1e}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
