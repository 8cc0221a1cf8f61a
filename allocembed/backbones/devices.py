"""Which device and number format a model runs in."""

import torch

from allocembed.errors import BackboneError


def pick_device(device: str | torch.device) -> torch.device:
    """`auto` is CUDA if available, else the CPU."""
    if str(device) == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise BackboneError(f"unknown device {device!r}: use auto, cpu, cuda or cuda:1") from error
    if chosen.type not in ("cpu", "cuda"):
        raise BackboneError(f"device {device!r} is not supported: use auto, cpu, cuda or cuda:1")
    if chosen.type == "cuda" and not torch.cuda.is_available():
        raise BackboneError("torch sees no CUDA device here: use --device cpu, or install a CUDA build of torch")
    return chosen


def pick_dtype(dtype: str | torch.dtype, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 on CUDA and float32 on the CPU."""
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == "auto":
        return torch.bfloat16 if device.type == "cuda" else torch.float32
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in named:
        raise BackboneError(f"unknown dtype {dtype!r}: use auto, {', '.join(named)}")
    return named[dtype]
