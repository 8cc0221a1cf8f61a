"""The contract of stores, on all of ours: LanceDB in a folder and in a bucket, and PostgreSQL."""

import pytest

from allocembed.search.store.lance import lease
from allocembed.testing.stores import StoreContract
from tests.postgres import new_schema


class TestLanceInAFolder(StoreContract):
    @pytest.fixture
    def store_address(self, tmp_path) -> str:
        pytest.importorskip("lancedb", reason="pip install 'allocembed[search]'")
        return str(tmp_path / "videos.index")


class TestLanceInABucket(StoreContract):
    @pytest.fixture
    def store_address(self, bucket, monkeypatch) -> str:
        monkeypatch.setattr(lease, "SECONDS", 1.0)
        return f"{bucket}/videos.index"


class TestPostgres(StoreContract):
    @pytest.fixture
    def store_address(self, postgres) -> str:
        return new_schema(postgres)
