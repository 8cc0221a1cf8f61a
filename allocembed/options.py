"""What the commands share: option types with one wording each, the console for messages, the progress bar."""

from __future__ import annotations

from copy import copy
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

stderr = Console(stderr=True, highlight=False)


class Seek(StrEnum):
    """How frames are found in a file."""

    exact = "exact"
    keyframe = "keyframe"


METHODS = ("base", "full", "uniform", "content", "select", "learned")
"""The six ways to spend a budget, written out because --help does not wait for the imports that know them."""


def parse_path(text: str) -> Path:
    """A path that is not empty: an unset shell variable must not mean the current folder."""
    if not text:
        raise typer.BadParameter("the path is empty")
    return Path(text)


BackboneOption = Annotated[
    str, typer.Option("--backbone", "-b", help="Short name, hub id or local folder of the embedding model.")
]
AllocatorOption = Annotated[
    str,
    typer.Option(
        "--allocator",
        "-a",
        help=f"How the budget is spent over the frames: {', '.join(METHODS)}, the folder or hub id of a learned "
        "allocator, or auto: learned where one is shipped for the backbone, else uniform.",
    ),
]
MethodsOption = Annotated[
    str, typer.Option(help="Which methods, or folders or hub ids of learned allocators, separated by commas.")
]
SubsetsOption = Annotated[str, typer.Option(help="Which subsets, separated by commas.")]
BudgetOption = Annotated[
    str,
    typer.Option(help="At most so many visual tokens a video: 8f for 8 native frames' worth, or a number."),
]
CandidatesOption = Annotated[int, typer.Option(min=1, help="Frames sampled from the video before allocation.")]
RangeOption = Annotated[
    str | None,
    typer.Option(
        "--range",
        help="Smallest and largest scale of a frame.",
        show_default="0.2,1.8, or what the allocator was trained with",
    ),
]
SeekOption = Annotated[
    Seek,
    typer.Option(help="exact: the very frames; keyframe: the nearest keyframe where it is near, much faster."),
]
TextOption = Annotated[str | None, typer.Option(help="Task text or question that goes with the video.")]
InstructionOption = Annotated[str | None, typer.Option(help="Instruction to the model; its own default if not given.")]
DeviceOption = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 …")]
DtypeOption = Annotated[
    str, typer.Option(help="auto (bfloat16 on CUDA, float32 on a CPU), float32, bfloat16, float16.")
]
CompileOption = Annotated[
    bool,
    typer.Option("--compile", help="Compile the model's layers first: half a minute, then a quarter less a video."),
]
DimOption = Annotated[int | None, typer.Option(help="Keep only the first dimensions of the vector (Matryoshka).")]


def unset(option: Any, shown: str) -> Any:
    """The same option, None where it is not given; the help says in words what that means."""
    kind, about = get_args(option)
    about = copy(about)
    about.show_default = shown
    return Annotated[kind | None, about]


def parse_range(text: str | None) -> tuple[float, float] | None:
    """Reads the two numbers of --range, where it is given."""
    from allocembed.budget import BudgetError, check_range

    if text is None:
        return None
    try:
        return check_range(tuple(float(bound) for bound in text.split(",")))
    except (ValueError, TypeError) as error:
        reason = str(error) if isinstance(error, BudgetError) else "write two numbers, as in --range 0.2,1.8"
        raise typer.BadParameter(reason, param_hint="--range") from error


def progress_bar() -> Progress:
    """A bar on stderr with the time left, gone when the work is done; its tasks have a field `spent`."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[spent]}"),
        TimeRemainingColumn(),
        console=stderr,
        transient=True,
    )
