"""Which store an address names, and what is said if there is none."""

import sys

import pytest

from allocembed.errors import ConfigError, MissingDependency
from allocembed.plugins import load_place
from allocembed.search import VideoIndex
from allocembed.search.store import STORES, place_of, store_of


def test_the_scheme_of_an_address_names_its_store():
    lance = store_of("videos.index")
    assert store_of("s3://bucket/a") is lance is store_of("gs://bucket/a") and lance.__name__ == "LanceStore"
    assert {"postgresql", "postgres"} <= STORES.keys() and place_of("s3://bucket/a/") == "s3://bucket/a"


def test_an_address_that_no_store_knows_is_refused_without_its_password():
    for use in (VideoIndex.open, place_of):
        with pytest.raises(
            ConfigError, match=r"cannot use the address ftp://me@host/a: give a path, or .*postgresql://"
        ):
            use("ftp://me:secret@host/a")


def test_a_store_without_its_package_says_how_to_get_it(monkeypatch):
    monkeypatch.delitem(sys.modules, "allocembed.search.store.postgres", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingDependency, match=r"in PostgreSQL needs psycopg: pip install .allocembed.postgres"):
        load_place("allocembed.search.store.postgres:PostgresStore")
