"""Contents that two writers have added at once, as after a kill of one of them: each vector is left once."""

from collections.abc import Iterator

import numpy as np

from allocembed.search.storage import NAMES_AT_ONCE, UNREADABLE, conditions, storage_errors
from allocembed.search.store import EVERYTHING, IndexStore


def drop_doubles(store: IndexStore) -> int:
    """Drop vectors that are there already; return how many. The caller holds the lock of the index."""
    surplus: list[int] = []
    with storage_errors(store.uri, UNREADABLE):
        for condition in conditions("video", _repeated(store)):
            query = store.vectors.search().where(condition).select(["video", "number"]).with_row_id(True)
            kept: set[tuple[str, int]] = set()
            for row in sorted(query.limit(EVERYTHING).to_list(), key=lambda row: row["_rowid"]):
                key = (row["video"], row["number"])
                surplus += [row["_rowid"]] if key in kept else []
                kept.add(key)
    with store.writing():
        for first in range(0, len(surplus), NAMES_AT_ONCE):
            store.vectors.delete(f"_rowid in ({', '.join(map(str, surplus[first : first + NAMES_AT_ONCE]))})")
    return len(surplus)


def _repeated(store: IndexStore) -> list[str]:
    """Contents that have the vector of the whole more than once. In memory, each content takes eight bytes."""
    parts = [np.array([int(name[:16], 16) for name in names], np.uint64) for names in _contents(store)]
    values, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]), return_counts=True)
    wanted = {int(value) for value in values[counts > 1]}
    if not wanted:
        return []
    return sorted({name for names in _contents(store) for name in names if int(name[:16], 16) in wanted})


def _contents(store: IndexStore) -> Iterator[list[str]]:
    query = store.vectors.search().where("number = 0").select(["video"]).limit(EVERYTHING)
    for batch in query.to_batches():
        yield batch["video"].to_pylist()
