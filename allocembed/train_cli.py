"""`allocembed train`: the options are the fields of `TrainConfig`, and their help is its docstrings.

What they are is known only after imports that no other command should wait for, so the command that the others stand
beside takes its words as they are, and a second one, made from the fields, reads them.
"""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, Any, get_origin

import typer

from allocembed.options import parse_path

EPILOG = "On several GPUs: torchrun --nproc-per-node 8 -m allocembed train CONFIG.toml"


def add_train(app: typer.Typer) -> None:
    """Registers the command."""
    unread = {"ignore_unknown_options": True, "allow_extra_args": True}

    @app.command("train", add_help_option=False, context_settings=unread)
    def train(context: typer.Context) -> None:
        """Train an allocator of your own by RDPO, from ranking feedback alone."""
        inner = typer.Typer(pretty_exceptions_enable=False, rich_markup_mode="rich", add_completion=False)
        inner.command(epilog=EPILOG)(_with_options())
        command = typer.main.get_command(inner)
        with command.make_context(context.command_path, list(context.args)) as inside:
            command.invoke(inside)


def _with_options() -> Any:
    """The command with a parameter for every field, as typer reads it from a signature."""
    from allocembed.rdpo.config import PRESETS, TrainConfig, field_docs, field_types, make_config
    from allocembed.rdpo.run import CONFIG, train

    def run(config: Path | None, preset: str | None, resume: bool, **given: Any) -> None:
        """Train an allocator by RDPO, from ranking feedback alone; the backbone stays as it is."""
        stated = {name: value for name, value in given.items() if value is not None}
        if resume and config is None and preset is None:
            # The run's own options, so that --out and --resume are enough.
            own = Path(stated.get("out", TrainConfig.out)) / CONFIG
            config = own if own.is_file() else None
        progress = train(make_config(stated, config, preset), resume=resume)
        if progress.stopped_by:
            raise typer.Exit(128 + progress.stopped_by)  # as shells have it, so that scripts don't take it for done

    presets = " or ".join(PRESETS)
    kinds: dict[str, tuple[Any, Any]] = {
        "config": (
            Annotated[
                Path | None,
                typer.Argument(parser=parse_path, help="TOML file of options, such as a run's train.toml."),
            ],
            None,
        ),
        "preset": (
            Annotated[
                str | None, typer.Option(help=f"What the defaults are: {presets}.", show_default="paper; shown below")
            ],
            None,
        ),
        "resume": (
            Annotated[bool, typer.Option("--resume", help="Go on with the run in --out where it was, as it was told.")],
            False,
        ),
    }
    # Unset options are None, so that what the file and the preset say stands.
    defaults, docs = TrainConfig().as_dict(), field_docs()
    for name, kind in field_types().items():
        default, flag = defaults[name], name.replace("_", "-")
        option = typer.Option(
            f"--{flag}/--no-{flag}" if kind is bool else f"--{flag}",
            help=docs[name],
            show_default=",".join(map(str, default)) if isinstance(default, list) else str(default) or "none",
        )
        kinds[name] = (Annotated[(str if get_origin(kind) is tuple else kind) | None, option], None)
    run.__signature__ = inspect.Signature(
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in kinds.items()
    )
    run.__annotations__ = {name: kind for name, (kind, _) in kinds.items()}
    return run
