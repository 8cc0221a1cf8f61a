"""An index as tools for agents: a server of the Model Context Protocol, read-only, over stdin and stdout.

Videos are named by the id of their content, never by a path, and a file is read only while its content is what was
indexed. So nothing outside the index can be reached. The names of folders are not shown. The model is loaded by the
first search that needs it.
"""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from allocembed import __version__
from allocembed.errors import AllocEmbedError, MissingDependency, SearchError, VideoError
from allocembed.files import FileEntry, identity
from allocembed.search.contents import FileGone, TrustedContents, file_of, path_of, segments_of
from allocembed.search.filters import Filters
from allocembed.search.frames import frame_jpeg
from allocembed.search.hit import Hit
from allocembed.search.index import VideoIndex
from allocembed.search.parameters import with_filters
from allocembed.search.places import places_of, without_folders
from allocembed.search.query import LONGEST_QUERY

try:
    from mcp.server.mcpserver import Image, MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations
    from pydantic import Field
except ImportError as error:
    raise MissingDependency("the server for agents", "mcp", "mcp") from error

MOST_HITS = 50
MOST_LINES_OF_ANSWER = 500  # of a transcript in one answer
FRAME_SECONDS = 60.0  # in which a frame must be found; other calls wait meanwhile
INSTRUCTIONS = (
    "Search a collection of videos by what they show and what is said in them. `search` finds videos and the moment in "
    "each; `moment` and `transcript` give the words of a moment or a video, `frame` shows what is there to be seen at "
    "a time, `similar` finds videos like one. Videos are named by the id that a search returns. Times are in seconds."
)
READ_ONLY = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)

VideoId = Annotated[str, Field(pattern="^[0-9a-f]{32}$", description="Id of a video, from a search.")]
Second = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False, description="Seconds after the start.")]
Top = Annotated[int, Field(ge=1, le=MOST_HITS, description="Most videos to return.")]
MinScore = Annotated[float | None, Field(ge=-1, le=1, allow_inf_nan=False, description="Lowest score to return.")]
Sentence = Annotated[str, Field(max_length=LONGEST_QUERY, description="What the video shows, in a sentence.")]

P = ParamSpec("P")
R = TypeVar("R")


@dataclass
class SpokenLine:
    """A line of subtitles or speech."""

    start: float
    end: float
    text: str


@dataclass
class FoundVideo:
    """A video and its best moment."""

    video: str
    """Id."""
    name: str
    score: float
    start: float
    end: float
    """Seconds of the moment."""
    duration: float
    """Seconds of the video."""
    line: str
    """The line that matched, if the video was found by what is said."""


@dataclass
class Moment:
    """A part of a video."""

    video: str
    name: str
    start: float
    end: float
    duration: float
    width: int
    height: int
    lines: list[SpokenLine] = field(default_factory=list)
    """Lines that are said in it."""


@dataclass
class Transcript:
    """Lines that are said in a video."""

    video: str
    name: str
    duration: float
    lines: list[SpokenLine] = field(default_factory=list)
    next_start: float | None = None
    """Start of the next line, if there are more than one answer holds."""


class IndexTools:
    """The tools over one index. One call works at a time, because the model and a decoder take a core each."""

    def __init__(self, index: VideoIndex) -> None:
        self.index, self.contents, self.turn = index, TrustedContents(), threading.Lock()
        self.limits = replace(index.settings.config.limits, max_seconds=FRAME_SECONDS)

    def search(
        self,
        query: Sentence,
        top: Top = 10,
        min_score: MinScore = None,
        said: Annotated[
            bool | None, Field(description="true: only what is said; false: only what is shown; default: both.")
        ] = None,
        *,
        filters: Filters,
    ) -> list[FoundVideo]:
        """Find videos, and the moment in each, by a sentence about what they show or by words said in them."""
        with self.turn:
            hits = self.index.search(query, top=top, min_score=min_score, said=said, filters=filters)
        return [found_video(hit) for hit in hits]

    def similar(self, video: VideoId, top: Top = 10, min_score: MinScore = None) -> list[FoundVideo]:
        """Find videos like one of the index, which is itself left out."""
        self.entry(video)
        with self.turn:
            segments = segments_of(self.index, video, "vector")
            hits = self.index.search_vector(segments[0].vector, top=top, min_score=min_score, without=video)
        return [found_video(hit) for hit in hits]

    def moment(self, video: VideoId, second: Second) -> Moment:
        """Describe the part of a video around a time: its start and end, and what is said in it."""
        file = self.entry(video)
        check_second(file, second)
        with self.turn:
            whole, *windows = segments_of(self.index, video)
            part = next((each for each in reversed(windows) if each.start <= second), whole)
            lines = spoken_lines(self.index, video, part.start, part.end)
        size = (file.duration, file.width, file.height)
        return Moment(video, Path(file.path).name, part.start, part.end, *size, lines[:MOST_LINES_OF_ANSWER])

    def transcript(self, video: VideoId, start: Second = 0.0) -> Transcript:
        """List what is said in a video, with times: the lines that begin at a second or later."""
        file = self.entry(video)
        with self.turn:
            lines = [line for line in spoken_lines(self.index, video, start, file.duration) if line.start >= start]
        count = min(MOST_LINES_OF_ANSWER, len(lines))
        while 0 < count < len(lines) and lines[count].start == lines[count - 1].start:
            count += 1  # lines of one time stay together, so that the next answer begins later
        more = lines[count].start if count < len(lines) else None
        return Transcript(video, Path(file.path).name, file.duration, lines[:count], more)

    def frame(self, video: VideoId, second: Second) -> Image:
        """Show what is to be seen in a video at a time, as a picture."""
        file = self.entry(video)
        check_second(file, second)
        with self.turn, self.unchanged(path_of(file), video) as path:
            picture, _ = frame_jpeg(path, second, self.limits)
        return Image(data=picture, format="jpeg")

    def entry(self, video: str) -> FileEntry:
        """The file of a video of the index."""
        return file_of(self.index, video)

    @contextmanager
    def unchanged(self, path: Path, video: str) -> Iterator[Path]:
        """A file that has the content of the index before and after the block. Raise FileGone if not."""
        self.contents.check(path, video)
        before = self.contents.known[path][0] if path in self.contents.known else ()
        yield path
        try:
            same = identity(path) == before
        except OSError:
            same = False
        if not same:
            raise FileGone("the file has changed while it was read; try again")


def make_server(index: VideoIndex) -> MCPServer:
    """The server over an index."""
    # Whatever else is logged would only fill the agent's log.
    server = MCPServer("allocembed", version=__version__, instructions=INSTRUCTIONS, log_level="ERROR")
    made = IndexTools(index)
    search = with_filters("folder")(made.search)  # the names of folders are not shown
    tools: list[Callable[..., Any]] = [search, made.similar, made.moment, made.transcript, made.frame]
    for tool in tools:
        server.add_tool(in_words(tool, index), annotations=READ_ONLY)
    return server


def serve(index: VideoIndex) -> None:
    """Answer on stdin and stdout until stdin ends."""
    if sys.stdin is None or sys.stdout is None:
        raise SearchError("an agent starts this command and talks to it: stdin and stdout must be open")
    # A thread waits for stdin, and nothing wakes it. Only reading is done here, so the process may end at any moment.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    make_server(index).run("stdio")


def in_words(tool: Callable[P, R], index: VideoIndex) -> Callable[P, R]:
    """Wrap a tool, so that its errors are sentences without paths of this machine."""

    @wraps(tool)
    def run(*args: P.args, **named: P.kwargs) -> R:
        try:
            return tool(*args, **named)
        except VideoError as error:
            raise ToolError(f"the video cannot be read: {without_folders(error.cause, places_of(index))}") from error
        except AllocEmbedError as error:
            raise ToolError(without_folders(str(error), places_of(index))) from error

    return run


def check_second(file: FileEntry, second: float) -> None:
    """Raise SearchError for a time after the end."""
    if second > file.duration:
        raise SearchError(f"the video ends at {file.duration:.1f} seconds: choose an earlier time")


def found_video(hit: Hit) -> FoundVideo:
    """A hit without the names of its folders."""
    score = hit.score if hit.score == hit.score else 0.0  # a cosine of an empty vector is no number
    return FoundVideo(hit.video, Path(hit.path).name, score, hit.start, hit.end, hit.duration, hit.line)


def spoken_lines(index: VideoIndex, video: str, start: float, end: float) -> list[SpokenLine]:
    """The lines of a video that are said between two times."""
    lines = index.lines.lines_of(video)
    return [SpokenLine(line.start, line.end, line.text) for line in lines if line.end >= start and line.start <= end]
