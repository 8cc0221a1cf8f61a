"""Measure how fast a GPU's decoders are, by the number of threads, and what slows them down.

    python bench/nvdec_rates.py [--files FOLDER] [--out FILE.json] [--seconds 60]
    python bench/nvdec_rates.py --count     what reading a minute of video takes; needs no GPU

The files are those of bench/pipeline.py: a minute of 720p with a keyframe every 2 or 10 seconds.

- "pictures": threads decode all pictures of a video, one or 16 in a call. What more threads do not speed up is the rate
  of the GPU.
- "videos": threads read 24 frames of videos, as `stream` does, while the GPU is idle ("none"), multiplies matrices
  ("gpu"), or a Python thread keeps Python's lock whenever it can ("python"), as one that launches a model's kernels.

`--stand-in` tries it without a GPU, in miniature.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from files import Kind, write_all
from rich.console import Console
from rich.table import Table
from torch.overrides import TorchFunctionMode

from allocembed.video import open_video
from allocembed.video.decoders.nvdec.bitstream import describe
from allocembed.video.decoders.nvdec.gpu import Nvdec, find_library
from allocembed.video.decoders.nvdec.groups import Group, GroupReader
from allocembed.video.decoders.nvdec.sessions import DecoderSlot, Session
from allocembed.video.packets import Demuxer

FRAMES = 24
LOADS = ("none", "gpu", "python")
Work = Callable[[int, Callable[[], bool]], int]


@contextmanager
def loaded(load: str, device: torch.device) -> Iterator[None]:
    """Keep the GPU or Python busy."""
    ends = threading.Event()

    def multiply() -> None:
        side = 8192 if device.type == "cuda" else 256
        matrix = torch.randn(side, side, device=device, dtype=torch.bfloat16)
        result = torch.empty_like(matrix)
        while not ends.is_set():
            for _ in range(10):
                torch.mm(matrix, matrix, out=result)
            if device.type == "cuda":
                torch.cuda.current_stream().synchronize()

    def count() -> None:
        number = 0
        while not ends.is_set():
            number += 1

    thread = threading.Thread(target={"gpu": multiply, "python": count}.get(load, lambda: None))
    thread.start()
    try:
        yield
    finally:
        ends.set()
        thread.join()


def measure(work: Work, threads: int, seconds: float, load: str, device: torch.device) -> dict[str, Any]:
    """Let threads work for some time: units a second, and how many cores they need."""
    barrier, end = threading.Barrier(threads + 1), [0.0]
    done, own, errors = [0] * threads, [0.0] * threads, []

    def run(number: int) -> None:
        barrier.wait()
        used = time.thread_time()
        try:
            done[number] = work(number, lambda: time.perf_counter() < end[0])
        except Exception as error:
            errors.append(f"{type(error).__name__}: {str(error).strip()[:200]}")
        own[number] = time.thread_time() - used

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    with loaded(load, device):
        for thread in running:
            thread.start()
        began = time.perf_counter()
        end[0] = began + seconds
        barrier.wait()
        for thread in running:
            thread.join()
        taken = time.perf_counter() - began
    return {"rate": sum(done) / taken, "cores": sum(own) / taken, "errors": sorted(set(errors))}


class Pictures:
    """All pictures of a video in memory, and a decoder for each thread."""

    def __init__(self, path: Path, together: int, threads: int, library: Any, device: torch.device) -> None:
        with open_video(path) as video:
            demuxer = video.decoder.demuxer  # pyright: ignore[reportAttributeAccessIssue]
            stream, layout = describe(demuxer), video.table.layout
            assert stream is not None
            assert layout is not None
            reader = GroupReader(path, layout, stream, lambda: None)
            firsts = layout.find(video.table.entries).tolist()
            lasts = [first - 1 for first in firsts[1:]] + [len(layout.stamps) - 1]
            groups = [Group(first, last, []) for first, last in zip(firsts, lasts, strict=True)]
            self.batches = [b for group in groups for b in reader.batches(group, together, lambda _: False)[1]]
            reader.close()
            size = demuxer.stream.height, demuxer.stream.width
        self.sessions = [Session(library, DecoderSlot(device), stream.codec, size) for _ in range(threads)]

    def decode(self, number: int, more: Callable[[], bool]) -> int:
        session, count = self.sessions[number], 0
        while more():
            for batch in self.batches:
                session.decode_bytes(batch.data, batch.stamps[0])
                count += len(batch.stamps)
                if not more():
                    break
            session.drain()
        return count


def read(_: int, more: Callable[[], bool], path: Path, gpu: Nvdec, seek: Any) -> int:
    """Read videos as `stream` does."""
    count = 0
    while more():
        with open_video(path, decoders=gpu) as video:
            video.sample(FRAMES, seek)
        count += 1
    return count


class Calls(TorchFunctionMode):
    """Counts the calls of torch, each of which lets go of Python's lock."""

    count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.__name__ != "__get__"
        return func(*args, **(kwargs or {}))


def steps(path: Path, seek: Any, library: Any) -> dict[str, int]:
    """Packets and pictures for 24 frames of a video, counted by a stand-in for the GPU."""
    packets, demuxed, calls, create = Demuxer.packets, [0], Calls(), library.CreateDecoder

    def counted(self: Demuxer) -> Any:
        for packet in packets(self):
            demuxed[0] += 1
            yield packet

    def quiet(**options: Any) -> Any:
        made = create(**options)
        work = made.Decode

        def without(packet: Any) -> Any:
            with torch.DisableTorchFunction():
                return work(packet)

        made.Decode = without
        return made

    Demuxer.packets, library.CreateDecoder = counted, quiet
    try:
        with open_video(path, decoders=Nvdec(torch.device("cpu"), shared=False, library=library)) as video, calls:
            video.sample(FRAMES, seek)
    finally:
        Demuxer.packets, library.CreateDecoder = packets, create
    return {
        "packets of PyAV": demuxed[0],
        "calls of the decoder": library.packets,
        "pictures": library.frames,
        "calls of torch": calls.count,
    }


def count_steps() -> None:
    """Print what reading a minute takes, by distance of keyframes and way of seeking."""
    from tests.nvdec import Library

    with tempfile.TemporaryDirectory() as name:
        kinds = [Kind(60.0, (160, 96), gop) for gop in (50, 250)]
        write_all(Path(name), kinds, 1)
        for kind in kinds:
            for seek in ("exact", "keyframe"):
                found = steps(kind.original(Path(name), 0), seek, Library())
                print(f"keyframe every {kind.gop} frames, {seek}: {found}", flush=True)


class Report:
    """Measurements so far, in a file and as a table."""

    def __init__(self, out: Path | None, seconds: float, device: torch.device) -> None:
        self.out, self.deadline, self.device = out, time.monotonic() + seconds, device
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, work: Work, threads: int, seconds: float, load: str = "none") -> None:
        """Measure, unless the time is over."""
        if time.monotonic() > self.deadline:
            return
        found = measure(work, threads, seconds, load, self.device)
        self.rows.append({"what": what, "threads": threads, "load": load} | found)
        print(json.dumps(self.rows[-1]), flush=True)
        if self.out:
            self.out.write_text(json.dumps(self.rows, indent=1))

    def show(self) -> None:
        table = Table("what", "threads", "load", "a second", "cores", "errors")
        for row in self.rows:
            cells = (f"{row['rate']:.1f}", f"{row['cores']:.1f}", "; ".join(row["errors"]))
            table.add_row(row["what"], str(row["threads"]), row["load"], *cells)
        Console(width=140).print(table)


def measure_all(report: Report, folder: Path, kinds: Sequence[Kind], library: Any, tiny: bool) -> None:
    counts, seconds = ((1, 2), 0.2) if tiny else ((1, 2, 4, 7, 8, 12, 16, 24), 0.8)
    paths = {kind.gop: kind.original(folder, 0) for kind in kinds}
    Nvdec.places = counts[-1]  # it would not decode more files at a time than are worth while
    gpu = Nvdec(report.device, shared=False, library=library)
    for together in (16, 1):
        pictures = Pictures(paths[kinds[-1].gop], together, counts[-1], library, report.device)
        for number in range(counts[-1]):
            pictures.decode(number, partial(next, iter([True, False, False])))
        for threads in counts:
            report.add(f"pictures, {together} in a call", pictures.decode, threads, seconds)
    for gop, path in paths.items():
        for seek in ("exact", "keyframe"):
            work = partial(read, path=path, gpu=gpu, seek=seek)
            name = f"videos, keyframe every {gop} frames, {seek}"
            measure(work, counts[-1], seconds, "none", report.device)  # sessions are created with their first pictures
            for threads in counts[2:] or counts:
                report.add(name, work, threads, 2 * seconds)
            for load in LOADS[1 : 3 if gop == kinds[0].gop and seek == "exact" else 2]:
                report.add(name, work, counts[-2], 2 * seconds, load)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=Path, help="keep the videos in this folder, or take them from there")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=60.0, help="begin nothing after this time")
    parser.add_argument("--stand-in", action="store_true", help="FFmpeg plays the GPU, in miniature")
    parser.add_argument("--count", action="store_true", help="count the steps of reading, by a stand-in")
    options = parser.parse_args()
    if options.count:
        count_steps()
        return
    tiny, library = options.stand_in, None
    if tiny:
        from tests.nvdec import Library

        library = Library()
    kinds = [Kind(20.0, (160, 96), gop) if tiny else Kind(gop=gop) for gop in (50, 250)]
    with nullcontext(options.files) if options.files else tempfile.TemporaryDirectory() as name:
        write_all(Path(name), kinds)
        report = Report(options.out, options.seconds, torch.device("cpu" if tiny else "cuda:0"))
        measure_all(report, Path(name), kinds, library or find_library(), tiny)
    report.show()


if __name__ == "__main__":
    main()
