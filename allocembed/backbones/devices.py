"""Choose the device and the number format of a model."""

from pathlib import Path

import torch

from allocembed.errors import BackboneError

INT8 = "int8"
FLOAT8 = "float8"
LINEAR_ONLY = (INT8, FLOAT8)  # formats of linear layers only
FLOAT8_CAPABILITY = (8, 9)  # Ada; Hopper is 9.0
LARGE_MODEL_BYTES = 200_000_000  # bytes of weights from which speed and memory matter more than the last digits


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
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise BackboneError(f"there is no {device}, only {torch.cuda.device_count()} CUDA devices: use a lower number")
    return chosen


def pick_dtype(dtype: str | torch.dtype, device: torch.device, weights: int = 0) -> torch.dtype:
    """`auto` is bfloat16 on CUDA, and on a CPU with instructions for it if the weights take many bytes; else float32.

    `int8` and `float8` are for linear layers only (see the modules of these names); this is the format of the rest.
    """
    if isinstance(dtype, torch.dtype):
        return dtype
    if dtype == INT8:
        if device.type != "cpu":
            raise BackboneError("int8 is for CPUs: use --dtype bfloat16 on a GPU")
        return torch.bfloat16 if computes_bfloat16() else torch.float32
    if dtype == FLOAT8:
        check_float8(device)
        return torch.bfloat16
    if dtype == "auto":
        half = device.type == "cuda" or (weights > LARGE_MODEL_BYTES and computes_bfloat16())
        return torch.bfloat16 if half else torch.float32
    named = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in named:
        raise BackboneError(f"unknown dtype {dtype!r}: use auto, {', '.join([*named, FLOAT8])} or {INT8}")
    return named[dtype]


def check_float8(device: torch.device) -> None:
    """Raise BackboneError if a device has no products in float8."""
    if device.type != "cuda":
        found = "the model is on a CPU"
    elif (capability := torch.cuda.get_device_capability(device)) < FLOAT8_CAPABILITY:
        found = f"{torch.cuda.get_device_name(device)} has {'.'.join(map(str, capability))}"
    else:
        return
    raise BackboneError(
        "cannot use float8: it needs an NVIDIA GPU of compute capability 8.9 or more (Ada, Hopper), and "
        f"{found}; use --dtype bfloat16"
    )


def computes_bfloat16() -> bool:
    """Whether the cores have instructions for products in bfloat16; without them it is slower than float32."""
    able = torch.cpu.get_capabilities()
    return any(able.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def weight_bytes(folder: Path) -> int:
    """Bytes of the weights in the folder of a checkpoint."""
    return sum(path.stat().st_size for kind in ("*.safetensors", "*.bin") for path in folder.glob(kind))
