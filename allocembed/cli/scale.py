"""`--engine ray` of `index` and `embed`."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allocembed.cli.options import NOTHING_KEPT, Place, UsageError
from allocembed.config import EmbedConfig
from allocembed.errors import MissingDependency, VideoError
from allocembed.files import FileEntry, cannot_read, find_videos
from allocembed.output.console import complain, progress, say
from allocembed.paths import absolute
from allocembed.remote.objects import is_remote
from allocembed.scale.cluster import ClusterOptions
from allocembed.search.index import VideoIndex
from allocembed.search.indexing import IndexReport
from allocembed.search.store import exists


def index_with_ray(
    sources: Sequence[Place],
    to: str,
    config: EmbedConfig,
    segments: str | None,
    cluster: ClusterOptions,
    options: dict[str, Any],
) -> IndexReport:
    """Index with Ray, and show rate, failures and the time left."""
    from allocembed.scale import indexing

    cluster.check()
    indexing.check_sources(sources)
    to = to if is_remote(to) else str(Path(to).absolute())  # workers may run in other folders
    new = not exists(to)
    with progress("indexing") as shown:

        def show(report: IndexReport) -> None:
            failed = len(report.failed) + report.skipped
            note = f"{failed:,} failed, {report.tokens:,} tokens" if failed else f"{report.tokens:,} tokens"
            shown.update(report.done, report.total or None, note)

        try:
            _, report = indexing.index_with_ray(
                to, sources, config, cluster, segments=segments, progress=show, **options
            )
        except KeyboardInterrupt:
            kept = exists(to) and VideoIndex.open(to).store.count()
            say(f"what was committed is kept in {to}; run the same command again to continue" if kept else NOTHING_KEPT)
            raise
        finally:
            # An empty index would hold the next run to options with which nothing could be indexed.
            if new and exists(to):
                VideoIndex.open(to).discard_if_empty()
    return report


def _entries(sources: Sequence[Place], failed: Sequence[str]) -> tuple[list[FileEntry], list[str]]:
    """Files, objects and folders of frames as entries, and those that cannot be looked at."""
    found, unread = list[FileEntry](), list(failed)
    for source in sources:
        try:
            if is_remote(source):
                found += find_videos([source])[0]
                continue
            about = Path(source).stat()
            found.append(FileEntry(str(absolute(source)), size=about.st_size, changed=about.st_mtime_ns))
        except OSError as error:
            unread.append(f"{source}: {cannot_read(error)}")
        except VideoError as error:
            unread.append(str(error))
    return found, unread


def embed_with_ray(
    videos: Sequence[Place],
    failed: list[str],
    out: Place,
    config: EmbedConfig,
    cluster: ClusterOptions,
    question: str | None,
    instruction: str | None,
) -> int:
    """Embed with Ray into a folder of Parquet files; return the exit status."""
    from allocembed.scale import vectors

    cluster.check()
    if not str(out).endswith(".parquet"):
        raise UsageError(f"several processes write a folder of Parquet files: --out must end in .parquet, not {out}")
    if isinstance(out, Path) and out.is_file():
        raise UsageError(f"several processes write a folder, and {out} is a file: choose another --out")
    MissingDependency.check("writing Parquet files", "pyarrow", "search")
    place = str(out) if is_remote(str(out)) else str(Path(out).absolute())
    found, failed = _entries(videos, failed)
    total = len(found) + len(failed)
    written = spent = before = 0
    with progress("embedding", len(found)) as shown:
        outcomes = vectors.embed_with_ray(
            iter(found), place, config, cluster, question=question, instruction=instruction
        )
        for outcome in outcomes:
            if outcome is None:
                before += 1
            elif outcome.status == "failed":
                failed.append(outcome.error)
            else:
                written, spent = written + 1, spent + outcome.tokens
            shown.advance(f"{len(failed):,} failed, {spent:,} tokens" if failed else f"{spent:,} tokens")
    there = f", {before} were there" if before else ""
    say(f"{written} of {total} videos embedded{there}, {spent:,} tokens → {out}")
    for failure in failed:
        complain("left out", failure)
    return 1 if failed else 0
