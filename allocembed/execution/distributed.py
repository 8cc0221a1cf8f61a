"""The processes of a torchrun job: how work is divided among them, and collective operations.

Item i of a job belongs to process i mod the number of processes, so no communication is needed to divide work. Without
torchrun there is one process, and nothing here communicates.
"""

import os
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from allocembed.backbones.devices import pick_device

COLLECTIVE_TIMEOUT = timedelta(minutes=30)  # one process may decode slow videos while the others wait for it

T = TypeVar("T")


class Processes:
    """The processes of a job, seen from one of them."""

    def __init__(self, device: str | torch.device = "auto") -> None:
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        # torchrun sets RANK even for one process; that is a distributed job of size 1.
        self.distributed = "RANK" in os.environ and "MASTER_ADDR" in os.environ
        self.device = pick_device(device)
        if not self.distributed:
            self.rank, self.world = 0, 1
            return
        if self.device.type == "cuda":
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(self.device)
        if not dist.is_initialized():
            dist.init_process_group("nccl" if self.device.type == "cuda" else "gloo", timeout=COLLECTIVE_TIMEOUT)

    @property
    def first(self) -> bool:
        """Whether this process writes files and prints."""
        return self.rank == 0

    def mine(self, count: int) -> range:
        """The items, of `count`, that belong to this process."""
        return range(self.rank, count, self.world)

    def gather(self, rows: Tensor, count: int) -> Tensor:
        """Gather all `count` rows (count, d), in order, on every process; `rows` are those of `mine`."""
        if self.world == 1:
            return rows
        each = -(-count // self.world)
        padded = rows.new_zeros((each, *rows.shape[1:]))
        padded[: len(rows)] = rows
        gathered = [torch.empty_like(padded) for _ in range(self.world)]
        dist.all_gather(gathered, padded)
        return torch.stack(gathered, 1).flatten(0, 1)[:count]

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes; the result is on the tensor's own device."""
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

    def share(self, value: T) -> list[T]:
        """The values of all processes, on every process, in order of rank; any picklable ones."""
        values = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(values, value)
        return values

    def wait(self) -> None:
        """Block until every process is here."""
        if self.world > 1:
            dist.barrier()

    def close(self) -> None:
        if self.distributed and dist.is_initialized():
            dist.destroy_process_group()
