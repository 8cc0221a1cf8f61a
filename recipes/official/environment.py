"""The environment of the official code on a machine without CUDA, and tools of all recipes.

Import this before transformers. Three substitutes, none of which touches a number:

- torchvision has no CPU wheel for this torch. The plain wheel imports if its two detection operators have a definition.
- decord is not installed. A module of that name with its three calls, based on PyAV, hands the official reader the
  frames it asks for by index. Which frames those are, the official code decides.
- Baselines that the official repositories import but these models never use are replaced by empty modules.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
PACKAGES = ("torch", "torchvision", "transformers", "tokenizers", "qwen-vl-utils", "pillow", "numpy", "av")


def define_operators() -> torch.library.Library:
    """Define the operators whose absence stops the import of a torchvision built for another torch."""
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    return library


class VideoReader:
    """decord's reader, as far as qwen-vl-utils uses it. Times are not needed: the official code takes index / fps."""

    def __init__(self, path: str) -> None:
        import av

        with av.open(path.removeprefix("file://")) as file:
            stream = file.streams.video[0]
            self.rate = float(stream.average_rate or 0)
            self.frames = np.stack([frame.to_ndarray(format="rgb24") for frame in file.decode(stream)])

    def __len__(self) -> int:
        return len(self.frames)

    def get_avg_fps(self) -> float:
        return self.rate

    def get_batch(self, indices: list[int]) -> Any:
        batch = MagicMock()
        batch.asnumpy.return_value = self.frames[indices]
        return batch


def use_pyav_as_decord() -> None:
    """Let qwen-vl-utils choose decord and find the reader above."""
    module = ModuleType("decord")
    module.__spec__ = ModuleSpec("decord", None)
    vars(module)["VideoReader"] = VideoReader
    sys.modules["decord"] = module
    os.environ["FORCE_QWENVL_VIDEO_READER"] = "decord"


def leave_out(names: Iterable[str]) -> None:
    """Replace modules by empty ones, whose every attribute exists."""
    for name in names:
        module: Any = MagicMock(name=name)
        module.__path__, module.__spec__, module.__name__ = [], ModuleSpec(name, None), name
        sys.modules[name] = module


def versions() -> dict[str, str]:
    """Versions of the packages that decide what comes out."""
    return {name: metadata.version(name) for name in PACKAGES}


def commit(repository: Path) -> str:
    """The commit of a checkout."""
    command = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def write_fixture(content: dict[str, Any]) -> None:
    """One case a line, so that a change shows in a diff."""
    from tests.official import FIXTURES

    cases = ",\n".join(json.dumps(case, ensure_ascii=False) for case in content.pop("cases"))
    head = json.dumps(content, indent=1)[:-2]
    FIXTURES.mkdir(parents=True, exist_ok=True)
    part = f"_{content['part']}" if content["part"] else ""
    path = FIXTURES / f"{content['model']}_{content['inputs']}{part}.json"
    path.write_text(f'{head},\n "cases": [\n{cases}\n]}}\n', encoding="utf-8")
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


OPERATORS = define_operators()  # kept, because definitions end with the object
use_pyav_as_decord()
