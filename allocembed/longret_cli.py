"""`allocembed longret`: builds the LongRet benchmark from its two sources."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from allocembed.options import parse_path, progress_bar, stderr

longret_app = typer.Typer(help="Build the LongRet benchmark from LoVR and Vript.", no_args_is_help=True)


@longret_app.callback()
def longret() -> None:
    """Build the LongRet benchmark from LoVR and Vript."""


@longret_app.command()
def build(
    lovr: Annotated[Path | None, typer.Option(parser=parse_path, help="Folder with LoVR's records and videos.")] = None,
    vript: Annotated[
        Path | None,
        typer.Option(parser=parse_path, help="Folder with vript_captions/ and vript_long_videos/."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the benchmark.")] = Path("longret"),
    seed: Annotated[int, typer.Option(min=0, help="Which captions of a video become clip queries.")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="Videos measured at a time.")] = 8,
) -> None:
    """Pair complete videos with clip and video queries; writes parquet and says how it differs from the paper's."""
    from allocembed.benchmarks import composition
    from allocembed.benchmarks.longret import QUERIES, VIDEOS, save
    from allocembed.benchmarks.longret import build as build_longret
    from allocembed.benchmarks.longret_sources import read_lovr, read_vript
    from allocembed.output import make_room, whole_file

    if lovr is None and vript is None:
        raise ValueError("there is no source to build from: give --lovr DIR, --vript DIR or both")
    paths = [make_room(out / name) for name in (VIDEOS, QUERIES, "composition.md", "composition.json", "left_out.txt")]
    described = [*(read_lovr(lovr) if lovr else []), *(read_vript(vript) if vript else [])]
    with progress_bar() as bar:
        task = bar.add_task("measuring videos", total=len(described), spent="")
        made = build_longret(
            described, seed=seed, workers=workers, progress=lambda done, total: bar.update(task, completed=done)
        )
    if not made.videos:
        raise ValueError(f"none of {len(described):,} videos can be used: {made.left_out[0]}")
    save(made, out)
    found = composition.compose(made)
    texts = {
        "composition.md": composition.markdown(found),
        "composition.json": json.dumps(composition.as_json(found), indent=1),
        "left_out.txt": "".join(f"{line}\n" for line in made.left_out),
    }
    for name, text in texts.items():
        with whole_file(out / name) as scratch:
            scratch.write_text(text, encoding="utf-8")
    typer.echo(composition.markdown(found))
    for path in paths:
        stderr.print(f"→ {escape(str(path))}", soft_wrap=True)
