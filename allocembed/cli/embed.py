"""`allocembed embed` and `allocate`: vectors of videos, and where the tokens of one video go."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from allocembed.allocators.registry import AUTO, load_allocator, needs_backbone
from allocembed.backbones.checkpoint import Checkpoint
from allocembed.budget import Allocation
from allocembed.bulk import EmbedTask, embed_all
from allocembed.cli.options import FLAT, UNSET, AsJson, Command, Config, Engine, Flag, Place, Places, UsageError
from allocembed.config import EmbedConfig
from allocembed.errors import ConfigError, MissingDependency, VideoError
from allocembed.files import FileEntry, cannot_read, changed_at, find_videos
from allocembed.output.console import complain, progress, say
from allocembed.output.files import make_room
from allocembed.output.parts import PartFolder
from allocembed.output.vectors import VectorOutput, VectorWriter, check_parquet, check_vector_path, vector_file
from allocembed.paths import absolute, is_folder, why_absent
from allocembed.planner import Planner
from allocembed.remote.objects import is_remote
from allocembed.video import Clip
from allocembed.words import counted
from allocembed.workers import WorkerOptions, Workers, find_workers

Question = Annotated[str | None, UNSET]


@Command
def embed(
    config: Config,
    videos: Places = (),
    out: Annotated[Place, arg(aliases=["-o"])] = Path("vectors.npz"),
    question: Question = None,
    instruction: Annotated[str | None, UNSET] = None,
    recursive: Flag = False,
    engine: Engine = "inline",
    cluster: Annotated[WorkerOptions, FLAT] = WorkerOptions(),  # noqa: B008 (frozen)
) -> int:
    """Embed videos under a token budget: one vector per video, with its cost.

    A video that cannot be read is left out and named at the end; the exit status is then 1.

      allocembed embed talk.mp4 holiday.mov --out vectors.npz
      allocembed embed ~/Videos --recursive --budget 4f --out vectors.parquet
      allocembed embed s3://bucket/videos --recursive --engine ray --out s3://bucket/vectors.parquet
      find /data -name '*.mp4' | allocembed embed - --out vectors.jsonl

    Args:
        videos: Video files, also in object storage (s3://bucket/a.mp4), folders of frames, or - to read one path per
            line from stdin.
        out: File for the vectors: .npz, .jsonl or .parquet. Several workers (--devices, --engine) write a folder of
            .parquet files.
        question: Question about the videos. It becomes part of the prompt and steers learned and sensitivity.
        instruction: Instruction to the model; it does not steer the allocator. Default: the model's own.
        recursive: Embed all videos in the given folders and their subfolders; their absolute paths are written.
        engine: inline runs in this process, processes as --devices says, ray on a Ray cluster, or on one that is
            started on this machine. Packages may add others.
    """
    with find_workers(engine, cluster) as workers:
        _check_output(out, workers)
        config.check()
        found, failed = _sources(videos, recursive, workers.separate)
        total = len(found) + len(failed)
        with _opened(out, workers) as output:
            task = EmbedTask(config, output, workers.options.commit, question, instruction)
            written = spent = held = 0
            try:
                with progress("embedding", len(found)) as shown:
                    for outcome in embed_all(iter(found), task, workers):
                        held += outcome.status == "held"
                        written += outcome.status == "embedded"
                        spent += outcome.tokens
                        failed += [outcome.error] if outcome.error else []
                        shown.advance(f"{len(failed):,} failed, {spent:,} tokens" if failed else f"{spent:,} tokens")
            except KeyboardInterrupt:
                if isinstance(output, VectorWriter) and output.count:
                    kept = output.keep_apart()
                    say(f"{output.count} of {total} videos → {kept}; allocembed index can be continued")
                raise
    if written or held:
        there = f", {held} were there" if held else ""
        say(f"{written} of {total} videos embedded{there}, {spent:,} tokens → {out}")
    for failure in failed:
        complain("left out", failure)
    return 1 if failed else 0


def _check_output(out: Place, workers: Workers) -> None:
    """Raise if the workers cannot write there, before any work is done."""
    if not workers.separate:
        if not isinstance(out, Path):
            raise UsageError(f"cannot write {out} from one process: give a file, --devices, or --engine ray")
        check_vector_path(out)
        return
    if not str(out).endswith(".parquet"):
        raise UsageError(f"several processes write a folder of Parquet files: --out must end in .parquet, not {out}")
    if isinstance(out, Path) and out.is_file():
        raise UsageError(f"several processes write a folder, and {out} is a file: choose another --out")
    check_parquet()


@contextmanager
def _opened(out: Place, workers: Workers) -> Iterator[VectorOutput]:
    """A file for one process, which is there when the block succeeds; a folder for several."""
    if workers.separate:
        yield PartFolder(str(out) if is_remote(str(out)) else str(absolute(out)))
    else:
        with vector_file(Path(out)) as writer:
            yield writer


@partial(Command, hidden=("dim", "compile", "decoder"))
def allocate(
    video: Annotated[Path, Positional, UNSET],
    config: Config,
    png: Annotated[Path | None, UNSET] = None,
    html: Annotated[Path | None, UNSET] = None,
    as_json: AsJson = False,
    question: Question = None,
) -> None:
    """Show where the tokens of a video go: every candidate frame, its scale and its share of the budget.

    Methods that look at frames only need no model weights.

      allocembed allocate talk.mp4 --allocator content --html film.html

    Args:
        video: A video file or a folder of frames.
        png: Write the filmstrip as a picture.
        html: Write the filmstrip as a web page.
        as_json: Print the allocation as JSON.
        question: Question about the video, which steers learned and sensitivity.
    """
    if png:
        MissingDependency.check("--png", "matplotlib", "plot")
    written = [make_room(path) for path in (png, html) if path]
    if len({path.resolve() for path in (video, *written)}) <= len(written):
        raise ConfigError("the video, --png and --html must be different files")
    config.check()
    check_exists(video)
    from allocembed import film

    planner = _load_planner(config)
    clip = planner.read(video)
    allocation = planner.allocate(clip, planner.plan(clip, question))
    method, factor = planner.allocator.name, planner.geometry.factor

    title = f"{video.name} – {question}" if question else video.name
    if png:
        film.save_png(clip, allocation, png, title=title, method=method, factor=factor)
    if html:
        film.save_html(clip, allocation, html, title=title, method=method, factor=factor)
    if as_json:
        print(json.dumps(film.as_json(clip, allocation)))
        return
    _print_allocation(clip, allocation)
    for path in written:
        say(f"→ {path}")
    if not written:
        say("--html film.html or --png film.png shows it as a picture")


def check_exists(path: Path) -> None:
    """Raise VideoError for a missing source, before any model is loaded."""
    if cause := why_absent(path):
        raise VideoError(str(path), cause)


def _sources(paths: Sequence[Place], recursive: bool, separate: bool) -> tuple[list[FileEntry], list[str]]:
    """The videos to embed, and what is left out already."""
    # Bytes, because file names need not be valid Unicode.
    # Standard input is None where a shell has closed it.
    lines = sys.stdin.buffer.read().splitlines() if Path("-") in paths and sys.stdin else []
    given = [line if is_remote(line) else Path(line) for line in map(os.fsdecode, lines) if line.strip()]
    listed = [each for path in paths for each in (given if str(path) == "-" else [path])]
    if not listed:
        raise UsageError("give at least one video; see allocembed embed --help")
    found: list[FileEntry] = []
    failed: list[str] = []
    for path in listed:
        try:
            if recursive and (is_remote(path) or is_folder(path)):
                found += _videos_below(path, failed, separate)
            else:
                found += _entries_of(path, separate)
        except VideoError as error:
            failed.append(str(error))
        except OSError as error:
            failed.append(f"{path}: {cannot_read(error)}")
    return found, failed


def _entries_of(path: Place, separate: bool) -> list[FileEntry]:
    """An entry for a file, an object or a folder of frames.

    Separate workers may run in other folders. They recognise a changed video by its size and date.
    """
    if is_remote(path):
        return find_videos([path])[0] if separate else [FileEntry(str(path))]
    check_exists(Path(path))
    if not separate:
        return [FileEntry(str(path))]
    about = Path(path).stat()
    return [FileEntry(str(absolute(path)), size=about.st_size, changed=changed_at(about))]


def _videos_below(folder: Place, failed: list[str], separate: bool) -> list[FileEntry]:
    """All videos in a folder, or the folder itself if it holds frames."""
    from allocembed.video.images import list_images

    videos, unread = find_videos([folder])
    failed += [f"{name}: {cause}" for name, cause in unread.items()]
    if videos or unread or is_remote(folder):
        return videos
    try:
        list_images(Path(folder), str(folder))
    except VideoError as error:
        raise VideoError(str(folder), "there is no video in this folder") from error
    return _entries_of(folder, separate)


def _load_planner(config: EmbedConfig) -> Planner:
    """A planner, without the backbone's weights if neither its inputs nor the allocator need them."""
    found, name = Checkpoint.find(config.backbone, config.inputs), config.allocator
    if name == AUTO and not found.entry.allocator:
        name = "uniform"
    if found.inputs is None or name == AUTO or needs_backbone(name):
        from allocembed.embedder import AllocEmbed

        return AllocEmbed.from_config(config)
    return Planner(found.inputs, load_allocator(name), config)


def _print_allocation(clip: Clip, allocation: Allocation) -> None:
    from rich.console import Console
    from rich.table import Table

    from allocembed.film import format_time

    spent = f"{allocation.cost:,} of {allocation.budget:,} tokens"
    base = f"{counted(allocation.base_frames, 'frame')} at native size"
    looked = f"; {allocation.look_tokens:,} tokens read to look" if allocation.look_tokens else ""
    table = Table(title=f"{spent}, {allocation.relative_cost:.3f}× Base", caption=f"1.000× = {base}{looked}")
    for heading in ("time", "scale", "grid", "tokens"):
        table.add_column(heading, justify="right")
    table.add_column("")
    most = max(grid.tokens for grid in allocation.grids)
    for frames, scale, grid in zip(allocation.frames, allocation.scales, allocation.grids, strict=True):
        times = " – ".join(format_time(clip.times[i], tenths=clip.duration < 60) for i in dict.fromkeys(frames))
        bar = "█" * max(1, round(24 * grid.tokens / most))
        table.add_row(times, f"{scale:.2f}", f"{grid.rows}×{grid.cols}", str(grid.tokens), bar)
    Console().print(table)
