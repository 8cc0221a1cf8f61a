"""Ways to give packets to a card's decoder, for bench/nvdec_rates.py."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from allocembed.video import open_video
from allocembed.video.decoders.colours import Colours
from allocembed.video.decoders.nvdec import Nvdec
from allocembed.video.packets import Demuxer

APART = 60  # frames from one wanted picture to the next: 25 of a minute
COUNT = 8  # frames to read of a video of 20 seconds
DISCONTINUITY, END_OF_PICTURE = 4, 8  # flags of a packet, from the driver's interface


@dataclass
class Place:
    """One decoder, its stream, and the times of the thread that works in it."""

    library: Any
    decoder: Any
    stream: Any
    calls: int = 0
    waited: float = 0.0
    found: dict[int, int] = field(default_factory=dict)
    """Checksums of wanted pictures by their times."""
    times: list[int] = field(default_factory=list)
    """Of all pictures that came out, while their sums are checked."""

    def within(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self.stream) if self.stream else nullcontext()

    def decode(self, data: bytes = b"", pts: int = 0, **fields: Any) -> list[Any]:
        packet = self.library.PacketData()
        if data:
            packet.bsl_data = ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p).value
            packet.bsl, packet.pts = len(data), pts
        for name, value in fields.items():
            setattr(packet, name, value)
        started = time.perf_counter()
        frames = self.decoder.Decode(packet)
        self.waited += time.perf_counter() - started
        self.calls += 1
        return frames


@dataclass(frozen=True)
class VideoPackets:
    """The packets of a video, in memory, and the times of its wanted pictures."""

    packets: list[tuple[bytes, int, bool]]
    """Data behind start codes, time, and whether it is a keyframe."""
    wanted: list[int]

    @classmethod
    def read(cls, path: Path) -> VideoPackets:
        with av.open(str(path)) as container:
            library: Any = av
            convert = library.bitstream.BitStreamFilterContext("h264_mp4toannexb", container.streams.video[0]).filter
            parts = [part for packet in container.demux(video=0) if packet.size for part in convert(packet)]
        packets = [(bytes(part), part.pts or 0, part.is_keyframe) for part in parts]
        return cls(packets, sorted(pts for _, pts, _ in packets)[APART // 2 :: APART])

    def next_wanted(self, frames: Sequence[Any], left: list[int]) -> None:
        """Drop the wanted times that have come out."""
        while left and frames and frames[-1].timestamp >= left[0]:
            left.pop(0)


def take(place: Place, frames: Sequence[Any], wanted: frozenset[int], check: bool) -> None:
    """Copy what is wanted, as a reader would; with `check`, also sum it up."""
    if check:
        place.times += [frame.timestamp for frame in frames]
    for frame in frames:
        if frame.timestamp in wanted:
            with place.within():
                copy = torch.from_dlpack(frame).clone()
                if check:
                    weights = torch.arange(copy.numel(), device=copy.device) % 251 + 1
                    place.found[frame.timestamp] = int((copy.flatten().long() * weights).sum())


def feed(
    place: Place,
    more: Callable[[], bool],
    video: VideoPackets,
    *,
    discard: bool = False,
    seek: str = "",
    flag: int = 0,
    units: int = 1,
    check: bool = False,
) -> int:
    """Decode the video until there is no more time; return the number of pictures given to the decoder."""
    count, wanted = 0, frozenset(video.wanted)
    while more():
        left = list(video.wanted)
        for first in range(0, len(video.packets), units):
            some = video.packets[first : first + units]
            fields: dict[str, Any] = {"decode_flag": flag} if flag else {}
            if discard and not any(pts in wanted for _, pts, _ in some):
                fields["discardable"] = True
            target = left[0] if left else video.packets[-1][1] + 10**6
            if seek == "packet":
                fields["seek_pts"] = target
            elif seek == "decoder":
                place.decoder.SetSeekPTS(target)
            frames = place.decode(b"".join(data for data, _, _ in some), some[0][1], **fields)
            take(place, frames, wanted, check)
            video.next_wanted(frames, left)
            count += len(some)
            if not more() and not check:
                break
        take(place, place.decode(), wanted, check)
        if seek == "decoder":
            place.decoder.SetSeekPTS(0)
    return count


def keyframes(place: Place, more: Callable[[], bool], video: VideoPackets, *, flag: int | None = None) -> int:
    """Decode keyframes alone: each in a sequence of its own, or in one, with a flag."""
    keys, count = [(data, pts) for data, pts, key in video.packets if key], 0
    wanted = frozenset(pts for _, pts in keys)
    while more():
        for data, pts in keys:
            take(place, place.decode(data, pts, **({} if flag is None else {"decode_flag": flag})), wanted, False)
            if flag is None:
                take(place, place.decode(), wanted, False)
            count += 1
    take(place, place.decode(), wanted, False)
    return count


def convert(place: Place, more: Callable[[], bool], surfaces: torch.Tensor, *, together: bool) -> int:
    """Convert pictures (N, 3/2 H, W) to RGB: one by one, or all at once below each other."""
    colours, count, height = Colours(5, False), 0, surfaces.shape[1] * 2 // 3
    while more():
        with place.within():
            for some in [surfaces] if together else surfaces.split(1):
                luma, chroma = some[:, :height].flatten(0, 1), some[:, height:].flatten(0, 1)
                colours.to_rgb(luma, chroma.unflatten(1, (-1, 2))).sum()
                count += len(some)
        if place.stream:
            started = time.perf_counter()
            place.stream.synchronize()
            place.waited += time.perf_counter() - started
        place.calls += 1
    return count


def read(_: Place, more: Callable[[], bool], path: Path, card: Nvdec, seek: Any = "exact") -> int:
    """Read videos as `stream` does."""
    count = 0
    while more():
        with open_video(path, hardware=card) as video:
            video.sample(COUNT, seek)
        count += 1
    return count


def demux(_: Place, more: Callable[[], bool], path: Path) -> int:
    """List the frames of videos, which reads all packets and decodes none; return the number of packets."""
    count = 0
    while more():
        with open_video(path) as video:
            count += len(video.table)
    return count


class Calls(TorchFunctionMode):
    """Counts the calls of torch, each of which lets go of Python's lock."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.__name__ != "__get__"
        return func(*args, **(kwargs or {}))


def steps(path: Path, seek: Any, library: Any) -> dict[str, int]:
    """What reading 24 frames of a video takes, by a stand-in for the card that counts packets and pictures."""
    packets, demuxed, calls, decode = Demuxer.packets, [0], Calls(), library.CreateDecoder

    def counted(self: Demuxer) -> Any:
        for packet in packets(self):
            demuxed[0] += 1
            yield packet

    def quiet(**options: Any) -> Any:
        made = decode(**options)
        work = made.Decode

        def without(packet: Any) -> Any:
            with torch.DisableTorchFunction():
                return work(packet)

        made.Decode = without
        return made

    Demuxer.packets, library.CreateDecoder = counted, quiet
    try:
        with open_video(path, hardware=Nvdec(torch.device("cpu"), shared=False, library=library)) as video, calls:
            video.sample(24, seek)
    finally:
        Demuxer.packets, library.CreateDecoder = packets, decode
    return {
        "packets read": demuxed[0],
        "calls of Decode": library.packets,
        "pictures": library.frames,
        "calls of torch": calls.count,
    }


def same_pictures(place: Place, video: VideoPackets, expected: dict[int, int], **how: Any) -> dict[str, Any]:
    """Decode the video once; say whether what came out is what was wanted, bit for bit."""
    once = iter([True])
    place.found, place.times = {}, []
    place.decode()
    feed(place, lambda: next(once, False), video, check=True, **how)
    if not expected:
        expected.update(place.found)
    missing = [pts for pts in video.wanted if pts not in place.found]
    other = [pts for pts, total in place.found.items() if expected.get(pts) != total]
    note = f"{len(place.times)} came out, {len(place.found)} of {len(video.wanted)} wanted, {len(other)} differ"
    return {"note": note, "missing": missing, "differ": other, "times": place.times[:40]}


def same_as_pyav(path: Path, card: Nvdec) -> dict[str, Any]:
    """Read the same frames with both, three times in one session."""
    largest = 0
    for count in (9, 4, 9):
        with open_video(path) as plain, open_video(path, hardware=card) as fast:
            expected, found = plain.sample(count), fast.sample(count).on_host()
        if found.indices.tolist() != expected.indices.tolist():
            return {"note": "other frames"}
        largest = max(largest, int(np.abs(found.frames.astype(int) - expected.frames).max()))
    return {"note": f"differ by at most {largest}; {card.summary()}"}


def make_places(library: Any, count: int, device: torch.device, priority: int = 0) -> list[Place]:
    places = []
    for _ in range(count):
        stream = torch.cuda.Stream(device, priority=priority) if device.type == "cuda" else None
        decoder = library.CreateDecoder(
            gpuid=device.index or 0,
            codec=library.cudaVideoCodec.H264,
            cudacontext=0,
            cudastream=stream.cuda_stream if stream else 0,
            usedevicememory=True,
            maxwidth=1280,
            maxheight=720,
        )
        places.append(Place(library, decoder, stream))
    return places
