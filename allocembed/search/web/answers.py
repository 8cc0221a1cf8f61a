"""Answers of the server: hits as JSON without the paths of this machine, each with what its score means."""

import hashlib
import math
import threading
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, HTTPException
from fastapi import Query as Parameter

from allocembed.backbones.checkpoint import find_entry
from allocembed.errors import AllocEmbedError
from allocembed.files import FileEntry
from allocembed.search.filters import Filters
from allocembed.search.hit import Hit
from allocembed.search.index import VideoIndex
from allocembed.search.match import ChanceLevel
from allocembed.search.parameters import with_filters
from allocembed.search.query import LONGEST_QUERY, Query, check_query
from allocembed.search.refine import refine
from allocembed.search.web.folders import FolderNames

SENTENCES = 8  # in one search
TOY = "Toy model: {name} knows only the drawn world of the demo. Its scores of real videos mean nothing."
LOOK_SECONDS = 10.0  # spent on a closer look, for which other searches wait
REMEMBERED_QUERIES = 256  # queries whose vectors are kept
Top = Annotated[int, Parameter(ge=1, le=100, description="Most videos to return.")]
MinScore = Annotated[float | None, Parameter(ge=-1, le=1, description="Lowest score to return.")]
Sentence = Annotated[str, Parameter(max_length=LONGEST_QUERY)]


@dataclass(frozen=True)
class SearchRequest:
    """The parameters of one search."""

    texts: tuple[str, ...]
    unlike: tuple[str, ...]
    filters: Filters
    """With the name of a folder instead of its path."""
    said: bool | None
    dedupe: bool
    top: int
    min_score: float | None


@with_filters()
def chosen(filters: Filters) -> Filters:
    """The filters of a search. Its folder is one of those that `/api/info` lists."""
    return filters


def search_request(
    filters: Annotated[Filters, Depends(chosen)],
    q: Annotated[list[Sentence], Parameter(max_length=SENTENCES, description="What the video shows.")] = [],  # noqa: B006
    unlike: Annotated[
        list[Sentence], Parameter(alias="not", max_length=SENTENCES, description="What it does not show.")
    ] = [],  # noqa: B006
    said: Annotated[bool | None, Parameter(description="Look in speech only, or in pictures only.")] = None,
    dedupe: Annotated[bool, Parameter(description="Leave out near-duplicates of better hits.")] = False,
    top: Top = 12,
    min_score: MinScore = None,
) -> SearchRequest:
    """Read the parameters of a search from a request."""
    return SearchRequest(tuple(q), tuple(unlike), filters, said, dedupe, top, min_score)


class Answers:
    """Answers of one index."""

    def __init__(self, index: VideoIndex) -> None:
        self.index = index
        self.chance, self.folders = ChanceLevel(index), FolderNames(index)
        self.asked = _Vectors()

    def info(self) -> dict[str, Any]:
        """Counts, tokens and settings, with names in place of paths."""
        about = self.index.info()
        names = {name: str(about[name]).rstrip("/").split("/")[-1] for name in ("uri", "backbone", "allocator")}
        more = {"notice": toy_notice(str(about["backbone"])), "folders": list(self.folders.names())}
        return about | names | more

    def search(self, wanted: SearchRequest, picture: bytes | None = None) -> list[dict[str, Any]]:
        """Hits of a search by sentences, a picture, or both."""
        for sentence in (*wanted.texts, *wanted.unlike, *(() if wanted.texts or picture else ("",))):
            check_query(sentence)
        query: str | Query = Query(wanted.texts, () if picture is None else (picture,), unlike=wanted.unlike)
        if picture is None and len(wanted.texts) == 1 and not wanted.unlike:
            query = wanted.texts[0]
        filters, said = self._with_path(wanted.filters), wanted.said if picture is None else False
        vector = None if said else self.index.embed_query(query)
        hits = self.index.search(
            query,
            vector=vector,
            top=wanted.top,
            min_score=wanted.min_score,
            filters=filters,
            said=said,
            dedupe=wanted.dedupe,
        )
        return self._as_json(hits, vector, filters)

    def similar(
        self, video: str, vector: np.ndarray, top: int, min_score: float | None, wanted: Filters
    ) -> list[dict[str, Any]]:
        """Hits like a video of the index, without it."""
        filters = self._with_path(wanted)
        hits = self.index.search_vector(vector, top=top, min_score=min_score, without=video, filters=filters)
        return self._as_json(hits, vector, filters)

    def moment(self, file: FileEntry, key: str) -> dict[str, Any]:
        """The moment of a video for an earlier search, looked at again more closely."""
        vector = self.asked.get(key)
        if vector is None:
            raise HTTPException(404, "there was no such search lately: search again")
        whole = Hit(file.path, file.video, 0.0, 0.0, file.duration, 0, file.duration, 0)
        found = refine(self.index, [whole], vector, LOOK_SECONDS)[0]
        return {"start": found.start, "end": found.end, "found": found is not whole}

    def _with_path(self, filters: Filters) -> Filters | None:
        """The filters with the folder that a name stands for; no request names a path."""
        if filters.folder is None:
            return None if filters.is_empty else filters
        folder = self.folders.names().get(str(filters.folder))
        if folder is None:
            raise HTTPException(
                400, f"there is no folder “{filters.folder}” in this index: choose another one, or none"
            )
        return replace(filters, folder=folder)

    def _as_json(
        self, hits: list[Hit], vector: np.ndarray | None, filters: Filters | None = None
    ) -> list[dict[str, Any]]:
        """Hits with names in place of paths, with their files, and with a word for each score."""
        files = self.index.files_of([hit.video for hit in hits], filters)
        words = ["said"] * len(hits) if vector is None else self.chance.words(vector, [hit.score for hit in hits])
        key = "" if vector is None else self.asked.keep(vector)
        return [
            asdict(hit)
            | {"path": Path(hit.path).name, "folder": self.folders.of(hit.path), "match": "said" if hit.line else word}
            | {"score": 0.0 if math.isnan(hit.score) else hit.score}
            | {"query": key, "width": file.width, "height": file.height, "changed": file.changed / 1e9}
            for hit, word in zip(hits, words, strict=True)
            if (file := files.get(hit.video)) is not None
        ]


class _Vectors:
    """The vectors of the last searches, by a short key, so that a hit can be looked at again for the same query."""

    def __init__(self) -> None:
        self.lock, self.known = threading.Lock(), dict[str, np.ndarray]()

    def keep(self, vector: np.ndarray) -> str:
        key = hashlib.blake2b(vector.tobytes(), digest_size=8).hexdigest()
        with self.lock:
            self.known[key] = self.known.pop(key, vector)
            while len(self.known) > REMEMBERED_QUERIES:
                del self.known[next(iter(self.known))]
        return key

    def get(self, key: str) -> np.ndarray | None:
        with self.lock:
            return self.known.get(key)


def toy_notice(backbone: str) -> str:
    """A notice for a model that knows no real videos; empty for others."""
    try:
        toy = find_entry(backbone).notice is not None
    except AllocEmbedError:
        return ""
    return TOY.format(name=Path(backbone).name) if toy else ""
