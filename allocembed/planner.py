"""The stages before the model: read a source, plan, allocate. They need no weights but the allocator's own.

    source → read → Clip → plan → Plan → allocate → Allocation

Each stage takes what the one before it returned, and repeats nothing. `AllocEmbed` adds the stages of the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from allocembed.allocators.base import AllocationRequest, Allocator, Plan, allocate_clip
from allocembed.budget import Allocation, Budget, check_range
from allocembed.config import EmbedConfig
from allocembed.inputs import Inputs
from allocembed.video import Clip, Decoders, VideoSource, open_video
from allocembed.video import Source as FileSource
from allocembed.video.decoders.registry import find_decoders

Source: TypeAlias = FileSource | Clip


class Planner:
    """Decides where the tokens of a video go, as the settings say."""

    def __init__(self, inputs: Inputs, allocator: Allocator, config: EmbedConfig) -> None:
        self.inputs, self.geometry, self.allocator, self.config = inputs, inputs.geometry, allocator, config
        self.budget = Budget.parse(config.budget)
        self.scale_range = check_range(config.scale_range or allocator.scale_range)

    @property
    def frames_wanted(self) -> int:
        """Frames that the allocator wants to see of each video."""
        return self.allocator.frames_wanted(self.budget, self.config.candidates)

    @property
    def device(self) -> str | None:
        """The device of the model that reads the frames; None without one."""
        return None

    @property
    def decoders(self) -> Decoders:
        """The decoders of frames for the model. Raise if the settings name decoders that cannot be used."""
        return find_decoders(self.config.decoder, self.device)

    def open(self, source: FileSource, *, decoder_threads: int = 0, on_device: bool = False) -> VideoSource:
        """Open a source. Close it, or use it in a `with` block.

        With `on_device`, frames may be decoded on the GPU of the backbone, and are tensors there then. Keep such a clip
        until the GPU has read it: its memory belongs to the stream of the decoder.
        """
        config = self.config
        limits = replace(config.limits, threads=decoder_threads)
        part = {"rate": config.rate, "start": config.start, "end": config.end}
        decoders = self.decoders if on_device else find_decoders(config.decoder)
        return open_video(source, limits=limits, rounds=self.inputs.rounds, decoders=decoders, **part)

    def read(self, source: Source, *, decoder_threads: int = 0, on_device: bool = False) -> Clip:
        """Sample the frames that the allocator wants to see; see `open`."""
        if isinstance(source, Clip):
            return source
        with self.open(source, decoder_threads=decoder_threads, on_device=on_device) as video:
            return video.sample(self.frames_wanted, self.config.seek)

    def request(self, question: str | None = None) -> AllocationRequest:
        """The request to the allocator."""
        return AllocationRequest(self.geometry, self.budget, self.scale_range, question)

    def plan(self, clip: Clip, question: str | None = None) -> Plan:
        """Let the allocator request a scale for each chunk."""
        return self.allocator.plan(clip, self.request(question))

    def allocate(self, clip: Clip, plan: Plan) -> Allocation:
        """Project a plan onto the budget."""
        return allocate_clip(clip, plan, self.request())
