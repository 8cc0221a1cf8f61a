"""`allocembed eval mmeb-v2` and `eval longret`: the paper's benchmarks, for whoever has their videos.

Both take the same options and write the same files: results as JSON, Markdown and LaTeX beside the paper's numbers,
figures, and on wish a page. What was embedded is kept, so that a run that was stopped goes on where it was. Under
torchrun every process embeds its share, and the first one speaks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from allocembed.eval_cli import ALL_METHODS, allocators_by_label, check_methods, last_parts, split_names
from allocembed.options import (
    BudgetOption,
    CandidatesOption,
    DeviceOption,
    DtypeOption,
    MethodsOption,
    RangeOption,
    Seek,
    SeekOption,
    SubsetsOption,
    parse_path,
    parse_range,
    progress_bar,
    stderr,
    unset,
)

if TYPE_CHECKING:
    from allocembed.allocators import Allocator
    from allocembed.backbones import Backbone
    from allocembed.benchmarks.comparison import Benchmark, Comparison
    from allocembed.benchmarks.runner import Progress
    from allocembed.benchmarks.tasks import Task
    from allocembed.rdpo.processes import Processes

# Written out, because --help does not wait for the imports that know them.
ALL_TASKS = "MSR-VTT,MSVD,DiDeMo,YouCook2,VATEX,Video-MME,NExTQA,EgoSchema,MVBench,ActivityNetQA"
ALL_SUBSETS = "LoVR-Clip,LoVR-Video,Vript-Clip,Vript-Video"
FOUR = ("vlm2vec-v2-2b", "vlm2vec-qwen2vl-7b", "qwen3-vl-embedding-2b", "qwen3-vl-embedding-8b")
EPILOG = "On several GPUs: torchrun --nproc-per-node 8 -m allocembed eval …"


class SweepOver(StrEnum):
    """What a sweep varies."""

    frames = "frames"
    budgets = "budgets"


BackbonesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--backbone",
        "-b",
        help="Short name, hub id or local folder; give it again for another one.",
        show_default="vlm2vec-v2-2b; with --transfer the paper's four",
    ),
]
FittingMethodsOption = unset(MethodsOption, f"{ALL_METHODS}; less for --sweep and --transfer")
LimitOption = Annotated[
    int | None, typer.Option(min=1, help="Only the first so many queries of a task and their videos, for a quick look.")
]
MissingOption = Annotated[
    bool, typer.Option("--allow-missing", help="Leave out queries whose video is missing, and say so.")
]
SweepOption = Annotated[
    SweepOver | None,
    typer.Option(help="Instead: frames, 8 to 48 at one budget (figure 2); budgets of 8, 16 and 20 frames (figure 5)."),
]
TransferOption = Annotated[
    bool,
    typer.Option("--transfer", help="Instead: what a learned allocator gains over Base on each backbone (table 3)."),
]
HtmlOption = Annotated[
    bool, typer.Option("--html", help="Write report.html too: tables, plots, and filmstrips of some queries.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print the results as JSON.")]
CacheOption = Annotated[Path, typer.Option(help="Folder of what was embedded before; another run goes on from it.")]
OutOption = Annotated[Path, typer.Option("--out", "-o", help="Folder for the results.")]
BatchOption = Annotated[int, typer.Option(min=1, help="Videos embedded at a time.")]


@dataclass(frozen=True)
class Wish:
    """What both commands ask for."""

    benchmark: Benchmark
    load: Callable[[], list[Task]]
    backbones: list[str]
    methods: list[str]
    settings: dict[str, Any]
    sweep: str | None
    transfer: bool
    html: bool
    as_json: bool
    cache: Path
    out: Path
    batch: int
    dtype: str


def add_benchmarks(app: typer.Typer) -> None:
    """Registers both commands."""
    app.command("mmeb-v2", epilog=EPILOG)(mmeb_v2)
    app.command("longret", epilog=EPILOG)(longret)


def mmeb_v2(
    data: Annotated[
        Path, typer.Option(parser=parse_path, help="Folder with video-tasks/ and, if not on the hub, annotations/.")
    ],
    tasks: Annotated[str, typer.Option(help="Which tasks, separated by commas.")] = ALL_TASKS,
    methods: FittingMethodsOption = None,
    backbones: BackbonesOption = None,
    limit: LimitOption = None,
    allow_missing: MissingOption = False,
    budget: BudgetOption = "8f",
    candidates: CandidatesOption = 24,
    scale_range: RangeOption = None,
    seek: SeekOption = Seek.exact,
    sweep: SweepOption = None,
    transfer: TransferOption = False,
    html: HtmlOption = False,
    as_json: JsonOption = False,
    cache: CacheOption = Path("allocembed-cache"),
    out: OutOption = Path("mmeb-v2-results"),
    batch: BatchOption = 4,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """MMEB-V2: ten tasks of video retrieval and video questions, as VLM2Vec-V2 evaluates them."""
    from allocembed.benchmarks import mmeb_v2 as tables
    from allocembed.benchmarks.comparison import MMEB

    chosen = tables.check_tasks(split_names(tasks))

    def load() -> list[Task]:
        return [tables.load_task(name, data, limit=limit, allow_missing=allow_missing) for name in chosen]

    settings = _settings(budget, candidates, scale_range, seek)
    names, found = _names(backbones, methods, sweep, transfer)
    wish = Wish(MMEB, load, names, found, settings, sweep, transfer, html, as_json, cache, out, batch, dtype)
    _run(wish, device)


def longret(
    data: Annotated[Path, typer.Option(parser=parse_path, help="Folder that allocembed longret build made.")],
    tasks: SubsetsOption = ALL_SUBSETS,
    methods: FittingMethodsOption = None,
    backbones: BackbonesOption = None,
    limit: LimitOption = None,
    allow_missing: MissingOption = False,
    budget: BudgetOption = "8f",
    candidates: CandidatesOption = 24,
    scale_range: RangeOption = None,
    seek: SeekOption = Seek.exact,
    sweep: SweepOption = None,
    transfer: TransferOption = False,
    html: HtmlOption = False,
    as_json: JsonOption = False,
    cache: CacheOption = Path("allocembed-cache"),
    out: OutOption = Path("longret-results"),
    batch: BatchOption = 4,
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """LongRet: descriptions of moments and of whole videos look for complete long videos."""
    from allocembed.benchmarks import longret as tables
    from allocembed.benchmarks.comparison import LONG

    chosen = tables.check_tasks(split_names(tasks))

    def load() -> list[Task]:
        built = tables.load(data)
        return [tables.make_task(built, name, limit=limit, allow_missing=allow_missing) for name in chosen]

    settings = _settings(budget, candidates, scale_range, seek)
    names, found = _names(backbones, methods, sweep, transfer)
    wish = Wish(LONG, load, names, found, settings, sweep, transfer, html, as_json, cache, out, batch, dtype)
    _run(wish, device)


def _settings(budget: str, candidates: int, scale_range: str | None, seek: Seek) -> dict[str, Any]:
    from allocembed.budget import Budget

    ranges = parse_range(scale_range)
    return {"budget": Budget.parse(budget), "candidates": candidates, "scale_range": ranges, "seek": seek.value}


def _names(
    backbones: list[str] | None, methods: str | None, sweep: str | None, transfer: bool
) -> tuple[list[str], list[str]]:
    """Backbones and methods, or what fits the wish where none are given."""
    if sweep and transfer:
        raise ValueError("--sweep and --transfer are two runs: give one of them")
    usual = ALL_METHODS
    if sweep:
        usual = "full,uniform,learned" if sweep == SweepOver.frames else "base,learned"
    elif transfer:
        usual = "base,learned"
    found = split_names(usual if methods is None else methods)
    check_methods(found)
    if transfer and ("base" not in found or len(found) < 2):
        raise ValueError("a transfer compares with Base: write --methods base,FOLDER_OF_THE_ALLOCATOR")
    return backbones or list(FOUR if transfer else FOUR[:1]), found


def _run(wish: Wish, device: str) -> None:
    """Loads the tasks, then one backbone after another; the first process writes and speaks."""
    from allocembed.output import make_room
    from allocembed.rdpo.processes import Processes

    make_room(wish.out / "results.json")
    make_room(wish.cache / "embeddings")
    tasks = wish.load()
    processes = Processes(device)
    try:
        (_sweeps if wish.sweep else _tables)(wish, tasks, processes)
    finally:
        processes.close()


def _tables(wish: Wish, tasks: Sequence[Task], processes: Processes) -> None:
    from rich.console import Console

    from allocembed.benchmarks import campaign, comparison, figures, report
    from allocembed.benchmarks.comparison import Comparison

    found: list[Comparison] = []
    shown = []
    for name, title in last_parts(wish.backbones).items():
        backbone, allocators = _load(name, wish, processes)
        with _progress(title, processes) as progress:
            embedders, results = campaign.run(
                backbone,
                allocators,
                tasks,
                wish.cache,
                settings=wish.settings,
                processes=processes,
                batch=wish.batch,
                progress=progress,
            )
        unit = wish.settings["budget"].unit
        found.append(Comparison(wish.benchmark, name, title, results.outcomes, results.failures, notes=(unit,)))
        if wish.html and processes.first:
            from allocembed.benchmarks.page import examples

            shown += examples(title, embedders, results)
        del backbone, allocators, embedders  # before the next one is loaded beside them
    if not processes.first:
        return
    written = {"results.md": "\n".join(comparison.markdown(each) for each in found)}
    written["results.tex"] = comparison.latex(found)
    listed = {"results": [comparison.as_json(each) for each in found]}
    if wish.transfer:
        lines = campaign.transfer_lines(found)
        title = f"{wish.benchmark.name}: gain over Base in points of Hit@1, and cost"
        written["transfer.md"] = report.markdown_table(title, lines, wish.settings["budget"].unit)
        listed["transfer"] = [dict(zip(lines[0], line, strict=True)) for line in lines[1:]]
    plots = []
    if all(len(each.summaries) > 1 and any(s.method == "base" for s in each.summaries) for each in found):
        plots = figures.plot_gains(found, wish.out / "gains")
    _write(wish, listed, written, plots)
    if wish.html:
        from allocembed.benchmarks.page import save_page

        save_page(found, written.get("transfer.md", ""), plots, shown, wish.out / "report.html")
        stderr.print(f"→ {escape(str(wish.out / 'report.html'))}", soft_wrap=True)
    if not wish.as_json:
        from rich.markdown import Markdown

        Console().print(Markdown(written.get("transfer.md", written["results.md"])))
    _say_left_out([failure for each in found for failure in each.failures])


def _sweeps(wish: Wish, tasks: Sequence[Task], processes: Processes) -> None:
    from rich.console import Console
    from rich.markdown import Markdown

    from allocembed.benchmarks import campaign, figures

    found = []
    for name, title in last_parts(wish.backbones).items():
        backbone, allocators = _load(name, wish, processes)
        running = {"processes": processes, "batch": wish.batch, "title": title, "settings": wish.settings}
        with _progress(title, processes) as progress:
            swept = campaign.sweep(
                str(wish.sweep), backbone, allocators, tasks, wish.cache, progress=progress, **running
            )
        found.append(swept)
        del backbone, allocators
    if not processes.first:
        return
    stem = f"sweep_{wish.sweep}"
    text = "\n".join(campaign.sweep_markdown(each, wish.benchmark.name) for each in found)
    plots = figures.plot_sweeps(found, wish.benchmark.name, wish.out / stem)
    listed = {"results": [campaign.sweep_json(each) for each in found]}
    _write(wish, listed, {f"{stem}.md": text}, plots, name=f"{stem}.json")
    if not wish.as_json:
        Console().print(Markdown(text))
    _say_left_out([failure for each in found for failure in each.failures])


def _load(name: str, wish: Wish, processes: Processes) -> tuple[Backbone, dict[str, Allocator]]:
    """A backbone and its allocators by label; the only learned one is `learned`, as the paper's tables have it."""
    from allocembed.allocators import Learned
    from allocembed.backbones import load_backbone

    backbone = load_backbone(name, device=processes.device, dtype=wish.dtype)
    if backbone.notice and processes.first:
        stderr.print(backbone.notice, soft_wrap=True, markup=False)
    backbone.notice = None  # else every method would say it at every task
    found = allocators_by_label(wish.methods, backbone)
    if wish.transfer and len(found) < 2:
        raise ValueError(f"there is no allocator to compare with Base on {name}: write --methods base,FOLDER_OR_HUB_ID")
    learned = [label for label, allocator in found.items() if isinstance(allocator, Learned)]
    if len(learned) == 1:
        found = {Learned.name if label in learned else label: allocator for label, allocator in found.items()}
    return backbone, found


def _write(wish: Wish, listed: dict, texts: dict[str, str], plots: Sequence[Path], name: str = "results.json") -> None:
    from allocembed.output import whole_file

    for file, text in {name: json.dumps(listed, indent=1) + "\n", **texts}.items():
        with whole_file(wish.out / file) as scratch:
            scratch.write_text(text, encoding="utf-8")
    if wish.as_json:
        typer.echo(json.dumps(listed))
    for path in (*(wish.out / file for file in (name, *texts)), *plots):
        stderr.print(f"→ {escape(str(path))}", soft_wrap=True)


def _say_left_out(failures: Sequence[str]) -> None:
    for failure in dict.fromkeys(failures):
        stderr.print(f"[red]left out[/red] {escape(failure)}", soft_wrap=True)


@contextmanager
def _progress(name: str, processes: Processes) -> Iterator[Progress | None]:
    """A bar in the first process: its own share, which is as long as the others'."""
    if not processes.first:
        yield None
        return
    with progress_bar() as bar:
        task = bar.add_task(name, total=None, spent="")
        yield lambda done, total: bar.update(task, completed=done, total=total)
