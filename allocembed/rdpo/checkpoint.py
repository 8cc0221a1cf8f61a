"""The state from which a run resumes exactly: weights, optimiser, step, best score; complete on disk or absent.

No random state is saved, because everything random is drawn from the seed, the step and the number of the example. The
file holds whole tensors by name, so a run may resume with another number of processes.
"""

import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim.swa_utils import AveragedModel

from allocembed.errors import ConfigError, DataError
from allocembed.output.files import whole_file
from allocembed.rdpo.config import FREE_TO_CHANGE, TrainConfig, absolute_paths
from allocembed.rdpo.negatives import VectorQueue

STATE_FILE = "state.pt"
PARTS = ("config", "progress", "policy", "mean", "optimiser")
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass
class TrainingProgress:
    """Progress of a run."""

    step: int = 0
    best: float = -1.0
    """Best validation score, from 0 to 1; below 0 before the first."""
    best_step: int = 0
    uniform: float = -1.0
    """Validation score of uniform allocation; below 0 before it is measured."""
    searches: bool = False
    """Whether the scores are means of Hit@1 and search Hit@1, not Hit@1 alone."""
    cosine: bool = False
    """Whether the scores are mean cosines to the full-resolution vectors, because there are no texts."""
    skipped: int = 0
    """Updates skipped because their gradient was not finite."""
    broken: int = 0
    """Videos left out of their step because a vector of theirs was not finite."""
    seconds: float = 0.0
    """Training time, over all parts of the run."""
    stopped_by: int = 0
    """Signal that ended the run before its last step; 0 if none did, and in the saved state."""


@dataclass(frozen=True, eq=False)
class TrainedParts:
    """Everything that training changes: the policy, the running mean of its weights (if one is kept), the optimiser,
    and the vectors of earlier videos."""

    policy: nn.Module
    mean: AveragedModel | None
    optimiser: torch.optim.Optimizer
    queue: VectorQueue


def whole_weights(policy: nn.Module) -> dict[str, Any]:
    """The weights, gathered on the CPU of the first process; every process must call this."""
    return get_model_state_dict(policy, options=WHOLE)


def save_state(
    folder: Path, parts: TrainedParts, progress: TrainingProgress, config: TrainConfig, *, writes: bool = True
) -> None:
    """Save the state to a folder. Every process must call this; only one of them `writes`."""
    state = {
        "config": config.as_dict(),
        "progress": asdict(progress),
        "policy": whole_weights(parts.policy),
        "mean": None if parts.mean is None else whole_weights(parts.mean.module),
        "optimiser": get_optimizer_state_dict(parts.policy, parts.optimiser, options=WHOLE),
        "queue": {"samples": list(parts.queue.samples), "vectors": parts.queue.vectors.cpu()},
    }
    if writes:
        # Opened here, because torch hides the system's message if it opens the file itself.
        with whole_file(folder / STATE_FILE) as scratch, scratch.open("wb") as file:
            torch.save(state, file)


def load_state(
    folder: Path, parts: TrainedParts, config: TrainConfig, *, distributed: bool = False
) -> TrainingProgress:
    """Restore a saved state into the parts; raise if it is that of another config."""
    state = read_state(folder)
    check_config(state["config"], config, folder)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=distributed)
    try:
        progress = TrainingProgress(**state["progress"])
        _check_sizes(state["policy"], parts.policy)
        set_model_state_dict(parts.policy, state["policy"], options=options)
        if parts.mean is not None:
            _check_sizes(state["mean"], parts.mean.module)
            set_model_state_dict(parts.mean.module, state["mean"], options=options)
            parts.mean.n_averaged.fill_(progress.step)
        set_optimizer_state_dict(parts.policy, parts.optimiser, state["optimiser"], options=options)
        if "queue" in state:  # states of older versions have none
            parts.queue.samples, parts.queue.vectors = state["queue"]["samples"], state["queue"]["vectors"]
    except Exception as error:  # torch raises many kinds for weights that do not fit
        raise _damaged(folder / STATE_FILE, error) from error
    return progress


def has_state(folder: Path) -> bool:
    """Whether a folder holds a saved state."""
    return (folder / STATE_FILE).is_file()


def read_state(folder: Path) -> dict[str, Any]:
    """The state in a folder, as plain tensors and numbers."""
    path = folder / STATE_FILE
    if not has_state(folder):
        raise DataError(f"cannot resume: there is no saved state in {folder}; start the run without --resume")
    try:
        with zipfile.ZipFile(path) as archive:
            if (part := archive.testzip()) is not None:  # torch itself does not compare checksums
                raise ValueError(f"the checksum of {part} is wrong")
        state = torch.load(path, map_location="cpu", weights_only=True)
        if not isinstance(state, dict) or not set(PARTS) <= set(state) or not isinstance(state["config"], dict):
            raise ValueError("it is not the state of a training run")
        return state
    except Exception as error:  # unpickling a broken file may raise anything
        raise _damaged(path, error) from error


def _check_sizes(saved: dict[str, Any], module: nn.Module) -> None:
    """Raise if the weights are not those of the module: torch resumes from missing ones in silence."""
    sizes = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    if {name: tuple(tensor.shape) for name, tensor in saved.items()} != sizes:
        raise ValueError("its weights have other names or sizes than the policy's")


def _damaged(path: Path, error: Exception) -> DataError:
    cause = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return DataError(f"cannot read {path} ({cause}): it is damaged; delete it and start again without --resume")


def check_config(saved: dict[str, Any], config: TrainConfig, folder: Path) -> None:
    """Raise if the run was started with other options, except those that do not change what it learns."""
    # Both sides are made absolute: older versions saved paths as given.
    # Options that an older version did not have were as they are by default.
    saved, now = absolute_paths(TrainConfig().as_dict() | saved), absolute_paths(config.as_dict())
    differing = [name for name in now if name not in FREE_TO_CHANGE and saved.get(name) != now[name]]
    if differing:
        name = differing[0]
        raise ConfigError(
            f"cannot resume the run in {folder.parent}: it was started with {name} = {saved.get(name)!r}, not "
            f"{now[name]!r}"
            + (f" (and {len(differing) - 1} more differ)" if len(differing) > 1 else "")
            + "; use its own train.toml, or another --out"
        )
