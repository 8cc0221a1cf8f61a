"""Find our Triton kernels, which are used where Triton can build them."""

import importlib
import os
import shutil
import sysconfig
from functools import cache
from pathlib import Path
from types import ModuleType


@cache
def find_kernel(module: str) -> ModuleType | None:
    """A module of kernels. None without Triton, which torch brings along on machines with a GPU, or without the C
    compiler and Python's headers that it builds the start of a kernel with."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
    headers = Path(sysconfig.get_paths()["include"], "Python.h")
    if not (interpreted or (compiler and headers.is_file())):
        return None
    try:
        return importlib.import_module(module)
    except ImportError:
        return None
