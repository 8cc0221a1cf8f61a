"""The contract of stores: LanceDB in a folder and in a bucket, PostgreSQL, and the example of a package of its own."""

from pathlib import Path

import pytest

from allocembed.search.store import STORES
from allocembed.search.store.lance import lease
from allocembed.testing.stores import StoreContract
from tests.postgres import new_schema

PLUGIN = Path(__file__).parents[3] / "examples" / "plugin"


class TestLanceInAFolder(StoreContract):
    @pytest.fixture
    def store_address(self, tmp_path) -> str:
        pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
        return str(tmp_path / "videos.index")


class TestLanceInABucket(StoreContract):
    @pytest.fixture
    def store_address(self, bucket, monkeypatch) -> str:
        monkeypatch.setattr(lease, "LEASE_SECONDS", 1.0)
        return f"{bucket}/videos.index"


class TestPostgres(StoreContract):
    @pytest.fixture
    def store_address(self, postgres) -> str:
        return new_schema(postgres)


class TestTheExample(StoreContract):
    @pytest.fixture
    def store_address(self, tmp_path, monkeypatch) -> str:
        monkeypatch.syspath_prepend(str(PLUGIN))
        from allocembed_plugin.store import SqliteStore

        monkeypatch.setitem(STORES, "sqlite", SqliteStore)
        return f"sqlite://{tmp_path}/videos.db"
