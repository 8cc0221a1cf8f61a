"""Requests for NanoRet. Creating one checks every name; importing this module does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from allocembed.benchmarks.request import METHODS, EvaluationRequest
from allocembed.benchmarks.tasks import check_names
from allocembed.errors import ConfigError

SUBSETS = {"short-clip": "short", "short-video": "short", "long-clip": "long", "long-video": "long", "qa": "qa"}
"""NanoRet's subsets, each with the set of videos it uses."""
RETRIEVAL = ("short-clip", "short-video", "long-clip", "long-video")


@dataclass(frozen=True, kw_only=True)
class NanoRequest(EvaluationRequest):
    """A run of NanoRet."""

    backbones: Sequence[str] = ()
    """Short name, hub id or folder. Repeat the option for several. NAME:INPUTS gives one of them other inputs.
    Default: nano-qwen3."""
    subsets: Sequence[str] = ()
    """short-clip, short-video, long-clip, long-video, qa. Default: all; for a sweep, the first four."""
    limit: int | None = None
    """Use only the first N of every 500 videos."""
    seed: int | None = None
    """Draw fresh test videos instead of the shipped ones."""
    out: Path = Path("nano-sweep")
    """Folder for the plot and the table of a sweep."""

    def __post_init__(self) -> None:
        check_videos(self.limit, self.seed)
        subsets = self.subsets or (RETRIEVAL if self.sweep else tuple(SUBSETS))
        usual = ("full", "uniform") if self.sweep == "frames" else METHODS[self.sweep]
        self.complete(usual, ("nano-qwen3",), subsets=check_names("subset", subsets, SUBSETS))


def check_videos(limit: int | None, seed: int | None) -> None:
    """Raise ConfigError for a limit or a seed that NanoRet's videos cannot have."""
    for name, value, least in (("limit", limit, 1), ("seed", seed, 0)):
        if value is not None and value < least:
            raise ConfigError(f"{name} must be at least {least}, not {value}")
