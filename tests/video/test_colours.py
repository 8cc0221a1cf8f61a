"""From luma and chroma to RGB: as FFmpeg converts them, by torch's operations and by a GPU's kernels."""

from __future__ import annotations

import av
import numpy as np
import pytest
import torch
from av.video.reformatter import Interpolation, VideoReformatter

from allocembed.video.decoders.nvdec.colours import MIDDLE, SHARES, Colours, Scaling, own_kernel
from tests.interpreted import run_interpreted

BY_INTERPRETER = """
from allocembed.video.decoders.nvdec import colours_kernel
from allocembed.video.decoders.nvdec.colours import Scaling
from tests.video.test_colours import kinds, surface

colours_kernel.BLOCK_PIXELS = 64
for colours in kinds():
    for size in ((6, 10), (8, 130)):
        given = surface(*size)
        assert given.stride(0) > given.shape[1]
        assert colours_kernel.to_rgb(given, colours).equal(colours.to_rgb(given)), colours
for colours in (*kinds()[:2], *kinds(10)[:2]):
    for size, width in (((16, 130), 130), ((16, 64), 100), ((16, 64), 20)):
        given, scaling = surface(*size, colours.bits), Scaling.of(size, width, place=(64, 128))
        assert colours_kernel.scale(given, colours, scaling).equal(colours.to_rgb(given, scaling)), (colours, width)
"""
SCALED = [
    ((240, 320), 480),
    ((36, 640), 427),
    ((18, 1280), 1280),
    ((48, 720), 1024),
    ((32, 1920), 300),
    ((16, 48), 40),
    ((16, 64), 4),
    ((194, 258), 300),
]


def kinds(bits: int = 8) -> list[Colours]:
    return [Colours(matrix, full, bits) for matrix in SHARES for full in (False, True)]


def surface(height: int, width: int, bits: int = 8) -> torch.Tensor:
    """Noise: luma above chroma. Rows are padded, as a GPU delivers them."""
    generator = torch.Generator().manual_seed(height)
    shape = (height * 3 // 2, width + 6)
    noise = torch.randint(0, 2**bits, shape, generator=generator, dtype=torch.int32)
    words = noise.to(torch.uint8) if bits == 8 else (noise << (16 - bits)).to(torch.int16)
    return words[:, :width]


def by_ffmpeg(given: torch.Tensor, colours: Colours, width: int) -> np.ndarray:
    """As PyAV's decoder converts it; FFmpeg takes chroma whose place is not known for centred."""
    values = given.numpy() if colours.bits == 8 else given.numpy().view(np.uint16) >> (16 - colours.bits)
    height = len(values) * 2 // 3
    frame = av.VideoFrame(given.shape[1], height, "yuv420p" if colours.bits == 8 else "yuv420p10le")
    chroma = values[height:].reshape(height // 2, -1, 2)
    for plane, pixels in zip(frame.planes, (values[:height], chroma[..., 0], chroma[..., 1]), strict=True):
        rows = np.zeros((plane.height, plane.line_size // values.itemsize), values.dtype)
        rows[:, : plane.width] = pixels
        plane.update(rows.tobytes())
    frame.color_range, frame.colorspace = 2 if colours.full_range else 1, colours.matrix
    scaled = colours.bits > 8 or width != given.shape[1]
    careful = Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.FULL_CHR_H_INT
    how = {"src_colorspace": colours.matrix, "dst_colorspace": colours.matrix, "dst_color_range": 2}
    how["interpolation"] = careful if scaled else Interpolation.BILINEAR
    return VideoReformatter().reformat(frame, width=width, format="rgb24", **how).to_ndarray()


@pytest.mark.parametrize("colours", kinds(), ids=str)
@pytest.mark.parametrize("size", [(240, 320), (16, 1280), (194, 258), (18, 50)])
def test_pictures_of_8_bits_are_those_of_ffmpeg(colours, size):
    given = surface(*size)
    assert np.array_equal(colours.to_rgb(given).numpy(), by_ffmpeg(given, colours, size[1]))


@pytest.mark.parametrize("colours", kinds() + kinds(10), ids=str)
@pytest.mark.parametrize(("size", "width"), SCALED)
def test_scaled_pictures_and_those_of_10_bits_are_those_of_ffmpeg(colours, size, width):
    if colours.bits == 8 and size[1] == width:
        return
    given = surface(*size, colours.bits)
    found = colours.to_rgb(given, Scaling.of(size, width, place=(MIDDLE, MIDDLE)))
    assert np.array_equal(found.numpy(), by_ffmpeg(given, colours, width))


@pytest.mark.slow
def test_the_kernels_convert_as_torch_does():
    run_interpreted(BY_INTERPRETER)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("size", [(6, 10), (720, 1280), (1080, 1918)])
def test_on_a_gpu_the_kernel_gives_the_same_picture(size):
    assert own_kernel(torch.device("cuda")) is not None
    for colours in kinds():
        given = surface(*size)
        assert colours.to_rgb(on_gpu(given)).cpu().equal(colours.to_rgb(given))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("place", [(64, MIDDLE), (64, 64)])
@pytest.mark.parametrize(("size", "width"), [*SCALED, ((720, 1280), 1280), ((1080, 1440), 1920)])
def test_on_a_gpu_the_kernel_scales_to_the_same_picture(size, width, place):
    for colours in [*kinds()[:4], *kinds(10)[:4]]:
        given = surface(*size, colours.bits)
        expected = colours.to_rgb(given, Scaling.of(size, width, place=place))
        scaling = Scaling.of(size, width, place=place, device=torch.device("cuda"))
        assert colours.to_rgb(on_gpu(given), scaling).cpu().equal(expected)


def on_gpu(given: torch.Tensor) -> torch.Tensor:
    """Copy a surface to the GPU, with padded rows."""
    return torch.nn.functional.pad(given, (0, 6)).cuda()[:, : given.shape[1]]


def test_grey_stays_grey_and_the_ends_of_the_range_are_black_and_white():
    for colours in kinds():
        black, white = (0, 255) if colours.full_range else (16, 235)
        given = torch.tensor([[black, white], [black, white], [128, 128]], dtype=torch.uint8)
        assert colours.to_rgb(given)[0].tolist() == [[0, 0, 0], [255, 255, 255]]
