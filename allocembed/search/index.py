"""VideoIndex: videos in, moments out. It holds the tables together with the model that fills and asks them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from allocembed.search.adding import Added, Progress, Run
from allocembed.search.errors import SearchError
from allocembed.search.files import find_videos, is_there
from allocembed.search.settings import PLAIN, Settings
from allocembed.search.store import COLUMNS, Store, discard, exists, quote

if TYPE_CHECKING:
    from allocembed.embedder import AllocEmbed

LONGEST_QUERY = 2000  # characters: more than any sentence, less than anything that would take long to embed


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
    """Seconds; the whole video where it has no segments."""
    segment: int
    """Number of the moment's window; 0 where there are none."""
    duration: float
    cost: int
    """Visual tokens spent on all of the video's vectors."""


class VideoIndex:
    """An index of videos; `VideoIndex.open("my.index").search("a dog jumps")` asks it."""

    def __init__(self, store: Store, embedder: AllocEmbed | None = None, **where: Any) -> None:
        """`where` says how the model is to be loaded: `device`, `dtype`, `compile`."""
        self.store = store
        self.settings = store.settings
        self._embedder, self._where = embedder, where
        if embedder is not None:
            self.settings.check(embedder)

    @classmethod
    def create(
        cls,
        uri: str | Path,
        backbone: str | Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        compile: bool = False,
        embedder: AllocEmbed | None = None,
        **settings: Any,
    ) -> VideoIndex:
        """Makes an empty index; `settings` are the fields of `Settings`. An embedder of just these may be given."""
        if exists(str(uri)):
            raise SearchError(f"there is an index at {uri} already: open it, or choose another place")
        if "://" not in str(uri) and Path(uri).exists() and (not Path(uri).is_dir() or any(Path(uri).iterdir())):
            raise SearchError(f"{uri} is not an index and not empty: choose another place with --to")
        wanted = Settings(str(backbone), **settings)
        where = {"device": device, "dtype": dtype, "compile": compile}
        embedder = embedder or wanted.load(**where)
        return cls(Store.create(str(uri), wanted.completed(embedder)), embedder, **where)

    @classmethod
    def open(
        cls,
        uri: str | Path,
        *,
        device: str = "auto",
        dtype: str = "auto",
        compile: bool = False,
        embedder: AllocEmbed | None = None,
        **given: Any,
    ) -> VideoIndex:
        """Opens an index. The model is loaded when it is first needed; `given` settings must be the index's own."""
        store = Store.open(str(uri))
        unknown = sorted(set(given) - set(PLAIN))
        if unknown:
            raise TypeError(f"an index has no setting {unknown[0]!r}: {', '.join(PLAIN)}")
        store.settings.check_given(given)
        return cls(store, embedder, device=device, dtype=dtype, compile=compile)

    @property
    def embedder(self) -> AllocEmbed:
        """The model, loaded when first asked for and held against the index."""
        if self._embedder is None:
            embedder = self.settings.load(**self._where)
            self.settings.check(embedder)
            self._embedder = embedder
        return self._embedder

    def add(
        self,
        sources: Iterable[str | Path],
        *,
        prune: bool = False,
        retry_failed: bool = False,
        readers: int | None = None,
        progress: Progress | None = None,
    ) -> Added:
        """Brings the index up to date with files and folders; may be stopped at any moment and run again.

        Files whose content is known are not embedded again, whatever they are called now. With `prune`, files that
        are gone from the disk leave the index, wherever they were.
        """
        started = time.monotonic()
        with self.store.locked():
            found, unread = find_videos(sources)
            added = Added(failed=list(unread.items()))
            run = Run(self, added, progress or (lambda _: None), started)
            run.sort_out(found, retry_failed)
            run.embed(readers)
            run.sweep(prune)
            if added.embedded or added.dropped or added.moved:
                self.store.tidy()
            added.seconds = time.monotonic() - started
        return added

    def search(self, query: str, *, top: int = 10, min_score: float | None = None) -> list[Hit]:
        """Videos that fit a sentence, best first, each with its best moment."""
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
        """The same for a vector (dim,); `without` leaves out one video."""
        if top < 1:
            raise SearchError(f"top must be at least 1, not {top}")
        scores = self._best_videos(vector, top, without)
        if min_score is not None:
            scores = {video: score for video, score in scores.items() if score >= min_score}
        files = self.files_of(scores)
        pieces = self.pieces_of(files, ("vector",))
        hits = [_hit(file, pieces[video], vector) for video, file in files.items() if video in pieces]
        return sorted(hits, key=lambda hit: -hit.score)[:top]

    def pieces(self, video: str, extra: Sequence[str] = ()) -> list[dict]:
        """The rows of one video's vectors, the whole first; `extra` names the large columns that are wanted."""
        return self.pieces_of([video], extra).get(video, [])

    def pieces_of(self, videos: Iterable[str], extra: Sequence[str] = ()) -> dict[str, list[dict]]:
        """The same for several videos in one query."""
        pieces: dict[str, list[dict]] = {}
        if names := ", ".join(map(quote, videos)):
            for row in self.store.rows(f"video in ({names})", (*COLUMNS, *extra)):
                pieces.setdefault(row["video"], []).append(row)
        return {video: sorted(rows, key=lambda row: row["number"]) for video, rows in pieces.items()}

    def files(self) -> list[dict]:
        """Every file: path, video, size, changed, duration, width, height, error (empty where all is well)."""
        return sorted(self.store.file_rows(), key=lambda row: row["path"])

    def info(self) -> dict[str, Any]:
        """Counts, tokens and settings."""
        files = self.store.file_rows()
        rows = self.store.rows("number >= 0", ["number", "cost"])
        settings = {name: getattr(self.settings, name) for name in (*PLAIN, "version")}
        return {
            "uri": self.store.uri,
            "videos": sum(row["number"] == 0 for row in rows),
            "files": sum(not row["error"] for row in files),
            "failed": sum(bool(row["error"]) for row in files),
            "vectors": len(rows),
            "seconds": sum(row["duration"] for row in files),
            "tokens": sum(row["cost"] for row in rows),
            **settings,
        }

    def remove(self, sources: Iterable[str | Path]) -> int:
        """Takes files, or all under a folder, out of the index (not off the disk); returns how many."""
        with self.store.locked():
            gone = {row["path"] for source in sources for row in self._under(source)}
            self.store.drop_files(gone)
            self.store.drop_videos(self.unused())
        return len(gone)

    def discard_if_empty(self) -> bool:
        """Removes the index where it holds no vectors; says whether it did."""
        with self.store.locked():
            empty = not self.store.count()
            if empty:
                discard(self.store.uri)
        return empty

    def unused(self) -> set[str]:
        """Videos whose file is not, or no longer, in the index."""
        return self.store.videos() - {row["video"] for row in self.store.file_rows()}

    def _under(self, source: str | Path) -> list[dict]:
        path = str(Path(source).absolute())
        rows = [row for row in self.store.file_rows() if row["path"] == path or row["path"].startswith(f"{path}/")]
        if not rows:
            raise SearchError(f"{source} is not in the index: allocembed index ls shows what is")
        return rows

    def _best_videos(self, vector: np.ndarray, top: int, without: str | None) -> dict[str, float]:
        """The nearest videos; many vectors may be one video's, so more are asked for until enough are different."""
        total, limit = self.store.count(), 8 * top + 32
        while total:
            best: dict[str, float] = {}
            for row in self.store.nearest(vector, min(limit, total)):
                best.setdefault(row["video"], row["score"])
            best.pop(without, None)
            # A few more than asked for: some may have no file.
            if len(best) >= top + 4 or limit >= total:
                return best
            limit *= 4
        return {}

    def files_of(self, videos: Iterable[str]) -> dict[str, dict]:
        """A file for each video that has one: where there are copies, one that is still on the disk."""
        names = ", ".join(map(quote, videos))
        rows = self.store.file_rows(f"error = '' and video in ({names})") if names else []
        files: dict[str, dict] = {}
        for row in sorted(rows, key=lambda row: (not is_there(row["path"]), row["path"])):
            files.setdefault(row["video"], row)
        return files


def _hit(file: dict, pieces: list[dict], vector: np.ndarray) -> Hit:
    """A video's score is that of its nearest vector; its moment is its best window, where it has any."""
    scores = np.stack([piece["vector"] for piece in pieces]) @ vector
    best = 1 + int(scores[1:].argmax()) if len(pieces) > 1 else 0
    moment = (pieces[best]["start"], pieces[best]["end"], pieces[best]["number"])
    cost = sum(piece["cost"] for piece in pieces)
    return Hit(file["path"], file["video"], float(scores.max()), *moment, file["duration"], cost)


def check_query(query: str) -> None:
    """Refuses what is no sentence.

    >>> check_query("   ")
    Traceback (most recent call last):
        ...
    allocembed.search.errors.SearchError: the query is empty: write what the video shows
    """
    if not query.strip():
        raise SearchError("the query is empty: write what the video shows")
    if len(query) > LONGEST_QUERY:
        raise SearchError(f"the query has {len(query):,} characters; shorten it to {LONGEST_QUERY:,}")
