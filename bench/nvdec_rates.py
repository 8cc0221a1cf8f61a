"""Measure what limits a card's decoders: copies, waiting for the model's kernels, or Python's lock.

    python bench/nvdec_rates.py [--out FILE.json] [--seconds 80]
    python bench/nvdec_rates.py --count     what reading a minute of video takes; needs no card

First, many threads read whole videos, as `stream` does, with unwanted pictures copied or kept in the decoder
(`Session.suppress`). Then packets are given to the library in several ways, keyframes are decoded alone, and pictures
are converted to RGB. Meanwhile the card is idle ("none"), or it multiplies matrices ("card"), or a Python thread counts
("python": it keeps Python's lock whenever it can, as a thread that launches a model's kernels does).

For each way: units a second; microseconds of a call of the library, of the threads' own work for a unit, and outside of
calls for a unit; busy cores; by how much a thread that slept is late, which is its wait for Python's lock; and how far
the counting thread gets in a second. Every way is tried, even if others fail. `--stand-in` tries it without a card.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from decode import write_video
from nvdec import X265, write
from nvdec_ways import (
    DISCONTINUITY,
    END_OF_PICTURE,
    Place,
    VideoPackets,
    convert,
    demux,
    feed,
    keyframes,
    make_places,
    read,
    same_as_pyav,
    same_pictures,
    steps,
)
from rich.console import Console
from rich.table import Table

from allocembed.video.decoders.nvdec import Nvdec, Session, find_library

LOADS = ("none", "card", "python")
NAP = 0.003  # seconds
Work = Callable[["Place", Callable[[], bool]], int]


@contextmanager
def loaded(load: str, device: torch.device) -> Iterator[list[int]]:
    """Keep the card or Python busy; the list receives how far the thread counted."""
    ends, counted = threading.Event(), [0]

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
        while not ends.is_set():
            counted[0] += 1

    thread = threading.Thread(target={"card": multiply, "python": count}.get(load, lambda: None))
    thread.start()
    try:
        yield counted
    finally:
        ends.set()
        thread.join()


def measure(work: Work, places: Sequence[Place], seconds: float, load: str, interval: float) -> dict[str, Any]:
    """Let one thread work in each place for some time."""
    barrier, ends, done = threading.Barrier(len(places) + 1), [0.0], [0] * len(places)
    own, lasted, errors, late = [0.0] * len(places), [0.0] * len(places), [], []
    for place in places:
        place.calls, place.waited = 0, 0.0

    def run(number: int) -> None:
        barrier.wait()
        began, used = time.perf_counter(), time.thread_time()
        try:
            done[number] = work(places[number], lambda: time.perf_counter() < ends[0])
            if places[number].stream:
                places[number].stream.synchronize()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {str(error).strip()[:200]}")
        own[number], lasted[number] = time.thread_time() - used, time.perf_counter() - began

    usual = sys.getswitchinterval()
    sys.setswitchinterval(interval)
    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(places))]
    try:
        with loaded(load, torch.device("cuda" if places[0].stream else "cpu")) as counted:
            for thread in threads:
                thread.start()
            time.sleep(0.05)
            before, began = counted[0], time.perf_counter()
            ends[0] = began + seconds
            barrier.wait()
            while any(thread.is_alive() for thread in threads):
                started = time.perf_counter()
                time.sleep(NAP)
                late.append(time.perf_counter() - started - NAP)
            taken, counts = time.perf_counter() - began, counted[0] - before
    finally:
        sys.setswitchinterval(usual)
    units, calls = max(1, sum(done)), max(1, sum(place.calls for place in places))
    return {
        "rate": sum(done) / taken,
        "call_us": 1e6 * sum(place.waited for place in places) / calls,
        "own_us": 1e6 * sum(own) / units,
        "outside_calls_us": 1e6 * (sum(lasted) - sum(place.waited for place in places)) / units,
        "cores": sum(own) / taken,
        "late_us": 1e6 * float(np.mean(late)) if late else 0.0,
        "late_us_p95": 1e6 * float(np.percentile(late, 95)) if late else 0.0,
        "counted_per_s": counts / taken,
        "errors": sorted(set(errors)),
    }


class Report:
    """What was measured so far, in a file and as a table."""

    def __init__(self, out: Path | None, seconds: float) -> None:
        self.out, self.deadline = out, time.monotonic() + seconds
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, run: Callable[[], dict[str, Any]], **names: Any) -> None:
        """Run one way, unless the time is over, and note what it gives or why it failed."""
        if time.monotonic() > self.deadline:
            found: dict[str, Any] = {"errors": ["skipped: no time left"]}
        else:
            try:
                found = run()
            except Exception as error:
                found = {"errors": [f"{type(error).__name__}: {str(error).strip()[:200]}"]}
        self.rows.append({"what": what} | names | found)
        print(json.dumps(self.rows[-1]), flush=True)
        if self.out:
            self.out.write_text(json.dumps(self.rows, indent=1))

    def show(self) -> None:
        columns = ("rate", "call_us", "own_us", "outside_calls_us", "cores", "late_us", "late_us_p95", "counted_per_s")
        table = Table()
        for heading in ("what", "threads", "load", *columns, "notes"):
            table.add_column(heading.replace("_", " "), justify="left" if heading in ("what", "notes") else "right")
        for row in self.rows:
            cells = [f"{row[name]:.1f}" if name in row else "" for name in columns]
            notes = "; ".join([*row.get("errors", []), *([row["note"]] if "note" in row else [])])
            table.add_row(row["what"], str(row.get("threads", "")), row.get("load", ""), *cells, notes)
        Console(width=190).print(table)


def count_steps() -> None:
    """Print what reading 24 frames of a minute takes, by distance of keyframes and way of seeking."""
    from tests.nvdec import Library

    with tempfile.TemporaryDirectory() as folder:
        for gop in (50, 250):
            path = Path(folder) / f"{gop}.mp4"
            write_video(path, 1500, gop, (160, 96), groups=2)
            for seek in ("exact", "keyframe"):
                print(f"keyframe every {gop} frames, {seek}: {steps(path, seek, Library())}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=80.0, help="begin nothing after this time")
    parser.add_argument("--stand-in", action="store_true", help="FFmpeg plays the card, in miniature")
    parser.add_argument("--count", action="store_true", help="count the steps of reading, by a stand-in")
    options = parser.parse_args()
    if options.count:
        count_steps()
        return
    report = Report(options.out, options.seconds)
    tiny, library = options.stand_in, None
    if tiny:
        from tests.nvdec import Library

        library = Library()
    library = library or find_library()
    device = torch.device("cpu" if tiny else "cuda:0")
    counts, brief, long = ((1, 2), 0.1, 0.3) if tiny else ((1, 4, 8, 16), 0.6, 2.0)
    most = counts[-1]
    with tempfile.TemporaryDirectory() as folder:
        path, often, open_groups = (Path(folder) / f"{name}.mp4" for name in ("video", "keyframes", "open"))
        frames, size = (120, (160, 96)) if tiny else (500, (1280, 720))
        write_video(path, frames, frames // 2, size, groups=1)
        write_video(often, frames, frames // 10, size, groups=1)
        write(open_groups, codec="libx265", options={"x265-params": X265 + "1:bframes=7:b-adapt=0"}, frames=90)
        video = VideoPackets.read(path)
        print(f"ready after {time.monotonic() - report.deadline + options.seconds:.0f} s", flush=True)

        def run(name: str, work: Work, places: list[Place], load: str, seconds: float, interval: float = 0.005) -> None:
            job = partial(measure, work, places, seconds, load, interval)
            report.add(name, job, threads=len(places), load=load)

        idle = [Place(library, None, torch.cuda.Stream() if not tiny else None) for _ in range(most)]
        run("counting alone", lambda place, more: int(bool(time.sleep(brief))), idle[:1], "python", brief)
        for suppress in (False, True):
            Session.suppress = suppress
            name = "videos, unwanted kept inside" if suppress else "videos, as now"
            card = Nvdec(device, shared=False, library=library)
            for file in (path, open_groups):
                report.add(f"{name}: {file.stem} against PyAV", partial(same_as_pyav, file, card))
            work = partial(read, path=path, card=card)
            run(f"{name} (first)", work, idle, "none", brief)
            for load in LOADS:
                run(name, work, idle, load, long)
            run(f"{name}, lock asked for after 0.5 ms", work, idle, "python", long, 0.0005)
        Session.suppress = False
        work = partial(read, path=often, card=Nvdec(device, shared=False, library=library), seek="keyframe")
        run("videos, by keyframe (first)", work, idle, "none", brief)
        for load in LOADS:
            run("videos, by keyframe", work, idle, load, long)
        for load in LOADS:
            run("packets demuxed only", partial(demux, path=path), idle, load, brief)
        places = make_places(library, most, device)
        ways: dict[str, dict[str, Any]] = {
            "packets, as now": {},
            "discardable": {"discard": True},
            "discardable, end of picture": {"discard": True, "flag": END_OF_PICTURE},
            "seek_pts of the packet": {"seek": "packet"},
            "8 units a packet": {"units": 8},
            "16 units a packet": {"units": 16},
            "SetSeekPTS": {"seek": "decoder"},
            # Last: a decoder remembers the times of discarded pictures that never come out.
            "8 units, discardable": {"units": 8, "discard": True},
        }
        expected: dict[int, int] = {}
        for name, how in ways.items():
            report.add(f"{name}: pictures", partial(same_pictures, places[0], video, expected, **how))
        few = VideoPackets(video.packets[:16], [])
        for place in places[1:]:  # the library creates decoders with their first pictures
            report.add("set up", partial(same_pictures, place, few, expected))
        for load in LOADS:
            for name, how in ways.items():
                run(name, partial(feed, video=video, **how), places, load, brief)
        alone: dict[str, int | None] = {"a sequence each": None, "end of picture": END_OF_PICTURE}
        alone["discontinuity"] = END_OF_PICTURE | DISCONTINUITY
        for name, flag in alone.items():
            run(f"keyframes, {name}", partial(keyframes, video=video, flag=flag), places, "none", brief)
        surfaces = torch.randint(0, 255, (24, 144, 160) if tiny else (24, 1080, 1280), dtype=torch.uint8, device=device)
        for load in LOADS:
            for together in (False, True):
                name = "to RGB, 24 at once" if together else "to RGB, one by one"
                run(name, partial(convert, surfaces=surfaces, together=together), places, load, brief)
        for count in counts[:-1]:
            for name in ("packets, as now", "discardable"):
                run(name, partial(feed, video=video, **ways[name]), places[:count], "none", brief)
        urgent = make_places(library, most, device, priority=-1)
        for place in urgent:
            report.add("set up", partial(same_pictures, place, few, expected))
        for name in ("packets, as now", "discardable"):
            work = partial(feed, video=video, **ways[name])
            run(f"{name}, urgent stream", work, urgent, "card", brief)
        run(
            "to RGB, one by one, urgent stream",
            partial(convert, surfaces=surfaces, together=False),
            urgent,
            "card",
            brief,
        )
    report.show()


if __name__ == "__main__":
    main()
