"""VideoIndex: add videos, search them by a sentence or an example, and get the moment."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allocembed.config import DType, EmbedConfig
from allocembed.errors import SearchError
from allocembed.files import FileEntry, is_there
from allocembed.paths import absolute
from allocembed.remote.objects import is_below, is_remote
from allocembed.search.filters import Filters
from allocembed.search.hit import Hit
from allocembed.search.indexing import IndexingRun, IndexReport, ShowProgress
from allocembed.search.query import Query, check_query, combine, example_vectors
from allocembed.search.searching import SearchJob
from allocembed.search.sentences import SentenceReader
from allocembed.search.settings import NEAR, IndexSettings
from allocembed.search.store import EmbeddedSegment, IndexStore, place_of, store_of
from allocembed.search.worker import IndexTask, SettingsTask
from allocembed.words import without_passwords
from allocembed.workers import Workers, find_workers

if TYPE_CHECKING:
    from allocembed.embedder import AllocEmbed
    from allocembed.search.said.speech import Transcriber


ROUNDING = 1e-3  # of the length of a unit vector


class VideoIndex:
    """An index of videos: `VideoIndex.open("my.index").search("a dog jumps")`."""

    def __init__(self, store: IndexStore, config: EmbedConfig, embedder: AllocEmbed | None = None) -> None:
        """`config` says how to load the model; a given embedder is used instead, if it fits the index."""
        self.store, self.settings = store, store.settings
        self.lines = store.lines
        self._config, self._embedder = config, embedder
        self._sentences = SentenceReader(self.settings, config)
        self._loading = threading.Lock()  # several threads may search at once
        if embedder is not None:
            self.settings.check(embedder)

    @classmethod
    def create(
        cls,
        uri: str | Path,
        config: EmbedConfig,
        *,
        segments: str = "auto",
        embedder: AllocEmbed | None = None,
        workers: Workers | None = None,
    ) -> VideoIndex:
        """Make an empty index. If an embedder is given, it must have been made from `config`.

        Separate workers load the model to see what an index must hold of it, so that it is not loaded here.
        """
        uri, settings = place_of(uri), IndexSettings(config, segments, NEAR)
        config.check()
        store = store_of(uri)
        store.check_free(uri)  # before a model is loaded
        if embedder is None and workers is not None and workers.separate:
            [settings] = workers.run(SettingsTask(settings), iter([None]), _no_settings)
        else:
            given, embedder = embedder is not None, embedder or _load(config)
            settings = settings.completed(embedder)
            if given:
                settings.check_reloads(embedder)
        return cls(store.create(uri, settings), config, embedder)

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

        A given config or `segments` must agree with the index. A config also decides where and how to compute, as
        `EmbedConfig.run_as` does. Without one, the limits of reading are those that the index was made with.
        """
        uri = place_of(uri)
        store = store_of(uri).open(uri)
        store.settings.check_config(config, segments)
        stated = store.settings.config
        own = replace(stated, device=device, dtype=dtype, compile=compile)
        run = own if config is None else stated.run_as(config)
        return cls(store, run, embedder)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, an index is its place and how to compute: another process opens it again."""
        uri = self.store.uri
        return VideoIndex.open, (uri if is_remote(uri) else str(absolute(uri)), self._config)

    @property
    def embedder(self) -> AllocEmbed:
        """The model. It is loaded on first use and checked against the index."""
        with self._loading:
            if self._embedder is None:
                embedder = _load(self._config)
                self.settings.check(embedder)
                self._embedder = embedder
                self._sentences.close()
            return self._embedder

    def add(
        self,
        sources: Iterable[str | Path],
        *,
        prune: bool | Callable[[str], bool] = False,
        retry_failed: bool = False,
        recheck: bool = False,
        readers: int | None = None,
        speech: str | None = None,
        progress: ShowProgress | None = None,
        ready: Callable[[FileEntry], bool] | None = None,
        workers: Workers | None = None,
    ) -> IndexReport:
        """Bring the index up to date with files and folders. It may be stopped at any moment and run again.

        Files whose content is known are not embedded again, whatever their name. With `prune`, all files that no longer
        exist leave the index, or those for which it returns True. With `recheck`, the content of every file is
        compared, not only its size and date, and subtitles are read again. `readers` is the number of decoding threads.
        `speech` names the model of faster-whisper that writes down what is spoken in videos without subtitles; with
        `recheck` it does so again. Files that are not `ready` are left to a later run. `workers` embed what is new;
        without them, this process does.
        """
        self.settings.check_may_grow()
        transcriber, sources = _transcriber(speech), _several(sources)
        workers = workers or find_workers()
        with self.store.locked():
            run = IndexingRun(
                self,
                sources,
                retry_failed=retry_failed,
                recheck=recheck,
                ready=ready,
                transcriber=transcriber,
                progress=progress,
            )
            run.work(workers, IndexTask(self, workers.options.commit, readers))
            return run.finish(prune)

    def search(
        self,
        query: str | Query,
        *,
        top: int = 10,
        min_score: float | None = None,
        filters: Filters | None = None,
        said: bool | None = None,
        refine: bool = False,
        dedupe: bool = False,
        vector: np.ndarray | None = None,
    ) -> list[Hit]:
        """Videos that match a sentence or a query, best first, each with its best moment.

        `said` decides whether what was said counts: None counts it beside the pictures if the index has lines and the
        query is text. With True nothing else counts, and no model is loaded. False ignores it. `refine` looks at each
        moment again, more closely. `dedupe` leaves out near-duplicates of better hits. `vector` is that of the
        query, if it is known already.
        """
        words = _words(query)
        if said:
            self._check_words(query, words)
            vector = None
        elif vector is None:
            vector = self.embed_query(query)
        spoken = words if said or (said is None and words.strip() and self.lines.count()) else ""
        hits = SearchJob(self, vector, spoken, top, min_score, filters, dedupe).hits()
        return self._refined(hits, vector) if refine and vector is not None else hits

    def _check_words(self, query: str | Query, words: str) -> None:
        """Raise SearchError if a query cannot be answered by what was said alone."""
        if not words.strip() or (not isinstance(query, str) and query.unlike):
            raise SearchError("cannot search what was said by anything but words: give a sentence alone")
        check_query(words)
        if not self.lines.count():
            raise SearchError(
                "the index has no lines: put .srt or .vtt files beside the videos and run allocembed index again, or "
                "run it with --speech"
            )

    def _refined(self, hits: list[Hit], vector: np.ndarray) -> list[Hit]:
        """Give hits better moments. The time of a line is exact already."""
        from allocembed.search.refine import refine

        by_picture = [hit for hit in hits if not (hit.line and hit.start == hit.line_start)]
        better = {hit.video: hit for hit in refine(self, by_picture, vector)}
        return [better.get(hit.video, hit) for hit in hits]

    def search_like(
        self,
        video: str | Path,
        *,
        top: int = 10,
        min_score: float | None = None,
        filters: Filters | None = None,
        dedupe: bool = False,
    ) -> list[Hit]:
        """Videos like an example, which need not be in the index."""
        vector = self.embedder.encode_video(video).vector
        return self.search_vector(vector, top=top, min_score=min_score, filters=filters, dedupe=dedupe)

    def embed_query(self, query: str | Query) -> np.ndarray:
        """The vector (dim,) of a search sentence, or of a query."""
        if not isinstance(query, str):
            query.check()
            shown = example_vectors(self.embedder, query) if query.images or query.like else []
            return combine([*map(self.embed_query, query.texts), *shown], list(map(self.embed_query, query.unlike)))
        check_query(query)
        if self._embedder is None and (vector := self._sentences.vector(query)) is not None:
            return vector
        embedder = self.embedder
        return embedder.encode_text(query, instruction=embedder.backbone.query_instruction).vector

    def search_vector(
        self,
        vector: np.ndarray,
        *,
        top: int = 10,
        min_score: float | None = None,
        without: str | None = None,
        filters: Filters | None = None,
        dedupe: bool = False,
    ) -> list[Hit]:
        """Videos nearest to a vector (dim,); `without` excludes one video."""
        vector = self._unit(vector)
        return SearchJob(self, vector, "", top, min_score, filters, dedupe, without).hits()

    def _unit(self, vector: np.ndarray) -> np.ndarray:
        """A vector of any length as a unit vector, so that scores are cosines."""
        vector, dim = np.asarray(vector, np.float32), len(self.settings.probe)
        if np.shape(vector) != (dim,):
            raise SearchError(f"a vector of this index has the shape ({dim},), not {np.shape(vector)}")
        if not np.isfinite(vector).all():
            raise SearchError("the vector has numbers that are not finite: embed the query again")
        length = float(np.linalg.norm(vector))
        if length == 0:
            raise SearchError("the vector is zero, so nothing is near it: embed the query again")
        return vector if abs(length - 1) < ROUNDING else vector / length

    def files(self) -> list[FileEntry]:
        """All files, by path. Those that could not be read have an `error`."""
        return sorted(self.store.files(), key=lambda file: file.path)

    def files_of(self, videos: Iterable[str], filters: Filters | None = None) -> dict[str, FileEntry]:
        """One file for each video that has any that meets the filters; of several copies, one that exists."""
        files: dict[str, FileEntry] = {}
        for file in sorted(self.store.files_of(videos, filters), key=lambda file: (_is_absent(file), file.path)):
            files.setdefault(file.video, file)
        return files

    def segments(self, video: str, *large: str) -> list[EmbeddedSegment]:
        """The segments of one video, the whole first; `large` names the large fields wanted: film, picture, vector."""
        return self.store.segments_of([video], large).get(video, [])

    def info(self) -> dict[str, Any]:
        """Counts, tokens and settings."""
        return {
            "uri": without_passwords(self.store.uri),
            **self.store.totals(),
            "lines": self.lines.count(),
            **self.settings.config.settings(),
            "segments": self.settings.segments,
            "near": self.settings.near,
            "version": self.settings.version,
        }

    def remove(self, sources: Iterable[str | Path]) -> int:
        """Remove files, or all files under a folder, from the index but not from the disk; return their number."""
        sources = _several(sources)
        with self.store.locked():
            files = self.store.files()
            gone = {path for source in sources for path in _paths_under(source, files)}
            self.store.drop_files(gone)
            self.store.drop_videos(self.unused())
            self.lines.sweep(self.store.files())
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


def _load(config: EmbedConfig) -> AllocEmbed:
    from allocembed.embedder import AllocEmbed

    return AllocEmbed.from_config(config)


def _no_settings(_: None, cause: str) -> IndexSettings:
    raise SearchError(f"the worker that loads the model failed ({cause}): check its memory, and run the command again")


def _several(sources: Iterable[str | Path]) -> list[str | Path]:
    if isinstance(sources, str | Path):
        raise TypeError(f"pass a list of files and folders, such as [{str(sources)!r}]")
    return list(sources)


def _transcriber(name: str | None) -> Transcriber | None:
    if name is None:
        return None
    from allocembed.search.said.speech import Transcriber

    return Transcriber(name)


def _words(query: str | Query) -> str:
    """The words of a query that is text; none if it also has pictures or examples."""
    if isinstance(query, str):
        return query
    return "" if query.images or query.like else " ".join(query.texts)


def _is_absent(file: FileEntry) -> bool:
    """Whether a file on a disk is gone. An object is not asked for: that would cost a request for each hit."""
    return not is_remote(file.path) and not is_there(file.path)


def _paths_under(source: str | Path, files: list[FileEntry]) -> list[str]:
    if is_remote(source):
        address = str(source).rstrip("/")
        paths = [file.path for file in files if is_below(file.path, address)]
    else:
        path = absolute(source)
        paths = [file.path for file in files if not is_remote(file.path) and Path(file.path).is_relative_to(path)]
    if not paths:
        raise SearchError(f"{source} is not in the index: allocembed index ls shows what is")
    return paths
