"""State from which a run goes on exactly: weights, optimiser, step, best score; whole on disk or not there.

There is no random state to keep: everything random is drawn from the seed, the step and the example's number. The file
holds whole tensors by name, so a run may go on with another number of processes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)

from allocembed.output import whole_file
from allocembed.rdpo.config import FREE_TO_CHANGE, TrainConfig
from allocembed.rdpo.paths import absolute_paths

FILE = "state.pt"
WHOLE = StateDictOptions(full_state_dict=True, cpu_offload=True)


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0
    best: float = -1.0
    """Best Hit@1 in validation, as a share; below 0 before the first."""
    best_step: int = 0
    skipped: int = 0
    """Updates left out because their gradient was not finite."""
    seconds: float = 0.0
    """Time spent, over all its parts."""
    stopped_by: int = 0
    """The signal that ended it before its last step; 0 where none did, and in what is saved."""


def whole_weights(policy: nn.Module) -> dict[str, Tensor]:
    """The policy's weights, gathered on the CPU of the first process; every process must call it."""
    return get_model_state_dict(policy, options=WHOLE)


def save_state(
    folder: Path,
    policy: nn.Module,
    mean: nn.Module,
    optimiser: torch.optim.Optimizer,
    progress: Progress,
    config: TrainConfig,
    *,
    writes: bool = True,
) -> None:
    """Writes the state into a folder; every process must call it, and the one that `writes` does."""
    state = {
        "config": config.as_dict(),
        "progress": asdict(progress),
        "policy": whole_weights(policy),
        "mean": whole_weights(mean) if mean is not policy else None,
        "optimiser": get_optimizer_state_dict(policy, optimiser, options=WHOLE),
    }
    if writes:
        folder.mkdir(parents=True, exist_ok=True)
        # Into an open file: where torch opens it itself, it keeps to itself what the system said.
        with whole_file(folder / FILE) as scratch, scratch.open("wb") as file:
            torch.save(state, file)


def load_state(
    folder: Path,
    policy: nn.Module,
    mean: nn.Module,
    optimiser: torch.optim.Optimizer,
    config: TrainConfig,
    *,
    distributed: bool = False,
) -> Progress:
    """Puts a saved state back into the policy, its mean and its optimiser; refuses one of another config.

    The mean is the policy itself where none is kept.
    """
    state = read_state(folder)
    check_config(state["config"], config, folder)
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=distributed)
    set_model_state_dict(policy, state["policy"], options=options)
    if mean is not policy:
        set_model_state_dict(mean, state["mean"], options=options)
    set_optimizer_state_dict(policy, optimiser, state["optimiser"], options=options)
    return Progress(**state["progress"])


def read_state(folder: Path) -> dict[str, Any]:
    """The state in a folder, as plain tensors and numbers."""
    path = folder / FILE
    if not path.is_file():
        raise ValueError(f"there is nothing to resume in {folder}: start the run without --resume")
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever unpickling a broken file trips over
        raise ValueError(f"{path} can't be read ({error}): it is broken; start again without --resume") from error


def check_config(saved: dict[str, Any], config: TrainConfig, folder: Path) -> None:
    """Refuses to go on with other options than the run had, but for those that change nothing it learns."""
    # What was saved, too: an older version kept paths as they were given.
    saved, now = absolute_paths(saved), absolute_paths(config.as_dict())
    differing = [name for name in now if name not in FREE_TO_CHANGE and saved.get(name) != now[name]]
    if differing:
        name = differing[0]
        raise ValueError(
            f"the run in {folder.parent} had {name} = {saved.get(name)!r}, not {now[name]!r}"
            + (f" (and {len(differing) - 1} more differ)" if len(differing) > 1 else "")
            + ": resume it with its own train.toml, or give another --out"
        )
