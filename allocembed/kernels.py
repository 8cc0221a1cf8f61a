"""Find our Triton kernels, which are used where Triton can build them."""

import importlib
import os
import shutil
from functools import cache
from types import ModuleType


@cache
def find_kernel(module: str) -> ModuleType | None:
    """A module of kernels. None without Triton, which torch brings along on machines with a GPU, or without the C
    compiler that it builds the start of a kernel with."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    if not (interpreted or os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
