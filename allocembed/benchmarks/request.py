"""Requests for evaluations. Creating one checks every name at once; this module does not import torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from allocembed.allocators.registry import ALL_METHODS, check_allocator
from allocembed.backbones.checkpoint import check_backbone, split_inputs
from allocembed.benchmarks import longret, mmeb_v2
from allocembed.benchmarks.paper import BENCHMARKS, TRANSFER
from allocembed.benchmarks.shards import Shard
from allocembed.benchmarks.tasks import BenchmarkTask, check_names
from allocembed.budget import CANDIDATES
from allocembed.config import EmbedConfig
from allocembed.errors import ConfigError

SweepOver = Literal["frames", "budgets"]
METHODS: dict[SweepOver | None, tuple[str, ...]] = {
    None: ALL_METHODS,
    "frames": ("full", "uniform", "learned"),
    "budgets": ("base", "learned"),
}
"""All methods for a table, and those of the figure that each sweep makes."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """Settings of every benchmark. Empty names mean the usual ones, which are filled in."""

    methods: Sequence[str] = ()
    """Methods, or folders or hub ids of learned allocators. Default: all methods; for a sweep or a transfer, those of
    the paper's figure or table."""
    backbones: Sequence[str] = ()
    """Short name, hub id or folder. Repeat the option for several. NAME:INPUTS gives one of them other inputs, such as
    vlm2vec-qwen2vl-7b:vlm2vec-v2. Default: vlm2vec-v2-2b; for a transfer, the four models of the paper."""
    config: EmbedConfig = field(default_factory=EmbedConfig)
    """Settings of all embedders; `backbone` and `allocator` come from the two fields above."""
    sweep: SweepOver | None = None
    """Instead of tables: frames, 8 to 48 at one budget (figure 2), or budgets of 8, 16 and 20 frames (figure 5)."""

    def complete(self, methods: Sequence[str], backbones: Sequence[str], **names: Sequence[str] | str) -> None:
        """Check methods and backbones, or fill in these usual ones; set other fields to names that were checked."""
        if self.sweep and self.config.candidates != CANDIDATES:
            raise ConfigError(f"a sweep over {self.sweep} sets the candidates itself: leave out --candidates")
        if self.sweep == "budgets" and self.config.budget != EmbedConfig().budget:
            raise ConfigError("a sweep over budgets sets the budget itself: leave out --budget")
        names["methods"] = tuple(dict.fromkeys(self.methods or methods))
        names["backbones"] = tuple(dict.fromkeys(self.backbones or backbones))
        for method in names["methods"]:
            check_allocator(method)
        for backbone in names["backbones"]:
            model, config = self.settings_of(backbone)
            check_backbone(model, config.inputs)
        for name, value in names.items():
            object.__setattr__(self, name, value)

    def settings_of(self, backbone: str) -> tuple[str, EmbedConfig]:
        """The model that one of `backbones` names, and its settings, with the inputs that stand behind the name."""
        model, inputs = split_inputs(backbone)
        return model, replace(self.config, inputs=inputs or self.config.inputs)


@dataclass(frozen=True, kw_only=True)
class BenchmarkRequest(EvaluationRequest):
    """A run of one of the paper's benchmarks."""

    benchmark: str
    """mmeb-v2 or longret."""
    data: Path
    """Folder of the dataset; for longret, the folder made by `allocembed longret build`."""
    tasks: Sequence[str] = ()
    """Tasks to run. Default: all."""
    limit: int | None = None
    """Use only the first N queries of each task and their videos."""
    allow_missing: bool = False
    """Leave out queries whose video is missing."""
    transfer: bool = False
    """Add the gain of learned allocators over Base on each backbone (table 3)."""
    html: bool = False
    """Write report.html too."""
    cache: Path = Path("allocembed-cache")
    """Folder of stored embeddings; a later run resumes from it."""
    out: Path = Path("results")
    """Folder for the results."""
    batch: int = 4
    """Videos embedded at a time on a GPU."""
    shard: str | None = None
    """Embed only part I of N, such as 1/4, into a cache that all N processes share, without torchrun. The last shard to
    finish writes the results; so does a later run without this option."""

    @property
    def log(self) -> Path:
        """The file that progress is written to."""
        name = f"progress-{self.shard.replace('/', '-of-')}" if self.shard else "progress"
        return self.out / f"{name}.log"

    def __post_init__(self) -> None:
        if self.shard:
            Shard.parse(self.shard)
        (benchmark,) = check_names("benchmark", [self.benchmark], BENCHMARKS)
        if self.sweep and self.transfer:
            raise ConfigError("a sweep and a transfer are separate runs: request only one of them")
        known, models = BENCHMARKS[benchmark].tasks, tuple(TRANSFER)
        tasks = check_names("task", self.tasks or known, known)
        if self.transfer:
            self.complete(("base", "learned"), models, benchmark=benchmark, tasks=tasks)
        else:
            self.complete(METHODS[self.sweep], models[:1], benchmark=benchmark, tasks=tasks)
        if self.transfer and ("base" not in self.methods or len(self.methods) < 2):
            raise ConfigError("a transfer compares with Base: write --methods base,FOLDER_OF_THE_ALLOCATOR")

    def load_tasks(self) -> list[BenchmarkTask]:
        """Read the tasks from the dataset folder. Raise DataError if files are missing."""
        limit, missing = self.limit, self.allow_missing
        if self.benchmark == "mmeb-v2":
            return [mmeb_v2.load_task(name, self.data, limit=limit, allow_missing=missing) for name in self.tasks]
        built = longret.load(self.data)
        return [longret.make_task(built, name, limit=limit, allow_missing=missing) for name in self.tasks]


def short_titles(names: Sequence[str]) -> dict[str, str]:
    """A title for each name: the last part of its path, unless another name has the same last part.

    >>> short_titles(["runs/a/best", "VLM2Vec/VLM2Vec-V2.0", "runs/b/best"])
    {'runs/a/best': 'runs/a/best', 'VLM2Vec/VLM2Vec-V2.0': 'VLM2Vec-V2.0', 'runs/b/best': 'runs/b/best'}
    """
    last = [Path(name).name or name for name in names]
    return {name: part if last.count(part) == 1 else name for name, part in zip(names, last, strict=True)}
