"""VideoIndex: add videos, search them by a sentence or an example, and get the moment."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allocembed.config import DType, EmbedConfig
from allocembed.errors import SearchError
from allocembed.search.files import FileEntry, find_videos, is_there
from allocembed.search.indexing import IndexingRun, IndexReport, ShowProgress
from allocembed.search.settings import IndexSettings
from allocembed.search.store import EmbeddedSegment, IndexStore, exists, is_free, locked

if TYPE_CHECKING:
    from allocembed.embedder import AllocEmbed

LONGEST_QUERY = 2000  # characters: longer than any sentence, short enough to embed quickly


@dataclass(frozen=True)
class Hit:
    """A video that was found, and its best moment."""

    path: str
    video: str
    """Fingerprint of its content: its id on the page."""
    score: float
    """Cosine between the query and the nearest of the video's vectors."""
    start: float
    end: float
    """Seconds; the whole video if it has no windows."""
    segment: int
    """Number of the moment's window; 0 if there are none."""
    duration: float
    cost: int
    """Visual tokens of all vectors of the video."""


class VideoIndex:
    """An index of videos: `VideoIndex.open("my.index").search("a dog jumps")`."""

    def __init__(self, store: IndexStore, config: EmbedConfig, embedder: AllocEmbed | None = None) -> None:
        """`config` says how to load the model; a given embedder is used instead, if it fits the index."""
        self.store, self.settings = store, store.settings
        self._config, self._embedder = config, embedder
        if embedder is not None:
            self.settings.check(embedder)

    @classmethod
    def create(
        cls, uri: str | Path, config: EmbedConfig, *, segments: str = "auto", embedder: AllocEmbed | None = None
    ) -> VideoIndex:
        """Make an empty index. If an embedder is given, it must have been made from `config`."""
        uri, settings = str(uri), IndexSettings(config, segments)
        config.check()
        with locked(uri):
            if exists(uri):
                raise SearchError(f"there is already an index at {uri}: open it, or choose another place")
            if not is_free(uri):
                raise SearchError(f"{uri} is not an index and not empty: choose another place with --to")
            embedder = embedder or _load(config)
            store = IndexStore.create(uri, settings.completed(embedder))
        return cls(store, config, embedder)

    @classmethod
    def open(
        cls,
        uri: str | Path,
        config: EmbedConfig | None = None,
        *,
        segments: str | None = None,
        device: str = "auto",
        dtype: DType = "auto",
        compile: bool = False,
        embedder: AllocEmbed | None = None,
    ) -> VideoIndex:
        """Open an index. The model is loaded when it is first needed.

        A given config or `segments` must agree with the index, and a config decides about device, dtype and compile.
        """
        store = IndexStore.open(str(uri))
        store.settings.check_config(config, segments)
        run = config or EmbedConfig(device=device, dtype=dtype, compile=compile)
        load = replace(store.settings.config, device=run.device, dtype=run.dtype, compile=run.compile)
        return cls(store, load, embedder)

    @property
    def embedder(self) -> AllocEmbed:
        """The model. It is loaded on first use and checked against the index."""
        if self._embedder is None:
            embedder = _load(self._config)
            self.settings.check(embedder)
            self._embedder = embedder
        return self._embedder

    def add(
        self,
        sources: Iterable[str | Path],
        *,
        prune: bool = False,
        retry_failed: bool = False,
        recheck: bool = False,
        readers: int | None = None,
        progress: ShowProgress | None = None,
    ) -> IndexReport:
        """Bring the index up to date with files and folders. It may be stopped at any moment and run again.

        Files whose content is known are not embedded again, whatever their name. With `prune`, all files that no longer
        exist leave the index. With `recheck`, the content of every file is compared, not only its size and
        date. `readers` is the number of decoding threads.
        """
        self.settings.check_may_grow()
        started = time.monotonic()
        with self.store.locked():
            found, unread = find_videos(sources)
            report = IndexReport(failed=list(unread.items()))
            run = IndexingRun(self, report, progress)
            run.sort(found, retry_failed, recheck)
            run.embed(readers)
            run.sweep(prune)
            if report.embedded or report.dropped or report.moved:
                self.store.tidy()
            report.seconds = time.monotonic() - started
        return report

    def search(self, query: str, *, top: int = 10, min_score: float | None = None) -> list[Hit]:
        """Videos that match a sentence, best first, each with its best moment."""
        return self.search_vector(self.embed_query(query), top=top, min_score=min_score)

    def search_like(self, video: str | Path, *, top: int = 10, min_score: float | None = None) -> list[Hit]:
        """Videos like an example, which need not be in the index."""
        return self.search_vector(self.embedder.encode_video(video).vector, top=top, min_score=min_score)

    def embed_query(self, query: str) -> np.ndarray:
        """The vector (dim,) of a search sentence."""
        check_query(query)
        embedder = self.embedder
        return embedder.encode_text(query, instruction=embedder.backbone.query_instruction).vector

    def search_vector(
        self, vector: np.ndarray, *, top: int = 10, min_score: float | None = None, without: str | None = None
    ) -> list[Hit]:
        """Videos nearest to a vector (dim,); `without` excludes one video."""
        if top < 1:
            raise SearchError(f"top must be at least 1, not {top}")
        scores = self._best_videos(vector, top, without)
        if min_score is not None:
            scores = {video: score for video, score in scores.items() if score >= min_score}
        files = self.files_of(scores)
        segments = self.store.segments_of(files, ("vector",))
        hits = [_hit(file, segments[video], vector) for video, file in files.items() if video in segments]
        return sorted(hits, key=lambda hit: -hit.score)[:top]

    def _best_videos(self, vector: np.ndarray, top: int, without: str | None) -> dict[str, float]:
        """The nearest videos. A video may have many vectors, so the limit is raised until enough videos are found."""
        total, limit = self.store.count(), 8 * top + 32
        while total:
            best: dict[str, float] = {}
            for video, score in self.store.nearest(vector, min(limit, total)):
                if video != without:
                    best.setdefault(video, score)
            # A few more than requested, because some may have no file.
            if len(best) >= top + 4 or limit >= total:
                return best
            limit *= 4
        return {}

    def files(self) -> list[FileEntry]:
        """All files, by path. Those that could not be read have an `error`."""
        return sorted(self.store.files(), key=lambda file: file.path)

    def files_of(self, videos: Iterable[str]) -> dict[str, FileEntry]:
        """One file for each video that has any; of several copies, one that exists."""
        files: dict[str, FileEntry] = {}
        for file in sorted(self.store.files_of(videos), key=lambda file: (not is_there(file.path), file.path)):
            files.setdefault(file.video, file)
        return files

    def segments(self, video: str, *large: str) -> list[EmbeddedSegment]:
        """The segments of one video, the whole first; `large` names the large fields wanted: film, picture, vector."""
        return self.store.segments_of([video], large).get(video, [])

    def info(self) -> dict[str, Any]:
        """Counts, tokens and settings."""
        files = self.store.files()
        segments = [segment for each in self.store.segments().values() for segment in each]
        return {
            "uri": self.store.uri,
            "videos": sum(segment.number == 0 for segment in segments),
            "files": sum(not file.error for file in files),
            "failed": sum(bool(file.error) for file in files),
            "vectors": len(segments),
            "seconds": sum(file.duration for file in files),
            "tokens": sum(segment.cost for segment in segments),
            **self.settings.config.settings(),
            "segments": self.settings.segments,
            "version": self.settings.version,
        }

    def remove(self, sources: Iterable[str | Path]) -> int:
        """Remove files, or all files under a folder, from the index but not from the disk; return their number."""
        with self.store.locked():
            files = self.store.files()
            gone = {path for source in sources for path in _paths_under(source, files)}
            self.store.drop_files(gone)
            self.store.drop_videos(self.unused())
        return len(gone)

    def unused(self) -> set[str]:
        """Videos that have vectors but no file."""
        return self.store.videos() - {file.video for file in self.store.files()}

    def discard_if_empty(self) -> bool:
        """Remove the index if it holds no vectors; return whether it did."""
        with self.store.locked():
            empty = not self.store.count()
            if empty:
                self.store.discard()
        return empty


def check_query(query: str) -> None:
    """Raise SearchError if the query is empty or too long.

    >>> check_query("   ")
    Traceback (most recent call last):
        ...
    allocembed.errors.SearchError: the query is empty: write what the video shows
    """
    if not query.strip():
        raise SearchError("the query is empty: write what the video shows")
    if len(query) > LONGEST_QUERY:
        raise SearchError(f"the query has {len(query):,} characters: shorten it to {LONGEST_QUERY:,}")


def _load(config: EmbedConfig) -> AllocEmbed:
    from allocembed.embedder import AllocEmbed

    return AllocEmbed.from_config(config)


def _hit(file: FileEntry, segments: list[EmbeddedSegment], vector: np.ndarray) -> Hit:
    """Score a video by its nearest vector. Its moment is its best window, if it has any."""
    scores = np.stack([segment.vector.astype(np.float64) for segment in segments]) @ vector
    best = segments[1 + int(scores[1:].argmax()) if len(segments) > 1 else 0]
    cost = sum(segment.cost for segment in segments)
    score = float(scores.max())
    return Hit(file.path, file.video, score, best.start, best.end, best.number, file.duration, cost)


def _paths_under(source: str | Path, files: list[FileEntry]) -> list[str]:
    path = Path(source).absolute()
    paths = [file.path for file in files if Path(file.path).is_relative_to(path)]
    if not paths:
        raise SearchError(f"{source} is not in the index: allocembed index ls shows what is")
    return paths
