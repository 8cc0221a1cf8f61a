"""`allocembed export-st`: a folder that sentence-transformers loads."""

from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional

from allocembed.backbones.registry import REGISTRY
from allocembed.cli.options import UNSET, Command, Config
from allocembed.output.console import say


@partial(Command, hidden=("device",))
def export_st(folder: Annotated[Path, Positional, UNSET], config: Config) -> None:
    """Write a folder that sentence-transformers loads: SentenceTransformer(FOLDER, trust_remote_code=True).

    It holds these settings; whoever loads it needs allocembed and sentence-transformers.

      allocembed export-st my-model --backbone qwen3-vl-embedding-2b --allocator uniform --budget 4f

    Args:
        folder: Where to write it; a new or empty folder, or one exported before.
    """
    from allocembed.integrations.folder import export_folder

    export_folder(config, folder)
    say(f"{config.backbone}, {config.allocator}, {config.budget} → {folder}")
    if config.backbone.lower() not in REGISTRY and Path(config.backbone).is_dir():
        say("the backbone is a local folder, so the export works on this machine only; a hub id works everywhere")
