"""Names that installed packages add."""

from importlib.metadata import EntryPoint, EntryPoints

import pytest

from allocembed import plugins
from allocembed.errors import ConfigError
from allocembed.plugins import Names


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Names[type]:
    added = [
        EntryPoint("counter", "collections:Counter", "allocembed.example"),
        EntryPoint("thread", "collections:Counter", "allocembed.example"),
        EntryPoint("broken", "no_such_module:Thing", "allocembed.example"),
    ]
    monkeypatch.setattr(plugins, "installed", lambda: EntryPoints(added))
    return Names("allocembed.example", {"thread": "threading:Thread"})


def test_an_installed_package_adds_a_name(names: Names[type]) -> None:
    assert sorted(names) == ["broken", "counter", "thread"]
    assert names["counter"].__name__ == "Counter"


def test_a_package_cannot_replace_a_name_of_ours(names: Names[type]) -> None:
    assert names["thread"].__name__ == "Thread"


def test_a_program_may_add_and_take_back_a_name_without_a_package(names: Names[type]) -> None:
    names["mine"] = dict
    assert names["mine"] is dict and "mine" in list(names)
    del names["mine"]
    assert "mine" not in names


def test_a_package_that_cannot_be_imported_is_named(names: Names[type]) -> None:
    with pytest.raises(ConfigError, match=r"broken .*no_such_module.*update or uninstall"):
        names["broken"]


def test_an_unknown_name_is_a_key_error(names: Names[type]) -> None:
    with pytest.raises(KeyError):
        names["nothing"]
