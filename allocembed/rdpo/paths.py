"""Makes a run's paths absolute, so that its train.toml means the same from any folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allocembed.backbones.loading import REGISTRY
from allocembed.rdpo.config import WORLD

PLACES = ("data", "videos", "out")
MODELS = ("backbone", "preview_source", "start_from")
"""Options that may be hub ids or short names as well; only a folder that is there is a path."""


def absolute_paths(stated: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run as they are, but for paths.

    >>> absolute_paths({"backbone": "nano-qwen3", "data": "world", "videos": "", "start_from": "you/name", "steps": 3})
    {'backbone': 'nano-qwen3', 'data': 'world', 'videos': '', 'start_from': 'you/name', 'steps': 3}
    >>> absolute_paths({"out": "run"})["out"] == str(Path("run").absolute())
    True
    """
    return {name: str(Path(value).absolute()) if _is_path(name, value) else value for name, value in stated.items()}


def _is_path(name: str, value: Any) -> bool:
    if name in MODELS:
        return bool(value) and value.lower() not in REGISTRY and Path(value).is_dir()
    return name in PLACES and bool(value) and (name, value) != ("data", WORLD)
