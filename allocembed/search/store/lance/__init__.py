"""An index in LanceDB: tables in a folder or in object storage."""

from allocembed.search.store.lance.store import LanceStore

__all__ = ["LanceStore"]
