"""Our Triton kernels compile for the cards that they run on. That needs no card; the interpreter shows what they do."""

from pathlib import Path
from typing import Any

import pytest

triton = pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from allocembed.backbones import float8_kernel  # noqa: E402
from allocembed.backbones.attention import kernel as attention_kernel  # noqa: E402
from allocembed.video.decoders import colours_kernel  # noqa: E402

CARDS = (75, 80, 86, 89, 90, 100, 120)  # compute capability, from Turing to Blackwell
FLOAT8_CARDS = tuple(card for card in CARDS if card >= 89)
SHARED_BYTES = 227 * 2**10  # of a block on Hopper


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Compile a kernel for a card. `arguments` are types, such as "*u8", or constants."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))

    def build(kernel: Any, card: int, arguments: dict[str, Any], **options: int) -> Any:
        types = {name: each if isinstance(each, str) else "constexpr" for name, each in arguments.items()}
        constants = {name: each for name, each in arguments.items() if not isinstance(each, str)}
        source = ASTSource(kernel, types, constexprs=constants)
        return triton.compile(source, target=GPUTarget("cuda", card, 32), options=options)

    return build


def numbers(names: list[str]) -> dict[str, str]:
    return dict.fromkeys(names, "i32")


@pytest.mark.parametrize("card", CARDS)
def test_pictures_become_rgb_on_every_card(compiled, card: int) -> None:
    arguments = {"surface": "*u8", "made": "*u8", **numbers(colours_kernel.VALUES), "block": colours_kernel.BLOCK}
    assert compiled(colours_kernel._convert, card, arguments).asm["cubin"]


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("kind", "bits", "taps"), [("*u8", 8, (4, 4, 4)), ("*i16", 10, (1, 4, 4))])
def test_pictures_are_scaled_on_every_card(compiled, card: int, kind: str, bits: int, taps: tuple[int, ...]) -> None:
    filters = [f"{part}_{what}" for part in ("luma", "chroma", "row") for what in ("first", "weights")]
    arguments = {"surface": kind, "made": "*u8", **dict.fromkeys(filters, "*i32"), **numbers(colours_kernel.VALUES)}
    arguments |= dict(zip(("luma_taps", "chroma_taps", "row_taps"), taps, strict=True))
    arguments |= {"bits": bits, "block": colours_kernel.BLOCK}
    assert compiled(colours_kernel._scale, card, arguments).asm["cubin"]


@pytest.mark.parametrize("card", FLOAT8_CARDS)
@pytest.mark.parametrize("width", [1024, 12288])
def test_rows_are_rounded_on_cards_with_float8(compiled, card: int, width: int) -> None:
    arguments = {"rows": "*bf16", "rounded": "*fp8e4nv", "scale": "*fp32", "step": "i32", "width": width}
    arguments |= {"largest": 448.0, "least": 1e-12, "block": triton.next_power_of_2(width)}
    assert compiled(float8_kernel._round, card, arguments, num_warps=8).asm["cubin"]


@pytest.mark.parametrize("kind", ["*bf16", "*fp16"])
def test_rows_attend_on_hopper(compiled, kind: str) -> None:
    tile = dict(attention_kernel.TILE)
    arguments = {**dict.fromkeys(("query", "key", "value", "output"), kind), "bounds": "*i32", "steepness": "fp32"}
    arguments |= numbers(["query_step", "key_step", "value_step"])
    arguments |= {"heads": 16, "width": attention_kernel.HEAD, "block": tile.pop("block"), "along": tile.pop("along")}
    made = compiled(attention_kernel._attend, 90, arguments, **tile)
    assert "wgmma" in made.asm["ptx"], "Hopper's own instructions"
    assert made.metadata.shared <= SHARED_BYTES
