"""Run a function of tensors as CUDA graphs: one launch from the host instead of hundreds of small kernels.

The allocator does little work per video in many small kernels, so launching them one by one would dominate. A graph is
valid for one set of shapes, so there is one per shape; the least recently used are dropped.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from threading import Lock
from typing import Any, cast

import torch

from allocembed.threads import SETTING_UP

KEPT_GRAPHS = 8
WARM_UPS = 2  # libraries choose kernels and allocate memory before the capture
logger = logging.getLogger("allocembed")


@dataclass(frozen=True, eq=False)
class _CapturedGraph:
    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    output: torch.Tensor
    host: torch.Tensor
    prepared: object
    """Tensors that the graph reads; they must live as long as it."""


def tensors_of(prepared: object) -> list[torch.Tensor]:
    """The tensors in a dataclass, and in the dataclasses in it, in the order of the fields."""
    if isinstance(prepared, torch.Tensor):
        return [prepared]
    if not is_dataclass(prepared):
        return []
    return [tensor for field in fields(prepared) for tensor in tensors_of(getattr(prepared, field.name))]


def numbers_of(prepared: object) -> tuple[Hashable, ...]:
    """Everything else in it: what a graph has fixed."""
    if isinstance(prepared, torch.Tensor):
        return ()
    if not is_dataclass(prepared):
        return (cast(Hashable, prepared),)
    return tuple(value for field in fields(prepared) for value in numbers_of(getattr(prepared, field.name)))


def with_tensors(prepared: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """The dataclass with other tensors, in the order of `tensors_of`."""
    if isinstance(prepared, torch.Tensor):
        return next(tensors)
    if not is_dataclass(prepared):
        return prepared
    changed = {field.name: with_tensors(getattr(prepared, field.name), tensors) for field in fields(prepared)}
    return replace(cast(Any, prepared), **changed)


class Replay:
    """Calls `function(prepared, *inputs)`, tensors on a GPU to one tensor, by graphs in the caller's current stream.

    `prepare(kind, *inputs)` computes what depends on the kind of call and the shapes of the inputs; it may wait for the
    device, the function may not. If a capture fails, that is logged once, and the function runs without graphs from
    then on, as it does from the start with `works=False`. Threads take turns.
    """

    def __init__(
        self, function: Callable[..., torch.Tensor], prepare: Callable[..., object], *, works: bool = True
    ) -> None:
        self.function, self.prepare, self.works = function, prepare, works
        self._kept: OrderedDict[tuple, _CapturedGraph] = OrderedDict()
        self._lock = Lock()

    def __call__(self, kind: Hashable, *inputs: torch.Tensor) -> torch.Tensor:
        """The result of the function, on the host."""
        with self._lock:
            if self.works and (captured := self._find(kind, inputs)) is not None:
                for static, given in zip(captured.inputs, inputs, strict=True):
                    static.copy_(given, non_blocking=True)
                captured.graph.replay()
                captured.host.copy_(captured.output, non_blocking=True)
                torch.cuda.current_stream(captured.output.device).synchronize()
                return captured.host.clone()
        return self.function(self.prepare(kind, *inputs), *inputs).cpu()

    def _find(self, kind: Hashable, inputs: tuple[torch.Tensor, ...]) -> _CapturedGraph | None:
        key = kind, *((tuple(tensor.shape), tensor.dtype) for tensor in inputs)
        if key not in self._kept:
            try:
                self._kept[key] = self._capture(kind, inputs)
            except RuntimeError as error:
                self.works = False
                logger.warning(
                    "the allocator runs without a CUDA graph, a few milliseconds slower per video: %s", error
                )
                return None
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT_GRAPHS:
            self._kept.popitem(last=False)
        return self._kept[key]

    def _capture(self, kind: Hashable, inputs: tuple[torch.Tensor, ...]) -> _CapturedGraph:
        prepared = self.prepare(kind, *inputs)
        static = [tensor.clone() for tensor in inputs]
        for _ in range(WARM_UPS):
            self.function(prepared, *static)
        stream = torch.cuda.current_stream(static[0].device)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # This thread only: another one may be running the backbone, which allocates memory.
        with SETTING_UP, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            output = self.function(prepared, *static)
        return _CapturedGraph(graph, static, output, torch.empty_like(output, device="cpu", pin_memory=True), prepared)
