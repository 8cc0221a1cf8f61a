"""One process or many: who does what, what is brought together, and how the policy is sharded.

Example i of a step belongs to process i mod the number of processes, so every process can tell without asking. Started
by torchrun the group comes up from its environment; otherwise there is one process, and nothing here communicates.
"""

from __future__ import annotations

import os
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from allocembed.backbones.loading import pick_device
from allocembed.policy.frame_module import FrameModule

PATIENCE = timedelta(minutes=30)  # one process may decode slow videos while the others wait for it


class Processes:
    """The processes of a run, seen from one of them."""

    def __init__(self, device: str | torch.device = "auto") -> None:
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        # torchrun sets RANK even for one process, and then the run is a distributed one of size 1.
        self.distributed = "RANK" in os.environ and "MASTER_ADDR" in os.environ
        self.device = pick_device(device)
        if not self.distributed:
            self.rank, self.world = 0, 1
            return
        if self.device.type == "cuda":
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=PATIENCE)

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and speaks."""
        return self.rank == 0

    def mine(self, count: int) -> range:
        """Which of `count` things are this process's."""
        return range(self.rank, count, self.world)

    def gather(self, rows: Tensor, count: int) -> Tensor:
        """All `count` rows (count, d) in order, from every process's own (those of `mine`), on every process."""
        if self.world == 1:
            return rows
        each = -(-count // self.world)
        padded = rows.new_zeros((each, *rows.shape[1:]))
        padded[: len(rows)] = rows
        gathered = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(gathered, padded)
        return torch.stack(gathered, 1).flatten(0, 1)[:count]

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes of a tensor on the CPU or the device, where it was."""
        if self.world == 1:
            return values
        total = values.to(self.device, copy=True)
        dist.all_reduce(total)
        return total.to(values.device)

    def largest(self, value: float) -> float:
        """The largest of all processes' numbers."""
        if self.world == 1:
            return value
        most = torch.tensor([value], dtype=torch.float32, device=self.device)
        dist.all_reduce(most, dist.ReduceOp.MAX)
        return most.item()

    def wait(self) -> None:
        """Until every process is here."""
        if self.world > 1:
            dist.barrier()

    def close(self) -> None:
        if self.distributed and dist.is_initialized():
            dist.destroy_process_group()


def shard(policy: nn.Module, processes: Processes) -> nn.Module:
    """Shards the policy's weights over the processes with FSDP2, in place; one process without torchrun keeps it whole.

    On GPUs the attention and feed-forward layers compute in bfloat16. Weights, gradients and their sums, the input
    projections and the head, whose output becomes log-probabilities, stay in float32.
    """
    if not processes.distributed:
        return policy
    # It warns of results changed in place, which the frame module never does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module .* returned a view tensor")
    half = torch.bfloat16 if processes.device.type == "cuda" else None
    inner = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, output_dtype=torch.float32)
    module = next(part for part in policy.modules() if isinstance(part, FrameModule))
    mesh = dist.init_device_mesh(processes.device.type, (processes.world,))
    for part in (module.read_text, module.read_text_forward, *module.layers):
        fully_shard(part, mesh=mesh, mp_policy=inner)
    return fully_shard(policy, mesh=mesh)


def clip_gradients(policy: nn.Module, largest: float) -> float:
    """Shortens the gradient to the largest norm; returns the norm it had, the same on every process."""
    norm = nn.utils.clip_grad_norm_(policy.parameters(), largest)
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()


def is_sharded(policy: nn.Module) -> bool:
    return isinstance(policy, FSDPModule)
