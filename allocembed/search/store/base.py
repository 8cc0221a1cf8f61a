"""The seam between an index and the place that keeps it: what a backend must do, and the values that pass through.

An index holds four things:

- **vectors**: the segments of videos, under the fingerprint of their content;
- **files**: which content a path has, or why it has none (`FileEntry`);
- **lines**: what was said, and the sources that lines come from (`LineStore`);
- **settings**: what it was made with. They are written last: a place without them holds no index.

A backend keeps four promises:

1. Each call that writes is one commit. A process killed at any moment leaves all of a commit or nothing of it.
2. Between `locked` and its end no other process holds the lock. A killed process does not hold it for long.
3. Readers need no lock, and see what was committed last.
4. What a user can mend is a `SearchError` of one sentence, which names the place and never a password.

To add one, write a subclass of `IndexStore` and one of `LineStore`, and name the first in the entry-point group
`allocembed.stores` under the scheme of its addresses. `allocembed.testing.stores` holds the tests that it must pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np

from allocembed.errors import SearchError
from allocembed.files import FileEntry
from allocembed.search.filters import Filters
from allocembed.search.said.subtitles import Line
from allocembed.search.settings import IndexSettings

LARGE_COLUMNS = ("film", "picture", "vector")
INSIDE, SPEECH = "inside", "speech"  # origins that belong to the content of a video and not to a path


class IndexBusy(SearchError):  # noqa: N818 (named for what happened)
    """Another run writes to the index."""


@dataclass(frozen=True, eq=False)
class EmbeddedSegment:
    """A whole video (number 0) or one of its windows. The large fields are empty unless they were requested."""

    number: int
    start: float
    end: float
    """Seconds of the source."""
    cost: int
    budget: int
    base_cost: int
    film: dict[str, Any] = field(default_factory=dict)
    """The allocation in plain numbers, as by `film.as_json`."""
    picture: bytes = b""
    """A JPEG: the frame of a window with most tokens, or the first frames of all chunks of a whole video in a row."""
    vector: np.ndarray = field(default_factory=lambda: np.empty(0, np.float32))
    """(dim,) fp32."""


SMALL_COLUMNS = tuple(item.name for item in fields(EmbeddedSegment) if item.name not in LARGE_COLUMNS)


@dataclass(frozen=True)
class TextSource:
    """A source of lines: a subtitle file, the streams inside a video, or its transcript."""

    owner: str
    """Path of the video, or its fingerprint for lines that belong to its content."""
    origin: str
    """Path of the subtitle file, `inside` or `speech`."""
    video: str
    source: str
    """Id of the lines: a digest of the video and of what was read."""
    lines: int
    size: int = 0
    changed: int = 0
    """Size and time of change of the subtitle file."""

    @property
    def key(self) -> tuple[str, str]:
        return self.owner, self.origin


@dataclass(frozen=True)
class FoundLine:
    """A line that has words of a query."""

    video: str
    start: float
    end: float
    text: str
    words: str
    """Its words as they are compared, with spaces between them."""
    relevance: float
    """By BM25 or the like; higher is better."""


class IndexStore(ABC):
    """An opened index. Several threads may read from it at once."""

    exact_up_to: ClassVar[int] = 50_000
    """Vectors. A larger index may be searched approximately once `tidy` has run."""
    patience: ClassVar[float] = 5.0
    """Seconds to wait for the lock: two runs that start at once must not both give way."""

    uri: str
    """Its address. It may hold a password: `words.without_passwords` makes it fit to be shown."""
    settings: IndexSettings
    lines: LineStore

    # ---- places

    @classmethod
    def place(cls, uri: str) -> str:
        """An address in the form in which it is kept. Raise ConfigError or SearchError for an impossible one."""
        return uri

    @classmethod  # noqa: B027 (some packages are found missing when they are imported)
    def check_installed(cls, uri: str) -> None:
        """Raise MissingDependency if a package is missing that an index at this address needs."""

    @classmethod
    @abstractmethod
    def exists(cls, uri: str) -> bool:
        """Whether there is a complete index."""

    @classmethod
    @abstractmethod
    def check_free(cls, uri: str) -> None:
        """Raise SearchError if an index cannot be made here, because there is one, or something else."""

    @classmethod
    @abstractmethod
    def create(cls, uri: str, settings: IndexSettings) -> Self:
        """Make an empty index, holding the lock; raise SearchError, and leave nothing, if that is impossible."""

    @classmethod
    @abstractmethod
    def open(cls, uri: str) -> Self:
        """Open an index. Raise SearchError if there is none, or if one of its tables is damaged."""

    @abstractmethod
    def discard(self) -> None:
        """Remove the index. The caller holds the lock."""

    # ---- one writer

    @abstractmethod
    def locked(self) -> AbstractContextManager[object]:
        """Hold the lock. Raise IndexBusy if another process or store holds it for longer than `patience`."""

    @abstractmethod
    def as_of_now(self) -> Self:
        """A store whose files are those of this moment, whatever is written later."""

    def drop_doubles(self) -> int:
        """Drop vectors that a video has twice, because two processes added it; return how many. Needs the lock."""
        return 0

    def tidy(self) -> None:  # noqa: B027 (most have nothing to do)
        """After a run: clean up, and build what a large index needs to be searched fast."""

    # ---- vectors

    @abstractmethod
    def add_videos(self, videos: Iterable[tuple[str, Sequence[EmbeddedSegment]]]) -> None:
        """Add the segments of videos, by fingerprint, in one commit. It needs no lock."""

    @abstractmethod
    def drop_videos(self, videos: Iterable[str]) -> None:
        """Remove the vectors of videos."""

    @abstractmethod
    def videos(self) -> set[str]:
        """Fingerprints of all contents that have vectors."""

    @abstractmethod
    def known_videos(self, videos: Iterable[str]) -> set[str]:
        """The given contents that have vectors."""

    @abstractmethod
    def count(self) -> int:
        """Number of vectors."""

    @abstractmethod
    def segments(self, large: Sequence[str] = ()) -> dict[str, list[EmbeddedSegment]]:
        """All segments of all videos, the whole video first; `large` names the large fields that are wanted."""

    @abstractmethod
    def segments_of(self, videos: Iterable[str], large: Sequence[str] = ()) -> dict[str, list[EmbeddedSegment]]:
        """Like `segments`, restricted to `videos`. Those without vectors are left out."""

    @abstractmethod
    def picture(self, video: str, number: int) -> bytes | None:
        """The picture of one segment."""

    @abstractmethod
    def whole_vectors(self, among: Iterable[str] | None = None) -> tuple[list[str], np.ndarray]:
        """All videos, or those `among`, and the vectors (n, dim) of each as a whole, in half precision."""

    @abstractmethod
    def nearest(
        self, vector: np.ndarray, limit: int, *, among: Collection[str] | None = None, share: float = 1.0
    ) -> list[tuple[str, float]]:
        """Video and cosine of the nearest vectors, best first. A video may occur several times.

        `among` restricts the search to these videos, which are about this `share` of all: the smaller it is, the more
        an approximate index has to look at.
        """

    def compares_all(self, among: Collection[str] | None) -> bool:
        """Whether `nearest` compares all vectors `among` the given videos, so that it misses none of them."""
        return False

    # ---- files

    @abstractmethod
    def add_files(self, entries: Sequence[FileEntry]) -> None:
        """Add files whose paths are new, which may be faster than `put_files`."""

    @abstractmethod
    def put_files(self, entries: Sequence[FileEntry]) -> None:
        """Add or replace files, by path."""

    @abstractmethod
    def drop_files(self, paths: Iterable[str]) -> None:
        """Remove files; their vectors stay."""

    @abstractmethod
    def files(self) -> list[FileEntry]:
        """All files."""

    @abstractmethod
    def files_at(self, paths: Iterable[str]) -> dict[str, FileEntry]:
        """The files with these paths."""

    @abstractmethod
    def files_of(self, videos: Iterable[str], filters: Filters | None = None) -> list[FileEntry]:
        """The files that have the given contents, no error, and meet the rules of the filters."""

    @abstractmethod
    def matching(self, filters: Filters) -> set[str]:
        """Contents of the files without error that meet the rules of the filters."""

    @abstractmethod
    def file_count(self) -> int:
        """Number of files, also of those with an error."""

    @abstractmethod
    def totals(self) -> dict[str, float]:
        """Numbers of `videos`, `files`, `failed` files and `vectors`, and sums of `seconds` and `tokens`."""


class LineStore(ABC):
    """Spoken lines in the videos of one index."""

    @abstractmethod
    def add(self, read: Sequence[tuple[TextSource, Sequence[Line]]], known: Collection[str]) -> None:
        """Add or replace sources, by key, with their lines. The lines of `known` ids are there already."""

    @abstractmethod
    def drop_sources(self, keys: Iterable[tuple[str, str]]) -> None:
        """Remove sources; their lines stay."""

    @abstractmethod
    def drop_lines(self, ids: Iterable[str]) -> None:
        """Remove the lines of sources."""

    @abstractmethod
    def sources(self) -> list[TextSource]:
        """The sources of all lines."""

    @abstractmethod
    def counts(self) -> dict[str, int]:
        """The number of lines that each source has in fact."""

    @abstractmethod
    def ids(self) -> set[str]:
        """Ids of all sources that have lines."""

    @abstractmethod
    def videos(self) -> set[str]:
        """Videos of which there are lines."""

    @abstractmethod
    def count(self) -> int:
        """Number of lines."""

    @abstractmethod
    def lines_of(self, video: str) -> list[Line]:
        """Lines that are said in a video, in order of time."""

    @abstractmethod
    def find(self, wanted: Sequence[str], limit: int, among: Collection[str] | None = None) -> list[FoundLine]:
        """Lines that have any of the words, as `said.words` writes them, the most relevant first.

        `among` names the videos that count.
        """

    def tidy(self) -> None:  # noqa: B027 (most have nothing to do)
        """After a run: clean up."""

    def sweep(self, files: Iterable[FileEntry]) -> None:
        """Drop sources whose file or content is not among the files of the index, and lines without a source."""
        paths = {(file.path, file.video) for file in files if not file.error}
        videos = {video for _, video in paths}
        sources = self.sources()
        kept = [each for each in sources if each.owner in videos or (each.owner, each.video) in paths]
        self.drop_sources({each.key for each in sources} - {each.key for each in kept})
        self.drop_lines(self.ids() - {each.source for each in kept})
