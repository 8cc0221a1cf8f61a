"""Run a script that uses our Triton kernels by Triton's interpreter, on a CPU."""

import ctypes
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
import torch

PAGE = mmap.PAGESIZE


def run_interpreted(script: str) -> None:
    """Fail if the script does; skip where Triton is missing."""
    pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    made = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert made.returncode == 0, f"exit {made.returncode}: {made.stderr[-2000:]}"


def fenced(tensor: torch.Tensor, at_end: bool) -> torch.Tensor:
    """A copy with the same strides, in memory of its own. A process that touches what lies behind it dies, or, unless
    `at_end`, what lies in front of it."""
    span = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride(), strict=True)) + 1
    size = span * tensor.element_size() if tensor.numel() else 0
    room = -(-size // PAGE) * PAGE
    pages = mmap.mmap(-1, room + 2 * PAGE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(pages))
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    protect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for place in (start, start + PAGE + room):
        assert protect(place, PAGE, 0) == 0, os.strerror(ctypes.get_errno())
    inside = np.frombuffer(pages, np.uint8, size, PAGE + (room - size if at_end else 0))
    made = torch.from_numpy(inside).view(tensor.dtype).as_strided(tensor.shape, tensor.stride())
    return made.copy_(tensor)
