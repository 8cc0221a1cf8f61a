"""`allocembed train`: the options are the fields of `TrainConfig`."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

from tyro.conf import Positional, arg

from allocembed.backbones.checkpoint import check_backbone
from allocembed.cli.options import FLAT, Command, Flag
from allocembed.rdpo.config import PRESETS, TrainConfig, check_data, make_config

OWN_FILE = "train.toml"  # in the folder of a run


def run_config(given: dict[str, Any]) -> TrainConfig:
    """The config of the preset and the TOML file; with --resume alone, that of the run in --out."""
    file, preset, own = given["file"], given["preset"], Path(given["config"].out) / OWN_FILE
    if given["resume"] and file is None and preset is None and own.is_file():
        file = own
    return make_config({}, file, preset)


@partial(Command, defaults=run_config)
def train(
    config: Annotated[TrainConfig, FLAT],
    file: Annotated[Path | None, Positional, arg(metavar="[CONFIG.toml]", help_behavior_hint="")] = None,
    preset: Annotated[str | None, arg(metavar="|".join(PRESETS), help_behavior_hint="")] = None,
    resume: Flag = False,
) -> int:
    """Train an allocator by RDPO, with or without captions; the backbone is not changed.

      allocembed train --preset one-gpu --videos ~/Videos --out my-allocator
      allocembed train --backbone qwen3-vl-embedding-2b --data train.jsonl --out my-allocator
      allocembed train --out my-allocator --resume
      torchrun --nproc-per-node 8 -m allocembed train my.toml

    Args:
        file: TOML file of options, such as the train.toml of a run. Options on the command line override it.
        preset: Set of defaults: allocembed (the default: the paper's sizes, our method), one-gpu (your own videos, no
            captions, one large GPU), paper (as printed), or one of an installed package. Values below are those of
            allocembed.
        resume: Continue the run in --out, with its own options.
    """
    check_backbone(config.backbone)
    check_data(config.data)
    from allocembed.rdpo.run import train as run

    stopped_by = run(config, resume=resume).stopped_by
    return 128 + stopped_by if stopped_by else 0  # as shells report a signal, so that scripts do not take it for done
