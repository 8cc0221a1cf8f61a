"""Our Triton kernels compile for the GPUs they run on, and stay within their arrays. Neither needs a GPU: Triton
brings an assembler and an interpreter."""

from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from allocembed.backbones import float8_kernel  # noqa: E402
from allocembed.backbones.attention import kernel as attention_kernel  # noqa: E402
from allocembed.video.decoders.nvdec import colours_kernel  # noqa: E402
from tests.interpreted import run_interpreted  # noqa: E402

GPUS = (75, 80, 86, 89, 90, 100, 120)  # compute capability, from Turing to Blackwell
FLOAT8_GPUS = tuple(gpu for gpu in GPUS if gpu >= 89)
SHARED_BYTES = 227 * 2**10  # of a block on Hopper
WITHIN_FENCES = """
import torch
from tests.interpreted import fenced

plain = torch.empty  # what a kernel fills
torch.empty = lambda *args, **how: fenced(plain(*args, **how), AT_END)
"""
KERNELS = {
    "colours": """
from dataclasses import replace
from allocembed.video.decoders.nvdec import colours_kernel
from allocembed.video.decoders.nvdec.colours import Colours, Scaling
from tests.video.test_colours import surface

colours_kernel.BLOCK_PIXELS = 128
for bits, (height, coded), width, place in (
    (8, (6, 130), 130, None),
    (8, (12, 68), 100, (64, 128)),
    (8, (8, 68), 20, (128, 64)),
    (10, (8, 68), 68, (64, 192)),
):
    colours, given = Colours(5, False, bits), fenced(surface(height, coded, bits), AT_END)
    scaling = Scaling.of((height, coded), width, place=place) if place else None
    wanted = colours.to_rgb(given, scaling)
    if scaling:
        pairs = {name: getattr(scaling, name) for name in ("luma", "chroma", "rows")}
        pairs = {name: tuple(fenced(each, AT_END) for each in pair) for name, pair in pairs.items()}
        made = colours_kernel.scale(given, colours, replace(scaling, **pairs))
    else:
        made = colours_kernel.to_rgb(given, colours)
    assert made.equal(wanted)
""",
    "float8": """
from allocembed.backbones import float8_kernel

for width in (5, 144, 1104):
    rows = fenced(torch.randn(5, width), AT_END)
    float8_kernel.round_rows(rows, torch.float32, 448.0, 1e-12)
    float8_kernel.round_rows(rows[:, :3], torch.float32, 448.0, 1e-12)
""",
    "attention": """
from allocembed.backbones.attention import kernel

for lengths in ([70, 33, 5], [64, 128], [1, 65]):
    bounds = fenced(torch.tensor([0, *lengths]).cumsum(0).to(torch.int32), AT_END)
    together = fenced(torch.randn(sum(lengths), 3, 2, kernel.HEAD), AT_END)
    apart = [fenced(torch.randn(sum(lengths), 2, kernel.HEAD), AT_END) for _ in range(3)]
    for tensors in (together.unbind(1), apart):
        kernel.attend(*tensors, bounds, max(lengths), None)
""",
}


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Compile a kernel for a GPU. `arguments` are types, such as "*u8", or constants."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def build(kernel: Any, gpu: int, arguments: dict[str, Any], **options: int) -> Any:
        types = {name: each if isinstance(each, str) else "constexpr" for name, each in arguments.items()}
        constants = {name: each for name, each in arguments.items() if not isinstance(each, str)}
        source = ASTSource(kernel, types, constexprs=constants)
        return triton.compile(source, target=GPUTarget("cuda", gpu, 32), options=options)

    return build


def numbers(names: list[str]) -> dict[str, str]:
    return dict.fromkeys(names, "i32")


@pytest.mark.parametrize("gpu", GPUS)
def test_pictures_become_rgb_on_every_gpu(compiled, gpu: int) -> None:
    arguments = {
        "surface": "*u8",
        "made": "*u8",
        **numbers(colours_kernel.VALUES),
        "block": colours_kernel.BLOCK_PIXELS,
    }
    assert compiled(colours_kernel._convert, gpu, arguments).asm["cubin"]


@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize(("kind", "bits", "taps"), [("*u8", 8, (4, 4, 4)), ("*i16", 10, (1, 4, 4))])
def test_pictures_are_scaled_on_every_gpu(compiled, gpu: int, kind: str, bits: int, taps: tuple[int, ...]) -> None:
    filters = [f"{part}_{what}" for part in ("luma", "chroma", "row") for what in ("first", "weights")]
    arguments = {"surface": kind, "made": "*u8", **dict.fromkeys(filters, "*i32"), **numbers(colours_kernel.VALUES)}
    arguments |= dict(zip(("luma_taps", "chroma_taps", "row_taps"), taps, strict=True))
    arguments |= {"bits": bits, "block": colours_kernel.BLOCK_PIXELS}
    assert compiled(colours_kernel._scale, gpu, arguments).asm["cubin"]


@pytest.mark.parametrize("gpu", FLOAT8_GPUS)
@pytest.mark.parametrize("width", [1024, 12288])
def test_rows_are_rounded_on_gpus_with_float8(compiled, gpu: int, width: int) -> None:
    arguments = {"rows": "*bf16", "rounded": "*fp8e4nv", "scale": "*fp32", "step": "i32", "width": width}
    arguments |= {"largest": 448.0, "least": 1e-12, "block": triton.next_power_of_2(width)}
    assert compiled(float8_kernel._round, gpu, arguments, num_warps=8).asm["cubin"]


@pytest.mark.parametrize("kind", ["*bf16", "*fp16"])
def test_rows_attend_on_hopper(compiled, kind: str) -> None:
    tile = dict(attention_kernel.TILE)
    arguments = {**dict.fromkeys(("query", "key", "value", "output"), kind), "bounds": "*i32", "steepness": "fp32"}
    arguments |= numbers(["query_step", "key_step", "value_step"])
    arguments |= {"heads": 16, "width": attention_kernel.HEAD, "block": tile.pop("block"), "along": tile.pop("along")}
    made = compiled(attention_kernel._attend, 90, arguments, **tile)
    assert "wgmma" in made.asm["ptx"], "Hopper's own instructions"
    assert made.metadata.shared <= SHARED_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("at_end", [True, False], ids=["behind", "in front"])
@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_stays_within_its_arrays(name: str, at_end: bool) -> None:
    run_interpreted(f"AT_END = {at_end}" + WITHIN_FENCES + KERNELS[name])
