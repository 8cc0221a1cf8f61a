"""`allocembed index`, `search` and `serve`: search your own videos."""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from allocembed.cli.embed import check_exists
from allocembed.cli.options import UNSET, AsJson, Command, Config, Flag, Out, Paths, UsageError, all_but, at_least
from allocembed.config import EmbedConfig
from allocembed.errors import AllocEmbedError, SearchError
from allocembed.output.console import complain, progress, say
from allocembed.output.files import make_room
from allocembed.search.files import find_videos
from allocembed.search.index import Hit, VideoIndex
from allocembed.search.indexing import IndexReport
from allocembed.search.store import exists

INDEX = "The index: a folder, or a URI of object storage."
Index = Annotated[str, Positional, arg(metavar="INDEX", help=INDEX)]
COUNTS = ("videos", "files", "failed", "vectors", "seconds", "tokens")


def index_config(given: dict[str, Any]) -> EmbedConfig | None:
    """The config of the index that --to names, if it exists."""
    from allocembed.search.store import exists

    return _open(given["to"]).settings.config if exists(given["to"]) else None


@partial(Command, defaults=index_config)
def add(
    sources: Paths = (),
    *,
    to: Annotated[str, arg(metavar="INDEX", help=INDEX)],
    config: Config,
    segments: Annotated[str | None, UNSET] = None,
    prune: Flag = False,
    retry_failed: Flag = False,
    recheck: Flag = False,
    readers: Annotated[int | None, UNSET] = None,
) -> int:
    """Embed all videos in folders that the index does not hold yet.

    It may be stopped at any time and run again. An existing index keeps its own settings: options that are not given
    follow it, and different ones are an error. The budget is that of a whole video; a segment gets a quarter of it.

      allocembed index ~/Videos --to videos.index

    Args:
        sources: Folders of videos, or videos.
        segments: auto (a dozen windows of 5 to 60 seconds, more for a long video), off, or seconds. Default: auto.
        prune: Remove files from the index that are gone from the disk.
        retry_failed: Try files again that could not be read before.
        recheck: Compare the content of every file, not only its size and date.
        readers: Threads that decode videos. Default: one per core with a GPU or a small model, else 1.
    """
    if not sources:
        raise UsageError("give at least one folder or video; see allocembed index add --help")
    at_least(1, readers=readers)
    config.check()
    new = not exists(to)
    if new:
        found, unread = find_videos(sources)
        if not found:
            remedy = next((f"{path} {cause}" for path, cause in unread.items()), "give a folder that holds some")
            raise SearchError(f"there is no video in {', '.join(map(str, sources))}: {remedy}")
        index = VideoIndex.create(to, config, segments=segments or "auto")
    else:
        index = VideoIndex.open(to, config, segments=segments)
    discarded = False
    with progress("indexing") as shown:

        def show(report: IndexReport) -> None:
            shown.update(report.done, report.total, f"{report.tokens:,} tokens")

        try:
            report = index.add(
                sources, prune=prune, retry_failed=retry_failed, recheck=recheck, readers=readers, progress=show
            )
        except KeyboardInterrupt:
            kept = len(index.store.videos())
            say(
                f"{kept} videos are kept in {to}; run the same command again to continue" if kept else "nothing is kept"
            )
            raise
        finally:
            # An empty index would hold the next run to options with which nothing could be indexed.
            discarded = new and index.discard_if_empty()
    _print_report(report, "no index, because nothing could be indexed" if discarded else to)
    return 1 if report.failed or report.skipped else 0


@Command
def info(index: Index, as_json: AsJson = False) -> None:
    """Show what an index holds, what it cost and how it was made.

    Args:
        as_json: Print JSON.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    about = _open(index).info()
    if as_json:
        print(json.dumps(about))
        return
    table = Table(show_header=False, box=None)
    for name, value in about.items():
        table.add_row(f"[bold]{name}[/bold]", escape(f"{value:,.0f}" if name in COUNTS else str(value)))
    Console().print(table)


@Command
def ls(index: Index, failed: Flag = False, as_json: AsJson = False) -> None:
    """List the files of an index, one per line.

    Args:
        failed: List only files that could not be read, with the reasons.
        as_json: Print one JSON object per line.
    """
    for file in _open(index).files():
        if failed and not file.error:
            continue
        line = f"{file.path}: {file.error}" if file.error else file.path
        print(json.dumps(asdict(file)) if as_json else line)


@Command
def rm(index: Index, sources: Paths = ()) -> None:
    """Remove files from the index; they stay on the disk.

    Args:
        sources: Files or folders.
    """
    if not sources:
        raise UsageError("give at least one file or folder; see allocembed index rm --help")
    say(f"{_open(index).remove(sources)} files removed from {index}")


@Command
def verify(index: Index) -> int:
    """Check that every file is there, unchanged, and has its vectors."""
    from allocembed.search.verify import verify as find_problems

    opened = _open(index)
    problems, files = find_problems(opened), opened.files()
    for problem in problems:
        print(problem)
    unread = [file for file in files if file.error]
    say(f"{len(files)} files, {len(problems)} problems")
    if unread:
        again = f"allocembed index FOLDER --to {index} --retry-failed"
        say(f"{len(unread)} have no vectors, because they could not be read; once they are repaired, run {again}")
    for file in unread:
        complain("left out", f"{file.path}: {file.error}")
    return 1 if problems else 0


@Command
def export(index: Index, *, out: Out) -> None:
    """Write all vectors with their files and times to a table.

    Args:
        out: File for the table: .parquet or .npz.
    """
    from allocembed.search.export import export as write

    make_room(out)
    say(f"{write(_open(index), out)} vectors → {out}")


@partial(Command, hidden=all_but("device", "dtype"))
def search(
    index: Index,
    config: Config,
    query: Annotated[str | None, Positional, arg(metavar="[QUERY]", help_behavior_hint="")] = None,
    like: Annotated[Path | None, UNSET] = None,
    top: int = 10,
    min_score: Annotated[float | None, UNSET] = None,
    as_json: AsJson = False,
    clip: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None,
) -> int:
    """Find videos, and the moment in each, by a sentence or by an example video.

      allocembed search videos.index "a dog jumps into a lake"
      allocembed search videos.index --like dog.mp4 --clip moments/

    Args:
        query: What the video shows, in a sentence.
        like: Search by this example video instead.
        top: Most videos to list.
        min_score: Leave out lower scores.
        as_json: Print JSON.
        clip: Cut the moments out into this folder, without re-encoding.
    """
    if (query is None) == (like is None):
        raise UsageError("give a sentence, or an example with --like; see allocembed search --help")
    at_least(1, top=top)
    if like is not None:
        check_exists(like)
        hits = _open(index, config).search_like(like, top=top, min_score=min_score)
    else:
        hits = _open(index, config).search(query or "", top=top, min_score=min_score)
    if as_json:
        print(json.dumps([asdict(hit) for hit in hits]))
    else:
        _print_hits(hits)
    return 0 if clip is None else _cut(hits, clip)


@partial(Command, hidden=all_but("device", "dtype"))
def serve(
    index: Index,
    config: Config,
    host: str = "127.0.0.1",
    port: int = 8000,
    token: Annotated[str | None, UNSET] = None,
    token_file: Annotated[Path | None, UNSET] = None,
) -> None:
    """Search in the browser: a page with pictures, a player that jumps to the moment, and where the tokens went.

    Args:
        host: Address to listen on; any but this machine's own needs a token.
        port: Port; 0 takes a free one.
        token: Secret that visitors must send: ?token=... once, or a bearer header. Other users of this machine can see
            it in the list of processes; --token-file and the variable ALLOCEMBED_TOKEN are not shown there.
        token_file: File whose content is the token.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"--port must be from 0 to 65535, not {port}")
    secret = _token(token, token_file)
    opened = _open(index, config)
    from allocembed.search.server import run

    run(opened, host, port, secret)


def _token(token: str | None, file: Path | None) -> str | None:
    """The token from the option, the file or the environment, in this order."""
    if token is not None and file is not None:
        raise UsageError("give --token or --token-file, not both")
    if file is None:
        return token if token is not None else os.environ.get("ALLOCEMBED_TOKEN")
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SearchError(f"cannot read the token from {file} ({error}): check the file") from error
    if not text:
        raise SearchError(f"cannot read the token from {file}: it is empty; write a secret into it")
    return text


def _open(uri: str, run: EmbedConfig = EmbedConfig()) -> VideoIndex:  # noqa: B008 (frozen)
    return VideoIndex.open(uri, device=run.device, dtype=run.dtype)


def _print_report(report: IndexReport, uri: str) -> None:
    parts = [f"{report.embedded} embedded"]
    for count, words in (
        (report.unchanged, "unchanged"),
        (report.moved, "known under another name"),
        (report.dropped, "removed"),
        (report.skipped, "left out as before (--retry-failed tries again)"),
        (report.missing, "gone from the disk (--prune removes them)"),
    ):
        parts += [f"{count} {words}"] if count else []
    say(f"{', '.join(parts)}; {report.tokens:,} tokens in {report.seconds:.1f} s → {uri}")
    for path, cause in report.failed:
        complain("left out", f"{path}: {cause}")


def _print_hits(hits: Sequence[Hit]) -> None:
    from allocembed.film import format_time

    if not hits:
        say("nothing found")
        return
    # Plain lines, because a table would break long paths.
    print(f"{'score':>6}  {'moment':>17}  {'tokens':>8}  video")
    for hit in hits:
        moment = "–".join(format_time(seconds, tenths=hit.duration < 60) for seconds in (hit.start, hit.end))
        print(f"{hit.score:6.3f}  {moment:>17}  {hit.cost:8,}  {hit.path}")


def _cut(hits: Sequence[Hit], folder: Path) -> int:
    from allocembed.search.cut import cut

    status = 0
    for rank, hit in enumerate(hits, 1):
        try:
            path, begin = cut(hit.path, hit.start, hit.end, folder, f"{rank:02}-{Path(hit.path).stem}-{hit.start:.0f}s")
            say(f"{path} from {begin:.1f} s on")
        except AllocEmbedError as error:
            complain("left out", str(error))
            status = 1
    return status
