"""The whole path in one command: make videos, embed them under a budget, search them, compare the methods.

The videos come from the procedural world of `allocembed_nano.world`, the only one that the nano models know. They are
real MP4 files and are decoded like any other.
"""

import hashlib
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote_plus

import numpy as np
from rich.console import Console
from rich.markup import escape

from allocembed import __version__, film
from allocembed.backbones.base import Backbone
from allocembed.backbones.loading import load_backbone
from allocembed.benchmarks import report
from allocembed.benchmarks.runner import Progress
from allocembed.config import DType, EmbedConfig
from allocembed.embedder import AllocEmbed, VideoEmbedding
from allocembed.errors import MissingDependency
from allocembed.output.console import ProgressLine, showing, stderr
from allocembed.output.files import whole_file
from allocembed_nano import nanoret, world

SEED = 27_182_001  # of the demo's own test videos
DEMO_VIDEOS = 12
DEMO_QUERIES = 5
SAMPLE = 40  # videos of each benchmark set in the comparison
METHODS = ("base", "full", "uniform", "content")
SIZE = (216, 288)  # height, width: more than a nano model needs, but written in a second or two
STAMP = "made-by.txt"
SEARCH_PACKAGES = ("lancedb", "pyarrow", "fastapi", "uvicorn")
SHARES = {"load": 3, "write": 27, "embed": 15, "search": 1, "film": 2, "compare": 52, "index": 52}
"""Per cent of the time that each step takes. The last step is one of the last two."""


@dataclass(frozen=True)
class DemoAnswer:
    """A search sentence, the video it describes, and the best videos with their scores."""

    query: str
    target: str
    found: list[tuple[str, float]]

    @property
    def right(self) -> bool:
        return self.found[0][0] == self.target

    @property
    def lead(self) -> float:
        """By how much the right video is ahead of the best wrong one; negative if it is not."""
        scores = dict(self.found)
        return scores.pop(self.target, -1.0) - max(scores.values(), default=0.0)


def run_demo(
    out: Path,
    backbone: str = "nano-qwen3",
    *,
    videos: int = DEMO_VIDEOS,
    sample: int = SAMPLE,
    serve: bool = False,
    device: str = "auto",
    dtype: DType = "auto",
    console: Console | None = None,
) -> list[DemoAnswer]:
    """Run all steps, write the results to `out`, and return the searches.

    With `serve`, an index and the search page take the place of the comparison. Steps are reported on stderr and
    results on stdout, or both on `console`.
    """
    missing = [name for name in SEARCH_PACKAGES if find_spec(name) is None]
    if serve and missing:
        raise MissingDependency("the search page", ", ".join(missing), "search")
    steps, console = _Steps(console or stderr), console or Console(highlight=False)
    started = time.monotonic()
    _ignore(out)
    with steps.step("load", "loading the model") as step:
        model = load_backbone(backbone, device=device, dtype=dtype)
        step.result = f"[bold]{escape(Path(backbone).name)}[/bold] is loaded. {escape(model.notice or '')}"

    with steps.step("write", "making videos") as step:
        timelines = world.draw(videos, SEED, "short", split="test", orientation="mixed")
        paths, written = make_videos(timelines, out / "videos", step.update)
        kept = f", {len(paths) - written} of them from an earlier run" if written < len(paths) else ""
        step.result = f"{len(paths)} drawn videos of 1 to 5 minutes{kept} → {escape(str(out / 'videos'))}"

    embedder = AllocEmbed(model)
    with steps.step("embed", "embedding the videos") as step:
        embeddings = _embed(embedder, paths, step.update)
        step.result = _spending(embedder, embeddings)

    with steps.step("search", "searching the videos") as step:
        answers = search(embedder, embeddings, *_moments(timelines, paths))
        right = sum(answer.right for answer in answers)
        step.result = f"{right} of {len(answers)} sentences about one moment find their video first (✓):"
    for answer in answers:
        _print_answer(console, answer)

    with steps.step("film", "drawing the filmstrip") as step:
        page, shown, method = out / "film.html", most_varied(embeddings), embedder.allocator.name
        allocation = embeddings[shown].allocation
        film.save_html(embedder.read(paths[shown]), allocation, page, method=method, factor=model.geometry.factor)
        tokens = [grid.tokens for grid in allocation.grids]
        step.result = (
            f"where the tokens of {paths[shown].name} went, from {min(tokens)} to {max(tokens)} for two frames → "
            f"{escape(str(page))}"
        )

    if serve:
        _serve(out, EmbedConfig(backbone, device=device, dtype=dtype), embedder, paths, answers, steps)
        return answers
    _compare(model, embedder, sample, steps, console)
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
) -> list[DemoAnswer]:
    """Rank the videos for each query and keep the best three."""
    texts = embedder.encode_texts(queries, instruction=embedder.backbone.query_instruction)
    names = [Path(video.source).name for video in videos]
    scores = np.stack([text.vector for text in texts]) @ np.stack([video.vector for video in videos]).T
    return [
        DemoAnswer(query, target.name, [(names[i], float(row[i])) for i in np.argsort(-row)[:3]])
        for query, target, row in zip(queries, targets, scores, strict=True)
    ]


def most_varied(embeddings: Sequence[VideoEmbedding]) -> int:
    """Place of the video whose chunks differ most in their tokens, in proportion: its filmstrip shows the most."""
    tokens = [np.array([grid.tokens for grid in each.allocation.grids], float) for each in embeddings]
    return int(np.argmax([each.std() / each.mean() for each in tokens]))


def _embed(embedder: AllocEmbed, paths: Sequence[Path], progress: Progress) -> list[VideoEmbedding]:
    """Embed in parts, so that the progress moves."""
    made: list[VideoEmbedding] = []
    for first in range(0, len(paths), 4):
        made += embedder.encode_videos(paths[first : first + 4])
        progress(len(made), len(paths))
    return made


def _compare(model: Backbone, embedder: AllocEmbed, sample: int, steps: "_Steps", console: Console) -> None:
    with steps.step("compare", "comparing the methods") as step:
        methods = METHODS if embedder.allocator.name in METHODS else [*METHODS, embedder.allocator]
        scores = nanoret.evaluate(model, methods, limit=sample, progress=step.update)
        step.result = (
            f"the methods on {3 * sample} other videos of this toy world: how many of 100 texts find their video, or "
            "questions their answer, first; cost 1.000× is eight full frames:\n"
        )
    note = f"{sample} of every {nanoret.VIDEOS} videos; for the full benchmark: allocembed eval nano"
    console.print(report.rich_table(scores, nanoret.LAYOUT, f"{note}\n{embedder.budget.unit}"))


def _serve(
    out: Path,
    config: EmbedConfig,
    embedder: AllocEmbed,
    paths: Sequence[Path],
    answers: Sequence[DemoAnswer],
    steps: "_Steps",
) -> None:
    """Index the videos and serve the page, opened with the sentence that stands out most."""
    from allocembed.search.index import VideoIndex
    from allocembed.search.indexing import IndexReport
    from allocembed.search.store import exists
    from allocembed.search.web.server import run

    place = out / f"{Path(config.backbone).name}.index"
    with steps.step("index", "indexing the videos") as step:

        def show(report: IndexReport) -> None:
            step.update(report.done, report.total)

        opened = VideoIndex.open if exists(str(place)) else VideoIndex.create
        index = opened(place, config, embedder=embedder)
        index.add(paths, progress=show)
        step.result = f"an index of the videos and of their moments → {escape(str(place))}"
    steps.console.print("\nThe search page, in your browser:", soft_wrap=True)
    best = max(answers, key=lambda answer: answer.lead)
    run(index, "127.0.0.1", 0, None, show=f"?q={quote_plus(best.query)}")


def _moments(timelines: world.Timelines, paths: Sequence[Path]) -> tuple[list[str], list[Path]]:
    """Sentences about one moment of a few videos, and the paths of these videos."""
    source = random.Random(SEED)
    chosen = sorted(source.sample(range(len(paths)), min(DEMO_QUERIES, len(paths))))
    events = [source.randrange(int(timelines.events[video])) for video in chosen]
    queries = [world.describe_moment(timelines, v, event, source) for v, event in zip(chosen, events, strict=True)]
    return queries, [paths[video] for video in chosen]


def _spending(embedder: AllocEmbed, embeddings: Sequence[VideoEmbedding]) -> str:
    tokens = sum(embedding.cost for embedding in embeddings)
    share = np.mean([embedding.allocation.relative_cost for embedding in embeddings])
    spent = f"{embedder.config.candidates} frames of each video, {tokens:,} tokens in total"
    return f"embedded by [bold]{embedder.allocator.name}[/bold]: {spent}, {share:.3f}× the cost of 8 native frames"


def _print_answer(console: Console, answer: DemoAnswer) -> None:
    console.print(f"    “{escape(answer.query)}” [dim]({answer.target})[/dim]", soft_wrap=True)
    marks = {True: "[green]✓[/green] ", False: ""}
    places = [f"{marks[name == answer.target]}{name} {score:.2f}" for name, score in answer.found]
    console.print("      " + "   ".join(places), soft_wrap=True)


def _ignore(out: Path) -> None:
    """Keep the folder out of the repository in which the demo may be run, unless it is somebody's own."""
    if out.exists() and any(out.iterdir()):
        return
    with whole_file(out / ".gitignore") as scratch:
        scratch.write_text("*\n")


class _Course(ProgressLine):
    """Progress of the whole demo, in per cent."""

    def pace(self) -> str:
        return f"{self.done} %"


@dataclass
class _Step:
    line: ProgressLine
    begin: int
    share: int
    result: str = ""

    def update(self, done: int, total: int | None = None, note: str = "") -> None:
        """Set how much of this step is done."""
        self.line.update(self.begin + round(self.share * done / max(total or done, 1)))


class _Steps:
    """The steps of the demo under one progress bar, which continues from step to step."""

    def __init__(self, console: Console) -> None:
        self.console, self.line = console, _Course("", 100)

    @contextmanager
    def step(self, name: str, doing: str) -> Iterator[_Step]:
        """Show progress while a step runs, then print one line with its time and its result."""
        started = time.monotonic()
        self.line.description = f"{doing:<21}"
        step = _Step(self.line, self.line.done, SHARES[name])
        with showing(self.line):
            yield step
            step.update(1, 1)
        self.console.print(f"[dim]{time.monotonic() - started:5.1f} s[/dim]  {step.result}", soft_wrap=True)


def _fingerprint(timelines: world.Timelines) -> str:
    """One line with the version, the size and a digest of the timelines."""
    digest = hashlib.sha256()
    for item in fields(timelines):
        digest.update(np.ascontiguousarray(getattr(timelines, item.name)).tobytes())
    return f"allocembed {__version__} {SIZE} {digest.hexdigest()[:16]}\n"


_NEXT = """
Done in {seconds:.0f} s. Next: your own videos, with a full-size model (downloaded on first use):
  [bold]{first}allocembed index ~/Videos --to videos.index && allocembed serve videos.index --open[/bold]
  [bold]allocembed embed talk.mp4 holiday.mov --backbone qwen3-vl-embedding-2b --out vectors.npz[/bold]
  [bold]allocembed allocate talk.mp4 --backbone qwen3-vl-embedding-2b --html film.html[/bold]
The search page with these toy videos: [bold]{first}allocembed demo --serve[/bold]"""
