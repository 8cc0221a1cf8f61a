"""The whole path in one command: make videos, embed them under a budget, search them, compare the methods.

Everything happens in the procedural world of `allocembed.world`, because the bundled nano models know no other. The
videos are real MP4 files and are read back like anybody's.
"""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from allocembed import film, world
from allocembed.backbones import load_backbone
from allocembed.benchmarks import nano, report
from allocembed.embedder import AllocEmbed, Embedding
from allocembed.output import whole_file

SEED = 27_182_001  # of the demo's own test videos
VIDEOS = 12
QUERIES = 5
SAMPLE = 40  # videos of each benchmark set in the comparison
METHODS = ("base", "full", "uniform", "content")
SIZE = (216, 288)  # larger than a nano model needs, small enough to be written in a second or two
STAMP = "made-by.txt"


@dataclass(frozen=True)
class Answer:
    """A search sentence, the video it describes, and the best of the others beside it."""

    query: str
    target: str
    found: list[tuple[str, float]]

    @property
    def right(self) -> bool:
        return self.found[0][0] == self.target


def run_demo(
    out: Path,
    backbone: str = "nano-qwen3",
    *,
    videos: int = VIDEOS,
    sample: int = SAMPLE,
    device: str = "auto",
    dtype: str = "auto",
    console: Console | None = None,
) -> list[Answer]:
    """Runs every step, saying what it does; what it made lies in `out` afterwards. Returns the searches."""
    console = console or Console(highlight=False)
    started = time.monotonic()
    with _step(console, "load the model") as step:
        loaded = load_backbone(backbone, device=device, dtype=dtype)
        model = nano.at_home(loaded)
        step.done(f"[bold]{escape(Path(backbone).name)}[/bold] is loaded. {escape(loaded.notice or '')}")

    with _step(console, "write videos") as step:
        timelines = world.draw(videos, SEED, "short", split="test", orientation="mixed")
        paths, written = make_videos(timelines, out / "videos", step.count)
        kept = f", {len(paths) - written} of them from last time" if written < len(paths) else ""
        step.done(f"{len(paths)} videos of 1 to 5 minutes{kept} → {escape(str(out / 'videos'))}")

    embedder = AllocEmbed(model)
    with _step(console, "embed them") as step:
        embeddings = embedder.encode_videos(paths)
        step.done(_spending(embedder, embeddings))

    with _step(console, "search them") as step:
        answers = search(embedder, embeddings, *_moments(timelines, paths))
        step.done(f"{sum(answer.right for answer in answers)} of {len(answers)} sentences find their video first:")
    for answer in answers:
        _print_answer(console, answer)

    with _step(console, "draw the filmstrip") as step:
        page = out / "film.html"
        clip = embedder.read(paths[0])
        look = {"title": paths[0].name, "method": embedder.allocator.name, "factor": model.geometry.factor}
        film.save_html(clip, embeddings[0].allocation, page, **look)
        step.done(f"where the tokens of one video went → {escape(str(page))}")

    with _step(console, "compare the methods") as step:
        methods = METHODS if embedder.allocator.name in METHODS else [*METHODS, embedder.allocator]
        rows = nano.evaluate(model, methods, limit=sample, progress=step.count)
        step.done(f"the methods beside each other, on {3 * sample} other videos:\n")
    taste = f"{sample} of every {nano.VIDEOS} videos: a taste; allocembed eval nano is the measure"
    note = f"{taste}\n{embedder.budget.unit}"
    console.print(report.rich_table(rows, nano.LAYOUT, note))
    missing = any(find_spec(name) is None for name in ("lancedb", "pyarrow", "fastapi", "uvicorn"))
    first = escape("pip install -e '.[search]' && ") if missing else ""
    console.print(_NEXT.format(seconds=time.monotonic() - started, first=first), soft_wrap=True)
    return answers


def make_videos(timelines: world.Timelines, folder: Path, progress: nano.Progress) -> tuple[list[Path], int]:
    """Writes each timeline as an MP4, unless it lies there already from the same version; says how many it wrote."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write {folder}: {error.strerror}; choose another place with --out") from error
    paths = [folder / f"toy-{number:02}.mp4" for number in range(1, len(timelines) + 1)]
    stamp = folder / STAMP
    made_by = _fingerprint(timelines)
    if not stamp.is_file() or stamp.read_text() != made_by:
        for path in paths:
            path.unlink(missing_ok=True)
        with whole_file(stamp) as scratch:
            scratch.write_text(made_by)
    missing = [number for number, path in enumerate(paths) if not path.is_file()]
    for number in missing:
        size = SIZE[::-1] if timelines.portrait[number] else SIZE
        with whole_file(paths[number]) as scratch:
            world.write_mp4(timelines, number, scratch, size)
        progress(number + 1, len(paths))
    return paths, len(missing)


def search(
    embedder: AllocEmbed, videos: Sequence[Embedding], queries: Sequence[str], targets: Sequence[Path]
) -> list[Answer]:
    """Ranks the videos for every query; the best three are kept."""
    texts = embedder.encode_texts(queries, instruction=embedder.backbone.query_instruction)
    names = [Path(video.source).name for video in videos]
    scores = np.stack([text.vector for text in texts]) @ np.stack([video.vector for video in videos]).T
    return [
        Answer(query, target.name, [(names[i], float(row[i])) for i in np.argsort(-row)[:3]])
        for query, target, row in zip(queries, targets, scores, strict=True)
    ]


def _moments(timelines: world.Timelines, paths: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """Sentences about one moment each of a few videos."""
    source = random.Random(SEED)
    chosen = sorted(source.sample(range(len(paths)), min(QUERIES, len(paths))))
    events = [source.randrange(int(timelines.events[video])) for video in chosen]
    queries = [world.describe_moment(timelines, v, event, source) for v, event in zip(chosen, events, strict=True)]
    return queries, [paths[video] for video in chosen]


def _spending(embedder: AllocEmbed, embeddings: Sequence[Embedding]) -> str:
    tokens = sum(embedding.cost for embedding in embeddings)
    share = np.mean([embedding.allocation.relative_cost for embedding in embeddings])
    looked_at = f"{embedder.candidates} frames of each, {tokens:,} tokens in all"
    return f"embedded by [bold]{embedder.allocator.name}[/bold]: {looked_at}, {share:.3f}× the cost of 8 native frames"


def _print_answer(console: Console, answer: Answer) -> None:
    console.print(f"    “{escape(answer.query)}” [dim]({answer.target})[/dim]", soft_wrap=True)
    marks = {True: "[green]✓[/green] ", False: ""}
    places = [f"{marks[name == answer.target]}{name} {score:.2f}" for name, score in answer.found]
    console.print("      " + "   ".join(places), soft_wrap=True)


class _Step:
    """What is being done, on a status line; then what came of it."""

    def __init__(self, doing: str, status: Status) -> None:
        self.doing, self.status, self.result = doing, status, doing

    def count(self, done: int, total: int) -> None:
        self.status.update(f"{self.doing} … {done} of {total}")

    def done(self, result: str) -> None:
        self.result = result


@contextmanager
def _step(console: Console, doing: str) -> Iterator[_Step]:
    """Runs a step under a status line, then prints one line with its result and its time."""
    started = time.monotonic()
    with console.status(f"{doing} …") as status:
        yield (step := _Step(doing, status))
    console.print(f"[dim]{time.monotonic() - started:5.1f} s[/dim]  {step.result}", soft_wrap=True)


def _fingerprint(timelines: world.Timelines) -> str:
    """The version, the size and the content of the timelines, in one line."""
    digest = hashlib.sha256()
    for item in fields(timelines):
        digest.update(np.ascontiguousarray(getattr(timelines, item.name)).tobytes())
    return f"allocembed {version('allocembed')} {SIZE} {digest.hexdigest()[:16]}\n"


_NEXT = """
All of it in {seconds:.0f} s. Next, your own videos, with a full-size model (downloaded on first use):
  [bold]{first}allocembed index ~/Videos --to videos.index && allocembed serve videos.index[/bold]   search in a browser
  [bold]allocembed embed talk.mp4 holiday.mov --backbone qwen3-vl-embedding-2b --out vectors.npz[/bold]
  [bold]allocembed allocate talk.mp4 --backbone qwen3-vl-embedding-2b --html film.html[/bold]"""
