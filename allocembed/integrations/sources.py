"""Videos and pictures in the forms that other libraries hand over: paths, bytes, arrays, and dictionaries of these."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from allocembed.embedder import AllocEmbed
from allocembed.errors import ConfigError


def open_source(video: Any, embedder: AllocEmbed, stack: ExitStack) -> Any:
    """A video as `AllocEmbed` reads it. Bytes become a file that lives as long as the stack.

    Besides a path, bytes and frames (T, H, W, 3) or (T, 3, H, W), a video may be a dictionary: `array` and
    `video_metadata` with the `fps` of these frames, as sentence-transformers has it; or `bytes`, which may be base64
    text as in JSON, or `path`.
    """
    if isinstance(video, Mapping) and "array" in video:
        rate = dict(video.get("video_metadata") or {}).get("fps")
        timed = embedder.with_config(replace(embedder.config, rate=float(rate))) if rate else embedder
        return timed.read(_frames(video["array"]))
    if isinstance(video, Mapping):
        if video.get("bytes") is None:
            return _path(video.get("path"))
        suffix = Path(str(video.get("path") or "video.mp4")).suffix
        return _spool(as_bytes(video["bytes"]), suffix, stack)
    if isinstance(video, bytes):
        return _spool(video, ".mp4", stack)
    return _path(video) if isinstance(video, str | Path) else _frames(video)


def open_picture(picture: Any) -> Any:
    """A picture as `AllocEmbed` reads it."""
    if isinstance(picture, Mapping):
        given = picture.get("bytes")
        return _path(picture.get("path")) if given is None else as_bytes(given)
    if isinstance(picture, torch.Tensor | np.ndarray):
        array = picture.numpy(force=True) if isinstance(picture, torch.Tensor) else picture
        return array.transpose(1, 2, 0) if array.ndim == 3 and array.shape[0] == 3 != array.shape[2] else array
    return picture


def as_bytes(given: Any) -> bytes:
    """The bytes of a file, which JSON holds as base64 text."""
    if isinstance(given, bytes):
        return given
    try:
        return base64.b64decode(given, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ConfigError(f"cannot read the bytes of a file ({error}): give them as base64 text") from error


def _path(path: Any) -> str:
    if not isinstance(path, str | Path) or not str(path):
        raise ConfigError(f"cannot read {path!r} as a path: give the path of a file, its bytes, or frames")
    return str(path)


def _spool(content: bytes, suffix: str, stack: ExitStack) -> str:
    path = Path(stack.enter_context(tempfile.TemporaryDirectory()), f"video{suffix}")
    path.write_bytes(content)
    return str(path)


def _frames(frames: Any) -> Any:
    if isinstance(frames, list | tuple) and frames and isinstance(frames[0], Image.Image):
        return list(frames)
    array = frames.numpy(force=True) if isinstance(frames, torch.Tensor) else np.asarray(frames)
    if array.ndim == 4 and array.shape[1] == 3 and array.shape[3] != 3:
        array = array.transpose(0, 2, 3, 1)
    return array
