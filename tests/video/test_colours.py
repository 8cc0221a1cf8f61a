"""From luma and chroma to RGB: a card's kernel gives what torch's operations give. FFmpeg's are in test_nvdec.py."""

import pytest
import torch

from allocembed.video.decoders.colours import SHARES, Colours, own_kernel
from tests.interpreted import run_interpreted

BY_INTERPRETER = """
from allocembed.video.decoders import colours_kernel
from tests.video.test_colours import kinds, surface

colours_kernel.BLOCK = 64
for colours in kinds():
    for size in ((6, 10), (8, 130)):
        given = surface(*size)
        assert given.stride(0) > given.shape[1]
        assert colours_kernel.to_rgb(given, *colours.whole_factors()).equal(colours.to_rgb(given)), colours
"""


def kinds() -> list[Colours]:
    return [Colours(matrix, full) for matrix in SHARES for full in (False, True)]


def surface(height: int, width: int) -> torch.Tensor:
    """Luma above chroma; rows are padded, as a card delivers them."""
    generator = torch.Generator().manual_seed(height)
    return torch.randint(0, 256, (height * 3 // 2, width + 6), generator=generator, dtype=torch.uint8)[:, :width]


@pytest.mark.slow
def test_the_kernel_converts_as_torch_does():
    run_interpreted(BY_INTERPRETER)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("size", [(6, 10), (720, 1280), (1080, 1918)])
def test_on_a_gpu_the_kernel_gives_the_same_picture(size):
    assert own_kernel() is not None
    for colours in kinds():
        given = surface(*size)
        padded = torch.nn.functional.pad(given, (0, 6)).cuda()[:, : size[1]]
        assert colours.to_rgb(padded).cpu().equal(colours.to_rgb(given))


def test_grey_stays_grey_and_the_ends_of_the_range_are_black_and_white():
    for colours in kinds():
        black, white = (0, 255) if colours.full_range else (16, 235)
        given = torch.tensor([[black, white], [black, white], [128, 128]], dtype=torch.uint8)
        assert colours.to_rgb(given)[0].tolist() == [[0, 0, 0], [255, 255, 255]]
