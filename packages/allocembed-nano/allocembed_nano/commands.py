"""`allocembed demo`, the whole path on toy videos, and `allocembed eval nano`. Importing this does not import torch."""

from functools import partial
from pathlib import Path
from typing import Annotated

from allocembed.cli.evaluate import HIDDEN, show
from allocembed.cli.options import FLAT, UNSET, AsJson, Command, Config, Flag, Out, all_but
from allocembed.output.console import progress, say
from allocembed.output.files import make_room, write_text
from allocembed_nano.request import NanoRequest


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


@partial(Command, hidden=HIDDEN)
def nano(
    request: Annotated[NanoRequest, FLAT], as_json: AsJson = False, markdown: Annotated[Path | None, UNSET] = None
) -> None:
    """NanoRet: retrieval and questions in the procedural world that the nano models know.

      allocembed eval nano --methods base,uniform,learned --limit 50

    Args:
        as_json: Print the rows as JSON.
        markdown: Write the table to this file, as Markdown.
    """
    if markdown:
        make_room(markdown)
    from allocembed_nano.nanoret import run

    results = run(request, progress=progress)
    if markdown:
        write_text(markdown, results.markdown)
    show(results, as_json)
    if markdown:
        say(f"→ {markdown}")
