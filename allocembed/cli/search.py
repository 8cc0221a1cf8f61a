"""`allocembed index` and `search`: search your own videos."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, UseAppendAction, arg

from allocembed.cli.embed import check_exists
from allocembed.cli.hits import cut_hits, matches, print_hits
from allocembed.cli.options import (
    FLAT,
    NOTHING_KEPT,
    UNSET,
    AsJson,
    Command,
    Config,
    Engine,
    Flag,
    Out,
    Place,
    Places,
    UsageError,
    all_but,
    at_least,
)
from allocembed.config import EmbedConfig
from allocembed.errors import MissingDependency, SearchError
from allocembed.files import walk_videos
from allocembed.output.console import complain, progress, say
from allocembed.output.files import make_room
from allocembed.remote.objects import is_remote
from allocembed.search.filters import Filters
from allocembed.search.index import VideoIndex
from allocembed.search.indexing import IndexReport
from allocembed.search.query import Example, Query
from allocembed.search.ranking import SAME_VIDEO
from allocembed.search.store import exists, place_of, store_of
from allocembed.words import counted, printable
from allocembed.workers import WorkerOptions, Workers, find_workers

INDEX = (
    "The index: a folder, or an address of object storage or of a database, as in s3://bucket/videos.index and "
    "postgresql://USER@HOST/DATABASE?schema=NAME."
)
Index = Annotated[str, Positional, arg(metavar="INDEX", help=INDEX)]
LARGE_MODEL_PARAMETERS = 1_000_000_000  # parameters of a model that is slow on a CPU
COUNTS = ("videos", "files", "failed", "vectors", "lines", "seconds", "tokens")


def index_config(given: dict[str, Any]) -> EmbedConfig | None:
    """The config of the index that --to names, if it exists."""
    to = place_of(given["to"])
    return _open(to).settings.config if exists(to) else None


@partial(Command, defaults=index_config)
def add(
    sources: Places = (),
    *,
    to: Annotated[str, arg(metavar="INDEX", help=INDEX)],
    config: Config,
    segments: Annotated[str | None, UNSET] = None,
    prune: Flag = False,
    retry_failed: Flag = False,
    recheck: Flag = False,
    readers: Annotated[int | None, UNSET] = None,
    speech: Flag = False,
    speech_model: str = "small",
    watch: Flag = False,
    engine: Engine = "inline",
    cluster: Annotated[WorkerOptions, FLAT] = WorkerOptions(),  # noqa: B008 (frozen)
) -> int:
    """Embed all videos in folders that the index does not hold yet.

    It may be stopped at any time and run again. An existing index keeps its own settings: options that are not given
    follow it, and different ones are an error. The budget is that of a whole video; a segment gets a quarter of it.

      allocembed index ~/Videos --to videos.index
      allocembed index ~/Videos --to videos.index --devices all
      allocembed index s3://bucket/videos --to s3://bucket/videos.index --engine ray

    Args:
        sources: Folders of videos, or videos; also in object storage, as in s3://bucket/videos.
        segments: auto (a dozen windows of 5 to 60 seconds, more for a long video), off, or seconds. Default: auto.
        prune: Remove files from the index that are gone from the disk.
        retry_failed: Try files again that could not be read before.
        recheck: Compare the content of every file, not only its size and date, and read subtitles and speech again.
        readers: Threads that decode videos. Default: one per core with a GPU or a small model, else 1; if the GPU
            decodes too, 8 and one for every four cores.
        speech: Write down what is spoken in videos without subtitles, with faster-whisper.
        speech_model: The model for --speech: a name such as tiny, small or large-v3, or a folder.
        watch: Keep running, and index what is added, changed or removed.
        engine: inline runs in this process, processes as --devices says, ray on a Ray cluster, or on one that is
            started on this machine. Packages may add others.
    """
    if not sources:
        raise UsageError("give at least one folder or video; see allocembed index add --help")
    at_least(1, readers=readers)
    config.check()
    to = place_of(to)
    _check_installed(sources, to, speech, watch)
    options: dict[str, Any] = {"prune": prune, "retry_failed": retry_failed, "recheck": recheck, "readers": readers}
    options |= {"speech": speech_model} if speech else {}
    with find_workers(engine, cluster) as workers:
        if watch:
            if any(map(is_remote, sources)):
                raise UsageError("--watch needs folders; for object storage, run the command again from time to time")
            from allocembed.cli.watch import keep_up_to_date

            keep_up_to_date([Path(source) for source in sources], to, config, segments, workers, **options)
            return 0
        return _add_once(sources, to, config, segments, workers, options)


def _check_installed(sources: Sequence[Place], to: str, speech: bool, watch: bool) -> None:
    """Raise MissingDependency before a model is loaded or an index made."""
    store_of(to).check_installed(to)
    if any(map(is_remote, sources)):
        MissingDependency.check("object storage", "obstore", "cloud")
    if watch:
        MissingDependency.check("--watch", "watchfiles", "search")
    if speech:
        from allocembed.search.said.speech import check_installed

        check_installed()


def _add_once(
    sources: Sequence[Place],
    to: str,
    config: EmbedConfig,
    segments: str | None,
    workers: Workers,
    options: dict[str, Any],
) -> int:
    """Bring an index up to date, or make it, and show rate, failures and the time left; return the exit status."""
    index, discarded = _continued(to, config, segments), False
    new = index is None
    if index is None:
        _check_sources(sources)
        index = VideoIndex.create(to, config, segments=segments or "auto", workers=workers)
        if not workers.separate:
            _suggest_smaller(index)
    with progress("indexing") as shown:

        def show(report: IndexReport) -> None:
            failed = len(report.failed) + report.skipped
            note = f"{failed:,} failed, {report.tokens:,} tokens" if failed else f"{report.tokens:,} tokens"
            shown.update(report.done, report.total or None, note)

        try:
            report = index.add(sources, **options, workers=workers, progress=show)
        except KeyboardInterrupt:
            kept = len(index.store.videos())
            say(f"{kept} videos are kept in {to}; run the same command again to continue" if kept else NOTHING_KEPT)
            raise
        finally:
            # An empty index would hold the next run to options with which nothing could be indexed.
            discarded = new and index.discard_if_empty()
    _print_report(report, "no index, because nothing could be indexed" if discarded else to)
    return 1 if report.failed or report.skipped else 0


def _check_sources(sources: Sequence[Place]) -> None:
    """Raise SearchError if there is no video in the sources, before anything is started."""
    unread: dict[str, str] = {}
    if next(walk_videos(sources, unread), None) is None:
        remedy = next((f"{path} {cause}" for path, cause in unread.items()), "give a folder that holds some")
        raise SearchError(f"there is no video in {', '.join(map(str, sources))}: {remedy}")


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
        shown = "default" if value is None else f"{value:,.0f}" if name in COUNTS else str(value)
        table.add_row(f"[bold]{name}[/bold]", escape(shown))
    Console().print(table)


@Command
def ls(index: Index, failed: Flag = False, as_json: AsJson = False) -> None:
    """List the videos of an index, one per line.

    Args:
        failed: List the files that could not be read instead, each with the reason.
        as_json: Print one JSON object per line, of all files or with --failed of those that could not be read.
    """
    files = _open(index).files()
    unread = sum(1 for file in files if file.error)
    for file in files:
        if as_json:
            if file.error or not failed:
                print(json.dumps(asdict(file)))
        elif bool(file.error) == failed:
            print(printable(f"{file.path}: {file.error}" if failed else file.path))
    if unread and not (failed or as_json):
        say(f"and {counted(unread, 'file')} that could not be read (--failed lists them)")


@Command
def rm(index: Index, sources: Places = ()) -> None:
    """Remove files from the index; they stay on the disk.

    Args:
        sources: Files or folders.
    """
    if not sources:
        raise UsageError("give at least one file or folder; see allocembed index rm --help")
    removed = _open(index).remove(sources)
    say(f"{counted(removed, 'file')} removed from {index}; allocembed index adds them again if their folder is given")


@Command
def verify(index: Index) -> int:
    """Check that every file is there, unchanged, and has its vectors."""
    from allocembed.search.verify import verify as find_problems

    opened = _open(index)
    problems, files = find_problems(opened), opened.files()
    for problem in problems:
        print(printable(problem))
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
        out: File for the table: .npz, .jsonl or .parquet.
    """
    from allocembed.search.export import export as write

    make_room(out)
    say(f"{write(_open(index), out)} vectors → {out}")


@Command
def dups(index: Index, threshold: float = SAME_VIDEO, as_json: AsJson = False) -> None:
    """List groups of videos that are near-duplicates, such as re-encoded copies; the largest of each first.

    Each is as near as the threshold to some other one of its group, not always to the first.

    Args:
        threshold: Cosine of whole videos above which they count as the same.
        as_json: Print JSON: a list of groups.
    """
    from allocembed.search.duplicates import find_duplicates

    if not 0 < threshold <= 1:
        raise UsageError(f"--threshold must be above 0 and at most 1, not {threshold}")
    groups = find_duplicates(_open(index), threshold)
    if as_json:
        print(json.dumps([[{**asdict(each.file), "score": each.score} for each in group] for group in groups]))
        return
    if groups:
        print(f"{'cosine':>6}  {'size':>10}  {'file':>12}  (cosine to the first of the group)")
    for group in groups:
        for each in group:
            size = f"{each.file.width}×{each.file.height}"
            print(f"{each.score:6.3f}  {size:>10}  {each.file.size / 1e6:9.1f} MB  {printable(each.file.path)}")
        print()
    spare = sum(len(group) - 1 for group in groups)
    say(f"{counted(len(groups), 'group')}, {counted(spare, 'file')} more than different videos")


@partial(Command, hidden=(*all_but("device", "dtype"), "speech"))
def search(
    index: Index,
    config: Config,
    query: Annotated[tuple[str, ...], Positional, arg(metavar="[SENTENCE ...]", help_behavior_hint="")] = (),
    image: Annotated[tuple[Path, ...], UseAppendAction, arg(metavar="PICTURE", help_behavior_hint="")] = (),
    like: Annotated[tuple[str, ...], UseAppendAction, arg(metavar="VIDEO[@START-END]", help_behavior_hint="")] = (),
    unlike: Annotated[
        tuple[str, ...], UseAppendAction, arg(name="not", metavar="SENTENCE", help_behavior_hint="")
    ] = (),
    refine: Annotated[bool, UNSET] = False,
    said: Flag = False,
    seen: Flag = False,
    top: int = 10,
    min_score: Annotated[float | None, UNSET] = None,
    dedupe: Flag = False,
    filters: Annotated[Filters, FLAT] = Filters(),  # noqa: B008 (frozen)
    has_speech: Flag = False,
    as_json: AsJson = False,
    clip: Annotated[Path | None, arg(metavar="FOLDER", help_behavior_hint="")] = None,
) -> int:
    """Find videos, and the moment in each, by sentences, pictures and moments of other videos.

      allocembed search videos.index "a dog jumps into a lake"
      allocembed search videos.index "a dog" --image lake.jpg --not "a brown dog" --refine
      allocembed search videos.index "interest rates" --said --after 2026-01-01
      allocembed search videos.index --like dog.mp4@1:20-1:30 --clip moments/

    Args:
        query: What the video shows, in a sentence. Of several, all should match.
        image: Search by a picture, alone or with the rest. May be repeated.
        like: Search by a video, or by a moment of it. May be repeated.
        unlike: What the video should not show, in a sentence. May be repeated.
        refine: Look at each moment again, more closely, to find its start and end. Loads the whole model.
        said: Search only what was said. No model is loaded.
        seen: Search only what is to be seen. Default: both, where there are subtitles or transcripts.
        top: Most videos to list.
        min_score: Leave out lower scores. A video that was found by what was said is kept.
        dedupe: Leave out near-duplicates of better hits.
        has_speech: Only videos with subtitles or a transcript.
        as_json: Print JSON.
        clip: Cut the moments out into this folder, without re-encoding.
    """
    if not (query or image or like):
        raise UsageError(
            "give a sentence, a picture with --image, or a video with --like; see allocembed search --help"
        )
    if said and seen:
        raise UsageError("give --said or --seen, not both; without them, both count")
    if said and refine:
        raise UsageError("give --said or --refine, not both; the time of a line is exact already")
    at_least(1, top=top)
    filters = replace(filters, speech=has_speech or None)
    if remote := next(filter(is_remote, like), None):
        raise UsageError(f"--like needs a file on a disk, not {remote}: copy it, or search by a sentence")
    wanted = Query(query, image, tuple(map(Example.parse, like)), unlike)
    for path in (*image, *(example.path for example in wanted.like)):
        check_exists(path)
    opened = _open(index, config)
    vector = None if said else opened.embed_query(wanted)
    hits = opened.search(
        wanted,
        vector=vector,
        top=top,
        min_score=min_score,
        filters=filters,
        said=said or (False if seen else None),
        refine=refine,
        dedupe=dedupe,
    )
    words = matches(opened, hits, vector)
    if as_json:
        print(json.dumps([asdict(hit) | {"match": word} for hit, word in zip(hits, words, strict=True)]))
    else:
        print_hits(hits, words)
        if not hits and not opened.store.count():
            say(f"the index is empty; fill it with: allocembed index FOLDER --to {index}")
    return 0 if clip is None else cut_hits(hits, clip)


def _continued(uri: str, config: EmbedConfig, segments: str | None) -> VideoIndex | None:
    """The index to add to; None if there is none, or one of other settings that a killed run has left empty."""
    if not exists(uri):
        return None
    try:
        return VideoIndex.open(uri, config, segments=segments)
    except SearchError:
        if VideoIndex.open(uri).discard_if_empty():
            return None
        raise


def _open(uri: str, run: EmbedConfig = EmbedConfig()) -> VideoIndex:  # noqa: B008 (frozen)
    return VideoIndex.open(uri, device=run.device, dtype=run.dtype)


def _suggest_smaller(index: VideoIndex) -> None:
    """Name models for a CPU, if a large one is about to embed videos on it."""
    backbone = index.embedder.backbone
    if backbone.device.type == "cpu" and backbone.parameter_count > LARGE_MODEL_PARAMETERS:
        say(
            "there is no GPU here: on a CPU, --backbone embeddinggemma-2 --inputs 70-tokens embeds about 3 times as "
            "many videos a minute as a model of two billion parameters, and siglip2-base-naflex 16 times"
        )


def _print_report(report: IndexReport, uri: str) -> None:
    parts = [f"{report.embedded} embedded"]
    for count, words in (
        (report.unchanged, "unchanged"),
        (report.moved, "with known content"),
        (report.dropped, "removed"),
        (report.skipped, "left out as before (--retry-failed tries again)"),
        (report.missing, "gone from the disk (--prune removes them)"),
        (report.lines, "lines of what is said"),
    ):
        parts += [f"{count} {words}"] if count else []
    say(f"{', '.join(parts)}; {report.tokens:,} tokens in {report.seconds:.1f} s → {uri}")
    if report.decoding:
        say(report.decoding)
    for path, cause in report.failed:
        complain("left out", f"{printable(path)}: {cause}")
    for path, cause in report.notes:
        complain("note:", f"{printable(path)}: {cause}")
