"""Tools of bench/latency.py: prepared videos, timers, the plain path, operation counts, and profiles by kernel."""

from __future__ import annotations

import re
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from transformers import PreTrainedModel

from allocembed.backbones.base import Backbone, Batching, Item, TokenRow
from allocembed.backbones.qwen_vl.backbone import pad_rows
from allocembed.resize import Patches, normalise

KERNELS = {  # patterns of CUDA kernel names; the first match counts
    "attention": r"flash|fmha|sdpa|attention|cudnn.*(mha|fprop|sm90.*flash)",
    "gemm": r"gemm|cublas|nvjet|cutlass|xmma|splitk|s16816|wgmma",
    "fused": r"^triton",
    "norm": r"norm|rsqrt|var_mean|welford",
    "copy": r"memcpy|memset|copy|cat(array|_)|index|gather|scatter|pad",
    "elementwise": r"elementwise|pointwise|vectorized|gelu|silu|mul|add",
}


@dataclass(frozen=True, eq=False)
class PreparedVideo:
    """A video before its forward pass: uint8 patches, and tokens on the host."""

    item: Item
    row: TokenRow

    @property
    def patches(self) -> Patches:
        assert self.item.patches is not None
        return self.item.patches

    def __len__(self) -> int:
        """Tokens of the row."""
        return len(self.row)


def prepare_videos(backbone: Backbone, items: Sequence[Item]) -> list[PreparedVideo]:
    """Tokenise the prompts of videos and make their rows."""
    rows = backbone.rows(backbone.tokenise([item.prompt for item in items]), [item.grids for item in items])
    return [PreparedVideo(item, row) for item, row in zip(items, rows, strict=True)]


@torch.inference_mode()
def forward(backbone: Backbone, videos: Sequence[PreparedVideo], batching: Batching = "pad") -> torch.Tensor:
    """Our forward pass: vectors (N, dim) on the device."""
    return backbone.forward([video.item for video in videos], [video.row for video in videos], batching)


@dataclass
class Times:
    """Samples in milliseconds."""

    samples: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def p95(self) -> float:
        """The 95th percentile; the largest of few samples.

        >>> Times([float(value) for value in range(101)]).p95
        95.0
        """
        return sorted(self.samples)[round(0.95 * (len(self.samples) - 1))]

    def as_dict(self) -> dict[str, float]:
        return {"median_ms": self.median, "p95_ms": self.p95, "samples": len(self.samples)}


def wait(device: torch.device) -> None:
    """Wait until a GPU has finished; a CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    action: Callable[[int], object], samples: int, device: torch.device, *, warm: int = 3, seconds: float = 60.0
) -> Times:
    """Time `action(number)`, synchronised with the device before and after; stop early after `seconds`."""
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
    """Use transformers' own SDPA attention, as in an unmodified model."""
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
    """Disable cuDNN as a backend of SDPA."""
    enabled = torch.backends.cuda.cudnn_sdp_enabled()
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.backends.cuda.enable_cudnn_sdp(enabled)


def plain_inputs(backbone: Backbone, videos: Sequence[PreparedVideo]) -> dict[str, torch.Tensor]:
    """Inputs of the library's own forward, already on the device."""
    ids, positions, _ = pad_rows([video.row for video in videos])
    device = backbone.device
    pixels = torch.cat([video.patches.pixels.to(device) for video in videos])
    grids = np.concatenate([video.patches.grids for video in videos]) * backbone.geometry.merge
    return {
        "input_ids": ids.to(device),
        "position_ids": positions.to(device),
        "pixel_values_videos": normalise(pixels, backbone.geometry, backbone.dtype),
        "video_grid_thw": torch.from_numpy(np.insert(grids, 0, 1, axis=1)).to(device),
    }


@torch.inference_mode()
def plain_forward(model: PreTrainedModel, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The library's own forward of one row: its vector (1, dim)."""
    with library_attention(model):
        hidden = model(**inputs, use_cache=False).last_hidden_state
    return F.normalize(hidden[:, -1].float(), dim=-1)


def cosine_gap(vectors: torch.Tensor, others: torch.Tensor) -> float:
    """Largest 1 − cos of pairs of unit vectors (N, dim)."""
    return float((1 - (vectors.double() * others.double()).sum(-1)).max())


def count_operations(backbone: Backbone, videos: Sequence[PreparedVideo]) -> float:
    """Floating-point operations of one forward pass: matrix products and attention only."""
    model = backbone.model
    vision, text = model.config.vision_config, model.config.text_config
    width = getattr(vision, "embed_dim", vision.hidden_size)
    total = 0.0
    for video in videos:
        merged = video.patches.grids.prod(-1).astype(float)
        lengths = merged * backbone.geometry.patches_per_token
        total += 2 * lengths.sum() * (_weights(model.visual.blocks) + model.visual.patch_embed.proj.weight.numel())
        mergers = [model.visual.merger, *getattr(model.visual, "deepstack_merger_list", ())]
        total += 2 * merged.sum() * sum(_weights(merger) for merger in mergers)
        total += 4 * np.square(lengths).sum() * width * len(model.visual.blocks)
        heads = text.num_attention_heads * model.language_model.layers[0].self_attn.head_dim
        total += 2 * len(video) * _weights(model.language_model.layers)
        total += 2 * len(video) ** 2 * heads * len(model.language_model.layers)  # causal: half of the square
    return float(total)


def _weights(module: torch.nn.Module) -> int:
    return sum(part.weight.numel() for part in module.modules() if isinstance(part, torch.nn.Linear))


def matmul_rate(device: torch.device, side: int = 8192) -> float:
    """Operations per second of a large bfloat16 matrix product."""
    left, right = (torch.randn(side, side, device=device, dtype=torch.bfloat16) for _ in range(2))
    times = measure(lambda _: [left @ right for _ in range(4)], 10, device)
    return 4 * 2 * side**3 / (times.median / 1e3)


def host_waits(action: Callable[[], object], device: torch.device) -> str:
    """Whether an action makes the host wait for the device: "0", or the operation that waits."""
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


def kernel_table(title: str, action: Callable[[], object], device: torch.device, rows: int = 8) -> str:
    """Profile an action; return markdown with the time per kind of kernel and the slowest kernels."""
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
    """The kind of a CUDA kernel, by its name.

    >>> [kernel_kind(name) for name in ("flash_fwd_kernel<96>", "nvjet_tst_256x128", "triton_poi_fused_add_0")]
    ['attention', 'gemm', 'fused']
    """
    return next((kind for kind, pattern in KERNELS.items() if re.search(pattern, name, re.IGNORECASE)), "other")
