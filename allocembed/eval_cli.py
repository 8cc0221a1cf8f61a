"""`allocembed eval`: benchmarks from the command line. Tables go to stdout, everything else to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from allocembed.options import (
    METHODS,
    BudgetOption,
    CandidatesOption,
    DeviceOption,
    DtypeOption,
    MethodsOption,
    RangeOption,
    SubsetsOption,
    parse_range,
    progress_bar,
    stderr,
)
from allocembed.output import make_room, whole_file

if TYPE_CHECKING:
    from allocembed.allocators import Allocator
    from allocembed.backbones import Backbone
    from allocembed.benchmarks.metrics import Row
    from allocembed.benchmarks.nano import Progress
    from allocembed.benchmarks.sweep import Sweep

eval_app = typer.Typer(help="Measure methods: Hit@1, mean rank and realised cost.", no_args_is_help=True)
ALL_METHODS = ",".join(METHODS)
# Written out, because --help does not wait for the imports that know it.
ALL_SUBSETS = "short-clip,short-video,long-clip,long-video,qa"
PLOT = "sweep_frames"


class SweepOver(StrEnum):
    """What a sweep varies."""

    frames = "frames"


@eval_app.callback()
def benchmarks() -> None:
    """Measure methods: Hit@1, mean rank and realised cost."""


@eval_app.command()
def nano(
    methods: MethodsOption = ALL_METHODS,
    backbones: Annotated[
        list[str] | None,
        typer.Option(
            "--backbone",
            "-b",
            help="nano-qwen3, nano-qwen2 or a folder; give it again for another one.",
            show_default="nano-qwen3",
        ),
    ] = None,
    subsets: SubsetsOption = ALL_SUBSETS,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many of every 500 videos.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Fresh test videos instead of the shipped ones.")] = None,
    budget: BudgetOption = "8f",
    candidates: CandidatesOption = 24,
    scale_range: RangeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the rows as JSON.")] = False,
    markdown: Annotated[Path | None, typer.Option(help="Write the table as Markdown into this file.")] = None,
    sweep: Annotated[
        SweepOver | None,
        typer.Option(help="Instead: full resolution and the fixed budget at 8, 16, 24, 32 and 48 frames."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the sweep's plot and table.")] = Path(
        "nano-sweep"
    ),
    device: DeviceOption = "auto",
    dtype: DtypeOption = "auto",
) -> None:
    """NanoRet: retrieval and questions in the procedural world that the nano models know."""
    from allocembed.backbones import load_backbone
    from allocembed.benchmarks.nano import check_subsets
    from allocembed.benchmarks.sweep import sweep_frames
    from allocembed.budget import Budget

    settings = {"budget": Budget.parse(budget), "scale_range": parse_range(scale_range), "limit": limit, "seed": seed}
    fixed = (("methods", methods, ALL_METHODS), ("subsets", subsets, ALL_SUBSETS), ("candidates", candidates, 24))
    if sweep:
        if asked := [f"--{name}" for name, value, usual in fixed if value != usual]:
            raise ValueError(f"--sweep has its own methods, subsets and frame counts: leave out {asked[0]}")
        run = partial(sweep_frames, **settings)
    else:
        check_subsets(split_names(subsets))
        check_methods(split_names(methods))
        chosen = {"methods": split_names(methods), "subsets": split_names(subsets), "candidates": candidates}
        run = partial(_evaluate, **chosen, **settings)
    for path in filter(None, (markdown, out / PLOT if sweep else None)):
        make_room(path)
    titles = last_parts(backbones or ["nano-qwen3"])
    models = {title: load_backbone(name, device=device, dtype=dtype) for name, title in titles.items()}
    results = {}
    for title, backbone in models.items():
        with _progress(title) as progress:
            results[title] = run(backbone, progress=progress)
    note = f"{_note(limit, seed)}; {settings['budget'].unit}"
    if sweep:
        _show_sweeps(results, note, as_json, markdown or out / f"{PLOT}.md", out / PLOT)
    else:
        _show_tables(results, note, as_json, markdown)


def _show_tables(results: dict[str, list[Row]], note: str, as_json: bool, markdown: Path | None) -> None:
    from allocembed.benchmarks import report
    from allocembed.benchmarks.nano import LAYOUT

    layouts = {name: replace(LAYOUT, title=f"{LAYOUT.title}, {name}") for name in results}
    if as_json:
        _print_json(row for name, rows in results.items() for row in report.as_json(rows, **_which(name, results)))
    else:
        for name, rows in results.items():
            Console().print(report.rich_table(rows, layouts[name], note))
    if markdown:
        tables = [report.markdown(rows, layouts[name], note) for name, rows in results.items()]
        with whole_file(markdown) as scratch:
            scratch.write_text("\n".join(tables), encoding="utf-8")
        stderr.print(f"→ {escape(str(markdown))}")


def _show_sweeps(results: dict[str, Sweep], note: str, as_json: bool, markdown: Path, stem: Path) -> None:
    from allocembed.benchmarks import sweep

    if as_json:
        _print_json(row for name, found in results.items() for row in sweep.as_json(found, **_which(name, results)))
    else:
        for name, found in results.items():
            Console().print(sweep.rich_table(found, name, note))
    tables = [sweep.markdown(found, name, note) for name, found in results.items()]
    with whole_file(markdown) as scratch:
        scratch.write_text("\n".join(tables), encoding="utf-8")
    for path in (markdown, *sweep.plot(results, stem)):
        stderr.print(f"→ {escape(str(path))}")


def _evaluate(
    backbone: Backbone,
    methods: list[str],
    *,
    subsets: list[str],
    limit: int | None,
    seed: int | None,
    progress: Progress,
    **settings: object,
) -> list[Row]:
    from allocembed.benchmarks.nano import at_home, evaluate_embedders
    from allocembed.embedder import AllocEmbed

    home = at_home(backbone)
    embedders = {
        label: AllocEmbed(home, found, **settings) for label, found in allocators_by_label(methods, home).items()
    }
    return evaluate_embedders(embedders, subsets=subsets, limit=limit, seed=seed, progress=progress)


def check_methods(methods: list[str]) -> None:
    """Refuses names that can't be methods before any model is loaded."""
    from allocembed.allocators import check_allocator

    if not methods:
        raise ValueError(f"there is no method to run: take some of {ALL_METHODS}")
    for method in methods:
        check_allocator(method)


def allocators_by_label(methods: list[str], backbone: Backbone) -> dict[str, Allocator]:
    """The allocators by label; where none is shipped as `learned` it is skipped, unless nothing else is asked for."""
    from allocembed.allocators import load_allocator

    allocators = {}
    for method, label in last_parts(methods).items():
        try:
            allocators[label] = load_allocator(method, backbone)
        except ValueError as error:
            if method != "learned" or len(methods) == 1:
                raise
            stderr.print(f"[yellow]without {method}:[/yellow] {escape(str(error))}", soft_wrap=True)
    return allocators


def split_names(names: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in names.split(",") if name.strip()))


def last_parts(names: list[str]) -> dict[str, str]:
    """A title for each name: the last part of its path, unless another one has it too."""
    short = [Path(name).name or name for name in names]
    return {name: last if short.count(last) == 1 else name for name, last in zip(names, short, strict=True)}


def _which(backbone: str, results: Mapping[str, object]) -> dict[str, str]:
    """What each JSON row says beside its numbers: which backbone, where there are several."""
    return {"backbone": backbone} if len(results) > 1 else {}


def _print_json(rows: Iterable[dict]) -> None:
    typer.echo(json.dumps({"rows": list(rows)}))


def _note(limit: int | None, seed: int | None) -> str:
    from allocembed.benchmarks.nano import VIDEOS

    videos = "the shipped test videos" if seed is None else f"fresh test videos, seed {seed}"
    if limit is None or limit >= VIDEOS:
        return videos
    return f"{videos}; only the first {limit} of every {VIDEOS}, so retrieval has fewer to confuse"


@contextmanager
def _progress(name: str) -> Iterator[Progress]:
    with progress_bar() as bar:
        task = bar.add_task(name, total=None, spent="")
        yield lambda done, total: bar.update(task, completed=done, total=total)
