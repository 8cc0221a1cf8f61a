"""`allocembed demo`: the whole path on toy videos."""

from functools import partial
from pathlib import Path

from allocembed.cli.options import Command, Config, Flag, Out, all_but
from allocembed.output.files import make_room


@partial(Command, hidden=all_but("backbone", "device", "dtype"), preset={"backbone": "nano-qwen3"})
def demo(config: Config, out: Out = Path("allocembed-demo"), serve: Flag = False) -> None:
    """Make a dozen toy videos, embed and search them, and compare the methods: the whole path in a few minutes.

    Args:
        out: Folder for the videos and the page; git ignores it.
        serve: Try the search page on the videos, in your browser, instead of the comparison.
    """
    config.check()
    make_room(out / "film.html")
    from allocembed_nano.demo import run_demo

    run_demo(out, config.backbone, device=config.device, dtype=config.dtype, serve=serve)
