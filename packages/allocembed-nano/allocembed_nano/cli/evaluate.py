"""`allocembed eval nano`."""

from functools import partial
from pathlib import Path
from typing import Annotated

from allocembed.cli.evaluate import HIDDEN, show
from allocembed.cli.options import FLAT, UNSET, AsJson, Command
from allocembed.output.console import progress, say
from allocembed.output.files import make_room, write_text
from allocembed_nano.request import NanoRequest


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
