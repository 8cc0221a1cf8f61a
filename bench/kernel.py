"""Time attention within chunks of different size on a GPU: our kernel, FlashAttention 2 and cuDNN.

    python bench/kernel.py [--heads 16] [--samples 50] [--tiles 64,64,4,3 128,64,8,3]

Milliseconds of one layer with heads of size 64 (Qwen3-VL-2B's tower) in bfloat16, and the largest difference to
float32. `--tiles` tries other blocks: queries, keys, warps, stages.

Inputs: 12 chunks of the size of 720p, 12 chunks of different size with a third of the patches, and 12 previews. cuDNN
only handles chunks of one size.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from measure import measure
from rich.console import Console
from rich.table import Table
from torch.nn.attention.varlen import varlen_attn

from allocembed.backbones.attention.by_length import attend_by_length
from allocembed.backbones.attention.rows import attend_by_cudnn, own_kernel

kernel = own_kernel()
CHUNKS = {
    "12 of 3,600": [3600] * 12,
    "12 of 210 to 3,600": [3600, 210, 2260, 680, 1130, 1960, 300, 530, 1430, 830, 980, 600],
    "12 of 48": [48] * 12,
}


def make(lengths: list[int], heads: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Queries, keys and values (N, heads, 64), and bounds. Values are part of a larger tensor, as in the tower."""
    source = torch.Generator("cuda").manual_seed(0)
    kind = {"device": "cuda", "dtype": torch.bfloat16, "generator": source}
    total = sum(lengths)
    query, key = (torch.randn((total, heads, kernel.HEAD), **kind) for _ in range(2))
    value = torch.randn((total, 3, heads, kernel.HEAD), **kind)[:, 2]
    return [query, key, value], torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)


def kernels(
    tensors: list[torch.Tensor], bounds: torch.Tensor, lengths: list[int], tiles: list[str]
) -> dict[str, Callable[[], torch.Tensor]]:
    """The kernels that handle these lengths, by name."""
    longest, rows = max(lengths), len(lengths)
    given = [dict(zip(kernel.TILE, map(int, tile.split(",")), strict=True)) for tile in tiles]
    ours = {"ours": kernel.TILE, **{f"ours, {tile}": sides for tile, sides in zip(tiles, given, strict=True)}}
    found = {
        **{name: partial(kernel.attend, *tensors, bounds, longest, None, tile) for name, tile in ours.items()},
        "FlashAttention 2": lambda: varlen_attn(*tensors, bounds, bounds, longest, longest),
    }
    if len(set(lengths)) == 1:
        found["cuDNN"] = lambda: attend_by_cudnn(*tensors, rows, False, None)
    return found


@torch.inference_mode()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--tiles", nargs="+", default=[], help="blocks to try: queries,keys,warps,stages")
    parser.add_argument("--samples", type=int, default=50)
    options = parser.parse_args()
    if not torch.cuda.is_available() or kernel is None:
        raise SystemExit("cannot measure: this machine has no CUDA device or no Triton; run it where both are present")
    table = Table(title=f"one layer, {options.heads} heads of {kernel.HEAD}, {torch.cuda.get_device_name()}")
    for heading in ("patches", "kernel", "ms", "against FlashAttention 2", "largest difference to float32"):
        table.add_column(heading, justify="left" if heading in ("patches", "kernel") else "right")
    for title, lengths in CHUNKS.items():
        tensors, bounds = make(lengths, options.heads)
        truth = attend_by_length(*(tensor.float() for tensor in tensors), lengths, False, None, None)
        taken, differences = {}, {}
        for name, run in kernels(tensors, bounds, lengths, options.tiles).items():
            # Ten calls per sample hide the time of a launch.
            taken[name] = measure(lambda _, r=run: [r() for _ in range(10)], options.samples, bounds.device).median / 10
            differences[name] = float((run().float() - truth).abs().max())
        for name, spent in taken.items():
            ratio = spent / taken["FlashAttention 2"]
            table.add_row(title, name, f"{spent:.3f}", f"{ratio:.2f}×", f"{differences[name]:.1e}")
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
