"""Run a script that uses our Triton kernels by Triton's interpreter, on a CPU."""

import os
import subprocess
import sys

import pytest


def run_interpreted(script: str) -> None:
    """Fail if the script does; skip where Triton is missing."""
    pytest.importorskip("triton", reason="Triton comes with torch where there is a GPU")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    made = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-2000:]
