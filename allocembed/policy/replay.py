"""A function of tensors run as CUDA graphs: the host gives one order for hundreds of small kernels.

What the allocator does for a video is little work in many pieces, for which a GPU would mostly wait to be told. A graph
holds for one set of shapes, so there is one for each, and the ones used least go first.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from threading import Lock

import torch

KEPT = 8
WARM_UPS = 2  # so that libraries choose their kernels, and take their memory, before the capture
logger = logging.getLogger("allocembed")


@dataclass(frozen=True, eq=False)
class _Captured:
    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    output: torch.Tensor
    host: torch.Tensor
    prepared: object
    """Tensors that the graph reads: alive as long as it is."""


class Replay:
    """`function(prepared, *inputs)`, one tensor on a GPU from several, by graphs in the caller's current stream.

    `prepare(kind, *inputs)` makes what depends on a kind of call and on the shapes of the inputs; it may wait for the
    device, the function may not. Where a capture fails, that is said once, and the function is run as it is from then
    on, as it is where `works` is False from the start. Threads take turns.
    """

    def __init__(
        self, function: Callable[..., torch.Tensor], prepare: Callable[..., object], *, works: bool = True
    ) -> None:
        self.function, self.prepare, self.works = function, prepare, works
        self._kept: OrderedDict[tuple, _Captured] = OrderedDict()
        self._lock = Lock()

    def __call__(self, kind: Hashable, *inputs: torch.Tensor) -> torch.Tensor:
        """The function's result, on the host."""
        with self._lock:
            if self.works and (captured := self._find(kind, inputs)) is not None:
                for static, given in zip(captured.inputs, inputs, strict=True):
                    static.copy_(given, non_blocking=True)
                captured.graph.replay()
                captured.host.copy_(captured.output, non_blocking=True)
                torch.cuda.current_stream(captured.output.device).synchronize()
                return captured.host.clone()
        return self.function(self.prepare(kind, *inputs), *inputs).cpu()

    def _find(self, kind: Hashable, inputs: tuple[torch.Tensor, ...]) -> _Captured | None:
        key = kind, *((tuple(tensor.shape), tensor.dtype) for tensor in inputs)
        if key not in self._kept:
            try:
                self._kept[key] = self._capture(kind, inputs)
            except RuntimeError as error:
                self.works = False
                logger.warning("the allocator runs without a CUDA graph, some milliseconds slower: %s", error)
                return None
        self._kept.move_to_end(key)
        while len(self._kept) > KEPT:
            self._kept.popitem(last=False)
        return self._kept[key]

    def _capture(self, kind: Hashable, inputs: tuple[torch.Tensor, ...]) -> _Captured:
        prepared = self.prepare(kind, *inputs)
        static = [tensor.clone() for tensor in inputs]
        for _ in range(WARM_UPS):
            self.function(prepared, *static)
        stream = torch.cuda.current_stream(static[0].device)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        # Of this thread only: another one may be running the backbone, which allocates as it goes.
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            output = self.function(prepared, *static)
        return _Captured(graph, static, output, torch.empty_like(output, device="cpu", pin_memory=True), prepared)
