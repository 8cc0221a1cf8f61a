"""What bench/latency.py measures with: times, the plain path, the arithmetic of a forward pass, profiles by kernel."""

from __future__ import annotations

import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from allocembed.backbones import Backbone
from allocembed.backbones.base import Row, pad_rows
from allocembed.resize import normalise

KERNELS = {  # names of CUDA kernels, the first that fits
    "attention": r"flash|fmha|sdpa|attention|cudnn.*(mha|fprop|sm90.*flash)",
    "gemm": r"gemm|cublas|nvjet|cutlass|xmma|splitk|s16816|wgmma",
    "fused": r"^triton",
    "norm": r"norm|rsqrt|var_mean|welford",
    "copy": r"memcpy|memset|copy|cat(array|_)|index|gather|scatter|pad",
    "elementwise": r"elementwise|pointwise|vectorized|gelu|silu|mul|add",
}


@dataclass
class Times:
    """Samples in milliseconds."""

    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p95(self) -> float:
        """The 95th percentile, of few samples the largest.

        >>> Times([float(value) for value in range(101)]).p95
        95.0
        """
        return sorted(self.samples)[round(0.95 * (len(self.samples) - 1))]

    def as_dict(self) -> dict[str, float]:
        return {"median_ms": self.median, "p95_ms": self.p95, "samples": len(self.samples)}


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    action: Callable[[int], object], samples: int, device: torch.device, *, warm: int = 3, seconds: float = 60.0
) -> Times:
    """Milliseconds of `action(number)`, the device waited for before and after; stops early when `seconds` are over."""
    for number in range(warm):
        action(number)
    times, started = Times(), time.perf_counter()
    for number in range(samples):
        wait(device)
        begin = time.perf_counter()
        action(warm + number)
        wait(device)
        times.samples.append((time.perf_counter() - begin) * 1e3)
        if time.perf_counter() - started > seconds:
            break
    return times


@contextmanager
def library_attention(model: PreTrainedModel) -> Iterator[None]:
    """transformers' own SDPA attention, as an untouched model has it."""
    configs = [model.visual.config, model.language_model.config]
    before = [config._attn_implementation for config in configs]
    for config in configs:
        config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        for config, name in zip(configs, before, strict=True):
            config._attn_implementation = name


@contextmanager
def without_cudnn_attention() -> Iterator[None]:
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def plain_inputs(backbone: Backbone, rows: Sequence[Row]) -> dict[str, torch.Tensor]:
    """What the library's own forward is given for rows, all of it on the device beforehand."""
    ids, positions, _ = pad_rows(rows)
    device = backbone.device
    pixels = torch.cat([row.patches.pixels.to(device) for row in rows])
    return {
        "input_ids": ids.to(device),
        "position_ids": positions.to(device),
        "pixel_values_videos": normalise(pixels, backbone.geometry, backbone.dtype),
        "video_grid_thw": torch.cat([row.patches.grids for row in rows]).to(device),
    }


@torch.inference_mode()
def plain_forward(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The library's own forward for one row: its vector (1, dim)."""
    with library_attention(model):
        hidden = model(**inputs, use_cache=False).last_hidden_state
    return F.normalize(hidden[:, -1].float(), dim=-1)


def arithmetic(backbone: Backbone, rows: Sequence[Row]) -> float:
    """Floating-point operations of one forward pass: products by weights and attention, nothing else."""
    model = backbone.model
    vision, text = model.config.vision_config, model.config.text_config
    width = getattr(vision, "embed_dim", vision.hidden_size)
    total = 0.0
    for row in rows:
        lengths = row.patches.grids.prod(-1).double()
        patches, merged = lengths.sum(), lengths.sum() / backbone.geometry.merge**2
        total += 2 * patches * (_weights(model.visual.blocks) + model.visual.patch_embed.proj.weight.numel())
        mergers = [model.visual.merger, *getattr(model.visual, "deepstack_merger_list", ())]
        total += 2 * merged * sum(_weights(merger) for merger in mergers)
        total += 4 * lengths.square().sum() * width * len(model.visual.blocks)
        heads = text.num_attention_heads * model.language_model.layers[0].self_attn.head_dim
        total += 2 * len(row) * _weights(model.language_model.layers)
        total += 2 * len(row) ** 2 * heads * len(model.language_model.layers)  # causal: half of the square
    return float(total)


def _weights(module: torch.nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, torch.nn.Linear))


def matmul_rate(device: torch.device, side: int = 8192) -> float:
    """Operations a second that a large product of bfloat16 matrices reaches."""
    one, other = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = measure(lambda _: [one @ other for _ in range(4)], 10, device)
    return 4 * 2 * side**3 / (times.median / 1e3)


def host_waits(action: Callable[[], object], device: torch.device) -> str:
    """Whether an action makes the host wait for the device: "0", or what it waited for."""
    if device.type != "cuda":
        return "not measured without a GPU"
    wait(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        action()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "0"


def kernel_table(title: str, action: Callable[[], object], device: torch.device, rows: int = 25) -> str:
    """A profile of an action as markdown: time by kind of kernel, and the kernels that take the most."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    action()
    wait(device)
    with torch.profiler.profile(activities=kinds) as profile:
        action()
        wait(device)
    spent, calls = defaultdict(float), defaultdict(int)
    for event in profile.events():
        on_device = str(event.device_type).endswith("CUDA")
        if on_device == (device.type == "cuda"):
            spent[event.name] += (event.time_range.elapsed_us() if on_device else event.self_cpu_time_total) / 1e3
            calls[event.name] += 1
    groups = defaultdict(float)
    for name, milliseconds in spent.items():
        groups[kernel_kind(name)] += milliseconds
    whole = sum(spent.values()) or 1.0
    lines = [f"### {title}", "", "| kind | ms | share |", "|---|---:|---:|"]
    ordered = sorted(groups.items(), key=lambda item: -item[1])
    lines += [f"| {kind} | {taken:.2f} | {taken / whole:.0%} |" for kind, taken in [*ordered, ("all", whole)]]
    lines += ["", "| kernel | kind | calls | ms |", "|---|---|---:|---:|"]
    for name, taken in sorted(spent.items(), key=lambda item: -item[1])[:rows]:
        lines.append(f"| `{name[:90].replace('|', '/')}` | {kernel_kind(name)} | {calls[name]} | {taken:.2f} |")
    return "\n".join(lines) + "\n"


def kernel_kind(name: str) -> str:
    """
    >>> [kernel_kind(name) for name in ("flash_fwd_kernel<96>", "nvjet_tst_256x128", "triton_poi_fused_add_0")]
    ['attention', 'gemm', 'fused']
    """
    return next((kind for kind, pattern in KERNELS.items() if re.search(pattern, name, re.IGNORECASE)), "other")
