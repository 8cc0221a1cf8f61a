"""Shard the policy over the processes of a run with FSDP2."""

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from allocembed.execution.distributed import Processes
from allocembed.policy.scale_policy import ScalePolicy


def shard(policy: ScalePolicy, processes: Processes) -> None:
    """Shard the weights over the processes, in place; without torchrun, leave them whole.

    On GPUs the attention and feed-forward layers compute in bfloat16. Weights, gradients and their sums, the input
    projections, and the head, whose output becomes log-probabilities, stay in float32.
    """
    if not processes.distributed:
        return
    half = torch.bfloat16 if processes.device.type == "cuda" else None
    inner = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32, output_dtype=torch.float32)
    mesh = init_device_mesh(processes.device.type, (processes.world,))
    module = policy.frame_module
    for part in (module.read_text, module.read_text_forward, *module.layers):
        fully_shard(part, mesh=mesh, mp_policy=inner)
    fully_shard(policy, mesh=mesh)


def clip_gradients(policy: nn.Module, largest: float) -> float:
    """Scale the gradient down to the largest norm; return its norm before, which is the same on every process."""
    norm = nn.utils.clip_grad_norm_(policy.parameters(), largest)
    return (norm.full_tensor() if isinstance(norm, DTensor) else norm).item()
