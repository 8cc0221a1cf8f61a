"""A run from its first step to its last: batches ahead, validation, the best checkpoint, saving, stopping, going on.

What a step does is in `trainer`; here is when, and what is kept of it.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from allocembed.backbones import Backbone, load_backbone
from allocembed.options import stderr
from allocembed.output import whole_file
from allocembed.policy.preview import Previewer, load_previewer
from allocembed.rdpo.checkpoint import Progress, load_state, save_state, whole_weights
from allocembed.rdpo.config import WORLD, TrainConfig
from allocembed.rdpo.data import TRAINING, VALIDATION, Source, WorldSource
from allocembed.rdpo.jsonl import JsonlSource
from allocembed.rdpo.log import Log
from allocembed.rdpo.paths import MODELS, PLACES, absolute_paths
from allocembed.rdpo.processes import Processes
from allocembed.rdpo.trainer import Trainer, learning_rate

BEST, STATE, CONFIG = "best", "state", "train.toml"
GOES_ON, OUT_OF_TIME = 0, 128  # how a step ends; what is between them is the number of a signal to stop


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    backbone: Backbone | None = None,
    previewer: Previewer | None = None,
) -> Progress:
    """Trains an allocator as the config says; models that are loaded already may be given."""
    config = replace(config, **absolute_paths({name: getattr(config, name) for name in (*PLACES, *MODELS)}))
    processes = Processes(config.device if backbone is None else backbone.device)
    if processes.device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)  # it makes a new plan for every shape, and shapes are many here
    try:
        source = make_source(config)
        backbone = backbone or load_backbone(config.backbone, device=processes.device)
        if previewer is None:
            named = (config.preview, config.preview_source, config.preview_tokens)
            about = (backbone, backbone.device, backbone.dtype)
            previewer = load_previewer(*named, *about, summary=config.preview_summary)
        return Run(Trainer(config, processes, backbone, previewer, source)).go(resume=resume)
    finally:
        processes.close()


def make_source(config: TrainConfig) -> Source:
    """The source that `data` names."""
    if config.data == WORLD:
        return WorldSource(config.seed, config.pool, config.mixture)
    if not config.data:
        raise ValueError("there is no data: give --data train.jsonl (see docs/training.md), or --preset nano")
    file = Path(config.data)
    root = Path(config.videos) if config.videos else file.parent
    if not root.is_dir():
        raise ValueError(f"there is no folder {root}: give the one that the videos are in, with --videos")
    return JsonlSource(file, root, seed=config.seed, validation=config.validation, workers=config.workers)


class Run:
    """Takes a trainer through its steps, in its config's folder."""

    def __init__(self, trainer: Trainer, on_step: Callable[[int], None] | None = None) -> None:
        """`on_step` is called with the number of steps made, after each."""
        self.trainer, self.config, self.processes = trainer, trainer.config, trainer.processes
        self.folder, self.on_step = Path(trainer.config.out), on_step
        self.progress = Progress()
        self.log = Log(quiet=True)

    def go(self, *, resume: bool = False) -> Progress:
        """All steps, from the start or from the saved state."""
        if resume:
            parts = (self.trainer.policy, self.trainer.mean, self.trainer.optimiser)
            self.progress = load_state(self.folder / STATE, *parts, self.config, distributed=self.processes.distributed)
        elif self.processes.first:
            self._make_folder()
        if self.processes.first:
            self.log = Log(self.folder, self.config.steps, done=self.progress.step)
        with ThreadPoolExecutor(max_workers=1) as host, stop_politely() as asked:
            try:
                self._steps(host, asked)
            finally:
                self.log.close()
        if self.processes.first:
            self._report()
        if self.progress.stopped_by:
            # Whoever leaves with a status makes torchrun end the others, and the first may still be writing.
            self.processes.wait()
        return self.progress

    def _steps(self, host: ThreadPoolExecutor, asked: Asked) -> None:
        config, progress, trainer = self.config, self.progress, self.trainer
        held = trainer.prepare(VALIDATION, 0)
        if not progress.step:
            uniform = trainer.validate(held, uniform=True)
            if not math.isfinite(uniform["score"]):
                failures = "; ".join(trainer.source.skipped[:3])
                raise ValueError(f"none of the videos kept for validation can be read: check --videos. {failures}")
            self.log.write("uniform", 0, uniform)
        started, before, named = time.monotonic(), progress.seconds, 0
        ahead = host.submit(trainer.prepare, TRAINING, progress.step)
        while progress.step < config.steps:
            with trainer.clock("data"):
                batch = trainer.source.finish(ahead.result(), trainer.device)
            if progress.step + 1 < config.steps:
                ahead = host.submit(trainer.prepare, TRAINING, progress.step + 1)
            report = trainer.step(batch, progress.step)
            report["lr"] = learning_rate(config, progress.step)
            progress.step += 1
            progress.skipped += report.pop("not finite")
            progress.seconds = before + time.monotonic() - started
            self.log.write("step", progress.step, {**report, "skipped": progress.skipped, "seconds": progress.seconds})
            for failure in trainer.source.skipped[named:]:
                self.log.say(f"left out {failure}")
            named = len(trainer.source.skipped)
            late = config.minutes and time.monotonic() - started > 60 * config.minutes
            # Clocks and signals differ between processes; what they do next must not.
            ending = int(self.processes.largest(OUT_OF_TIME if late else asked.signal))
            last = progress.step == config.steps
            if progress.step % config.validate_every == 0 or last or ending == OUT_OF_TIME:
                self._validate(held)
            if progress.step % config.save_every == 0 or last or ending:
                self._save()
            if self.on_step:
                self.on_step(progress.step)
            if ending:
                progress.stopped_by = ending if ending < OUT_OF_TIME and not last else 0
                return

    def _validate(self, held: Any) -> None:
        """Measures the policy as it is, and keeps it if none was better."""
        with self.trainer.clock("validation"):
            measured = self.trainer.validate(held)
        self.log.write("validation", self.progress.step, measured)
        if not measured["score"] > self.progress.best:  # so that what is no number is never best
            return
        self.progress.best, self.progress.best_step = measured["score"], self.progress.step
        weights = whole_weights(self.trainer.mean)
        if self.processes.first:
            policy = self.trainer.mean
            scores = {name: round(value, 4) for name, value in measured.items()}
            policy.config = replace(policy.config, trained={**self._facts(), "validation": scores})
            policy.save_pretrained(self.folder / BEST, state_dict=weights)
            self._write_config(self.folder / BEST)

    def _facts(self) -> dict[str, Any]:
        """What the card says about the training."""
        named = ("backbone", "examples", "rollouts", "global_negatives", "budget_mode", "cost", "seed")
        budgets = ", ".join(dict.fromkeys(self.config.budgets))
        facts = {name: getattr(self.config, name) for name in named}
        return {**facts, "data": Path(self.config.data).name, "budgets": budgets, "steps": self.progress.step}

    def _save(self) -> None:
        with self.trainer.clock("saving"):
            parts = (self.trainer.policy, self.trainer.mean, self.trainer.optimiser)
            save_state(self.folder / STATE, *parts, self.progress, self.config, writes=self.processes.first)

    def _make_folder(self) -> None:
        if (self.folder / STATE).exists():
            again = f"allocembed train {self.folder / CONFIG} --resume"
            raise ValueError(f"{self.folder} holds a run already: go on with {again}, or give another --out")
        if (self.folder / CONFIG).exists():
            raise ValueError(
                f"{self.folder} holds a run that has saved nothing yet: give another --out, or remove the folder if "
                "that run is no more"
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_config(self.folder)

    def _write_config(self, folder: Path) -> None:
        with whole_file(folder / CONFIG) as scratch:
            scratch.write_text(self.config.as_toml(), encoding="utf-8")

    def _report(self) -> None:
        progress, skipped = self.progress, len(self.trainer.source.skipped)
        lines = [f"time: {self.trainer.clock}"]
        if skipped:
            lines.append(f"{skipped} lines or videos were left out")
        if progress.skipped:
            lines.append(f"{progress.skipped} updates were skipped: their gradient was not finite")
        if progress.best >= 0:
            lines.append(f"best: Hit@1 {progress.best:.1%} after step {progress.best_step} → {self.folder / BEST}")
        if progress.step < self.config.steps:
            again = f"allocembed train {self.folder / CONFIG} --resume"
            lines.append(f"stopped after step {progress.step}; go on with: {again}")
        for line in lines:
            stderr.print(line, soft_wrap=True, markup=False)


@dataclass
class Asked:
    """Whether somebody wants an end, and by which signal."""

    signal: int = GOES_ON


@contextmanager
def stop_politely() -> Iterator[Asked]:
    """Notes SIGTERM and Ctrl-C, so that the step under way is finished and saved; a second one kills."""
    asked, before = Asked(), {}

    def note(number: int, _frame: object) -> None:
        asked.signal = asked.signal or number
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
