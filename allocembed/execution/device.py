"""A lane of its own on a GPU for preparing videos while the backbone works."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

import torch


class DeviceLane:
    """A CUDA stream in which one thread at a time prepares a video, beside the stream of the backbone.

    Its kernels are short and have priority, so that the backbone never waits for a plan. One thread at a time, because
    each further stream would keep its own memory. Leaving the lane waits until everything in it is complete. On a CPU
    the lane does nothing.
    """

    def __init__(self, device: torch.device) -> None:
        self._stream: torch.cuda.Stream | None = None
        self._lock = Lock()
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device, priority=-1)
            self._stream.wait_stream(torch.cuda.current_stream(device))  # the weights may still be on their way

    @contextmanager
    def __call__(self) -> Iterator[None]:
        if self._stream is None:
            yield
            return
        with self._lock, torch.cuda.stream(self._stream):
            yield
            self._stream.synchronize()
