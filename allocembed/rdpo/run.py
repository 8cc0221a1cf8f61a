"""A run from its first step to its last: prepared batches, validation, the best checkpoint, saving, stopping, resuming.

`trainer` says what a step does; this module says when, and what is kept of it.
"""

import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from allocembed.backbones.base import Backbone
from allocembed.backbones.loading import load_backbone
from allocembed.errors import ConfigError, DataError, OutputError
from allocembed.execution.distributed import Processes
from allocembed.output.console import say
from allocembed.output.files import write_text
from allocembed.policy.preview import load_previewer
from allocembed.rdpo.checkpoint import TrainingProgress, check_config, has_state, load_state, save_state, whole_weights
from allocembed.rdpo.config import MODELS, PATHS, TRAINING_DATA, TrainConfig, absolute_paths, check_data, make_config
from allocembed.rdpo.data.base import TRAINING, VALIDATION, Source
from allocembed.rdpo.data.folder import FolderSource, list_videos
from allocembed.rdpo.data.jsonl import JsonlSource
from allocembed.rdpo.log import FILE as LOG_FILE
from allocembed.rdpo.log import Log
from allocembed.rdpo.trainer import Trainer, learning_rate
from allocembed.threads import map_ordered

BEST, STATE, CONFIG = "best", "state", "train.toml"
CONTINUE, OUT_OF_TIME = 0, 128  # how a step ends; numbers in between are signals


def train(config: TrainConfig, *, resume: bool = False, backbone: Backbone | None = None) -> TrainingProgress:
    """Train an allocator; a backbone that is loaded already may be passed, and is not changed."""
    check_data(config.data)
    config = replace(config, **absolute_paths({name: getattr(config, name) for name in (*PATHS, *MODELS)}))
    check_videos(config)
    processes = Processes(config.device if backbone is None else backbone.device)
    with training_switches():
        try:
            backbone = (backbone or load_backbone(config.backbone, device=processes.device)).with_patch_product()
            source = make_source(config, backbone)
            previewer = load_previewer(
                config.preview,
                config.preview_source,
                config.preview_tokens,
                backbone,
                backbone.device,
                backbone.dtype,
                summary=config.preview_summary,
            )
            return TrainingRun(Trainer(config, processes, backbone, previewer, source)).go(resume=resume)
        finally:
            processes.close()


@contextmanager
def training_switches() -> Iterator[None]:
    """Set the global switches that training needs; restore them at the end."""
    before = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans anew for every shape, and training has many shapes
    try:
        with warnings.catch_warnings():
            # About results changed in place, which the frame module never does.
            warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
            yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)


def check_videos(config: TrainConfig) -> None:
    """Raise if `data` and `videos` cannot be used together, before any model is loaded."""
    if not config.data and not config.videos:
        raise ConfigError(
            "no training data: pass --videos FOLDER, --data train.jsonl (see docs/training.md), or --preset nano"
        )
    unused = [name for name in ("videos", "validation_data", "training_pixels") if getattr(config, name)]
    drawn = config.data in TRAINING_DATA
    if drawn and unused:
        flag = "--" + unused[0].replace("_", "-")
        raise ConfigError(
            f"{flag} has no use with --data {config.data}: leave it out, or pass --data '' for your own videos"
        )
    if config.validation_data and not Path(config.validation_data).is_file():
        raise DataError(f"there is no file {config.validation_data}: pass a .jsonl file with --validation-data")
    if not drawn and not _videos(config).is_dir():
        raise DataError(f"there is no folder {_videos(config)}: pass the folder of the videos with --videos")
    if not config.data:
        list_videos(_videos(config))


def make_source(config: TrainConfig, backbone: Backbone | None = None) -> Source:
    """The source that `data` names; lines of a .jsonl whose texts the backbone cannot embed are skipped."""
    texts = config.target == "text"
    if backbone is not None and config.data and texts and not backbone.reads_texts:
        raise ConfigError(
            f"{backbone.name} embeds no texts, so it cannot rank captions: pass --videos FOLDER without --data, or "
            "--target video"
        )
    if config.data in TRAINING_DATA:
        return TRAINING_DATA[config.data](config)
    folder = _videos(config)
    kind, file = (JsonlSource, Path(config.data)) if config.data else (FolderSource, folder)
    return kind(
        file,
        folder,
        seed=config.seed,
        validation=config.validation,
        workers=config.workers,
        check_text=None if backbone is None else backbone.check_text,
        texts=config.target == "text",
        pixels=config.training_pixels,
        held=Path(config.validation_data) if config.validation_data else None,
        inputs=None if backbone is None else backbone.inputs,
    )


def _videos(config: TrainConfig) -> Path:
    return Path(config.videos) if config.videos else Path(config.data).parent


@dataclass
class StopRequest:
    """The signal that asked the run to stop, if any."""

    signal: int = CONTINUE


class TrainingRun:
    """Takes a trainer through its steps, in its config's folder."""

    def __init__(self, trainer: Trainer, on_step: Callable[[int], None] | None = None) -> None:
        """`on_step` is called after each step with the number of steps made."""
        self.trainer, self.config, self.processes = trainer, trainer.config, trainer.processes
        self.folder, self.on_step = Path(trainer.config.out), on_step
        self.progress = TrainingProgress()
        self.log = Log(quiet=True)

    def go(self, *, resume: bool = False) -> TrainingProgress:
        """Make all steps, from the start or from the saved state."""
        # A run to resume has its folder; without it, nothing is made.
        holds = self.processes.first and (self.folder.is_dir() or not resume)
        with only_run(self.folder) if holds else nullcontext():
            return self._go(resume=resume)

    def _go(self, *, resume: bool) -> TrainingProgress:
        if resume:
            distributed = self.processes.distributed
            self.progress = load_state(self.folder / STATE, self.trainer.parts, self.config, distributed=distributed)
        elif self.processes.first:
            self._make_folder()
        if self.processes.first:
            self.log = Log(self.folder, self.config.steps, done=self.progress.step)
        steps = range(self.progress.step, self.config.steps)
        # The host prepares one batch while the device learns from another.
        batches = map_ordered(lambda step: self.trainer.prepare(TRAINING, step), steps, workers=1, ahead=1)
        with closing(self.log), closing(batches), stop_politely() as request:
            self._steps(batches, request)
        if self.processes.first:
            self.report()
        if self.progress.stopped_by:
            # torchrun ends all processes as soon as one exits with a status, and the first may still be writing.
            self.processes.wait()
        return self.progress

    def _steps(self, batches: Iterator[Any], request: StopRequest) -> None:
        config, progress, trainer = self.config, self.progress, self.trainer
        held = trainer.prepare(VALIDATION, 0)
        if not progress.step:
            with self._say_what_helps():
                uniform = trainer.validate(held, uniform=True)
            if not math.isfinite(uniform["score"]):
                failures = "; ".join(trainer.source.skipped[:3])
                raise DataError(f"none of the videos held out for validation can be read: check --videos. {failures}")
            progress.uniform, progress.searches = uniform["score"], "search1" in uniform
            progress.cosine = "cosine" in uniform
            self.log.write("uniform", 0, uniform)
        started, before, named = time.monotonic(), progress.seconds, 0
        saved = started
        while progress.step < config.steps:
            with trainer.timer("data"):
                batch = trainer.source.finish(next(batches), trainer.device)
            with self._say_what_helps(), self._show_videos(len(batch.examples)):
                report = trainer.step(batch, progress.step)
            report["lr"] = learning_rate(config, progress.step)
            progress.step += 1
            progress.skipped += int(report.pop("not finite"))
            progress.seconds = before + time.monotonic() - started
            progress.broken += int(report["broken"])
            counts = {"skipped": progress.skipped, "broken": progress.broken, "seconds": progress.seconds}
            self.log.write("step", progress.step, {**report, **counts})
            for failure in trainer.source.skipped[named:]:
                self.log.say(f"skipped {failure}")
            named = len(trainer.source.skipped)
            late = config.minutes and time.monotonic() - started > 60 * config.minutes
            # Clocks and signals differ between processes, but all must do the same next.
            ending = int(self.processes.largest(OUT_OF_TIME if late else request.signal))
            last = progress.step == config.steps
            if progress.step % config.validate_every == 0 or last or ending == OUT_OF_TIME:
                self._validate(held)
            due = config.save_minutes and time.monotonic() - saved > 60 * config.save_minutes
            if progress.step % config.save_every == 0 or last or ending or self.processes.largest(bool(due)):
                self._save()
                saved = time.monotonic()
            if self.on_step:
                self.on_step(progress.step)
            if ending:
                progress.stopped_by = ending if ending < OUT_OF_TIME and not last else 0
                return

    @contextmanager
    def _say_what_helps(self) -> Iterator[None]:
        """Turn a full GPU into an error that names the options which need less of it."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            config = self.config
            raise ConfigError(
                f"the GPU's memory is full: lower --batch-tokens (now {config.batch_tokens}) and --micro-batch (now "
                f"{config.micro_batch}), or shrink the frames with --training-pixels 230400 and another --out"
            ) from error

    @contextmanager
    def _show_videos(self, examples: int) -> Iterator[None]:
        """Show how many videos of the step have been embedded."""
        done = 0

        def count(videos: int) -> None:
            nonlocal done
            done += videos
            self.log.within(f"step {self.progress.step + 1} of {examples:,} examples: {done:,} videos embedded")

        self.trainer.encoder.on_videos = count
        try:
            yield
        finally:
            self.trainer.encoder.on_videos = lambda videos: None

    def _validate(self, held: Any) -> None:
        """Measure the policy, and keep it if it is the best so far."""
        with self.trainer.timer("validation"), self._say_what_helps():
            measured = self.trainer.validate(held)
        self.log.write("validation", self.progress.step, measured)
        if not measured["score"] > self.progress.best:  # also true for NaN, which is never the best
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
        """Facts about the training for the model card."""
        named = ("backbone", "examples", "rollouts", "global_negatives", "budget_mode", "cost", "seed")
        budgets = ", ".join(dict.fromkeys(self.config.budgets))
        facts = {name: getattr(self.config, name) for name in named}
        return {**facts, "data": Path(self.config.data).name, "budgets": budgets, "steps": self.progress.step}

    def _save(self) -> None:
        with self.trainer.timer("saving"):
            writes = self.processes.first
            save_state(self.folder / STATE, self.trainer.parts, self.progress, self.config, writes=writes)

    def _make_folder(self) -> None:
        if has_state(self.folder / STATE):
            raise ConfigError(f"{self.folder} holds a run already: {self._how_to_resume()}, or pass another --out")
        if (self.folder / CONFIG).exists():
            check_config(make_config({}, self.folder / CONFIG).as_dict(), self.config, self.folder / STATE)
            say(f"the run in {self.folder} ended before it saved a state: starting anew")
            (self.folder / LOG_FILE).unlink(missing_ok=True)
        self._write_config(self.folder)

    def _write_config(self, folder: Path) -> None:
        write_text(folder / CONFIG, self.config.as_toml())

    def _how_to_resume(self) -> str:
        return f"resume it with allocembed train {self.folder / CONFIG} --resume"

    def report(self) -> None:
        """Print what the run did, and how good its best policy is."""
        progress, skipped = self.progress, len(self.trainer.source.skipped)
        say(f"time: {self.trainer.timer}")
        if skipped:
            say(f"{skipped} lines or videos were skipped")
        if progress.skipped:
            say(f"{progress.skipped} updates were skipped: their gradient was not finite")
        if progress.broken:
            say(f"{progress.broken} videos were left out of their step: a vector of theirs was not finite")
        if progress.best >= 0:
            measure = "mean of Hit@1 and search Hit@1" if progress.searches else "Hit@1"
            if progress.cosine:
                measure = "mean of the cosine to the full-resolution vector, and of Hit@1 where there are texts,"
            say(f"best: {measure} {progress.best:.1%} after step {progress.best_step} → {self.folder / BEST}")
            if progress.uniform >= 0:
                worse = "" if progress.best > progress.uniform else "; the best policy is not better, train it longer"
                say(f"uniform allocation had {progress.uniform:.1%}{worse}")
        if progress.step < self.config.steps:
            say(f"stopped after step {progress.step}; {self._how_to_resume()}")


@contextmanager
def only_run(folder: Path) -> Iterator[None]:
    """Hold the folder of a run; raise if another process trains there. File systems without locks hold nothing."""
    try:
        import fcntl

        folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(folder, os.O_RDONLY)
    except ImportError:  # Windows
        yield
        return
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}; pass another --out") from error
    try:
        with suppress(OSError):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise ConfigError(f"another process trains in {folder}: wait for it, or pass another --out") from error
        yield
    finally:
        os.close(handle)


@contextmanager
def stop_politely() -> Iterator[StopRequest]:
    """Catch SIGTERM and Ctrl-C, so that the current step is finished and saved; a second one kills."""
    request = StopRequest()
    before: dict[int, Any] = {}

    def note(number: int, _frame: object) -> None:
        request.signal = request.signal or number
        signal.signal(number, before[number])

    if threading.current_thread() is threading.main_thread():
        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
