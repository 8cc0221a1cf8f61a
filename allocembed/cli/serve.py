"""`allocembed serve`: the search page."""

import os
from functools import partial
from pathlib import Path
from typing import Annotated

from tyro.conf import FlagCreatePairsOff, arg

from allocembed.cli.options import UNSET, Command, Config, UsageError, all_but
from allocembed.cli.search import Index
from allocembed.errors import SearchError


@partial(Command, hidden=all_but("device", "dtype"))
def serve(
    index: Index,
    config: Config,
    host: str = "127.0.0.1",
    port: int = 8000,
    open_page: Annotated[bool, arg(name="open", help_behavior_hint=""), FlagCreatePairsOff] = False,
    token: Annotated[str | None, UNSET] = None,
    token_file: Annotated[Path | None, UNSET] = None,
) -> None:
    """Search in the browser: a page with pictures, a player that jumps to the moment, and where the tokens went.

    Args:
        host: Address to listen on; any but this machine's own needs a token.
        port: Port; 0 takes a free one.
        open_page: Open the page in a browser when it is ready.
        token: Secret that visitors must send: ?token=... once, or a bearer header. Other users of this machine can see
            it in the list of processes; --token-file and the variable ALLOCEMBED_TOKEN are not shown there.
        token_file: File whose content is the token.
    """
    if not 0 <= port <= 65535:
        raise UsageError(f"--port must be from 0 to 65535, not {port}")
    secret = _token(token, token_file)
    from allocembed.search.index import VideoIndex

    opened = VideoIndex.open(index, device=config.device, dtype=config.dtype)
    from allocembed.search.web.server import run

    run(opened, host, port, secret, show="" if open_page else None)


def _token(token: str | None, file: Path | None) -> str | None:
    """The token from the option, the file or the environment, in this order."""
    if token is not None and file is not None:
        raise UsageError("give --token or --token-file, not both")
    if file is None:
        return token if token is not None else os.environ.get("ALLOCEMBED_TOKEN")
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SearchError(f"cannot read the token from {file} ({error}): check the file") from error
    if not text:
        raise SearchError(f"cannot read the token from {file}: it is empty; write a secret into it")
    return text
