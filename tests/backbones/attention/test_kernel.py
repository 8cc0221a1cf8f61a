"""Our attention kernel: what it computes, by Triton's interpreter on a CPU, and when it is used."""

import pytest
import torch

from allocembed.backbones.attention.by_length import attend_by_length
from allocembed.backbones.attention.rows import attend_rows
from tests.backbones.qwen_vl.test_fast_path import on_cuda
from tests.interpreted import run_interpreted

BY_INTERPRETER = """
import torch
from allocembed.backbones.attention import kernel
from allocembed.backbones.attention.by_length import attend_by_length

lengths = [70, 33, 128, 5, 64]
generator = torch.Generator().manual_seed(0)
bounds = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
other = kernel.TILE | {"block": 32, "along": 128}
for dtype, near, scale, tile in ((torch.float32, 2e-6, None, other), (torch.float16, 2e-3, 0.3, kernel.TILE)):
    query, key, value = torch.randn((sum(lengths), 3, 2, 64), generator=generator).to(dtype).unbind(1)
    query, key = query.contiguous(), key.contiguous()
    made = kernel.attend(query, key, value, bounds, max(lengths), scale, tile)
    wanted = attend_by_length(query.float(), key.float(), value.float(), lengths, False, None, scale)
    assert made.is_contiguous() and (made.float() - wanted).abs().max() < near, (dtype, scale)
"""


@pytest.mark.slow
def test_the_kernel_attends_within_each_row():
    run_interpreted(BY_INTERPRETER)


@on_cuda
@torch.inference_mode()
def test_on_a_gpu_the_kernel_is_taken_where_it_fits():
    kernel = pytest.importorskip("allocembed.backbones.attention.kernel", reason="Triton is not there")
    lengths = [700, 33, 1280, 5, 2113, 64]
    bounds = torch.tensor([0, *lengths], device="cuda").cumsum(0).to(torch.int32)
    for width in (64, 72, 80):
        tensors = torch.randn((sum(lengths), 3, 4, width), device="cuda", dtype=torch.bfloat16).unbind(1)
        assert kernel.fits(*tensors) == (width == 64 and torch.cuda.get_device_capability()[0] == 9)
        made = attend_rows(*tensors, bounds, max(lengths), False, None, None, None)
        wanted = attend_by_length(*(tensor.float() for tensor in tensors), lengths, False, None, None)
        assert (made.float() - wanted).abs().max() < 0.02
