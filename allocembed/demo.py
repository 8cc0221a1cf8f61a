"""The whole path in one command: make videos, embed them under a budget, search them, compare the methods.

The videos come from the procedural world of `allocembed.world`, the only one that the bundled nano models know. They
are real MP4 files and are decoded like any other.
"""

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape

from allocembed import __version__, film, world
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import nano, report
from allocembed.benchmarks.runner import Progress
from allocembed.config import DType
from allocembed.embedder import AllocEmbed, VideoEmbedding
from allocembed.output.console import ProgressLine, progress, stderr
from allocembed.output.files import whole_file

SEED = 27_182_001  # of the demo's own test videos
VIDEOS = 12
QUERIES = 5
SAMPLE = 40  # videos of each benchmark set in the comparison
METHODS = ("base", "full", "uniform", "content")
SIZE = (216, 288)  # height, width: more than a nano model needs, but written in a second or two
STAMP = "made-by.txt"


@dataclass(frozen=True)
class Answer:
    """A search sentence, the video it describes, and the best videos with their scores."""

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
    dtype: DType = "auto",
    console: Console | None = None,
) -> list[Answer]:
    """Run all steps, write the results to `out`, and return the searches.

    Steps are reported on stderr and results on stdout, or both on `console`.
    """
    steps, console = console or stderr, console or Console(highlight=False)
    started = time.monotonic()
    with _step(steps, "load the model") as step:
        model = load_backbone(backbone, device=device, dtype=dtype)
        step.result = f"[bold]{escape(Path(backbone).name)}[/bold] is loaded. {escape(model.notice or '')}"

    with _step(steps, "write videos") as step:
        timelines = world.draw(videos, SEED, "short", split="test", orientation="mixed")
        paths, written = make_videos(timelines, out / "videos", step.line.update)
        kept = f", {len(paths) - written} of them from an earlier run" if written < len(paths) else ""
        step.result = f"{len(paths)} videos of 1 to 5 minutes{kept} → {escape(str(out / 'videos'))}"

    embedder = AllocEmbed(model)
    with _step(steps, "embed the videos") as step:
        embeddings = embedder.encode_videos(paths)
        step.result = _spending(embedder, embeddings)

    with _step(steps, "search the videos") as step:
        answers = search(embedder, embeddings, *_moments(timelines, paths))
        right = sum(answer.right for answer in answers)
        step.result = f"{right} of {len(answers)} sentences find their video first:"
    for answer in answers:
        _print_answer(console, answer)

    with _step(steps, "draw the filmstrip") as step:
        page, clip, method = out / "film.html", embedder.read(paths[0]), embedder.allocator.name
        film.save_html(clip, embeddings[0].allocation, page, method=method, factor=model.geometry.factor)
        step.result = f"the tokens of one video → {escape(str(page))}"

    with _step(steps, "compare the methods") as step:
        methods = METHODS if method in METHODS else [*METHODS, embedder.allocator]
        scores = nano.evaluate(model, methods, limit=sample, progress=step.line.update)
        step.result = f"the methods on {3 * sample} other videos:\n"
    note = (
        f"{sample} of every {nano.VIDEOS} videos; for the full benchmark: allocembed eval nano\n{embedder.budget.unit}"
    )
    console.print(report.rich_table(scores, nano.LAYOUT, note))
    missing = any(find_spec(name) is None for name in ("lancedb", "pyarrow", "fastapi", "uvicorn"))
    first = escape("pip install -e '.[search]' && ") if missing else ""
    console.print(_NEXT.format(seconds=time.monotonic() - started, first=first), soft_wrap=True)
    return answers


def make_videos(timelines: world.Timelines, folder: Path, progress: Progress) -> tuple[list[Path], int]:
    """Write each timeline as an MP4 file unless this version has already done so; return the paths and the number
    of new files."""
    paths = [folder / f"toy-{number:02}.mp4" for number in range(1, len(timelines) + 1)]
    stamp = folder / STAMP
    made_by = _fingerprint(timelines)
    if not stamp.is_file() or stamp.read_text() != made_by:
        with whole_file(stamp) as scratch:
            for path in paths:
                path.unlink(missing_ok=True)
            scratch.write_text(made_by)
    missing = [number for number, path in enumerate(paths) if not path.is_file()]
    height, width = SIZE
    for number in missing:
        with whole_file(paths[number]) as scratch:
            world.write_mp4(timelines, number, scratch, (width, height) if timelines.portrait[number] else SIZE)
        progress(number + 1, len(paths))
    return paths, len(missing)


def search(
    embedder: AllocEmbed, videos: Sequence[VideoEmbedding], queries: Sequence[str], targets: Sequence[Path]
) -> list[Answer]:
    """Rank the videos for each query and keep the best three."""
    texts = embedder.encode_texts(queries, instruction=embedder.backbone.query_instruction)
    names = [Path(video.source).name for video in videos]
    scores = np.stack([text.vector for text in texts]) @ np.stack([video.vector for video in videos]).T
    return [
        Answer(query, target.name, [(names[i], float(row[i])) for i in np.argsort(-row)[:3]])
        for query, target, row in zip(queries, targets, scores, strict=True)
    ]


def _moments(timelines: world.Timelines, paths: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """Sentences about one moment of a few videos, and the paths of these videos."""
    source = random.Random(SEED)
    chosen = sorted(source.sample(range(len(paths)), min(QUERIES, len(paths))))
    events = [source.randrange(int(timelines.events[video])) for video in chosen]
    queries = [world.describe_moment(timelines, v, event, source) for v, event in zip(chosen, events, strict=True)]
    return queries, [paths[video] for video in chosen]


def _spending(embedder: AllocEmbed, embeddings: Sequence[VideoEmbedding]) -> str:
    tokens = sum(embedding.cost for embedding in embeddings)
    share = np.mean([embedding.allocation.relative_cost for embedding in embeddings])
    spent = f"{embedder.config.candidates} frames of each video, {tokens:,} tokens in total"
    return f"embedded by [bold]{embedder.allocator.name}[/bold]: {spent}, {share:.3f}× the cost of 8 native frames"


def _print_answer(console: Console, answer: Answer) -> None:
    console.print(f"    “{escape(answer.query)}” [dim]({answer.target})[/dim]", soft_wrap=True)
    marks = {True: "[green]✓[/green] ", False: ""}
    places = [f"{marks[name == answer.target]}{name} {score:.2f}" for name, score in answer.found]
    console.print("      " + "   ".join(places), soft_wrap=True)


@dataclass
class _Step:
    line: ProgressLine
    result: str = ""


@contextmanager
def _step(console: Console, doing: str) -> Iterator[_Step]:
    """Show progress while a step runs, then print one line with its time and its result."""
    started = time.monotonic()
    with progress(doing) as line:
        yield (step := _Step(line))
    console.print(f"[dim]{time.monotonic() - started:5.1f} s[/dim]  {step.result}", soft_wrap=True)


def _fingerprint(timelines: world.Timelines) -> str:
    """One line with the version, the size and a digest of the timelines."""
    digest = hashlib.sha256()
    for item in fields(timelines):
        digest.update(np.ascontiguousarray(getattr(timelines, item.name)).tobytes())
    return f"allocembed {__version__} {SIZE} {digest.hexdigest()[:16]}\n"


_NEXT = """
Done in {seconds:.0f} s. Next: your own videos, with a full-size model (downloaded on first use):
  [bold]{first}allocembed index ~/Videos --to videos.index && allocembed serve videos.index[/bold]   search in a browser
  [bold]allocembed embed talk.mp4 holiday.mov --backbone qwen3-vl-embedding-2b --out vectors.npz[/bold]
  [bold]allocembed allocate talk.mp4 --backbone qwen3-vl-embedding-2b --html film.html[/bold]"""
