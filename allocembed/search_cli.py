"""`allocembed index`, `search` and `serve`: your own videos, from the command line."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer.core import TyperGroup

from allocembed.options import (
    AllocatorOption,
    BackboneOption,
    CandidatesOption,
    CompileOption,
    DeviceOption,
    DimOption,
    DtypeOption,
    RangeOption,
    SeekOption,
    parse_path,
    parse_range,
    progress_bar,
    stderr,
    unset,
)

if TYPE_CHECKING:
    from allocembed.search import Added, Hit, VideoIndex

FOLLOWS = "the index's own"


class DefaultGroup(TyperGroup):
    """A group whose first word may be a folder instead of a command: `index DIR` is `index add DIR`."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "--help"):
            args = ["add", *args]
        return super().parse_args(ctx, args)


index_app = typer.Typer(
    cls=DefaultGroup,
    no_args_is_help=True,
    help="Index your own videos: allocembed index FOLDER… --to INDEX, and what else one does with an index.",
    epilog="allocembed index FOLDER… --to INDEX is short for allocembed index add; its options: "
    "allocembed index add --help",
)
INDEX = "The index: a folder, or a URI of object storage."
IndexArgument = Annotated[str, typer.Argument(help=INDEX)]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
OwnBackboneOption = unset(BackboneOption, f"qwen3-vl-embedding-2b, or {FOLLOWS}")
OwnCandidatesOption = unset(CandidatesOption, f"24, or {FOLLOWS}")
OwnRangeOption = unset(RangeOption, FOLLOWS)
OwnSeekOption = unset(SeekOption, f"exact, or {FOLLOWS}")
OwnDimOption = unset(DimOption, FOLLOWS)


def add_search(app: typer.Typer) -> None:
    """Registers the commands."""
    app.add_typer(index_app, name="index")
    app.command()(search)
    app.command()(serve)


@index_app.command()
def add(
    sources: Annotated[
        list[Path], typer.Argument(parser=parse_path, help="Folders of videos, or videos.", show_default=False)
    ],
    to: Annotated[str, typer.Option("--to", help=INDEX)],
    backbone: OwnBackboneOption = None,
    allocator: AllocatorOption = "auto",
    budget: Annotated[
        str | None,
        typer.Option(
            help="At most so many visual tokens for a whole video: 8f for 8 native frames' worth, or a number. "
            "A segment gets a quarter of it.",
            show_default=f"8f, or {FOLLOWS}",
        ),
    ] = None,
    segments: Annotated[
        str | None,
        typer.Option(
            help="auto: a dozen windows of 5 to 60 seconds, more in a long video; off; or seconds.",
            show_default=f"auto, or {FOLLOWS}",
        ),
    ] = None,
    candidates: OwnCandidatesOption = None,
    scale_range: OwnRangeOption = None,
    seek: OwnSeekOption = None,
    dim: OwnDimOption = None,
    prune: Annotated[bool, typer.Option("--prune", help="Forget files that are gone from the disk.")] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try files again that could not be read before.")
    ] = False,
    readers: Annotated[
        int | None,
        typer.Option(min=1, help="Threads that decode videos.", show_default="2, or one a core beside a GPU"),
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
    compile: CompileOption = False,
) -> None:
    """Embed all videos in folders that the index doesn't know yet. Stop it and run it again as you like."""
    from allocembed.search import VideoIndex
    from allocembed.search.store import exists

    settings = {
        "allocator": allocator,
        "budget": budget,
        "segments": segments,
        "candidates": candidates,
        "scale_range": parse_range(scale_range),
        "seek": seek.value if seek else None,
        "dim": dim,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    where = {"device": device, "dtype": dtype, "compile": compile}
    new = not exists(to)
    if not new:
        index = VideoIndex.open(to, **where, **given, **({"backbone": backbone} if backbone else {}))
    else:
        _check_sources(sources)
        index = VideoIndex.create(to, backbone or "qwen3-vl-embedding-2b", **where, **given)
    with progress_bar() as progress:
        task = progress.add_task("indexing", total=None, spent="")

        def show(added: Added) -> None:
            rate = (added.embedded + len(added.failed)) / added.seconds if added.seconds else 0.0
            spent = f"{rate:.1f} videos/s, {added.tokens:,} tokens"
            progress.update(task, completed=added.done, total=added.total, spent=spent)

        try:
            added = index.add(sources, prune=prune, retry_failed=retry_failed, readers=readers, progress=show)
        finally:
            # An empty index would hold the next run to options with which nothing could be indexed.
            discarded = new and index.discard_if_empty()
    _print_added(added, "no index, because nothing could be indexed" if discarded else to)
    if added.failed:
        raise typer.Exit(1)


@index_app.command()
def info(index: IndexArgument, as_json: JsonOption = False) -> None:
    """What an index holds, what it cost, and how it was made."""
    about = _open(index).info()
    if as_json:
        typer.echo(json.dumps(about))
        return
    table = Table(show_header=False, box=None)
    for name, value in about.items():
        table.add_row(f"[bold]{name}[/bold]", escape(f"{value:,.0f}" if name in _COUNTS else str(value)))
    Console().print(table)


_COUNTS = ("videos", "files", "failed", "vectors", "seconds", "tokens")


@index_app.command()
def ls(
    index: IndexArgument,
    failed: Annotated[bool, typer.Option("--failed", help="Only files that could not be read, with reasons.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line.")] = False,
) -> None:
    """The files of an index, one a line."""
    for row in _open(index).files():
        if failed and not row["error"]:
            continue
        if as_json:
            typer.echo(json.dumps(row))
        else:
            typer.echo(f"{row['path']}: {row['error']}" if row["error"] else row["path"])


@index_app.command()
def rm(
    index: IndexArgument,
    sources: Annotated[list[Path], typer.Argument(parser=parse_path, help="Files or folders.", show_default=False)],
) -> None:
    """Take files out of the index; they stay on the disk."""
    count = _open(index).remove(sources)
    stderr.print(f"{count} files out of {escape(index)}", soft_wrap=True)


@index_app.command()
def verify(index: IndexArgument) -> None:
    """Check that every file is there, unchanged, and has its vectors."""
    from allocembed.search.verify import verify as find_problems

    opened = _open(index)
    problems = find_problems(opened)
    for problem in problems:
        typer.echo(problem)
    files = opened.files()
    unread = [file for file in files if file["error"]]
    stderr.print(f"{len(files)} files, {len(problems)} problems")
    if unread:
        again = f"allocembed index FOLDER --to {index} --retry-failed"
        stderr.print(
            f"{len(unread)} have no vectors, because they could not be read; once they are mended, run {escape(again)}",
            soft_wrap=True,
        )
    for file in unread:
        stderr.print(f"[red]left out[/red] {escape(file['path'])}: {escape(file['error'])}", soft_wrap=True)
    if problems:
        raise typer.Exit(1)


@index_app.command()
def export(
    index: IndexArgument, out: Annotated[Path, typer.Option("--out", "-o", help="Where to: .parquet or .npz.")]
) -> None:
    """Write all vectors with their files and times to a table."""
    from allocembed.search.export import export as write

    count = write(_open(index), out)
    stderr.print(f"{count} vectors → {escape(str(out))}", soft_wrap=True)


def search(
    index: IndexArgument,
    query: Annotated[
        str | None, typer.Argument(help="What the video shows, in a sentence.", show_default=False)
    ] = None,
    like: Annotated[Path | None, typer.Option(help="Search by an example video instead.")] = None,
    top: Annotated[int, typer.Option(min=1, help="How many videos at most.")] = 10,
    min_score: Annotated[float | None, typer.Option(help="Leave out what scores lower.")] = None,
    as_json: JsonOption = False,
    clip: Annotated[
        Path | None, typer.Option(help="Cut the moments out into this folder, without re-encoding.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Find videos, and the moment in them, by a sentence or an example."""
    from allocembed.search.index import check_query

    if (query is None) == (like is None):
        raise typer.BadParameter("give a sentence, or an example with --like", param_hint="QUERY")
    if query is not None:
        check_query(query)
    opened = _open(index, device, dtype)
    limits = {"top": top, "min_score": min_score}
    hits = opened.search(query, **limits) if like is None else opened.search_like(like, **limits)
    if as_json:
        typer.echo(json.dumps([asdict(hit) for hit in hits]))
    else:
        _print_hits(hits)
    if clip is not None:
        _cut(hits, clip)


def serve(
    index: IndexArgument,
    host: Annotated[str, typer.Option(help="Address to listen at; anything but this machine's own needs --token.")] = (
        "127.0.0.1"
    ),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None, typer.Option(help="What visitors must bring: ?token=… once, or a bearer header.")
    ] = None,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """Search in the browser: a page with pictures, a player that jumps to the moment, and where the tokens went."""
    from allocembed.search.server import run

    run(_open(index, device, dtype), host, port, token)


def _open(uri: str, device: str = "auto", dtype: str = "auto") -> VideoIndex:
    from allocembed.search import VideoIndex

    return VideoIndex.open(uri, device=device, dtype=dtype)


def _check_sources(sources: list[Path]) -> None:
    """Before a model is loaded and an index made for nothing."""
    from allocembed.search.files import find_videos

    found, unread = find_videos(sources)
    if not found:
        remedy = next((f"{path} {cause}" for path, cause in unread.items()), "give a folder that holds some")
        raise ValueError(f"there is no video in {', '.join(map(str, sources))}: {remedy}")


def _print_added(added: Added, uri: str) -> None:
    parts = [f"{added.embedded} embedded"]
    for count, words in (
        (added.unchanged, "unchanged"),
        (added.moved, "known under another name"),
        (added.dropped, "forgotten"),
        (added.skipped, "left out as before (--retry-failed tries again)"),
        (added.missing, "gone from the disk (--prune forgets them)"),
    ):
        parts += [f"{count} {words}"] if count else []
    summary = f"{', '.join(parts)}; {added.tokens:,} tokens in {added.seconds:.1f} s"
    stderr.print(f"{summary} → {escape(uri)}", soft_wrap=True)
    for path, cause in added.failed:
        stderr.print(f"[red]left out[/red] {escape(path)}: {escape(cause)}", soft_wrap=True)


def _print_hits(hits: list[Hit]) -> None:
    from allocembed.film import format_time

    if not hits:
        stderr.print("nothing found")
        return
    # Plain lines, for a table would break long paths.
    typer.echo(f"{'score':>6}  {'moment':>17}  {'tokens':>8}  video")
    for hit in hits:
        brief = hit.duration < 60
        moment = "–".join(format_time(seconds, tenths=brief) for seconds in (hit.start, hit.end))
        typer.echo(f"{hit.score:6.3f}  {moment:>17}  {hit.cost:8,}  {hit.path}")


def _cut(hits: list[Hit], folder: Path) -> None:
    from allocembed.search.cut import cut
    from allocembed.search.errors import SearchError

    failed = False
    for rank, hit in enumerate(hits, 1):
        try:
            path, begin = cut(hit.path, hit.start, hit.end, folder, f"{rank:02}-{Path(hit.path).stem}-{hit.start:.0f}s")
            stderr.print(f"{escape(str(path))} [dim]from {begin:.1f} s on[/dim]", soft_wrap=True)
        except SearchError as error:
            failed = True
            stderr.print(f"[red]left out[/red] {escape(str(error))}", soft_wrap=True)
    if failed:
        raise typer.Exit(1)
