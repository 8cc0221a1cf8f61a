"""The scale-aware operator R(x, s): frames in, mixed-resolution patches out (equations 8 and 9 of the paper).

Each chunk is resized to its own grid (bicubic with antialias, sides aligned to patch × merge) and cut into patches in
the backbone's own order. The stock video processors cannot do this: they stack frames of one size, and their pixel
floors undo small scales. Patches stay uint8 until they are on the device, a quarter of the bytes to move. Frames that
are already on a GPU are resized and cut there.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from threading import Lock

import numpy as np
import torch
import torch.nn.functional as F

from allocembed.budget import Allocation, Grid
from allocembed.geometry import Geometry
from allocembed.video.clip import Clip

VALUES_AT_ONCE = 2**27  # source pixel values that a GPU resizes at a time: a quarter of a gigabyte as float16
LOW = 4096.0  # brings what float16 leaves of a weight, about 2^-12 of it, back into its range


@dataclass(frozen=True, eq=False)
class Patches:
    """Pixels of all chunks in the backbone's patch order, not yet normalised.

    `pixels` is (N, patch_values) uint8 with the patches of all chunks in order, `grids` (C, 2) the token rows and cols
    of each chunk.
    """

    pixels: torch.Tensor
    grids: np.ndarray

    @property
    def tokens(self) -> list[int]:
        """Tokens of each chunk."""
        return self.grids.prod(-1).tolist()


def normalise(pixels: torch.Tensor, geometry: Geometry, dtype: torch.dtype) -> torch.Tensor:
    """Patches (N, patch_values), uint8, to `(x / 255 − mean) / std`, computed in fp32, returned in `dtype`."""
    factor, offset = _statistics(geometry.mean, geometry.std, pixels.device)
    # Converted first, then in place: an operation over two dtypes is not vectorised.
    scaled = _empty(pixels.shape, torch.float32, pixels.device).copy_(pixels).view(len(pixels), 3, -1)
    return scaled.mul_(factor).sub_(offset).view(len(pixels), -1).to(dtype)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _statistics(
    mean: tuple[float, ...], std: tuple[float, ...], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """The factor of pixels and the offset subtracted after it, (1, 3, 1) each. Cached, so that a GPU never waits."""
    means, spreads = (torch.tensor(values).view(1, 3, 1) for values in (mean, std))
    return (1 / (255 * spreads)).to(device), (means / spreads).to(device)


def send(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Move a tensor to a device without waiting: a GPU fetches it from pinned memory when its turn comes."""
    if device.type != "cuda" or tensor.is_cuda or not tensor.numel():
        return tensor.to(device)
    return (tensor if tensor.is_pinned() else tensor.contiguous().pin_memory()).to(device, non_blocking=True)


def _empty(shape: Sequence[int], dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    """Uninitialised memory. On a CPU it is numpy's, which uses huge pages: touching new small pages costs more than the
    arithmetic on them."""
    if torch.device(device).type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(tuple(shape), np.uint8 if dtype == torch.uint8 else np.float32))


def to_patches(
    frames: np.ndarray | torch.Tensor,
    allocation: Allocation,
    geometry: Geometry,
    *,
    canvas: tuple[int, int] | None = None,
) -> Patches:
    """Apply an allocation to the frames (T, H, W, 3), uint8, of a clip. The patches are made where the frames are.

    `canvas` is a height and width to which every frame is brought first, if the model's own pipeline does so.
    """
    video = torch.from_numpy(np.ascontiguousarray(frames)) if isinstance(frames, np.ndarray) else frames
    video = video.permute(0, 3, 1, 2)
    ends = np.cumsum([grid.tokens * geometry.patches_per_token for grid in allocation.grids])
    pixels = _empty((ends[-1], geometry.patch_values), torch.uint8, video.device)
    cut = _cut_singly if video.device.type == "cpu" else _cut_by_size
    own = canvas or (video.shape[2], video.shape[3])
    cut(video, allocation, geometry, own, [pixels[start:end] for start, end in zip([0, *ends], ends, strict=False)])
    return Patches(pixels, np.array([[grid.rows, grid.cols] for grid in allocation.grids], np.int64))


def as_chunks(frames: np.ndarray | torch.Tensor, frames_per_chunk: int = 2) -> torch.Tensor:
    """Frames (T, H, W, 3) as chunks (C, frames_per_chunk, 3, H, W), on their device; the last frame fills the last.

    >>> as_chunks(np.zeros((5, 4, 6, 3), np.uint8)).shape
    torch.Size([3, 2, 3, 4, 6])
    """
    if isinstance(frames, np.ndarray):
        frames = torch.from_numpy(np.ascontiguousarray(frames))
    if missing := -len(frames) % frames_per_chunk:
        frames = torch.cat([frames, *[frames[-1:]] * missing])
    return frames.permute(0, 3, 1, 2).unflatten(0, (-1, frames_per_chunk))


def chunk_seconds(times: np.ndarray, chunks: Sequence[Sequence[int]]) -> np.ndarray:
    """Mean time (C,) of the frames of each chunk, from the times (T,) of a clip's frames."""
    return np.array([sum(times[frame] for frame in frames) / len(frames) for frames in chunks])


def prompt_seconds(clip: Clip, frames: Sequence[Sequence[int]], list_rate: float) -> np.ndarray:
    """Times (C,) of chunks in a prompt: from the start of the clip, or numbered if the clip has no clock."""
    if clip.timed:
        return chunk_seconds(clip.times - clip.start, frames)
    return numbered_seconds(frames, list_rate)


def numbered_seconds(frames: Sequence[Sequence[int]], rate: float) -> np.ndarray:
    """Mean time (C,) of each chunk when the frames of a clip are numbered from 0 at `rate` per second.

    A frame that is repeated to fill the last chunk counts on, as in the models' own code for lists of frames.
    """
    numbers = np.array(frames, np.float64)
    repeated = np.cumsum(np.diff(numbers, axis=1, prepend=-1) == 0, axis=1)
    return ((numbers + repeated) / rate).mean(1)


def _cut_singly(
    video: torch.Tensor, allocation: Allocation, geometry: Geometry, canvas: tuple[int, int], out: list[torch.Tensor]
) -> None:
    """Frame by frame, which is fastest on a CPU: the filter is sparse and the cache small."""
    for frames, grid, patches in zip(allocation.frames, allocation.grids, out, strict=True):
        height, width = grid.rows * geometry.factor, grid.cols * geometry.factor
        resized = _empty((len(frames), 3, height, width), torch.uint8)
        for position, frame in enumerate(frames):
            resized[position] = resize(resize(video[frame][None], canvas), (height, width))[0]
        geometry.patchify(resized, out=patches)


def _cut_by_size(
    video: torch.Tensor, allocation: Allocation, geometry: Geometry, canvas: tuple[int, int], out: list[torch.Tensor]
) -> None:
    """All chunks of one size together, in portions that fit into memory."""
    by_size: dict[Grid, list[int]] = {}
    for chunk, grid in enumerate(allocation.grids):
        by_size.setdefault(grid, []).append(chunk)
    at_once = max(1, VALUES_AT_ONCE // (geometry.frames_per_chunk * video[0].numel()))
    for grid, chunks in by_size.items():
        size = (grid.rows * geometry.factor, grid.cols * geometry.factor)
        for start in range(0, len(chunks), at_once):
            portion = chunks[start : start + at_once]
            # Stacked from views: an index would have to be moved to the device first.
            frames = torch.stack([video[frame] for chunk in portion for frame in allocation.frames[chunk]])
            resized = resize(resize(frames, canvas), size)
            for chunk, own in zip(portion, resized.split(geometry.frames_per_chunk), strict=True):
                geometry.patchify(own, out=out[chunk])


def resize(frames: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Resize uint8 frames (N, 3, H, W), bicubic with antialias. On a CPU, channels-last memory is fastest."""
    if tuple(frames.shape[-2:]) == tuple(size):
        return frames
    if frames.device.type == "cpu":
        return F.interpolate(frames, size=size, mode="bicubic", antialias=True)
    # CUDA's kernel has no uint8 form and processes the batch serially, so the filter is two matrix products.
    down, across = (bicubic_filter(old, new, frames.device) for old, new in zip(frames.shape[-2:], size, strict=True))
    with torch.autocast(frames.device.type, enabled=False):
        return _as_matrices(frames.to(torch.float16, memory_format=torch.contiguous_format), down, across)


def _as_matrices(frames: torch.Tensor, down: torch.Tensor, across: torch.Tensor) -> torch.Tensor:
    """Across, then down, rounded to grey levels after each, as PIL and torch's CPU kernel do.

    Grey levels are exact in float16. The filters are sums of two float16 numbers, so the products are as exact as in
    float32, on the far faster units for half precision.
    """
    planes = frames.flatten(0, 1)
    high, low = _product(planes.flatten(0, 1)[None], across.T[None])[0].chunk(2, -1)
    wide = _levels(high, low).to(torch.float16).view(len(planes), -1, high.shape[-1])
    high, low = _product(down.expand(len(planes), -1, -1), wide).chunk(2, 1)
    return _levels(high, low).to(torch.uint8).unflatten(0, frames.shape[:2])


def _product(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """Products of float16 matrices (N, A, B) and (N, B, C), summed and returned in float32."""
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _levels(high: torch.Tensor, low: torch.Tensor) -> torch.Tensor:
    return torch.add(high, low, alpha=1 / LOW).round_().clamp_(0, 255)


class FilterCache:
    """Keeps the filters that were used last, on all devices. Those of all sizes would fill GPU memory."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.bytes = most_bytes, 0
        self._kept: OrderedDict[tuple[int, int, torch.device], torch.Tensor] = OrderedDict()
        self._lock = Lock()

    def __call__(self, old: int, new: int, device: torch.device) -> torch.Tensor:
        """Weights (2 · new, old) of the bicubic antialias filter along one side, its response to an identity, in
        float16. The second half is what the first leaves out by rounding, times `LOW`."""
        key = (old, new, device)
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                found = self._kept[key]
                if found.is_cuda:  # if it is left out, its memory must not be used again before this stream is done
                    found.record_stream(torch.cuda.current_stream(device))
                return found
        identity = torch.eye(old)[None, None]
        weights = F.interpolate(identity, size=(new, old), mode="bicubic", antialias=True)[0, 0]
        high = weights.to(torch.float16)
        made = torch.cat([high, ((weights - high) * LOW).to(torch.float16)]).to(device)
        if made.is_cuda:  # other streams may read it at once
            torch.cuda.current_stream(device).synchronize()
        with self._lock:
            if key not in self._kept:
                self.bytes += made.nbytes
            self._kept[key] = made
            while self.bytes > self.most_bytes and len(self._kept) > 1:
                self.bytes -= self._kept.popitem(last=False)[1].nbytes
        return made


bicubic_filter = FilterCache(1 << 29)
