"""From files to vectors, with reading and embedding side by side.

Reader threads decode, allocate and resize; the caller's thread runs the backbone over what is ready, a few pieces at a
time. The queue between them is short, so memory depends neither on how many videos there are nor on their length.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import Empty, Full, Queue

import numpy as np
from PIL import Image

from allocembed import film
from allocembed.backbones import Item
from allocembed.budget import Allocation, BudgetError
from allocembed.embedder import AllocEmbed, logger
from allocembed.pipeline import core_count
from allocembed.resize import Patches
from allocembed.search import segments
from allocembed.video import Clip, VideoError

BATCH = 8  # pieces the backbone reads at once
AHEAD = 16  # pieces that may wait for it
PICTURE = 320  # pixels on the longer side of a hit's picture
THUMB = 128  # pixels on the longer side of a filmstrip's frame


@dataclass(frozen=True, eq=False)
class Piece:
    """A whole video (number 0) or one of its windows, embedded."""

    number: int
    start: float
    end: float
    cost: int
    budget: int
    base_cost: int
    film: dict
    """The allocation in plain numbers, as `film.as_json` has it."""
    picture: bytes
    """A JPEG: of a window the frame that got most, of a whole video one frame for every chunk, side by side."""
    vector: np.ndarray


@dataclass(frozen=True, eq=False)
class Embedded:
    """A video with all its pieces, or why there are none."""

    path: str
    pieces: list[Piece] = field(default_factory=list)
    duration: float = 0.0
    width: int = 0
    height: int = 0
    error: str = ""


@dataclass(frozen=True, eq=False)
class _Ready:
    """A piece as a reader leaves it."""

    path: str
    number: int
    start: float
    end: float
    clip_film: dict
    allocation: Allocation
    picture: bytes
    patches: Patches


@dataclass(frozen=True, eq=False)
class _End:
    """The last word of a reader on a file."""

    path: str
    duration: float = 0.0
    width: int = 0
    height: int = 0
    error: str = ""


def embed_files(
    embedder: AllocEmbed, paths: Sequence[str], how: str, *, readers: int | None = None
) -> Iterator[Embedded]:
    """Embeds files whole and, as `how` says (auto, off or seconds), in windows; in the order in which they finish.

    There are two `readers` where the backbone shares the cores with them, and one a core where it is on a GPU.
    """
    readers = readers or (2 if embedder.backbone.device.type == "cpu" else core_count())
    if embedder.backbone.notice:
        logger.warning(embedder.backbone.notice)
    narrow = AllocEmbed(
        embedder.backbone,
        embedder.allocator,
        budget=segments.window_budget(embedder.budget),
        candidates=segments.window_candidates(embedder.candidates),
        scale_range=embedder.scale_range,
    )
    work: Queue[str] = Queue()
    for path in paths:
        work.put(path)
    ready: Queue[_Ready | _End | BaseException] = Queue(maxsize=AHEAD)
    stop = threading.Event()
    arguments = (embedder, narrow, how, work, ready, stop)
    threads = [threading.Thread(target=_read_all, args=arguments, daemon=True) for _ in range(readers)]
    for thread in threads:
        thread.start()
    try:
        yield from _embed_all(embedder, ready, len(paths))
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _embed_all(embedder: AllocEmbed, ready: Queue, files: int) -> Iterator[Embedded]:
    pieces: dict[str, list[Piece]] = {}
    ended: list[_End] = []
    while files:
        batch: list[_Ready] = []
        while len(batch) < BATCH:
            try:
                item = ready.get(block=not batch and not ended)
            except Empty:
                break
            if isinstance(item, BaseException):
                raise item
            (ended if isinstance(item, _End) else batch).append(item)
        items = [Item(patches=one.patches) for one in batch]
        vectors = embedder.backbone.embed(items, batching=embedder.batching).numpy() if items else ()
        for one, vector in zip(batch, vectors, strict=True):
            pieces.setdefault(one.path, []).append(_piece(one, vector))
        for end in ended:
            files -= 1
            made = pieces.pop(end.path, [])
            yield Embedded(end.path, [] if end.error else made, end.duration, end.width, end.height, end.error)
        ended.clear()


def _read_all(embedder, narrow, how: str, work: Queue, ready: Queue, stop: threading.Event) -> None:
    def put(item: _Ready | _End | BaseException) -> None:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.2)
                return
            except Full:
                continue

    try:
        while not stop.is_set():
            path = work.get_nowait()
            try:
                for item in _read(embedder, narrow, path, how):
                    put(item)
                    if stop.is_set():
                        return
            except VideoError as error:
                put(_End(path, error=error.cause))
            except BudgetError as error:
                put(_End(path, error=str(error)))
            except OSError as error:  # the file went away, or its disk did
                put(_End(path, error=f"cannot be read ({error.strerror or error}); check the file and its disk"))
    except Empty:
        return
    except BaseException as error:  # a fault of ours must stop the run, not leave it waiting for this thread
        put(error)


def _read(embedder: AllocEmbed, narrow: AllocEmbed, path: str, how: str) -> Iterator[_Ready | _End]:
    whole = embedder.read(path)
    yield _make_ready(embedder, path, whole, 0, 0.0, whole.duration)
    windows = 0 if Path(path).is_dir() else segments.window_count(whole.duration, how)
    windows = min(windows, whole.total)
    if windows > 1:
        count = narrow.allocator.frames_wanted(narrow.budget, narrow.candidates)
        clips = segments.read_windows(Path(path), whole, windows, count, embedder.seek, embedder.limits)
        edges = np.linspace(0, whole.duration, windows + 1).tolist()
        for number, clip in enumerate(clips, 1):
            yield _make_ready(narrow, path, clip, number, edges[number - 1], edges[number])
    yield _End(path, whole.duration, whole.width, whole.height)


def _make_ready(embedder: AllocEmbed, path: str, clip: Clip, number: int, start: float, end: float) -> _Ready:
    # The model is told the time within the window, as if that were a video of its own.
    allocation, patches = embedder.cut(replace(clip, times=clip.times - start))
    picture = _strip(clip, allocation) if number == 0 else _jpeg(_small(_telling(clip, allocation), PICTURE))
    return _Ready(path, number, start, end, film.as_json(clip, allocation), allocation, picture, patches)


def _piece(one: _Ready, vector: np.ndarray) -> Piece:
    about = one.allocation
    costs = (int(about.cost), int(about.budget), int(about.base_cost))
    return Piece(one.number, one.start, one.end, *costs, one.clip_film, one.picture, vector)


def _strip(clip: Clip, allocation: Allocation) -> bytes:
    """The first frame of every chunk, side by side."""
    frames = [_small(clip.frames[first], THUMB) for first, _ in allocation.frames]
    strip = Image.new("RGB", (frames[0].width * len(frames), frames[0].height))
    for place, frame in enumerate(frames):
        strip.paste(frame, (place * frame.width, 0))
    return _jpeg(strip)


def _telling(clip: Clip, allocation: Allocation) -> np.ndarray:
    """The frame that says most about a window: one of the chunk that got the most tokens."""
    best = max(range(len(allocation)), key=lambda chunk: allocation.grids[chunk].tokens)
    return clip.frames[allocation.frames[best][-1]]


def _small(frame: np.ndarray, side: int) -> Image.Image:
    picture = Image.fromarray(frame)
    picture.thumbnail((side, side), Image.Resampling.BICUBIC)
    return picture


def _jpeg(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, format="JPEG", quality=72)
    return buffer.getvalue()
