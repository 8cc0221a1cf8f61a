"""The command line: a thin skin over the package. Heavy imports wait until a command needs them."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from allocembed.eval_big_cli import add_benchmarks
from allocembed.eval_cli import eval_app
from allocembed.longret_cli import longret_app
from allocembed.options import (
    AllocatorOption,
    BackboneOption,
    BudgetOption,
    CandidatesOption,
    CompileOption,
    DeviceOption,
    DimOption,
    DtypeOption,
    InstructionOption,
    RangeOption,
    Seek,
    SeekOption,
    TextOption,
    parse_path,
    parse_range,
    progress_bar,
    stderr,
)
from allocembed.search_cli import add_search
from allocembed.train_cli import add_train

app = typer.Typer(
    help="Video embeddings under a hard token budget: every frame gets the resolution it deserves.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
add_benchmarks(eval_app)
app.add_typer(eval_app, name="eval")
app.add_typer(longret_app, name="longret")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"allocembed {version('allocembed')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit.")
    ] = False,
) -> None:
    """Video embeddings under a hard token budget: every frame gets the resolution it deserves."""


@app.command()
def embed(
    videos: Annotated[
        list[Path], typer.Argument(parser=parse_path, help="Video files or folders of frames.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the vectors go: .npz or .jsonl.")] = Path(
        "vectors.npz"
    ),
    backbone: BackboneOption = "qwen3-vl-embedding-2b",
    allocator: AllocatorOption = "auto",
    budget: BudgetOption = "8f",
    candidates: CandidatesOption = 24,
    scale_range: RangeOption = None,
    seek: SeekOption = Seek.exact,
    text: TextOption = None,
    instruction: InstructionOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    compile: CompileOption = False,
    dim: DimOption = None,
) -> None:
    """Embed videos under a token budget; one vector a video, with what it cost."""
    from allocembed import vectors
    from allocembed.embedder import Failure

    writer = vectors.open_writer(out)
    embedder = _load(backbone, allocator, budget, candidates, scale_range, seek, device, dtype, dim, compile)
    failures = []
    with writer, progress_bar() as progress:
        task = progress.add_task("embedding", total=len(videos), spent="")
        spent = 0
        for result in embedder.stream(videos, text, instruction=instruction):
            if isinstance(result, Failure):
                failures.append(result)
            else:
                writer.add(result)
                spent += result.cost
            progress.update(task, advance=1, spent=f"{spent:,} tokens")
    done = len(videos) - len(failures)
    if done:
        summary = f"{done} of {len(videos)} videos, {embedder.backbone.dim} dimensions, {spent:,} tokens"
        stderr.print(f"{summary} → {escape(str(out))}", soft_wrap=True)
    for failure in failures:
        stderr.print(f"[red]left out[/red] {escape(str(failure.error))}", soft_wrap=True)
    if failures:
        raise typer.Exit(1)


@app.command()
def allocate(
    video: Annotated[
        Path, typer.Argument(parser=parse_path, help="A video file or a folder of frames.", show_default=False)
    ],
    png: Annotated[Path | None, typer.Option(help="Write the filmstrip as a picture.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write the filmstrip as a page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the allocation as JSON.")] = False,
    backbone: BackboneOption = "qwen3-vl-embedding-2b",
    allocator: AllocatorOption = "auto",
    budget: BudgetOption = "8f",
    candidates: CandidatesOption = 24,
    scale_range: RangeOption = None,
    seek: SeekOption = Seek.exact,
    text: TextOption = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Show where the tokens of a video go: every candidate frame, its scale, its share of the budget."""
    from allocembed import film
    from allocembed.output import make_room

    written = [path for path in (png, html) if path]
    for path in written:
        make_room(path)
    if len({path.resolve() for path in (video, *written)}) <= len(written):
        raise ValueError("the video, --png and --html must be different files")
    embedder = _load(backbone, allocator, budget, candidates, scale_range, seek, device, dtype, None)
    clip = embedder.read(video)
    allocation = embedder.allocate(clip, text)
    title = f"{video.name} – {text}" if text else video.name
    look = {"title": title, "method": embedder.allocator.name, "factor": embedder.backbone.geometry.factor}
    if png:
        film.save_png(clip, allocation, png, **look)
    if html:
        film.save_html(clip, allocation, html, **look)
    if as_json:
        typer.echo(json.dumps(film.as_json(clip, allocation)))
        return
    _print_allocation(clip, allocation)
    for path in written:
        stderr.print(f"→ {escape(str(path))}", soft_wrap=True)
    if not written:
        stderr.print("[dim]--html film.html or --png film.png shows it as a picture[/dim]")


@app.command()
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the videos and the page.")] = Path(
        "allocembed-demo"
    ),
    backbone: BackboneOption = "nano-qwen3",
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Make a dozen toy videos, embed and search them, and compare the methods: the whole path in a few minutes."""
    from allocembed.demo import run_demo

    run_demo(out, backbone, device=device, dtype=dtype)


add_train(app)
add_search(app)


def _print_allocation(clip, allocation) -> None:
    from rich.table import Table

    from allocembed.film import base_frames, format_time

    spent = f"{allocation.cost:,} of {allocation.budget:,} tokens"
    base = f"{base_frames(clip, allocation)} frames at native size"
    table = Table(title=f"{spent}, {allocation.relative_cost:.3f}× Base", caption=f"1.000× = {base}")
    for heading in ("time", "scale", "grid", "tokens"):
        table.add_column(heading, justify="right")
    table.add_column("")
    most = max(grid.tokens for grid in allocation.grids)
    for (first, second), scale, grid in zip(allocation.frames, allocation.scales, allocation.grids, strict=True):
        brief = clip.duration < 60
        times = " – ".join(format_time(clip.times[i], tenths=brief) for i in dict.fromkeys((first, second)))
        bar = "█" * max(1, round(24 * grid.tokens / most))
        table.add_row(times, f"{scale:.2f}", f"{grid.rows}×{grid.cols}", str(grid.tokens), bar)
    Console().print(table)


def _load(backbone, allocator, budget, candidates, scale_range, seek, device, dtype, dim, compile=False):
    """Builds the embedder from the options; the cheap checks come before the weights are read."""
    from allocembed.budget import Budget
    from allocembed.embedder import AllocEmbed

    settings = {
        "budget": Budget.parse(budget),
        "candidates": candidates,
        "scale_range": parse_range(scale_range),
        "seek": seek.value,
    }
    where = {"device": device, "dtype": dtype, "dim": dim, "compile": compile}
    return AllocEmbed.from_pretrained(backbone, allocator, **where, **settings)


def main() -> None:
    """Runs the command line; what a user can mend is one message and exit code 1, never a traceback."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that can't show a sign must not cost the result
    try:
        app()
    except SystemExit as stop:
        # After Ctrl-C typer exits by itself; a command that exits with the same status has said why.
        if isinstance(getattr(stop.__context__, "__cause__", None), KeyboardInterrupt):
            stderr.print("stopped")
        raise
    except Exception as error:
        from allocembed.errors import USER_ERRORS

        if not isinstance(error, USER_ERRORS):
            raise
        stderr.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        sys.exit(1)
