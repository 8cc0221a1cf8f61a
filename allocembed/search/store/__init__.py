"""Stores of indexes. The scheme of an index's address names the store, which an installed package may add.

`base` is the seam. `lance` keeps an index in a folder or in object storage, `postgres` in a database.
"""

from pathlib import Path

from allocembed.errors import ConfigError
from allocembed.plugins import Names
from allocembed.remote.objects import is_remote
from allocembed.search.store.base import (
    INSIDE,
    LARGE_COLUMNS,
    SMALL_COLUMNS,
    SPEECH,
    EmbeddedSegment,
    FoundLine,
    IndexBusy,
    IndexStore,
    LineStore,
    TextSource,
)
from allocembed.words import without_passwords

__all__ = [
    "INSIDE",
    "LARGE_COLUMNS",
    "SMALL_COLUMNS",
    "SPEECH",
    "STORES",
    "EmbeddedSegment",
    "FoundLine",
    "IndexBusy",
    "IndexStore",
    "LineStore",
    "TextSource",
    "exists",
    "place_of",
    "store_of",
]

PATH = "path"
_LANCE, _POSTGRES = "allocembed.search.store.lance:LanceStore", "allocembed.search.store.postgres:PostgresStore"
STORES: Names[type[IndexStore]] = Names(
    "allocembed.stores", {PATH: _LANCE, "s3": _LANCE, "gs": _LANCE, "postgresql": _POSTGRES, "postgres": _POSTGRES}
)
"""Backends by the scheme of an address."""


def store_of(uri: str | Path) -> type[IndexStore]:
    """The backend of an address or path. Raise ConfigError if no backend has its scheme."""
    scheme = str(uri).partition("://")[0] if is_remote(str(uri)) else PATH
    if scheme in STORES:
        return STORES[scheme]
    schemes = ", ".join(f"{name}://" for name in sorted(STORES) if name != PATH)
    raise ConfigError(
        f"cannot use the address {without_passwords(str(uri))}: give a path, or one that starts with {schemes}"
    )


def place_of(uri: str | Path) -> str:
    """The place of an index as it is kept: an address has no slash at its end. Raise ConfigError for other schemes.

    >>> place_of("s3://bucket/videos.index/"), place_of(Path("videos.index"))
    ('s3://bucket/videos.index', 'videos.index')
    """
    return store_of(uri).place(str(uri))


def exists(uri: str | Path) -> bool:
    """Whether there is a complete index. For a folder, this needs no LanceDB."""
    uri = place_of(uri)
    return store_of(uri).exists(uri)
