"""Ours on the cases of `tests/fixtures/official`, in the terms of those files, and the comparison."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from allocembed import AllocEmbed
from allocembed.backbones.base import Item, Prompt
from allocembed.config import EmbedConfig
from allocembed.video import read_picture
from tests import official, official_gemma

EQUAL_PIXELS, OTHER_FILTER = 1e-6, 1e-5
"""Largest 1 − cos where pixels are equal, and where only the resize filter differs."""
Case = dict[str, Any]


@cache
def load_fixture(name: str) -> dict[str, Any]:
    """One fixture file, by its name without a suffix."""
    return json.loads((official.FIXTURES / f"{name}.json").read_text(encoding="utf-8"))


def fixture_names() -> list[str]:
    return sorted(path.stem for path in official.FIXTURES.glob("*.json"))


@dataclass(frozen=True)
class Comparison:
    """The equal parts of a case, None where there is nothing to compare, and 1 − cos of the vectors."""

    ids: bool | None
    grid: bool | None
    frames: bool | None
    times: bool | None
    positions: bool | None
    pixels: bool | None
    close: bool | None
    """Whether pixels that are not equal differ by no more than two resize filters do."""
    distance: float | None

    @property
    def allowed(self) -> float:
        return OTHER_FILTER if self.pixels is False else EQUAL_PIXELS

    def failures(self) -> list[str]:
        """Names of the parts that must be equal and are not."""
        wrong = [name for name in ("ids", "grid", "frames", "times", "positions") if getattr(self, name) is False]
        if self.pixels is False and not self.close:
            wrong.append("pixels")
        if self.distance is not None and not self.distance <= self.allowed:
            wrong.append(f"vector: 1 − cos = {self.distance:.1e} > {self.allowed:.0e}")
        return wrong


def load_ours(fixture: Mapping[str, Any], folder: Path) -> AllocEmbed:
    """Ours with the checkpoint and the inputs of a fixture, every frame at native size."""
    official.save_checkpoint(fixture["model"], folder)
    return AllocEmbed.from_pretrained(folder, "full", inputs=fixture["inputs"], device="cpu", dtype="float32")


def run_case(ours: AllocEmbed, case: Case, folder: Path) -> dict[str, Any]:
    """Our output for a case, with the keys of the fixtures."""
    item, result = _prepare(ours, case, folder)
    backbone = ours.backbone
    row = backbone.rows(backbone.tokenise([item.prompt]), [item.grids])[0]
    ids = row.ids
    if case.get("source") == "picture":  # ours has the placeholder of a video there, which the model never reads
        ids = np.where(row.visual, backbone.model.config.image_token_id, ids)
    positions = row.positions
    if backbone.family == "embedding_gemma2":
        patches = None if item.patches is None else backbone.prepare_tower(item.patches.grids).positions[0].T.numpy()
        positions = official_gemma.all_positions(positions, patches)
    result |= {"ids": official.summarise_ids(ids), "positions": official.summarise_positions(positions)}
    if case.get("vector", True):
        result["vector"] = backbone.embed([item])[0].tolist()
    return result


def _prepare(ours: AllocEmbed, case: Case, folder: Path) -> tuple[Item, dict[str, Any]]:
    text = official.make_text(case["long"]) if "long" in case else case.get("text", case.get("question"))
    if "source" not in case:
        return Item(Prompt(text, case.get("instruction"))), {}
    if case["source"] == "picture":
        clip = read_picture(official.make_frames(case["width"], case["height"], [0])[0])
        _, item = ours.prepare_picture(clip, text, case.get("instruction"))
        assert item.patches is not None
        grid = [1, *(item.patches.grids[0] * ours.backbone.geometry.merge).tolist()]
        return item, {"grid": grid, "pixels": official.summarise_pixels(item.patches.pixels.numpy())}
    config: EmbedConfig = replace(ours.config, candidates=case["count"])
    ours = ours.with_config(config)
    frames = official.make_frames(case["width"], case["height"], range(case["total"]))
    if case["source"] == "file":
        clip = ours.read(official.write_video(folder / "case.avi", frames, case["rate"]))
    else:
        clip = ours.read(list(frames))
    _, item = ours.prepare(clip, text, case.get("instruction"))
    patches, seconds = item.patches, item.prompt.seconds
    assert patches is not None and seconds is not None
    sides = np.unique(patches.grids, axis=0) * ours.backbone.geometry.merge
    return item, {
        "grid": [len(patches.grids), *sides[0].tolist()] if len(sides) == 1 else sides.tolist(),
        "frames": clip.indices.tolist(),
        "times": [f"{second:.1f}" for second in seconds],
        "pixels": official.summarise_pixels(patches.pixels.numpy()),
    }


def compare(expected: Mapping[str, Any], made: Mapping[str, Any]) -> Comparison:
    """Ours against what the official code returned."""

    def equal(name: str) -> bool | None:
        return expected[name] == made[name] if name in expected else None

    pixels, close = None, None
    if "pixels" in expected:
        theirs, mine = expected["pixels"], made["pixels"]
        pixels = theirs["digest"] == mine["digest"]
        rows = np.abs(np.subtract(theirs["rows"], mine["rows"])).max()
        close = theirs["patches"] == mine["patches"] and rows < 0.5 and abs(theirs["mean"] - mine["mean"]) < 0.05
    distance = None
    if "vector" in expected:
        one, other = np.array(expected["vector"]), np.array(made["vector"])
        distance = max(0.0, float(1 - one @ other / np.linalg.norm(one) / np.linalg.norm(other)))
    parts = {name: equal(name) for name in ("ids", "grid", "frames", "times", "positions")}
    return Comparison(**parts, pixels=pixels, close=None if close is None else bool(close), distance=distance)
