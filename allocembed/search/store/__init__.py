"""Where an index is kept. The scheme of its address names the backend, which an installed package may add.

`base` is the seam. `lance` keeps an index in a folder or in object storage, `postgres` in a database.
"""

import re
from pathlib import Path

from allocembed.errors import ConfigError
from allocembed.plugins import Names
from allocembed.remote.objects import is_remote
from allocembed.search.store.base import (
    INSIDE,
    LARGE,
    SMALL,
    SPEECH,
    EmbeddedSegment,
    FoundLine,
    IndexBusy,
    IndexStore,
    LineStore,
    TextSource,
)

__all__ = [
    "INSIDE",
    "LARGE",
    "SMALL",
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
    "printable_place",
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
        f"cannot use the address {printable_place(str(uri))}: give a path, or one that starts with {schemes}"
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


def printable_place(uri: str) -> str:
    """An address without its password, for messages.

    >>> printable_place("postgresql://me:secret@host/db?schema=a"), printable_place("videos.index")
    ('postgresql://me@host/db?schema=a', 'videos.index')
    >>> printable_place("postgresql://host/db?password=se%cret&schema=a")
    'postgresql://host/db?schema=a'
    """
    if not is_remote(uri):
        return uri
    uri = re.sub(r"(?i)(?<=[?&])(?:ssl)?password=[^&]*&?", "", uri).rstrip("?&")
    return re.sub(r"://([^:/@]*):.*@", r"://\1@", uri)
