"""The grids and prompts of EmbeddingGemma 2, without torch.

The model's own processor brings every frame to the largest size within a number of tokens, 48 × 48 pixels each: smaller
frames are enlarged. The number is a choice of five, for frames and for pictures; a checkpoint states its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from allocembed.budget import Grid
from allocembed.geometry import Geometry
from allocembed.inputs import Inputs

if TYPE_CHECKING:
    import torch

QUERY = "task: search result | query: "  # `query` among the prompts that are published with the model
DOCUMENT = "title: none | text: "  # `document`
SIZES = (70, 140, 280, 560, 1120)  # tokens of a frame or picture among which the model's own processor chooses
FRAME, PICTURE = 140, 280  # what the published checkpoint states, according to transformers' documentation
TIMESTAMPS = "timestamps"

Pooling = Literal["tokens", "frames"]


@dataclass(frozen=True)
class GemmaGeometry(Geometry):
    """Frames of any size fill their limit. Pixels have their channels together.

    The model's own step from [0, 1] to [−1, 1] is part of `mean` and `std`, which are the same for all channels.
    """

    frames_per_chunk: int = 1

    def native(self, height: int, width: int, *, frames: int = 1, listed: bool = False) -> Grid:
        """The largest grid within the limit whose sides, rounded down to whole tokens, keep the aspect.

        >>> GEMMA.native(720, 1280), GEMMA.native(36, 64), GEMMA.native(10, 4000)
        (Grid(rows=8, cols=15), Grid(rows=8, cols=15), Grid(rows=1, cols=140))
        """
        scale = math.sqrt(self.max_pixels / (height * width))
        rows, cols = (math.floor(scale * side / self.factor) for side in (height, width))
        most = self.max_pixels // self.factor**2
        if rows == 0:
            return Grid(1, max(1, min(width // height, most)))
        if cols == 0:
            return Grid(max(1, min(height // width, most)), 1)
        return Grid(rows, cols)

    def patchify(self, frames: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        """Order: frame, token row, token col, row and col within the token; within a patch y, x, channel."""
        count, channels, height, width = frames.shape
        patch, merge, factor = self.patch, self.merge, self.factor
        blocks = frames.reshape(count, channels, height // factor, merge, patch, width // factor, merge, patch)
        blocks = blocks.permute(0, 2, 5, 3, 6, 4, 7, 1)
        if out is None:
            out = frames.new_empty((blocks.shape[:5].numel(), blocks.shape[5:].numel()))
        out.view(blocks.shape).copy_(blocks)
        return out


@dataclass(frozen=True)
class GemmaInputs(Inputs):
    """One pipeline of the family."""

    pooling: Pooling = "tokens"
    """The unit of equal weight in the mean: every token, as in the model's own code, or every frame. With tokens, a
    larger frame weighs more; with frames, it does not. At one common size both give one mean."""
    frame_tokens: int | None = None
    """Most tokens of a native frame; None for what the checkpoint states."""


HALF = (0.5, 0.5, 0.5)
GEMMA = GemmaGeometry(16, 3, HALF, HALF, min_pixels=48**2, max_pixels=FRAME * 48**2)
DEFAULT = GemmaInputs(GEMMA, longest=8_192, picture_pixels=(48**2, PICTURE * 48**2))
PIPELINES: dict[str, Inputs] = {
    "token-mean": DEFAULT,
    "frame-mean": replace(DEFAULT, pooling="frames"),
    TIMESTAMPS: replace(DEFAULT, layout=TIMESTAMPS),
    **{
        f"{tokens}-tokens": replace(DEFAULT, geometry=replace(GEMMA, max_pixels=tokens * 48**2), frame_tokens=tokens)
        for tokens in SIZES
    },
}
"""Pipelines by name: the pooling of mixed sizes, a time before each frame, and other sizes than the checkpoint's."""


def read_inputs(folder: Path, config: Mapping[str, Any], default: Inputs) -> Inputs:
    """The pipeline with the patch size, token limits and pixel statistics that a checkpoint states."""
    if not isinstance(default, GemmaInputs):
        raise TypeError(f"EmbeddingGemma 2 needs inputs of its own, not {default!r}")
    vision, geometry = config.get("vision_config") or {}, default.geometry
    patch, merge = vision.get("patch_size", geometry.patch), vision.get("pooling_kernel_size", geometry.merge)
    frames, pictures = _stated(folder, "video_processor"), _stated(folder, "image_processor")
    tokens = default.frame_tokens or frames.get("max_soft_tokens", FRAME)
    picture = pictures.get("max_soft_tokens", PICTURE)
    for number in (patch, merge, tokens, picture):
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"patch, pooling and token numbers must be whole numbers above 0, not {number!r}")
    mean, std = (frames.get("image_mean"), frames.get("image_std")) if frames.get("do_normalize") else (None, None)
    offset, spread = (_one_value(given, usual) for given, usual in ((mean, 0.0), (std, 1.0)))
    token = (patch * merge) ** 2
    geometry = replace(
        geometry,
        patch=patch,
        merge=merge,
        mean=(offset + spread / 2,) * 3,
        std=(spread / 2,) * 3,
        min_pixels=token,
        max_pixels=tokens * token,
    )
    layout = default.layout or (TIMESTAMPS if frames.get("add_timestamps") else "")
    return replace(default, geometry=geometry, layout=layout, picture_pixels=(token, picture * token))


def _one_value(channels: Sequence[float] | None, usual: float) -> float:
    values = set(channels or (usual,))
    if len(values) > 1:
        raise ValueError(f"the statistics of the channels must be equal, not {channels}")
    return float(values.pop())


def _stated(folder: Path, kind: str) -> dict[str, Any]:
    """Settings of the checkpoint's own video or image processor: in one file for all, or each in its own."""
    together = folder / "processor_config.json"
    if together.is_file():
        found = json.loads(together.read_text(encoding="utf-8")).get(kind)
        if found:
            return found
    path = folder / ("video_preprocessor_config.json" if kind == "video_processor" else "preprocessor_config.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def lay_out(content: str, instruction: str | None) -> str:
    """The prompt, then what it introduces. An empty instruction is no prompt at all.

    >>> lay_out("a dog", None), lay_out("a dog", QUERY), lay_out("a dog", "Find it:"), lay_out("a dog", "")
    ('title: none | text: a dog', 'task: search result | query: a dog', 'Find it: a dog', 'a dog')
    """
    prompt = DOCUMENT if instruction is None else instruction
    return prompt + (" " if prompt and not prompt[-1].isspace() else "") + content


def lay_out_frames(frame: str, seconds: list[float] | None) -> str:
    """One `frame` string for each frame; with `seconds`, each after its time.

    >>> lay_out_frames("#", [0.0, 61.9])
    '00:00 # 01:01 #'
    """
    if seconds is None:
        return frame
    return " ".join(f"{int(second // 60):02d}:{int(second % 60):02d} {frame}" for second in seconds)
