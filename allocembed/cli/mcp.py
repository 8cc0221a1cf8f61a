"""`allocembed mcp`: an index as tools for agents."""

from functools import partial

from allocembed.cli.options import Command, Config, all_but
from allocembed.cli.search import Index
from allocembed.search.index import VideoIndex


@partial(Command, hidden=all_but("device", "dtype"))
def mcp(index: Index, config: Config) -> None:
    """Let agents search: a server of the Model Context Protocol on stdin and stdout, read-only.

    Agents start it themselves. Register it with this command line:

      allocembed mcp /home/me/videos.index
    """
    from allocembed.search.agents import serve

    serve(VideoIndex.open(index, device=config.device, dtype=config.dtype))
