"""Run a benchmark as requested. Nothing here prints; warnings go to the `allocembed` logger.

    request = BenchmarkRequest(benchmark="mmeb-v2", data=..., tasks=[...], methods=[...], ...)   # checks all names
    results = run(request, request.load_tasks(), progress=console.progress)   # DataError if files are missing

`progress(title)` is called once per backbone; it returns a context manager whose value has `update(done, total)`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from rich.table import Table

from allocembed.allocators.base import Allocator
from allocembed.allocators.learned import Learned
from allocembed.allocators.registry import LEARNED, load_allocator
from allocembed.backbones.base import Backbone
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import comparison, figures, report
from allocembed.benchmarks.comparison import Comparison, transfer_lines
from allocembed.benchmarks.page import examples, save_page
from allocembed.benchmarks.paper import BENCHMARKS
from allocembed.benchmarks.progress_log import ProgressLog
from allocembed.benchmarks.request import BenchmarkRequest, EvaluationRequest, short_titles
from allocembed.benchmarks.runner import Evaluation, digest_videos
from allocembed.benchmarks.shards import Shard, describe_missing
from allocembed.benchmarks.sweep import Sweep, make_embedders, sweep_json, sweep_markdown
from allocembed.benchmarks.tasks import BenchmarkTask
from allocembed.budget import Budget
from allocembed.config import EmbedConfig
from allocembed.embedder import AllocEmbed
from allocembed.errors import ConfigError, MissingDependency, PolicyError
from allocembed.execution.distributed import Processes
from allocembed.output.files import make_room, write_text

if TYPE_CHECKING:
    from allocembed.output.console import ProgressLine

    ShowProgress = Callable[[str], AbstractContextManager[ProgressLine]]

logger = logging.getLogger("allocembed")


@dataclass(frozen=True, eq=False)
class CampaignResults:
    """Results of a run, and the files it wrote."""

    first: bool
    """Whether this is the process that writes; the others have nothing more to report."""
    json: dict[str, Any] = field(default_factory=dict)
    markdown: str = ""
    files: list[Path] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Videos that could not be read."""
    tables: list[Table] = field(default_factory=list)
    """The results for a terminal; without tables, the Markdown is shown there."""
    unfinished: str = ""
    """Why there are no results yet: other shards are still at work."""


def run(
    request: BenchmarkRequest, tasks: Sequence[BenchmarkTask], *, progress: ShowProgress | None = None
) -> CampaignResults:
    """Run one of the paper's benchmarks, on all processes of a torchrun job, and write its files.

    A shard embeds its part. It writes the files only if all other shards are finished.
    """
    MissingDependency.check("plotting results", "matplotlib", "plot")
    make_room(request.out / "results.json")
    make_room(request.cache / "embeddings")
    processes = Processes(request.config.device)
    log = ProgressLog(request.log if processes.first else None)
    try:
        if request.shard and processes.world > 1:
            raise ConfigError("cannot divide the work twice: use --shard without torchrun, or torchrun without --shard")
        campaign = _Campaign(request, tasks, processes, log, progress)
        if request.shard and (missing := campaign.embed_shard(shard := Shard.parse(request.shard))):
            unfinished = describe_missing(shard, missing)
            log.note(unfinished)
            return CampaignResults(True, files=[request.log], unfinished=unfinished)
        results = campaign.evaluate()
        log.note("finished")
        return results
    except BaseException as error:
        log.stop(error)
        raise
    finally:
        processes.close()


@dataclass(frozen=True, eq=False)
class _Campaign:
    """A benchmark on all backbones of a request."""

    request: BenchmarkRequest
    tasks: Sequence[BenchmarkTask]
    processes: Processes
    log: ProgressLog
    progress: ShowProgress | None

    @cached_property
    def digests(self) -> dict[Path, str]:
        """Fingerprints of the videos, which all backbones share."""
        self.log.note(f"identifying {len({video for task in self.tasks for video in task.videos}):,} videos")
        return digest_videos(self.tasks, self.processes)

    def embed_shard(self, shard: Shard) -> int:
        """Embed a shard; return how many embeddings the other shards have not made yet."""
        # Counted at the end for all backbones, so that the last shard to finish finds nothing missing.
        inventories = []
        for _, _, embedders, evaluation in self._embedded(shard):
            inventories.append(evaluation.inventory)
            del embedders, evaluation  # before the next backbone is loaded
        return sum(inventory.missing() for inventory in inventories)

    def evaluate(self) -> CampaignResults:
        """Embed what is missing, score, and write the files."""
        request, benchmark, unit = self.request, BENCHMARKS[self.request.benchmark], cost_unit(self.request)
        found: list[Comparison] = []
        shown: list[dict[str, Any]] = []
        for name, title, embedders, evaluation in self._embedded():
            results = evaluation.results()
            found.append(Comparison(benchmark, name, title, results.outcomes, results.failures, (unit,)))
            if request.html and not request.sweep and self.processes.first:
                shown += examples(title, embedders, results)
            del embedders, evaluation  # before the next backbone is loaded
        if not self.processes.first:
            return CampaignResults(first=False)
        if not request.sweep:
            results = _save_tables(request, found, shown)
        else:
            sweeps = [Sweep(request.sweep, each.title, each.scores, each.all_notes, each.failures) for each in found]
            results = save_sweeps(sweeps, benchmark.name, request.out)
        return replace(results, files=[*results.files, request.log])

    def _embedded(self, shard: Shard | None = None) -> Iterator[tuple[str, str, dict[str, AllocEmbed], Evaluation]]:
        """Load one backbone after the other, and embed what is missing: its name, title, embedders and evaluation."""
        request, processes = self.request, self.processes
        for name, title in short_titles(request.backbones).items():
            backbone, allocators = _load(name, request, processes)
            embedders = make_embedders(request.sweep, backbone, allocators, request.settings_of(name)[1])
            evaluation = Evaluation(
                embedders, self.tasks, request.cache, digests=self.digests, processes=processes, shard=shard
            )
            with self.progress(title) if self.progress and processes.first else nullcontext() as line:
                update = self.log.follow(title, evaluation.failures, line.update if line else None)
                evaluation.embed(request.batch, update)
            yield name, title, embedders, evaluation
            del backbone, allocators, embedders, evaluation  # before the next ones are loaded


def save_sweeps(sweeps: Sequence[Sweep], benchmark: str, out: Path) -> CampaignResults:
    """Write sweeps of several backbones as JSON, Markdown and plots."""
    stem, listed, text = f"sweep_{sweeps[0].over}", sweep_json(sweeps), sweep_markdown(sweeps, benchmark)
    files = _write(out, f"{stem}.json", listed, {f"{stem}.md": text})
    files += figures.plot_sweeps(sweeps, benchmark, out / stem)
    failures = list(dict.fromkeys(failure for sweep in sweeps for failure in sweep.failures))
    return CampaignResults(True, listed, text, files, failures)


def load_allocators(methods: Sequence[str], backbone: Backbone) -> dict[str, Allocator]:
    """Allocators by label. `learned` is skipped if none is bundled, unless it is the only method."""
    allocators = {}
    for method, label in short_titles(methods).items():
        try:
            allocators[label] = load_allocator(method, backbone)
        except PolicyError as error:
            if method != LEARNED or len(methods) == 1:
                raise
            logger.warning("skipping %s: %s", method, error)
    return allocators


def _load(name: str, request: BenchmarkRequest, processes: Processes) -> tuple[Backbone, dict[str, Allocator]]:
    """A backbone and its allocators by label; a single learned one is called `learned`, as in the paper's tables."""
    backbone = load_evaluated(*request.settings_of(name), processes.device)
    if backbone.notice and processes.first:
        logger.warning(backbone.notice)
    found = load_allocators(request.methods, backbone)
    if request.transfer and len(found) < 2:
        raise PolicyError(f"no allocator to compare with Base on {name}: write --methods base,FOLDER_OR_HUB_ID")
    learned = [label for label, allocator in found.items() if isinstance(allocator, Learned)]
    if len(learned) == 1:
        found = {LEARNED if label in learned else label: allocator for label, allocator in found.items()}
    return backbone, found


def load_evaluated(name: str, config: EmbedConfig, device: str | torch.device) -> Backbone:
    return load_backbone(
        name, inputs=config.inputs, dim=config.dim, device=device, dtype=config.dtype, compile=config.compile
    )


def cost_unit(request: EvaluationRequest) -> str:
    """A note on the cost of 1.000×."""
    if request.sweep == "budgets":
        return "1.000× = the native frames of the budget"
    return Budget.parse(request.config.budget).unit


def _save_tables(
    request: BenchmarkRequest, found: Sequence[Comparison], shown: Sequence[Mapping[str, Any]]
) -> CampaignResults:
    """Write tables, the plot of gains and, if requested, the transfer table and the page."""
    texts = {"results.md": "\n".join(map(comparison.markdown, found)), "results.tex": comparison.latex(found)}
    listed: dict[str, Any] = {"results": [comparison.as_json(each) for each in found]}
    if request.transfer:
        lines = transfer_lines(found)
        title = f"{found[0].benchmark.name}: gain over Base in points of Hit@1, and cost"
        texts["transfer.md"] = report.markdown_table(title, lines, found[0].notes[0])
        listed["transfer"] = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    files = _write(request.out, "results.json", listed, texts)
    transfer = texts.get("transfer.md", "")
    plots = []
    if all(each.base and len(each.summaries) > 1 for each in found):
        plots = figures.plot_gains(found, request.out / "gains")
    if request.html:
        files.append(save_page(found, transfer, plots, shown, request.out / "report.html"))
    failures = list(dict.fromkeys(failure for each in found for failure in each.failures))
    return CampaignResults(True, listed, transfer or texts["results.md"], [*files, *plots], failures)


def _write(out: Path, name: str, listed: dict[str, Any], texts: Mapping[str, str]) -> list[Path]:
    """Write results as JSON, and texts by file name; return the files."""
    for file, text in {name: json.dumps(listed, indent=1) + "\n", **texts}.items():
        write_text(out / file, text)
    return [out / file for file in (name, *texts)]
